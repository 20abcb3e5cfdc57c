// Linear layers on panels of weights, from one row to many, for one instruction set.
//
//   per group of panels (their weights stay in cache)
//     per tile of rows:  sums in registers over all inputs, then bias, gate and store
// An element's sum is one accumulator that takes its inputs in order: fp32 and bf16 one by one, in
// pairs where the instruction set multiplies pairs, or 32 at once as amx.hpp says; int8 exactly over
// 256 inputs, then in fp32. So the rows beside it, the panels beside it and the cut change no bit of it.

namespace {

constexpr int VECTORS = PANEL / LANES;  // of a panel

// ---- one step: a vector of weights, against the same inputs of a row -----------------------------

// One kind of step: `W weight(from, v)` is vector v of a panel's weights, `input(from)` what a row has
// for it, and `add` sums their products. Where sums are asked to stay in place the compiler would else
// move them about and run out of registers.

// The even or odd input of a pair, in fp32; weights of fp32 or bf16.
template <Element E, int HALF>
struct OneInput {
  typedef F Sum;
  typedef F W;
  INLINE W weight(const uint8_t* from, int v) {
    if constexpr (E == Element::fp32) return load<F>(from + HALF * 4 * PANEL + v * LANES * 4);
    I both = load<I>(from + v * LANES * 4);
    return (F)(HALF ? both & int32_t(0xffff0000) : both << 16);
  }
  INLINE F input(const uint8_t* from) { return set1(load<float>(from + 4 * HALF)); }
  INLINE void add(F& sum, W w, F x) {
#if defined(__FMA__) && LANES == 8
    asm("vfmadd231ps %2, %1, %0" : "+x"(sum) : "x"(w), "x"(x));
#else
    sum = fma(w, x, sum);
#endif
  }
};

// A pair of bf16 inputs at once.
struct PairOfBf16 {
  typedef F Sum;
  typedef I W;
  INLINE W weight(const uint8_t* from, int v) { return load<I>(from + v * LANES * 4); }
  INLINE int32_t input(const uint8_t* from) { return load<int32_t>(from); }
  INLINE void add(F& sum, W w, int32_t pair) { sum = add_bf16_pairs(sum, w, all(pair)); }
};

// A pair of int16 inputs at once, weights of int8.
struct PairOfInt16 {
  typedef I Sum;
  typedef I W;
  INLINE W weight(const uint8_t* from, int v) { return widen_pairs(from + v * LANES * 2); }
  INLINE int32_t input(const uint8_t* from) { return load<int32_t>(from); }
  INLINE void add(I& sum, W w, int32_t pair) {
#if defined(__AVX2__) && LANES == 8
    I products = add_pairs(I{}, w, all(pair));
    asm("vpaddd %1, %0, %0" : "+x"(sum) : "x"(products));
#else
    sum = add_pairs(sum, w, all(pair));
#endif
  }
};

// ---- tiles: R rows by N panels -------------------------------------------------------------------

// What a tile reads: weights of N panels, `panel` bytes apart, and rows `row` bytes apart. Meanwhile it
// fetches `ahead_lines` lines from `ahead` on, weights that are wanted next.
struct Operands {
  const uint8_t *weights, *rows;
  int64_t panel, row;
  int n_pairs;
  const uint8_t* ahead;
  int64_t ahead_lines;
};

// Fetches evenly over a tile's steps: to the second cache, as the first is too small for a panel.
struct Fetch {
  const uint8_t *at, *stop;
  int64_t lines;  // per call

