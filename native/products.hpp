// Scores of query rows and keys, small matrix products over a tile; mixtures.hpp has those of values.
// Included inside the namespace of an instruction set.
//
// Keys have tokens in lanes and meet one broadcast query element, or pair; values have dims in lanes
// and meet one broadcast weight, or pair. So no sum goes across lanes, and each is made in one order,
// whatever the number of rows. int8 and int4 levels meet queries and weights of 15 bits and a sign:
// 127 * 32767 * 512 stays below 2^31, so these sums are exact.

// With BF16_PAIRS queries are one or two bf16 parts and weights of bf16 values are rounded to bf16.

template <Codec C>
constexpr bool in_integers = C == Codec::int8 || C == Codec::int4;

constexpr int PANEL_VECTORS = PANEL_TOKENS / LANES;
constexpr int REGISTERS = LANES == 16 ? 32 : 16;
constexpr int VALUE_VECTORS = REGISTERS == 32 ? 4 : 2;  // of dims that are summed at a time
constexpr int LEVEL_VECTORS = 2;                        // of them where values are levels

// Rows whose sums stay in registers beside keys or values, a weight and what a compiler needs: one
// sum less there costs less than one that is spilled, since each waits for its last.
constexpr int KEY_ROWS = REGISTERS == 32 ? 12 : 8 / PANEL_VECTORS;
constexpr int VALUE_ROWS = REGISTERS == 32 ? 6 : 4;

// Values are mixed in vectors of 32 bytes at most: a row of int4 is not longer as a rule.
constexpr int WORDS = LANES > 8 ? 8 : LANES;
typedef int32_t W __attribute__((vector_size(WORDS * 4)));
typedef uint32_t UW __attribute__((vector_size(WORDS * 4)));
typedef int16_t SW __attribute__((vector_size(WORDS * 4)));
typedef float FW __attribute__((vector_size(WORDS * 4)));
typedef int16_t I16 __attribute__((vector_size(LANES * 2)));

// Words of 16 bits of two rows side by side, of each 16 bytes the first or the last four.
template <int HALF>
INLINE W paired(W x, W y) {
  typedef int16_t Words __attribute__((vector_size(WORDS * 4)));
  constexpr int n = WORDS * 2, first = HALF * 4;
  return [&]<int... I>(std::integer_sequence<int, I...>) {
    return (W)__builtin_shufflevector((Words)x, (Words)y, (I / 8 * 8 + first + I % 8 / 2 + I % 2 * n)...);
  }(std::make_integer_sequence<int, n>{});
}

// Of each 16 bits the four from 4 * i on.
template <class V>
INLINE V nibbles(V x, int i) {
  typedef uint16_t Words __attribute__((vector_size(sizeof(V))));
  Words shifted = (Words)x >> 4 * i;
  return (V)(i == 3 ? shifted : shifted & 15);
}

// int4's levels in each 16 bits as values from 0 on.
template <class V>
INLINE V raised(V levels) {
#if defined(__AVX512BW__)
  if constexpr (sizeof(V) == 64)
    return (V)_mm512_shuffle_epi8(_mm512_broadcast_i32x4(_mm_load_si128((const __m128i*)INT4_RAISED.at)), (__m512i)levels);
#endif
#if defined(__AVX2__)
  if constexpr (sizeof(V) == 32)
    return (V)_mm256_shuffle_epi8(_mm256_broadcastsi128_si256(_mm_load_si128((const __m128i*)INT4_RAISED.at)), (__m256i)levels);
#endif
  uint16_t values[sizeof(V) / 2];
  store(values, levels);
  for (auto& value : values) value = INT4_RAISED.at[value];
  return load<V>(values);
}

// ---- queries ------------------------------------------------------------------------------------

