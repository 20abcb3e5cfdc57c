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

// 15 bits and a sign of n numbers: `to[place(i)]` times the scale that is returned; NaN if one is.
template <class Place>
INLINE float to_int16(const float* x, int n, int16_t* to, Place place) {
  float largest = largest_magnitude(x, n), inverse = largest > 0 ? 32767.0f / largest : 0.0f;
  bool whole = finite(largest);
  if (!whole || !finite(inverse)) inverse = 0;  // the scale tells; or all are next to zero
  alignas(64) int32_t levels[MAX_DIM];
  for (int i = 0; i < n; i += LANES) {
    F part = {};
    if (i + LANES <= n) part = load<F>(x + i);
    else __builtin_memcpy(&part, x + i, (n - i) * sizeof(float));
    store(levels + i, (I)(part * inverse + 12582912.0f));
  }
  for (int i = 0; i < n; ++i) to[place(i)] = int16_t(levels[i]);
  return whole ? largest / 32767.0f : __builtin_nanf("");
}

// A query row as the product takes it, in the place of its floats, and its scale. int4: what its
// groups' sums are too large by, since values are raised.
template <Codec C>
INLINE float prepare_query(const float* x, int dim, float scale, float* to, int32_t* excess) {
  if constexpr (C == Codec::int8) return to_int16(x, dim, reinterpret_cast<int16_t*>(to), [](int i) { return i; }) * scale;
  if constexpr (C == Codec::int4) {
    auto place = [](int d) { return d / 8 * 8 + d % 4 * 2 + d % 8 / 4; };  // elements j and j + 4 are a pair
    auto* levels = reinterpret_cast<int16_t*>(to);
    scale *= to_int16(x, dim, levels, place);
    for (int g = 0; g < int4_groups(dim); ++g) excess[g] = 0;
    for (int d = 0; d < dim; ++d) excess[int4_group(d)] += INT4_RAISE * levels[place(d)];
    return scale;
  }
  if (C == Codec::bf16 && BF16_PAIRS) {
    auto* parts = reinterpret_cast<uint16_t*>(to);
    for (int d = 0; d < dim; ++d) {
      parts[d] = to_bf16(x[d]);
      parts[dim + d] = to_bf16(x[d] - float_of(uint32_t(parts[d]) << 16));
    }
    return scale;
  }
  for (int d = 0; d < dim; ++d) to[d] = x[d] * scale;
  return 1;
}

// ---- scores -------------------------------------------------------------------------------------

struct Queries {
  const float *rows, *scales;  // of the first row
  const int32_t* excess;
  int dim, stride;                          // floats from row to row
  int parts;                                // of bf16
};

template <Codec C, int R>
INLINE void score_floats(const uint8_t* panel, int64_t stride, const Queries& q, float* scores, Ahead* ahead) {
  F sum[R][PANEL_VECTORS] = {};
  constexpr int dims = Unit<C>::dims, parts = C == Codec::bf16 ? 2 : 1;
  for (int d = 0; d < q.dim; d += dims, panel += stride) {
    if (ahead) ahead->step();
    for (int part = 0; part < parts; ++part) {
      I key[PANEL_VECTORS];
      for (int v = 0; v < PANEL_VECTORS; ++v) {
        key[v] = load<I>(panel + v * sizeof(I));
        if (C == Codec::bf16 && !BF16_PAIRS) key[v] = part ? key[v] & (int32_t)0xffff0000 : key[v] << 16;
      }
      if (C == Codec::bf16 && BF16_PAIRS && part >= q.parts) break;
      for (int r = 0; r < R; ++r) {
        const float* query = q.rows + r * q.stride;
        if constexpr (C == Codec::bf16 && BF16_PAIRS) {
          I both = all(load<int32_t>(query + part * (q.dim / 2) + d / 2));
          for (int v = 0; v < PANEL_VECTORS; ++v) sum[r][v] = add_bf16_pairs(sum[r][v], key[v], both);
        } else {
          F one = set1(query[d + part]);
          for (int v = 0; v < PANEL_VECTORS; ++v) sum[r][v] = fma(one, (F)key[v], sum[r][v]);
        }
      }
    }
  }
  for (int r = 0; r < R; ++r)
    for (int v = 0; v < PANEL_VECTORS; ++v)
      store(scores + r * TILE_TOKENS + v * LANES,
            C == Codec::bf16 && BF16_PAIRS ? sum[r][v] * q.scales[r] : sum[r][v]);
}