  INLINE Fetch of(const Operands& o, int n_calls) {
    return {o.ahead, o.ahead + o.ahead_lines * 64, (o.ahead_lines + n_calls - 1) / n_calls};
  }
  inline __attribute__((always_inline)) void some() {
    const uint8_t* end = at + lines * 64 < stop ? at + lines * 64 : stop;
    for (; at < end; at += 64) __builtin_prefetch(at, 0, 2);
  }
};

constexpr int STEP_PAIRS = 64;  // between two fetches, each of which costs some moves between registers

#define EACH_SUM                                             \
  _Pragma("GCC unroll 8") for (int r = 0; r < R; ++r)        \
  _Pragma("GCC unroll 4") for (int n = 0; n < N; ++n)        \
  _Pragma("GCC unroll 4") for (int v = 0; v < VECTORS; ++v)
#define EACH_WEIGHT                                          \
  _Pragma("GCC unroll 4") for (int n = 0; n < N; ++n)        \
  _Pragma("GCC unroll 4") for (int v = 0; v < VECTORS; ++v)

// Each weight with each row's input: one of the two is held, whichever takes fewer registers.
template <class S, int R, int N>
INLINE void add_products(typename S::Sum (&acc)[R][N][VECTORS], const Operands& o, const uint8_t* weights,
                         const uint8_t* rows) {
  if constexpr (R < N) {
    EACH_WEIGHT {
      typename S::W w = S::weight(weights + n * o.panel, v);
#pragma GCC unroll 8
      for (int r = 0; r < R; ++r) S::add(acc[r][n][v], w, S::input(rows + r * o.row));
    }
  } else {
    typename S::W w[N][VECTORS];
    EACH_WEIGHT w[n][v] = S::weight(weights + n * o.panel, v);
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
      auto x = S::input(rows + r * o.row);
      EACH_WEIGHT S::add(acc[r][n][v], w[n][v], x);
    }
  }
}

template <Element E, int R, int N>
void sum_floats(const Operands& o, float* sums) {
  constexpr bool pairs = E == Element::bf16 && BF16_PAIRS;
  constexpr int weight_bytes = E == Element::fp32 ? 8 * PANEL : 4 * PANEL, row_bytes = pairs ? 4 : 8;
  F acc[R][N][VECTORS];
  EACH_SUM acc[r][n][v] = F{};
  Fetch fetch = Fetch::of(o, (o.n_pairs + STEP_PAIRS - 1) / STEP_PAIRS);
  const uint8_t *weights = o.weights, *rows = o.rows;
  for (int pair = 0; pair < o.n_pairs;) {
    fetch.some();
    int stop = pair + STEP_PAIRS < o.n_pairs ? pair + STEP_PAIRS : o.n_pairs;
    for (; pair < stop; ++pair, weights += weight_bytes, rows += row_bytes) {
      if constexpr (pairs) {
        add_products<PairOfBf16, R, N>(acc, o, weights, rows);
      } else {
        add_products<OneInput<E, 0>, R, N>(acc, o, weights, rows);
        // The other half is loaded again: beside many sums there are no registers to hold it.
        const uint8_t* again = weights;
        if constexpr (E == Element::bf16 && R * N * VECTORS > 8) asm("" : "+r"(again));
        add_products<OneInput<E, 1>, R, N>(acc, o, again, rows);
      }
    }
  }
  EACH_SUM store(sums + (r * N + n) * PANEL + v * LANES, acc[r][n][v]);
}