// 15 bits and a sign of each of n numbers, in the low halves; returns their scale: NaN if one is.
// n is a multiple of 8, and what is beside them up to a whole vector is zero.
INLINE float to_levels(const float* x, int n, int32_t* levels) {
  float largest = largest_magnitude(x, n), inverse = largest > 0 ? 32767.0f / largest : 0.0f;
  bool whole = finite(largest);
  if (!whole || !finite(inverse)) inverse = 0;  // the scale tells; or all are next to zero
  for (int i = 0; i < n; i += LANES) store(levels + i, to_nearest(load<F>(x + i) * inverse));
  return whole ? largest / 32767.0f : __builtin_nanf("");
}

// Words of 32 bits that a query row is taken as: one for each element, or pair of them.
template <Codec C>
INLINE int query_words(int dim, int parts) {
  return in_integers<C> ? dim / 2 : C == Codec::bf16 && BF16_PAIRS ? parts * (dim / 2) : dim;
}

// Those of a row, and its scale. int4: also what its groups' sums begin with, since values are raised.
template <Codec C>
INLINE float prepare_query(const float* x, int dim, int parts, float scale, int32_t* words, int32_t* excess) {
  if constexpr (in_integers<C>) {
    alignas(64) int32_t levels[MAX_DIM];
    scale *= to_levels(x, dim, levels);
    if (C == Codec::int8)
      for (int i = 0; i < dim / 2; ++i) words[i] = (levels[2 * i] & 0xffff) | (levels[2 * i + 1] << 16);
    for (int d = 0, g = 0; C == Codec::int4 && d < dim; g += SPAN_GROUPS) {
      I4 sums = {};
      for (int stop = d + SPAN_DIMS < dim ? d + SPAN_DIMS : dim; d < stop; d += 8) {
        I4 low = load<I4>(levels + d) << 16, high = load<I4>(levels + d + 4) << 16;  // elements j and j + 4 are a pair
        store(words + d / 2, (low >> 16 & 0xffff) | high);
        sums += (low >> 16) + (high >> 16);
      }
      excess[g] = -INT4_RAISE * (sums[0] + sums[1]), excess[g + 1] = -INT4_RAISE * (sums[2] + sums[3]);
    }
    return scale;
  }
  if (C == Codec::bf16 && BF16_PAIRS) {
    auto* halves = reinterpret_cast<uint16_t*>(words);
    for (int d = 0; d < dim; ++d) {
      halves[d] = to_bf16(x[d]);
      if (parts > 1) halves[dim + d] = to_bf16(x[d] - float_of(uint32_t(halves[d]) << 16));
    }
    return scale;
  }
  for (int d = 0; d < dim; ++d) store(words + d, x[d] * scale);
  return 1;
}

// ---- scores -------------------------------------------------------------------------------------

// R rows, their words side by side: [word][R].
struct Queries {
  const int32_t* words;
  const float* scales;
  const int32_t* excess;  // [R][MOST_GROUPS]
  int dim, parts;         // parts of bf16
};

template <Codec C, int R>
INLINE void score_floats(const uint8_t* panel, int64_t stride, const Queries& q, float* scores) {
  constexpr bool pairs = C == Codec::bf16 && BF16_PAIRS;
  constexpr int dims = Unit<C>::dims, halves = C == Codec::bf16 && !pairs ? 2 : 1;
  F sum[R][PANEL_VECTORS] = {};
  const int32_t *words = q.words, *stop = words + q.dim / dims * halves * R;
  for (; words < stop; words += halves * R, panel += stride) {
    for (int half = 0; half < halves; ++half) {
      I key[PANEL_VECTORS];
      for (int v = 0; v < PANEL_VECTORS; ++v) {
        key[v] = load<I>(panel + v * sizeof(I));
        if (halves == 2) key[v] = half ? key[v] & (int32_t)0xffff0000 : key[v] << 16;
      }
      for (int r = 0; r < R; ++r) {
        I word = all(words[half * R + r]);
        for (int v = 0; v < PANEL_VECTORS; ++v)
          sum[r][v] = pairs ? add_bf16_pairs(sum[r][v], key[v], word) : fma((F)word, (F)key[v], sum[r][v]);
      }
      if (!pairs || q.parts < 2) continue;
      for (int r = 0; r < R; ++r) {
        I word = all(words[(stop - q.words) + r]);
        for (int v = 0; v < PANEL_VECTORS; ++v) sum[r][v] = add_bf16_pairs(sum[r][v], key[v], word);
      }
    }
  }
  for (int r = 0; r < R; ++r)
    for (int v = 0; v < PANEL_VECTORS; ++v)
      store(scores + r * TILE_TOKENS + v * LANES, pairs ? sum[r][v] * q.scales[r] : sum[r][v]);
}