template <Codec C, int R>
INLINE void score_levels(const uint8_t* panel, int64_t stride, const Queries& q, const Levels& levels, int token,
                         float* scores, Ahead* ahead) {
  constexpr int dims = Unit<C>::dims, groups = C == Codec::int4 ? SPAN_GROUPS : 1, pairs = dims / 2 / groups;
  for (int g = 0; g < levels.n_groups; ++g) {
    int d = g / groups * SPAN_DIMS, stop = C == Codec::int4 && d + SPAN_DIMS < q.dim ? d + SPAN_DIMS : q.dim;
    const uint8_t* unit = panel + d / dims * stride;
    I sum[R][PANEL_VECTORS] = {};
    for (; d < stop; d += dims, unit += stride) {
      if (ahead && (C == Codec::int4 ? g % groups == 0 : d % 4 == 0)) ahead->step();
      for (int i = 0; i < pairs; ++i) {
        I key[PANEL_VECTORS];
        int pair = g % groups * pairs + i;
        for (int v = 0; v < PANEL_VECTORS; ++v) {
          if constexpr (C == Codec::int8) key[v] = widen_pairs(unit + v * LANES * 2);
          else key[v] = raised((I)(load<U>(unit + v * sizeof(I)) >> 4 * pair) & 0x000f000f);
        }
        for (int r = 0; r < R; ++r) {
          I both = all(load<int32_t>(q.rows + r * q.stride + d / 2 + pair));
          for (int v = 0; v < PANEL_VECTORS; ++v) sum[r][v] = add_pairs(sum[r][v], key[v], both);
        }
      }
    }
    for (int r = 0; r < R; ++r)
      for (int v = 0; v < PANEL_VECTORS; ++v) {
        float* to = scores + r * TILE_TOKENS + v * LANES;
        int at = token + v * LANES;
        if (C == Codec::int4) sum[r][v] -= all(q.excess[r * MOST_GROUPS + g]);
        F score = to_float(sum[r][v]) * q.scales[r] * load<F>(levels.scales[g] + at);
        store(to, g ? load<F>(to) + score : score);
      }
  }
}

template <Codec C, int R>
INLINE void score_panel(const KeyPanels& keys, int i, const Queries& q, const Levels& levels, float* scores,
                        Ahead* ahead) {
  float* to = scores + i * PANEL_TOKENS;
  if constexpr (in_integers<C>)
    score_levels<C, R>(keys.at[i], keys.stride, q, levels, i * PANEL_TOKENS, to, ahead);
  else
    score_floats<C, R>(keys.at[i], keys.stride, q, to, ahead);
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
      F most = {};
      I wrong = {};
      for (int i = 0; i < TILE_TOKENS; i += LANES) {
        F weight = load<F>(from + i);
        F x = (F)((I)(weight * load<F>(scales + i)) & (weight != 0.0f));  // what is not seen may hold NaN
        wrong |= x != x;
        most = select(x > most, x, most);
        store(scaled + i, x);
      }
      float largest_weight = largest(most);
      bool whole = finite(largest_weight) && sum((F)(wrong & (I)set1(1.0f))) == 0;
      float inverse = largest_weight > 0 && whole ? 32767.0f / largest_weight : 0.0f;
      if (!finite(inverse)) inverse = 0;
      w.factors[r] = whole ? largest_weight / 32767.0f : __builtin_nanf("");
      w.excess[r] = 0;
      for (int i = 0; i < TILE_TOKENS; i += LANES) {
        I rounded = (I)(load<F>(scaled + i) * inverse + 12582912.0f) & 0xffff;
        store(w.halves[r] + i, __builtin_convertvector(rounded, I16));
      }
      if (C == Codec::int4)
        for (int i = 0; i < TILE_TOKENS; ++i) w.excess[r] += INT4_RAISE * w.halves[r][i];
    } else if constexpr (C == Codec::bf16 && BF16_PAIRS) {  // they are bf16 already
      for (int i = 0; i < TILE_TOKENS; i += LANES)
        store(w.halves[r] + i, __builtin_convertvector((I)((U)load<F>(from + i) >> 16), I16));
    }
  }
}

