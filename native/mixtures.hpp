// Mixtures of values over a tile; how, and for scores: products.hpp.
// Included inside the namespace of an instruction set.

// Dims of a chunk, which is what one load of values holds, and vectors of fp32 that it becomes.
template <Codec C>
struct Chunk {
  static constexpr int lanes = in_integers<C> ? WORDS : LANES;
  static constexpr int vectors = C == Codec::int8 ? 4 : C == Codec::int4 ? 8 : C == Codec::bf16 ? 2 : 1;
  static constexpr int dims = lanes * vectors;

  // Which dim is summed in a lane of a vector: levels lie there as `paired` leaves them.
  static int dim_of(int vector, int lane) {
    constexpr int word_dims = vectors / 2;
    if (!in_integers<C>) return lane * vectors + vector;
    return (lane / 4 * 8 + vector / word_dims * 4 + lane % 4) * word_dims + vector % word_dims;
  }
};

// Weights of R rows of the tile, as the product takes them.
template <Codec C, int R>
struct Weights {
  const float* floats;                                                   // [R][TILE_TOKENS]
  alignas(64) int16_t halves[in_integers<C> || BF16_PAIRS ? R : 1][TILE_TOKENS];  // 15 bits, or bf16
  float factors[R];                                                      // of the 15 bits
  int32_t excess[R];                                                     // of sums of raised values
};

// How weights, which are 1 at most, become 15 bits that have a group's scales in them: times `by`.
// Each is worth `factor`, which is NaN where a scale is.
struct Steps {
  float factor;
  alignas(64) float by[TILE_TOKENS];
};

// `seen(i)`: whether token i is.
template <Codec C, class Seen>
INLINE void make_steps(const Scales& scales, int g, bool all_seen, Seen seen, Steps& to) {
  F most = {}, total = {};
  if (all_seen) {
    for (int i = 0; i < TILE_TOKENS; i += LANES) {
      F scale = scales_at<C>(scales.at[i / PANEL_TOKENS] + g * scales.stride + i % PANEL_TOKENS * 2);
      most = larger(scale, most), total += scale;  // NaN is in the sum alone
      store(to.by + i, scale);
    }
  } else {
    alignas(64) float stored[PANEL_TOKENS];
    for (int p = 0; p < TILE_PANELS; ++p) {
      bool some = false;
      for (int i = 0; i < PANEL_TOKENS; ++i) some |= seen(p * PANEL_TOKENS + i);
      for (int i = 0; some && i < PANEL_TOKENS; i += LANES)
        store(stored + i, scales_at<C>(scales.at[p] + g * scales.stride + 2 * i));
      for (int i = 0; i < PANEL_TOKENS; ++i) {
        float scale = seen(p * PANEL_TOKENS + i) ? stored[i] : 0;
        to.by[p * PANEL_TOKENS + i] = scale;
      }
    }
    for (int i = 0; i < TILE_TOKENS; i += LANES) {
      F scale = load<F>(to.by + i);
      most = larger(scale, most), total += scale;
    }
  }
  float largest_scale = largest(most), all_scales = sum(total);
  bool whole = finite(largest_scale) && all_scales == all_scales;
  float inverse = largest_scale > 0 && whole ? 32767.0f / largest_scale : 0.0f;
  if (!finite(inverse)) inverse = 0;
  to.factor = whole ? largest_scale / 32767.0f : __builtin_nanf("");
  for (int i = 0; i < TILE_TOKENS; i += LANES) store(to.by + i, load<F>(to.by + i) * inverse);
}

// Those of a row: its own where it does not see the whole span.
template <Codec C>
INLINE const Steps& steps_of(const Scales& scales, int g, const Steps* steps, Span span, const Sight& sight, Steps& own) {
  if (sight.all_of(span)) return steps[g];
  make_steps<C>(scales, g, false, [&](int i) { return i >= span.start && i < span.stop && sight.has(i); }, own);
  return own;
}

// By what int8's raised values are too large, and int4's.
template <Codec C>
constexpr int RAISE = C == Codec::int8 ? 128 : INT4_RAISE;

template <Codec C, int R>
INLINE void prepare_weights(Weights<C, R>& w, const Scales& scales, int g, const Steps* steps, Span span,
                            const Sight* sights) {
  for (int r = 0; r < R; ++r) {
    const float* from = w.floats + r * TILE_TOKENS;
    if constexpr (in_integers<C>) {
      Steps own;
      const Steps& of_row = steps_of<C>(scales, g, steps, span, sights[r], own);
      I sums = {};
      for (int i = 0; i < TILE_TOKENS; i += 2 * LANES) {
        I first = to_nearest(load<F>(from + i) * load<F>(of_row.by + i));
        I second = to_nearest(load<F>(from + i + LANES) * load<F>(of_row.by + i + LANES));
        sums += first + second;
        store_halves(w.halves[r] + i, first, second);
      }
      w.factors[r] = of_row.factor;
      w.excess[r] = RAISE<C> * int32_t(sum(to_float(sums)));
    } else if constexpr (C == Codec::bf16 && BF16_PAIRS) {  // they are bf16 already
      for (int i = 0; i < TILE_TOKENS; i += LANES)
        store(w.halves[r] + i, __builtin_convertvector((I)((U)load<F>(from + i) >> 16), I16));
    }
  }
}

alignas(64) constexpr uint8_t ZEROS[MAX_DIM * 2] = {};  // a row that is not there

// From token `i` on in its panel: the next panel's first token, or `stop`, and the row.
struct Panel {
  int next;
  const uint8_t* row;