// One of the groups of SPAN_DIMS, number `PART`, or all of a row of int8.
template <Codec C, int PART, int R>
INLINE void score_levels(const uint8_t* panel, int64_t stride, const Queries& q, const Scales& scales, int g, int i,
                         float* scores) {
  constexpr int dims = Unit<C>::dims, groups = C == Codec::int4 ? SPAN_GROUPS : 1, pairs = dims / 2 / groups;
  int d = g / groups * SPAN_DIMS, last = C == Codec::int4 && d + SPAN_DIMS < q.dim ? d + SPAN_DIMS : q.dim;
  const int32_t* words = q.words + d / 2 * R;
  const uint8_t *unit = panel + d / dims * stride, *from = scales.at[i] + g * scales.stride;
  I sum[R][PANEL_VECTORS];
  for (int r = 0; r < R; ++r)
    for (int v = 0; v < PANEL_VECTORS; ++v) sum[r][v] = C == Codec::int4 ? all(q.excess[r * MOST_GROUPS + g]) : I{};
#pragma GCC unroll 2
  for (int n = (last - d) / dims; n > 0; --n, words += dims / 2 * R, unit += stride)
    for (int i = PART * pairs; i < (PART + 1) * pairs; ++i) {
      I key[PANEL_VECTORS];
      for (int v = 0; v < PANEL_VECTORS; ++v) {
        if constexpr (C == Codec::int8) key[v] = widen_pairs(unit + v * LANES * 2);
        else key[v] = raised(nibbles(load<I>(unit + v * sizeof(I)), i));
      }
      for (int r = 0; r < R; ++r) {
        I both = all(words[i * R + r]);
        for (int v = 0; v < PANEL_VECTORS; ++v) sum[r][v] = add_pairs(sum[r][v], key[v], both);
      }
    }
  bool is_first = g == 0, is_last = g == scales.n_groups - 1;
  F scale[PANEL_VECTORS];
  for (int v = 0; v < PANEL_VECTORS; ++v) scale[v] = scales_at<C>(from + v * LANES * 2);
  for (int r = 0; r < R; ++r)
    for (int v = 0; v < PANEL_VECTORS; ++v) {
      float* to = scores + r * TILE_TOKENS + v * LANES;
      F score = to_float(sum[r][v]) * scale[v];
      if (!is_first) score += load<F>(to);
      store(to, is_last ? score * q.scales[r] : score);
    }
}

template <Codec C, int R>
INLINE void score_panel(const KeyPanels& keys, int i, const Queries& q, const Scales& scales, float* scores) {
  float* to = scores + i * PANEL_TOKENS;
  auto score_part = [&]<int PART>(int g) { score_levels<C, PART, R>(keys.at[i], keys.stride, q, scales, g, i, to); };
  if constexpr (C == Codec::int8) {
    score_part.template operator()<0>(0);
  } else if constexpr (C == Codec::int4) {
    for (int g = 0; g < scales.n_groups; g += SPAN_GROUPS) {
      score_part.template operator()<0>(g);
      score_part.template operator()<1>(g + 1);
    }
  } else {
    score_floats<C, R>(keys.at[i], keys.stride, q, to);
  }
}