// acc += weights x values, over tokens [start, stop) and one chunk's dims: `acc` and `byte` are the
// chunk's. `n_lines`: of memory that a row or a pair of rows takes.
template <Codec C, int R>
INLINE void mix_floats(const ValueRows& values, int start, int stop, const Weights<C, R>& w, int chunk, int stride,
                       float* acc, Ahead* ahead, int n_lines) {
  constexpr int loads = VALUE_VECTORS / Chunk<C>::vectors;
  F sum[R][VALUE_VECTORS];
  for (int r = 0; r < R; ++r)
    for (int v = 0; v < VALUE_VECTORS; ++v) sum[r][v] = load<F>(acc + r * stride + v * LANES);
  if constexpr (C == Codec::bf16 && BF16_PAIRS) {
    for (int i = start & ~1; i < stop; i += 2) {
      for (int n = 0; ahead && n < n_lines; ++n) ahead->step();
      for (int l = 0; l < loads; ++l) {
        int64_t byte = int64_t(chunk + l) * sizeof(I);
        I x = load<I>(values.at[i] + byte), y = load<I>(values.at[i + 1] + byte);
        I even = (x & 0xffff) | (y << 16), odd = (I)((U)x >> 16) | (y & (int32_t)0xffff0000);
        for (int r = 0; r < R; ++r) {
          I weight = all(load<int32_t>(w.halves[r] + i));
          sum[r][2 * l] = add_bf16_pairs(sum[r][2 * l], even, weight);
          sum[r][2 * l + 1] = add_bf16_pairs(sum[r][2 * l + 1], odd, weight);
        }
      }
    }
  } else {
    for (int i = start; i < stop; ++i) {
      for (int n = 0; ahead && n < n_lines; ++n) ahead->step();
      for (int l = 0; l < loads; ++l) {
        I x = load<I>(values.at[i] + int64_t(chunk + l) * sizeof(I));
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
  }
  for (int r = 0; r < R; ++r)
    for (int v = 0; v < VALUE_VECTORS; ++v) store(acc + r * stride + v * LANES, sum[r][v]);
}

// Two vectors, number `PART` of a chunk's twos.
template <Codec C, int PART, int R>
INLINE void mix_levels(const ValueRows& values, int start, int stop, const Weights<C, R>& w, int chunk, int stride,
                       float* acc, Ahead* ahead, int n_lines) {
  constexpr bool high = C == Codec::int8 ? PART == 1 : PART >= 2;
  W sum[R][LEVEL_VECTORS] = {};
  for (int i = start & ~1; i < stop; i += 2) {
    for (int n = 0; ahead && n < n_lines; ++n) ahead->step();
    W x = load<W>(values.at[i] + chunk * sizeof(W)), y = load<W>(values.at[i + 1] + chunk * sizeof(W));
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
  constexpr int chunk_dims = Chunk<C>::dims, step = in_integers<C> || (C == Codec::bf16 && BF16_PAIRS) ? 2 : 1;
  int row_bytes = dim / Unit<C>::dims * Unit<C>::bytes, n_lines = (step * row_bytes + 32) / 64;
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