  INLINE_MEMBER Panel(const ValueRows& values, int i, int stop, int64_t byte)
      : next((i / PANEL_TOKENS + 1) * PANEL_TOKENS),
        row(values.at[i / PANEL_TOKENS] + i % PANEL_TOKENS * values.stride + byte) {
    if (next > stop) next = stop;
  }
};

// acc += weights x values, over tokens [start, stop) and one chunk's dims: `acc` and `chunk` are the
// chunk's.
template <Codec C, int R>
INLINE void mix_floats(const ValueRows& values, int start, int stop, const Weights<C, R>& w, int chunk, int stride,
                       float* acc, Ahead* ahead) {
  constexpr bool pairs = C == Codec::bf16 && BF16_PAIRS;
  constexpr int loads = VALUE_VECTORS / Chunk<C>::vectors;
  F sum[R][VALUE_VECTORS];
  for (int r = 0; r < R; ++r)
    for (int v = 0; v < VALUE_VECTORS; ++v) sum[r][v] = load<F>(acc + r * stride + v * LANES);
  for (int i = pairs ? start & ~1 : start; i < stop;) {
    if (ahead) ahead->take(PANEL_TOKENS * loads * sizeof(I) / 64);
    auto [next, row] = Panel(values, i, stop, int64_t(chunk) * sizeof(I));
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
  }
  for (int r = 0; r < R; ++r)
    for (int v = 0; v < VALUE_VECTORS; ++v) store(acc + r * stride + v * LANES, sum[r][v]);
}

// Two vectors, number `PART` of a chunk's twos. int8: a word is 256 times its high byte and the low
// one, raised by 128; sums are right after what wraps around is taken off again.
template <Codec C, int PART, int R>
INLINE void mix_levels(const ValueRows& values, int start, int stop, const Weights<C, R>& w, int chunk, int stride,
                       float* acc, Ahead* ahead) {
  constexpr int lines = PANEL_TOKENS * sizeof(W) * LEVEL_VECTORS / Chunk<C>::vectors / 64;  // of all parts of 16 rows
  constexpr int parts = Chunk<C>::vectors / LEVEL_VECTORS / 2;
  W sum[R][LEVEL_VECTORS];
  for (int r = 0; r < R; ++r)
    for (int v = 0; v < LEVEL_VECTORS; ++v) sum[r][v] = W{};
  for (int i = start & ~1; i < stop;) {
    if (ahead) ahead->take(lines);
    auto [next, row] = Panel(values, i, stop, int64_t(chunk) * sizeof(W));
#pragma GCC unroll 2
    for (; i < next; i += 2, row += 2 * values.stride) {
      W both = paired<PART / parts>(load<W>(row), load<W>(row + values.stride)), value[LEVEL_VECTORS];
      if constexpr (C == Codec::int8) {
        value[0] = both ^ 0x00800080, value[1] = (W)((SW)both >> 8);
      } else {
        constexpr int first = PART % parts * 2;
        value[0] = raised(nibbles(both, first)), value[1] = raised(nibbles(both, first + 1));
      }
      for (int r = 0; r < R; ++r) {
        W weight = load<int32_t>(w.halves[r] + i) - W{};
        for (int v = 0; v < LEVEL_VECTORS; ++v) sum[r][v] = add_pairs(sum[r][v], value[v], weight);
      }
    }
  }
  for (int r = 0; r < R; ++r)
    for (int v = 0; v < LEVEL_VECTORS; ++v) {
      UW exact = (UW)sum[r][v];
      if (C == Codec::int8 && v == 0) exact -= (UW)sum[r][1] << 8;
      if (C == Codec::int4 || v == 0) exact -= uint32_t(w.excess[r]) - UW{};
      float* to = acc + r * stride + (PART * LEVEL_VECTORS + v) * WORDS;
      store(to, load<FW>(to) + __builtin_convertvector((W)exact, FW) * w.factors[r]);
    }
}

// `steps` has those of each group, for rows that see the whole span.
template <Codec C, int R>
INLINE void mix_rows(const ValueRows& values, int start, int stop, const float* weights, const Scales& scales,
                     const Steps* steps, Span span, const Sight* sights, int dim, int stride, float* acc, Ahead* ahead) {
  constexpr int chunk_dims = Chunk<C>::dims;
  Weights<C, R> w;
  w.floats = weights;
  if constexpr (in_integers<C>) {
    for (int g = 0; g < scales.n_groups; ++g) {
      prepare_weights<C, R>(w, scales, g, steps, span, sights);
      int d = C == Codec::int4 ? g / SPAN_GROUPS * SPAN_DIMS : 0;
      int last = C == Codec::int4 && d + SPAN_DIMS < dim ? d + SPAN_DIMS : dim;
      for (; d < last; d += chunk_dims) {
        auto mix_part = [&]<int PART>() {
          mix_levels<C, PART, R>(values, start, stop, w, d / chunk_dims, stride, acc + d, ahead);
        };
        if constexpr (C == Codec::int8) {
          mix_part.template operator()<0>(), mix_part.template operator()<1>();
        } else if (g % SPAN_GROUPS == 0) {
          mix_part.template operator()<0>(), mix_part.template operator()<2>();
        } else {
          mix_part.template operator()<1>(), mix_part.template operator()<3>();
        }
      }
    }
  } else {
    prepare_weights<C, R>(w, scales, 0, nullptr, span, sights);
    constexpr int dims = VALUE_VECTORS * LANES;
    for (int d = 0; d < dim; d += dims) mix_floats<C, R>(values, start, stop, w, d / chunk_dims, stride, acc + d, ahead);
  }
}
