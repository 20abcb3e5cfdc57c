// Linear layers on panels of weights, from one row to many, for one instruction set.
//
//   per group of panels (their weights stay in cache)
//     per tile of rows:  sums in registers over all inputs, then bias, gate and store
// An element's sum is one accumulator that takes its inputs in order: fp32 and bf16 one by one, or in
// pairs where the instruction set multiplies pairs; int8 exactly over 256 inputs, then in fp32. So
// the rows beside it, the panels beside it and the cut change no bit of it.

namespace {

typedef uint16_t U16x2 __attribute__((vector_size(LANES * 4)));
typedef int16_t I16x2 __attribute__((vector_size(LANES * 4)));
typedef int8_t I8x2 __attribute__((vector_size(LANES * 2)));
typedef int32_t P __attribute__((vector_size(LANES * 4)));  // LANES pairs

constexpr int VECTORS = PANEL / LANES;  // of a panel

// ---- one step: a vector of weights of two inputs, against those of a row -------------------------

INLINE int32_t pair_at(const uint8_t* row, int pair) { return load<int32_t>(row + 4 * pair); }

// a + even products + odd products, of bf16 pairs.
INLINE F dot_bf16(F a, P weights, int32_t pair) {
#if defined(__AVX512BF16__) && LANES == 16
  return (F)_mm512_dpbf16_ps((__m512)a, (__m512bh)weights, (__m512bh)_mm512_set1_epi32(pair));
#else
  a = fma((F)(weights & int32_t(0xffff0000)), set1(float_of(uint32_t(pair) & 0xffff0000u)), a);
  return fma((F)(weights << 16), set1(float_of(uint32_t(pair) << 16)), a);
#endif
}

INLINE P widen_pairs(const uint8_t* from) {
#if defined(__AVX512BW__) && LANES == 16
  return (P)_mm512_cvtepi8_epi16(_mm256_loadu_si256((const __m256i*)from));
#elif defined(__AVX2__) && LANES == 8
  return (P)_mm256_cvtepi8_epi16(_mm_loadu_si128((const __m128i*)from));
#else
  return (P)__builtin_convertvector(load<I8x2>(from), I16x2);
#endif
}

INLINE I dot_int16(I a, P weights, int32_t pair) {
#if defined(__AVX512VNNI__) && LANES == 16
  return (I)_mm512_dpwssd_epi32((__m512i)a, (__m512i)weights, _mm512_set1_epi32(pair));
#elif defined(__AVX512BW__) && LANES == 16
  return a + (I)_mm512_madd_epi16((__m512i)weights, _mm512_set1_epi32(pair));
#elif defined(__AVX2__) && LANES == 8
  return a + (I)_mm256_madd_epi16((__m256i)weights, _mm256_set1_epi32(pair));
#else
  return a + ((weights << 16) >> 16) * int32_t(int16_t(pair)) + (weights >> 16) * (pair >> 16);
#endif
}

// ---- tiles: R rows by N panels -------------------------------------------------------------------

// What a tile reads: the weights of its panels from `weights` on, `panel` bytes apart.
struct TileOf {
  const uint8_t *weights, *rows;
  int64_t panel, row;
  int inputs;
};

#define EACH_SUM                                             \
  _Pragma("GCC unroll 8") for (int r = 0; r < R; ++r)        \
  _Pragma("GCC unroll 4") for (int n = 0; n < N; ++n)        \
  _Pragma("GCC unroll 4") for (int v = 0; v < VECTORS; ++v)
#define EACH_WEIGHT                                          \
  _Pragma("GCC unroll 4") for (int n = 0; n < N; ++n)        \
  _Pragma("GCC unroll 4") for (int v = 0; v < VECTORS; ++v)

template <Element E, int R, int N>
void sum_floats(const TileOf& t, float* sums) {
  F acc[R][N][VECTORS];
  EACH_SUM acc[r][n][v] = F{};
  const uint8_t* weights = t.weights;
  for (int pair = 0; pair < (t.inputs + 1) / 2; ++pair) {
    if constexpr (E == Element::fp32) {
#pragma GCC unroll 2
      for (int half = 0; half < 2; ++half) {
        EACH_SUM {
          float x = load<float>(t.rows + r * t.row + (2 * pair + half) * 4);
          acc[r][n][v] = fma(load<F>(weights + n * t.panel + half * 64 + v * LANES * 4), set1(x), acc[r][n][v]);
        }
      }
      weights += 128;
    } else {
      P w[N][VECTORS];
      EACH_WEIGHT w[n][v] = load<P>(weights + n * t.panel + v * LANES * 4);
#if BF16_PAIRS
      EACH_SUM acc[r][n][v] = dot_bf16(acc[r][n][v], w[n][v], pair_at(t.rows + r * t.row, pair));
#else
      EACH_SUM acc[r][n][v] =
          fma((F)(w[n][v] << 16), set1(load<float>(t.rows + r * t.row + 8 * pair)), acc[r][n][v]);
      EACH_SUM acc[r][n][v] = fma((F)(w[n][v] & int32_t(0xffff0000)),
                                  set1(load<float>(t.rows + r * t.row + 8 * pair + 4)), acc[r][n][v]);
#endif
      weights += 64;
    }
  }
  EACH_SUM store(sums + (r * N + n) * PANEL + v * LANES, acc[r][n][v]);
}

template <int R, int N>
void sum_levels(const TileOf& t, float* sums) {
  EACH_SUM store(sums + (r * N + n) * PANEL + v * LANES, F{});
  int n_pairs = (t.inputs + 1) / 2;
  const uint8_t* scales = t.rows + (4 * n_pairs + 63) / 64 * 64;
  for (int pair = 0; pair < n_pairs; scales += 4) {
    I acc[R][N][VECTORS];
    EACH_SUM acc[r][n][v] = I{};
    int stop = pair + SEGMENT / 2 < n_pairs ? pair + SEGMENT / 2 : n_pairs;
    const uint8_t* weights = t.weights + pair * 32;
    for (; pair < stop; ++pair, weights += 32) {
      P w[N][VECTORS];
      EACH_WEIGHT w[n][v] = widen_pairs(weights + n * t.panel + v * LANES * 2);
      EACH_SUM acc[r][n][v] = dot_int16(acc[r][n][v], w[n][v], pair_at(t.rows + r * t.row, pair));
    }
    EACH_SUM {
      float* to = sums + (r * N + n) * PANEL + v * LANES;
      store(to, fma(to_float(acc[r][n][v]), set1(load<float>(scales + r * t.row)), load<F>(to)));
    }
  }
}

#undef EACH_SUM
#undef EACH_WEIGHT

// ---- what becomes of sums ------------------------------------------------------------------------

// Gauss's integral, Abramowitz and Stegun 7.1.26: within 1.5e-7. From the tail's side, so that small
// results keep their digits.
INLINE F gelu(F x) {
  F z = (F)((I)x & 0x7fffffff) * 0.70710678f;
  F t = 1.0f / fma(z, set1(0.3275911f), set1(1.0f));
  F p = set1(1.061405429f);
  p = fma(p, t, set1(-1.453152027f));
  p = fma(p, t, set1(1.421413741f));
  p = fma(p, t, set1(-0.284496736f));
  p = fma(p, t, set1(0.254829592f));
  F tail = p * t * exp(-z * z);
  return 0.5f * x * select(x < F{}, tail, 2.0f - tail);
}

INLINE F activate(Activation a, F x) {
  switch (a) {
    case Activation::silu: {
      F negative = select(x < set1(-88.0f), set1(88.0f), -x);
      return x / (1.0f + exp(negative));
    }
    case Activation::gelu_tanh: return 0.5f * x * (1.0f + tanh(0.79788456f * fma(x * x * x, set1(0.044715f), x)));
    case Activation::gelu: return gelu(x);
    default: return x;
  }
}

// LANES floats from the `left` that are there.
INLINE F load_some(const float* from, int left) {
  if (left >= LANES) return load<F>(from);
  float lanes[LANES] = {};
  for (int i = 0; i < left; ++i) lanes[i] = from[i];
  return load<F>(lanes);
}

INLINE F whole_sum(const Matrix& m, F sum, int output) {
  if (m.scales) sum *= load<F>(m.scales + output);
  if (m.bias) sum += load_some(m.bias + output, m.outputs - output);
  return sum;
}

// [rows, panels, 16] sums to the result; those of the gate, if there is one, lie beside.
void finish_tile(const Product& p, const float* sums, const float* gates, int row, int n_rows, int panel,
                 int n_panels) {
  const Matrix& m = *p.matrix;
  for (int r = 0; r < n_rows; ++r) {
    for (int i = 0; i < n_panels * PANEL; i += LANES) {
      int output = panel * PANEL + i, left = m.outputs - output, at = r * n_panels * PANEL + i;
      if (left <= 0) break;
      float* to = p.result + (row + r) * p.result_stride + output;
      F value = whole_sum(m, load<F>(sums + at), output);
      if (gates) value *= activate(p.activation, whole_sum(*p.gate, load<F>(gates + at), output));
      if (p.add) value += load_some(to, left);
      if (left >= LANES) {
        store(to, value);
      } else {
        float lanes[LANES];
        store(lanes, value);
        for (int lane = 0; lane < left; ++lane) to[lane] = lanes[lane];
      }
    }
  }
}

// ---- products ------------------------------------------------------------------------------------

template <Element E, int R, int N>
void multiply_tile(const Product& p, int row, int panel) {
  alignas(64) float sums[R * N * PANEL], gates[R * N * PANEL];
  const Matrix& m = *p.matrix;
  int64_t bytes = panel_bytes(E, m.inputs), row_bytes = operand_bytes(E, m.inputs);
  auto sum = [&](const Matrix& of, float* to) {
    TileOf t{of.panels + panel * bytes, p.operand + row * row_bytes, bytes, row_bytes, m.inputs};
    if constexpr (E == Element::int8) sum_levels<R, N>(t, to);
    else sum_floats<E, R, N>(t, to);
  };
  sum(m, sums);
  if (p.gate) sum(*p.gate, gates);
  finish_tile(p, sums, p.gate ? gates : nullptr, row, R, panel, N);
}

template <Element E>
void multiply_element(const Product& p, int row_start, int row_stop, int panel_start, int panel_stop) {
  for (int panel = panel_start; panel < panel_stop; ++panel) {
    for (int row = row_start; row < row_stop;) {
      int left = row_stop - row;
      if (left >= 6) multiply_tile<E, 6, 1>(p, row, panel), row += 6;
      else multiply_tile<E, 1, 1>(p, row, panel), row += 1;
    }
  }
}

void multiply(const Product& p, int row_start, int row_stop, int panel_start, int panel_stop) {
  switch (p.matrix->element) {
    case Element::fp32: return multiply_element<Element::fp32>(p, row_start, row_stop, panel_start, panel_stop);
    case Element::bf16: return multiply_element<Element::bf16>(p, row_start, row_stop, panel_start, panel_stop);
    case Element::int8: return multiply_element<Element::int8>(p, row_start, row_stop, panel_start, panel_stop);
  }
}

// ---- rows in and out -----------------------------------------------------------------------------

void prepare_levels(const float* row, int inputs, uint8_t* to) {
  int n_pairs = (inputs + 1) / 2;
  uint8_t* scales = to + (4 * n_pairs + 63) / 64 * 64;
  for (int start = 0; start < inputs; start += SEGMENT, scales += 4) {
    int stop = start + SEGMENT < inputs ? start + SEGMENT : inputs;
    uint32_t most = 0;
    for (int i = start; i < stop; ++i) {
      uint32_t bits = bits_of(row[i]) & 0x7fffffff;
      most = bits > most ? bits : most;  // NaN is above inf
    }
    float scale = float_of(most) / 32767.0f, inverse = scale > 0 ? 1.0f / scale : 0.0f;
    for (int i = start; i < stop; ++i) store(to + 2 * i, int16_t(level(row[i] * inverse, -32767, 32767)));
    store(scales, finite(scale) ? scale : __builtin_nanf(""));
  }
  if (inputs % 2) store(to + 2 * inputs, int16_t(0));
}

void prepare(const float* row, int inputs, Element element, uint8_t* to) {
  if (element == Element::int8) return prepare_levels(row, inputs, to);
#if BF16_PAIRS
  if (element == Element::bf16) {
    for (int i = 0; i < inputs; ++i) store(to + 2 * i, to_bf16(row[i]));
    if (inputs % 2) store(to + 2 * inputs, uint16_t(0));
    return;
  }
#endif
  __builtin_memcpy(to, row, inputs * sizeof(float));
  if (inputs % 2) store(to + 4 * inputs, 0.0f);
}

void unpack_row(const Matrix& m, int output, float* to) {
  int lane = output % PANEL;
  const uint8_t* panel = m.panels + output / PANEL * panel_bytes(m.element, m.inputs);
  for (int i = 0; i < m.inputs; ++i) {
    int place = i / 2 * 2 * PANEL + 2 * lane + i % 2;
    if (m.element == Element::fp32) to[i] = load<float>(panel + 4 * (i * PANEL + lane));
    else if (m.element == Element::bf16) to[i] = float_of(uint32_t(load<uint16_t>(panel + 2 * place)) << 16);
    else to[i] = float(int8_t(panel[place])) * m.scales[output];
  }
}

}  // namespace
