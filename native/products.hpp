// Scores of query rows and keys, and mixtures of values: small matrix products over a tile.
// Included inside the namespace of an instruction set.
//
// Keys have tokens in lanes and meet one broadcast query element, or pair; values have dims in lanes
// and meet one broadcast weight, or pair. So no sum goes across lanes, and each is made in one order,
// whatever the number of rows. int8 and int4 levels meet queries and weights of 15 bits and a sign:
// 127 * 32767 * 512 stays below 2^31, so these sums are exact.

// With BF16_PAIRS queries are one or two bf16 parts and weights of bf16 values are rounded to bf16.

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

// The low, or the high, halves of the 32 bits of two vectors, side by side.
INLINE W low_halves(W x, W y) {
#if defined(__AVX2__)
  return (W)_mm256_blend_epi16((__m256i)x, (__m256i)(y << 16), 0xaa);
#else
  return (x & 0xffff) | (y << 16);
#endif
}

INLINE W high_halves(W x, W y) {
#if defined(__AVX2__)
  return (W)_mm256_blend_epi16((__m256i)((UW)x >> 16), (__m256i)y, 0xaa);
#else
  return (W)((UW)x >> 16) | (y & (int32_t)0xffff0000);
#endif
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

template <Codec C>
constexpr bool in_integers = C == Codec::int8 || C == Codec::int4;

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

// Those of a row, and its scale. int4: also what its groups' sums are too large by, since values are
// raised.
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
      excess[g] = INT4_RAISE * (sums[0] + sums[1]), excess[g + 1] = INT4_RAISE * (sums[2] + sums[3]);
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
INLINE void score_levels(const uint8_t* panel, int64_t stride, const Queries& q, const Levels& levels, int g, int token,
                         float* scores) {
  constexpr int dims = Unit<C>::dims, groups = C == Codec::int4 ? SPAN_GROUPS : 1, pairs = dims / 2 / groups;
  int d = g / groups * SPAN_DIMS, last = C == Codec::int4 && d + SPAN_DIMS < q.dim ? d + SPAN_DIMS : q.dim;
  const int32_t *words = q.words + d / 2 * R, *stop = q.words + last / 2 * R;
  const uint8_t* unit = panel + d / dims * stride;
  I sum[R][PANEL_VECTORS] = {};
#pragma GCC unroll 2
  for (; words < stop; words += dims / 2 * R, unit += stride)
    for (int i = PART * pairs; i < (PART + 1) * pairs; ++i) {
      I key[PANEL_VECTORS];
      for (int v = 0; v < PANEL_VECTORS; ++v) {
        if constexpr (C == Codec::int8) key[v] = widen_pairs(unit + v * LANES * 2);
        else key[v] = raised((I)(load<U>(unit + v * sizeof(I)) >> 4 * i) & 0x000f000f);
      }
      for (int r = 0; r < R; ++r) {
        I both = all(words[i * R + r]);
        for (int v = 0; v < PANEL_VECTORS; ++v) sum[r][v] = add_pairs(sum[r][v], key[v], both);
      }
    }
  for (int r = 0; r < R; ++r)
    for (int v = 0; v < PANEL_VECTORS; ++v) {
      float* to = scores + r * TILE_TOKENS + v * LANES;
      if (C == Codec::int4) sum[r][v] -= all(q.excess[r * MOST_GROUPS + g]);
      F score = to_float(sum[r][v]) * q.scales[r] * load<F>(levels.scales[g] + token + v * LANES);
      store(to, g ? load<F>(to) + score : score);
    }
}

template <Codec C, int R>
INLINE void score_panel(const KeyPanels& keys, int i, const Queries& q, const Levels& levels, float* scores) {
  float* to = scores + i * PANEL_TOKENS;
  auto score_part = [&]<int PART>(int g) {
    score_levels<C, PART, R>(keys.at[i], keys.stride, q, levels, g, i * PANEL_TOKENS, to);
  };
  if constexpr (C == Codec::int8) {
    score_part.template operator()<0>(0);
  } else if constexpr (C == Codec::int4) {
    for (int g = 0; g < levels.n_groups; g += SPAN_GROUPS) {
      score_part.template operator()<0>(g);
      score_part.template operator()<1>(g + 1);
    }
  } else {
    score_floats<C, R>(keys.at[i], keys.stride, q, to);
  }
}

// ---- mixtures -----------------------------------------------------------------------------------

// Dims of a chunk, which is what one load of values holds, and vectors of fp32 that it becomes. Dim
// a * vectors + v of a chunk is summed in lane a of vector v.
template <Codec C>
struct Chunk {
  static constexpr int lanes = in_integers<C> ? WORDS : LANES;
  static constexpr int vectors = C == Codec::int8 ? 4 : C == Codec::int4 ? 8 : C == Codec::bf16 ? 2 : 1;
  static constexpr int dims = lanes * vectors;
  static int place(int dim) { return dim / dims * dims + dim % vectors * lanes + dim % dims / vectors; }
};

// Weights of R rows of the tile, as the product takes them.
template <Codec C, int R>
struct Weights {
  const float* floats;                                                   // [R][TILE_TOKENS]
  alignas(64) int16_t halves[in_integers<C> || BF16_PAIRS ? R : 1][TILE_TOKENS];  // 15 bits, or bf16
  float factors[R];                                                      // of the 15 bits
  int32_t excess[R];                                                     // of sums of int4's raised values
};

template <Codec C, int R>
INLINE void prepare_weights(Weights<C, R>& w, const float* scales) {
  for (int r = 0; r < R; ++r) {
    const float* from = w.floats + r * TILE_TOKENS;
    if constexpr (in_integers<C>) {
      alignas(64) float scaled[TILE_TOKENS];
      F most = {}, total = {};
      for (int i = 0; i < TILE_TOKENS; i += LANES) {
        F weight = load<F>(from + i);
        F x = (F)((I)(weight * load<F>(scales + i)) & (weight != 0.0f));  // what is not seen may hold NaN
        most = larger(x, most), total += x;  // NaN is in the sum alone
        store(scaled + i, x);
      }
      float largest_weight = largest(most), all_weights = sum(total);
      bool whole = finite(largest_weight) && all_weights == all_weights;
      float inverse = largest_weight > 0 && whole ? 32767.0f / largest_weight : 0.0f;
      if (!finite(inverse)) inverse = 0;
      w.factors[r] = whole ? largest_weight / 32767.0f : __builtin_nanf("");
      I sums = {};
      for (int i = 0; i < TILE_TOKENS; i += LANES) {
        I level = to_nearest(load<F>(scaled + i) * inverse);
        sums += level;
        store(w.halves[r] + i, __builtin_convertvector(level, I16));
      }
      if (C == Codec::int4) w.excess[r] = INT4_RAISE * int32_t(sum(to_float(sums)));
    } else if constexpr (C == Codec::bf16 && BF16_PAIRS) {  // they are bf16 already
      for (int i = 0; i < TILE_TOKENS; i += LANES)
        store(w.halves[r] + i, __builtin_convertvector((I)((U)load<F>(from + i) >> 16), I16));
    }
  }
}

alignas(64) constexpr uint8_t ZEROS[MAX_DIM * 2] = {};  // a row that is not there

// Calls `use(token, row, tokens)` for tokens [start, stop), with the row's address, panel by panel.
template <class Use>
INLINE void each_panel(const ValueRows& values, int start, int stop, int64_t byte, Ahead* ahead, int n_lines, Use use) {
  for (int i = start, next; i < stop; i = next) {
    next = (i / PANEL_TOKENS + 1) * PANEL_TOKENS < stop ? (i / PANEL_TOKENS + 1) * PANEL_TOKENS : stop;
    if (ahead) ahead->take(n_lines);
    use(i, values.at[i / PANEL_TOKENS] + i % PANEL_TOKENS * values.stride + byte, next);
  }
}

// acc += weights x values, over tokens [start, stop) and one chunk's dims: `acc` and `chunk` are the
// chunk's. `n_lines`: of memory that 16 rows take.
template <Codec C, int R>
INLINE void mix_floats(const ValueRows& values, int start, int stop, const Weights<C, R>& w, int chunk, int stride,
                       float* acc, Ahead* ahead, int n_lines) {
  constexpr bool pairs = C == Codec::bf16 && BF16_PAIRS;
  constexpr int loads = VALUE_VECTORS / Chunk<C>::vectors;
  F sum[R][VALUE_VECTORS];
  for (int r = 0; r < R; ++r)
    for (int v = 0; v < VALUE_VECTORS; ++v) sum[r][v] = load<F>(acc + r * stride + v * LANES);
  each_panel(values, pairs ? start & ~1 : start, stop, int64_t(chunk) * sizeof(I), ahead, n_lines,
             [&](int i, const uint8_t* row, int next) {
    if constexpr (pairs) {
      for (; i < next; i += 2, row += 2 * values.stride) {
        // What is beside the span may be anything, and nothing times NaN is NaN.
        const uint8_t *first = i < start ? ZEROS : row, *second = i + 1 < stop ? row + values.stride : ZEROS;
        for (int l = 0; l < loads; ++l) {
          I x = load<I>(first + l * sizeof(I)), y = load<I>(second + l * sizeof(I));
          I even = (x & 0xffff) | (y << 16), odd = (I)((U)x >> 16) | (y & (int32_t)0xffff0000);
          for (int r = 0; r < R; ++r) {
            I weight = all(load<int32_t>(w.halves[r] + i));
            sum[r][2 * l] = add_bf16_pairs(sum[r][2 * l], even, weight);
            sum[r][2 * l + 1] = add_bf16_pairs(sum[r][2 * l + 1], odd, weight);
          }
        }
      }
    } else {
      for (; i < next; ++i, row += values.stride)
        for (int l = 0; l < loads; ++l) {
          I x = load<I>(row + l * sizeof(I));
          for (int r = 0; r < R; ++r) {
            F weight = set1(w.floats[r * TILE_TOKENS + i]);
            if constexpr (C == Codec::bf16) {
              sum[r][2 * l] = fma(weight, (F)(x << 16), sum[r][2 * l]);
              sum[r][2 * l + 1] = fma(weight, (F)(x & (int32_t)0xffff0000), sum[r][2 * l + 1]);
            } else {
              sum[r][l] = fma(weight, (F)x, sum[r][l]);
            }
          }
        }
    }
  });
  for (int r = 0; r < R; ++r)
    for (int v = 0; v < VALUE_VECTORS; ++v) store(acc + r * stride + v * LANES, sum[r][v]);
}

// Two vectors, number `PART` of a chunk's twos.
template <Codec C, int PART, int R>
INLINE void mix_levels(const ValueRows& values, int start, int stop, const Weights<C, R>& w, int chunk, int stride,
                       float* acc, Ahead* ahead, int n_lines) {
  constexpr bool high = C == Codec::int8 ? PART == 1 : PART >= 2;
  W sum[R][LEVEL_VECTORS] = {};
  each_panel(values, start & ~1, stop, int64_t(chunk) * sizeof(W), ahead, n_lines,
             [&](int i, const uint8_t* row, int next) {
#pragma GCC unroll 2
    for (; i < next; i += 2, row += 2 * values.stride) {
      W x = load<W>(row), y = load<W>(row + values.stride);
      W both = high ? high_halves(x, y) : low_halves(x, y), value[LEVEL_VECTORS];
      if constexpr (C == Codec::int8) {
        value[0] = (W)((SW)(both << 8) >> 8), value[1] = (W)((SW)both >> 8);
      } else {
        constexpr int first = PART % 2 * 2 * 4;  // bits
        value[0] = raised((W)((UW)both >> first) & 0x000f000f);
        value[1] = raised((W)((UW)both >> (first + 4)) & 0x000f000f);
      }
      for (int r = 0; r < R; ++r) {
        W weight = load<int32_t>(w.halves[r] + i) - W{};
        for (int v = 0; v < LEVEL_VECTORS; ++v) sum[r][v] = add_pairs(sum[r][v], value[v], weight);
      }
    }
  });
  for (int r = 0; r < R; ++r)
    for (int v = 0; v < LEVEL_VECTORS; ++v) {
      if (C == Codec::int4) sum[r][v] -= w.excess[r] - W{};
      float* to = acc + r * stride + (PART * LEVEL_VECTORS + v) * WORDS;
      store(to, load<FW>(to) + __builtin_convertvector(sum[r][v], FW) * w.factors[r]);
    }
}

template <Codec C, int R>
INLINE void mix_rows(const ValueRows& values, int start, int stop, const float* weights, const Levels& levels,
                     int dim, int stride, float* acc, Ahead* ahead) {
  constexpr int chunk_dims = Chunk<C>::dims;
  int n_lines = panel_lines<C>(dim);
  Weights<C, R> w;
  w.floats = weights;
  if constexpr (in_integers<C>) {
    for (int g = 0; g < levels.n_groups; ++g) {
      prepare_weights<C, R>(w, levels.scales[g]);
      int d = C == Codec::int4 ? g / SPAN_GROUPS * SPAN_DIMS : 0;
      int last = C == Codec::int4 && d + SPAN_DIMS < dim ? d + SPAN_DIMS : dim;
      for (; d < last; d += chunk_dims) {
        auto mix_part = [&]<int PART>(Ahead* fetching) {
          mix_levels<C, PART, R>(values, start, stop, w, d / chunk_dims, stride, acc + d, fetching, n_lines);
        };
        if (C == Codec::int8 || g % SPAN_GROUPS == 0) {
          mix_part.template operator()<0>(ahead);
          ahead = nullptr;
        }
        if constexpr (C == Codec::int8) {
          mix_part.template operator()<1>(nullptr);
        } else if (g % SPAN_GROUPS == 0) {
          mix_part.template operator()<2>(nullptr);
        } else {
          mix_part.template operator()<1>(nullptr);
          mix_part.template operator()<3>(nullptr);
        }
      }
    }
  } else {
    prepare_weights<C, R>(w, nullptr);
    constexpr int dims = VALUE_VECTORS * LANES;
    for (int d = 0; d < dim; d += dims, ahead = nullptr)
      mix_floats<C, R>(values, start, stop, w, d / chunk_dims, stride, acc + d, ahead, n_lines);
  }
}