template <int R, int N>
void sum_levels(const Operands& o, float* sums) {
  EACH_SUM store(sums + (r * N + n) * PANEL + v * LANES, F{});
  Fetch fetch = Fetch::of(o, (o.n_pairs + STEP_PAIRS - 1) / STEP_PAIRS);
  const uint8_t* weights = o.weights;
  const uint8_t* rows = o.rows;
  const uint8_t* scales = o.rows + (4 * o.n_pairs + 63) / 64 * 64;
  for (int pair = 0; pair < o.n_pairs; scales += 4) {
    I acc[R][N][VECTORS];
    EACH_SUM acc[r][n][v] = I{};
    int segment_stop = pair + SEGMENT / 2 < o.n_pairs ? pair + SEGMENT / 2 : o.n_pairs;
    while (pair < segment_stop) {
      fetch.some();
      int stop = pair + STEP_PAIRS < segment_stop ? pair + STEP_PAIRS : segment_stop;
      for (; pair < stop; ++pair, weights += 2 * PANEL, rows += 4) {
        add_products<PairOfInt16, R, N>(acc, o, weights, rows);
      }
    }
    EACH_SUM {
      float* to = sums + (r * N + n) * PANEL + v * LANES;
      store(to, fma(to_float(acc[r][n][v]), set1(load<float>(scales + r * o.row)), load<F>(to)));
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
      F capped = select(x < set1(-88.0f), set1(-88.0f), x);  // nothing is left of it down there
      return capped / (1.0f + exp(-capped));
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

// As many panels as leave their sums in registers beside the weights.
constexpr int most_panels(int rows) {
  int n = MOST_SUMS / (rows * VECTORS);
  return n < 1 ? 1 : n > STREAMS ? STREAMS : n;
}

constexpr int64_t BLOCK_BYTES = 192 << 10;  // of rows that stay in the second cache

// A product in tiles. Rows [row_start, row_stop) are cut into `n_tiles` that differ by a row at most.
struct Tiles {
  const Product& product;
  int row_start, row_stop, n_tiles, panel_stop;
  int64_t panel, row;  // bytes

  int first_row(int tile) const { return row_start + int(int64_t(row_stop - row_start) * tile / n_tiles); }
};

template <Element E, int R, int N>
void multiply_tile(const Tiles& t, int tile, int panel) {
  alignas(64) float sums[R * N * PANEL], gates[R * N * PANEL];
  int row = t.first_row(tile), inputs = t.product.matrix->inputs;
  // The weights of the next panels are fetched meanwhile, by each tile a part. A single tile streams
  // as fast as its panels arrive: what the processor itself fetches is faster then, on several streams.
  int64_t lines = (t.panel_stop - panel - N < N ? t.panel_stop - panel - N : N) * t.panel / 64;
  if (!(t.n_tiles > 1 || (E == Element::int8 && N == 1))) lines = 0;
  int64_t from = lines * tile / t.n_tiles, to = lines * (tile + 1) / t.n_tiles;
  auto sum = [&](const Matrix& of, float* sums) {
    const uint8_t* weights = of.panels + panel * t.panel;
    Operands o{weights, t.product.operand + row * t.row, t.panel, t.row, (inputs + 1) / 2,
               weights + N * t.panel + from * 64, to - from};
    if constexpr (E == Element::int8) sum_levels<R, N>(o, sums);
    else sum_floats<E, R, N>(o, sums);
  };
  sum(*t.product.matrix, sums);
  if (t.product.gate) sum(*t.product.gate, gates);
  finish_tile(t.product, sums, t.product.gate ? gates : nullptr, row, R, panel, N);
}

template <Element E, int R, int N>
void multiply_rows(const Tiles& t, int tile, int panel) {
  if constexpr (R > 1) {
    if (t.first_row(tile + 1) - t.first_row(tile) < R) return multiply_rows<E, R - 1, N>(t, tile, panel);
  }
  multiply_tile<E, R, N>(t, tile, panel);
}

// All rows, in tiles of R at most, by panels: N of them at once, and fewer at the end.
template <Element E, int R, int N>
void multiply_panels(const Tiles& t, int panel) {
  for (; panel + N <= t.panel_stop; panel += N)
    for (int tile = 0; tile < t.n_tiles; ++tile) multiply_rows<E, R, N>(t, tile, panel);
  if constexpr (N > 1) multiply_panels<E, R, N / 2>(t, panel);
}

template <Element E, int R>
void multiply_few(const Tiles& t, int panel, int n_rows) {
  if constexpr (R > 1) {
    if (n_rows < R) return multiply_few<E, R - 1>(t, panel, n_rows);
  }
  multiply_panels<E, R, most_panels(R)>(t, panel);
}

// Rows in blocks that stay in the second cache while panel after panel passes.
template <Element E>
void multiply_element(const Product& p, int row_start, int row_stop, int panel_start, int panel_stop) {
  const Matrix& m = *p.matrix;
  int64_t panel = panel_bytes(E, m.inputs), row = operand_bytes(E, m.inputs);
  int n_rows = row_stop - row_start, n_blocks = int((n_rows * row + BLOCK_BYTES - 1) / BLOCK_BYTES);
  int block = (n_rows + n_blocks - 1) / n_blocks;
  block = (block + TILE_ROWS - 1) / TILE_ROWS * TILE_ROWS;
  for (int start = row_start; start < row_stop; start += block) {
    int stop = start + block < row_stop ? start + block : row_stop;
    Tiles t{p, start, stop, (stop - start + TILE_ROWS - 1) / TILE_ROWS, panel_stop, panel, row};
    multiply_few<E, TILE_ROWS>(t, panel_start, stop - start);
  }
}

#if AMX
// bf16 of M x 16 rows by N panels. Inputs beyond the last whole register are met by zeros.
template <int M, int N>
void multiply_in_registers(const Product& p, Registers& registers, int row, int n_rows, int panel) {
  alignas(64) float sums[M * REGISTER_ROWS * N * PANEL], gates[M * REGISTER_ROWS * N * PANEL];
  alignas(64) uint8_t rest[N][REGISTER_ROWS * REGISTER_BYTES];
  int inputs = p.matrix->inputs, n_steps = inputs / REGISTER_INPUTS;
  int64_t row_bytes = operand_bytes(Element::bf16, inputs), of_panel = panel_bytes(Element::bf16, inputs);
  constexpr int64_t step_bytes = REGISTER_ROWS * REGISTER_BYTES, stride = N * PANEL * sizeof(float);
  shape_rows<M>(registers, n_rows);
  auto sum = [&](const Matrix& of, float* to) {
    RegisterOperands<N> o{p.operand + row * row_bytes, row_bytes, {}, REGISTER_BYTES, n_steps};
    for (int n = 0; n < N; ++n) o.b[n] = of.panels + (panel + n) * of_panel;
    sum_in_registers<M, N>(registers, o, to, stride, false);
    int64_t done = n_steps * step_bytes, left = of_panel - done;
    if (!left) return;
    for (int n = 0; n < N; ++n) {
      __builtin_memset(rest[n], 0, step_bytes);
      __builtin_memcpy(rest[n], o.b[n] + done, left);
      o.b[n] = rest[n];
    }
    o.a += n_steps * REGISTER_BYTES, o.n_steps = 1;
    sum_in_registers<M, N>(registers, o, to, stride, true);
  };
  sum(*p.matrix, sums);
  if (p.gate) sum(*p.gate, gates);
  finish_tile(p, sums, p.gate ? gates : nullptr, row, n_rows, panel, N);
}

template <int M, int N>
void multiply_panels_in_registers(const Product& p, Registers& registers, int row_start, int row_stop, int panel,
                                  int panel_stop) {
  for (; panel + N <= panel_stop; panel += N)
    for (int row = row_start; row < row_stop; row += M * REGISTER_ROWS) {
      int n_rows = row_stop - row < M * REGISTER_ROWS ? row_stop - row : M * REGISTER_ROWS;
      if (n_rows > REGISTER_ROWS) multiply_in_registers<M, N>(p, registers, row, n_rows, panel);
      else multiply_in_registers<1, N>(p, registers, row, n_rows, panel);
    }
  if constexpr (N > 1) multiply_panels_in_registers<M, N / 2>(p, registers, row_start, row_stop, panel, panel_stop);
}

template <>
void multiply_element<Element::bf16>(const Product& p, int row_start, int row_stop, int panel_start, int panel_stop) {
  Registers registers;
  bool few = row_stop - row_start <= REGISTER_ROWS;
  auto multiply = few ? multiply_panels_in_registers<1, STREAMS> : multiply_panels_in_registers<2, 2>;
  multiply(p, registers, row_start, row_stop, panel_start, panel_stop);
}
#endif

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
    float scale = largest_magnitude(row + start, stop - start) / 32767.0f, inverse = scale > 0 ? 1.0f / scale : 0.0f;
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
    constexpr int whole = AMX ? REGISTER_INPUTS : 2;  // inputs are taken so many at once
    for (int i = inputs; i % whole; ++i) store(to + 2 * i, uint16_t(0));
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
