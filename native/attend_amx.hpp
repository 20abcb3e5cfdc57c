// A tile in registers of matrices, where keys and values fill them: what of it meets queries and
// weights is made ready once for all rows, which then pass it a strip at a time, so that their scores
// stay in the first cache.
// Included inside the namespace of an instruction set.
//
//   bf16        queries of two parts of bf16, their scale in them; weights rounded to bf16
//   int8, int4  queries and weights of 16 bits as elsewhere, in bytes: the same sums, exactly

constexpr int STRIP_ROWS = 2 * REGISTER_ROWS;

// Which dim of a chunk's vectors is summed in a lane, as `interleave` has them.
template <Codec C>
inline int register_dim(int vector, int lane) {
  if (C == Codec::bf16) return 2 * lane + vector;
  return C == Codec::int8 ? lane / 4 * 16 + vector * 4 + lane % 4 : lane * 4 + vector;
}
template <Codec C>
constexpr int CHUNK_VECTORS = C == Codec::bf16 ? 2 : 4;

#if AMX
static_assert(REGISTER_COLUMNS == LANES);

// Calls `use.operator()<codec>()`.
template <class Use>
INLINE void with_units(Codec codec, Use use) {
  if (codec == Codec::bf16) use.template operator()<Codec::bf16>();
  else if (codec == Codec::int8) use.template operator()<Codec::int8>();
  else use.template operator()<Codec::int4>();
}

// ---- keys ---------------------------------------------------------------------------------------

typedef uint8_t Bytes __attribute__((vector_size(64)));
typedef uint8_t HalfBytes __attribute__((vector_size(32)));

// Quads of 16 columns from two rows of pairs of bytes.
INLINE Bytes quads(const uint8_t* pairs, const uint8_t* next) {
  HalfBytes a = load<HalfBytes>(pairs), b = load<HalfBytes>(next);
  return [&]<int... I>(std::integer_sequence<int, I...>) {
    return __builtin_shufflevector(a, b, (I / 2 % 2 * 32 + I / 4 * 2 + I % 2)...);
  }(std::make_integer_sequence<int, 64>{});
}

// int4's levels as their values.
INLINE Bytes int4_values(Bytes levels) {
#if defined(__AVX512BW__)
  __m512i table = _mm512_broadcast_i32x4(_mm_loadu_si128((const __m128i*)INT4_VALUES));
  return (Bytes)_mm512_shuffle_epi8(table, (__m512i)levels);
#else
  for (int i = 0; i < 64; ++i) levels[i] = uint8_t(INT4_VALUES[levels[i]]);
  return levels;
#endif
}

// Panels of keys as B takes them, from `room` on; returns its end. bf16 is stored so. Of levels
// quads are made: int8's of dims in order, int4's of the even dims of each 8 and then of the odd ones.
template <Codec C>
uint8_t* make_panels(KeyPanels& keys, int dim, Span span, uint8_t* room, Ahead* ahead) {
  for (int i = span.start / PANEL_TOKENS; i * PANEL_TOKENS < span.stop; ++i) {
    if (ahead) ahead->take(panel_lines<C>(dim));
    if constexpr (C == Codec::bf16) continue;
    const uint8_t* unit = keys.at[i];
    uint8_t* to = room + i * dim * PANEL_TOKENS;
    keys.at[i] = to;
    if constexpr (C == Codec::int8)
      for (int d = 0; d < dim; d += 4, to += REGISTER_BYTES, unit += 2 * keys.stride)
        store(to, quads(unit, unit + keys.stride));
    if constexpr (C == Codec::int4)
      for (int d = 0; d < dim; d += 8, to += 2 * REGISTER_BYTES, unit += keys.stride) {
        Bytes both = load<Bytes>(unit);
        store(to, int4_values(both & 15)), store(to + REGISTER_BYTES, int4_values(both >> 4));
      }
  }
  if (C == Codec::bf16) return room;
  keys.stride = REGISTER_BYTES;
  return room + TILE_TOKENS * dim;
}

// Scores of a strip of rows; `add`: to what is there.
INLINE void score_parts(const Task& t, const KeyPanels& keys, int dim, const int32_t* words, Span part, bool add,
                        float* scores) {
  int row_bytes = t.shape().padded_dim * 4;
  auto score_panels = [&]<int M, int N>(int i) {
    RegisterOperands<N> o{reinterpret_cast<const uint8_t*>(words), row_bytes, {}, keys.stride,
                          dim / REGISTER_INPUTS, QUERY_PARTS};
    for (int n = 0; n < N; ++n) o.b[n] = keys.at[i + n];
    sum_in_registers<M, N>(*t.registers, o, scores + i * PANEL_TOKENS, TILE_TOKENS * sizeof(float), add);
  };
  auto score_rows = [&]<int M, int N>() {
    int i = part.start / PANEL_TOKENS, stop = (part.stop + PANEL_TOKENS - 1) / PANEL_TOKENS;
    shape_rows<M>(*t.registers, t.rows);
    for (; i + N <= stop; i += N) score_panels.template operator()<M, N>(i);
    for (; i < stop; ++i) score_panels.template operator()<M, 1>(i);
  };
  if (t.rows > REGISTER_ROWS) score_rows.template operator()<2, 2>();
  else score_rows.template operator()<1, 4>();
}

template <Codec C>
INLINE void score_bytes(const Task& t, const KeyPanels& keys, const Scales& scales, int dim, const int32_t* words,
                        const float* query_scales, Span part, bool add, float* scores) {
  constexpr int group_bytes = C == Codec::int4 ? 2 * REGISTER_BYTES : 0;
  int64_t row_bytes = t.shape().padded_dim * 4, low = C == Codec::int4 ? REGISTER_BYTES : dim;
  auto score_panels = [&]<int N>(int row, int n_rows, int i) {
    F found[REGISTER_ROWS][N];
    for (int g = 0; g < scales.n_groups; ++g) {
      const uint8_t* b[N];
      F scale[N];
      for (int n = 0; n < N; ++n) {
        b[n] = keys.at[i + n] + (C == Codec::int4 ? g / SPAN_GROUPS * REGISTER_ROWS * REGISTER_BYTES : 0);
        scale[n] = scales_at<C>(scales.at[i + n] + g * scales.stride);
      }
      const uint8_t* a = reinterpret_cast<const uint8_t*>(words) + row * row_bytes + g * group_bytes;
      int n_steps = C == Codec::int4 ? 1 : dim / REGISTER_LEVELS;
      sum_levels_in_registers<N>(*t.registers, n_rows, a, row_bytes, low, b, n_steps, [&](int r, int n, F sum) {
        found[r][n] = g ? sum * scale[n] + found[r][n] : sum * scale[n];
      });
    }
    for (int r = 0; r < n_rows; ++r)
      for (int n = 0; n < N; ++n) {
        float* to = scores + (row + r) * TILE_TOKENS + (i + n) * PANEL_TOKENS;
        F score = found[r][n] * query_scales[row + r];
        store(to, add ? load<F>(to) + score : score);
      }
  };
  for (int row = 0; row < t.rows; row += REGISTER_ROWS) {
    int n_rows = t.rows - row < REGISTER_ROWS ? t.rows - row : REGISTER_ROWS;
    int i = part.start / PANEL_TOKENS, stop = (part.stop + PANEL_TOKENS - 1) / PANEL_TOKENS;
    for (; i + 2 <= stop; i += 2) score_panels.template operator()<2>(row, n_rows, i);
    if (i < stop) score_panels.template operator()<1>(row, n_rows, i);
  }
}

// Keys of one plane for a tile.
struct ReadyKeys {
  const Plane& plane;
  KeyPanels panels;
  Scales scales;

  explicit ReadyKeys(const Plane& plane) : plane(plane) {}  // leaves the rest as it is: it is large

  // From `room` on; returns its end.
  uint8_t* make(const Runs& runs, int head, Span span, uint8_t* room, Ahead* ahead) {
    with_units(plane.codec, [&]<Codec C>() {
      find_keys<C>(runs, plane, head, span, reinterpret_cast<float*>(room), panels);
      find_scales<C>(runs, plane, head, scales);
      int64_t copied = int64_t(TILE_TOKENS) * plane.dim / Unit<C>::dims * Unit<C>::bytes;
      room = make_panels<C>(panels, plane.dim, span, room + copied, ahead);
    });
    return room;
  }

  void score(const Task& t, const int32_t* words, const float* query_scales, Span part, bool add, float* scores) const {
    with_units(plane.codec, [&]<Codec C>() {
      if constexpr (C == Codec::bf16) score_parts(t, panels, plane.dim, words, part, add, scores);
      else score_bytes<C>(t, panels, this->scales, plane.dim, words, query_scales, part, add, scores);
    });
  }
};

// ---- values -------------------------------------------------------------------------------------

// Tokens of values that a register takes, and token by token that one row of it has.
template <Codec C>
constexpr int STEP_TOKENS = C == Codec::bf16 ? REGISTER_INPUTS : REGISTER_LEVELS;
template <Codec C>
constexpr int ROW_TOKENS = STEP_TOKENS<C> / REGISTER_ROWS;

// Rows of a tile's tokens, zeros beside the span. Values lie in a run, unlike keys.
template <Codec C>
INLINE void find_rows(const Runs& runs, const Plane& p, int head, const uint8_t** rows) {
  for (int i = 0; i < TILE_TOKENS; ++i) rows[i] = ZEROS;
  runs.each([&](const uint8_t* block, int token, int i, int n) {
    const uint8_t* at = row_at(p, block, head, token).data;
    for (int stop = i + n; i < stop; ++i, at += p.data.token_stride) rows[i] = at;
  });
}

// Of each 32 bits the lowest byte, and behind all of them the next.
INLINE Bytes low_bytes(Bytes a, Bytes b) {
  return [&]<int... I>(std::integer_sequence<int, I...>) {
    return __builtin_shufflevector(a, b, (I % 32 * 4 + I / 32)...);
  }(std::make_integer_sequence<int, 64>{});
}

// Bytes of two vectors in turn, `UNIT` of each, of each 16 bytes the first or the last 8.
template <int UNIT, int HALF>
INLINE Bytes half_in_turn(Bytes a, Bytes b) {
  return [&]<int... I>(std::integer_sequence<int, I...>) {
    return __builtin_shufflevector(
        a, b, (I / UNIT % 2 * 64 + I / 16 * 16 + HALF * 8 + I % 16 / UNIT / 2 * UNIT + I % UNIT)...);
  }(std::make_integer_sequence<int, 64>{});
}

// Of four rows of 32 bytes, two to a vector, every other byte from PART on: quads of 16 columns.
template <int PART>
INLINE Bytes every_other(Bytes first, Bytes second) {
  return [&]<int... I>(std::integer_sequence<int, I...>) {
    return __builtin_shufflevector(first, second, (I % 4 * 32 + I / 4 * 2 + PART)...);
  }(std::make_integer_sequence<int, 64>{});
}

// One register row of a chunk's columns, from the rows of its tokens; next vectors `vector_bytes` on.
template <Codec C>
INLINE void interleave(const uint8_t* const* rows, int chunk, uint8_t* to, int64_t vector_bytes) {
  if constexpr (C == Codec::bf16) {
    I x = load<I>(rows[0] + chunk * 64), y = load<I>(rows[1] + chunk * 64);
    store(to, (x & 0xffff) | (y << 16));
    store(to + vector_bytes, (I)((U)x >> 16) | (y & (int32_t)0xffff0000));
  } else if constexpr (C == Codec::int8) {
    Bytes row[4];
    for (int i = 0; i < 4; ++i) row[i] = load<Bytes>(rows[i] + chunk * 64);
    Bytes first = half_in_turn<1, 0>(row[0], row[1]), second = half_in_turn<1, 0>(row[2], row[3]);
    store(to, half_in_turn<2, 0>(first, second)), store(to + vector_bytes, half_in_turn<2, 1>(first, second));
    first = half_in_turn<1, 1>(row[0], row[1]), second = half_in_turn<1, 1>(row[2], row[3]);
    store(to + 2 * vector_bytes, half_in_turn<2, 0>(first, second));
    store(to + 3 * vector_bytes, half_in_turn<2, 1>(first, second));
  } else {
    alignas(64) uint8_t both[4][32];
    for (int i = 0; i < 4; ++i) __builtin_memcpy(both[i], rows[i] + chunk * 32, 32);
    Bytes first = load<Bytes>(both[0]), second = load<Bytes>(both[2]);
    Bytes even = every_other<0>(first, second), odd = every_other<1>(first, second);
    store(to, int4_values(even & 15)), store(to + vector_bytes, int4_values(even >> 4));
    store(to + 2 * vector_bytes, int4_values(odd & 15)), store(to + 3 * vector_bytes, int4_values(odd >> 4));
  }
}

// Values of a plane for a tile, as B takes them: [16 dims][tokens of a row][dim][token].
struct ReadyValues {
  const Plane& plane;
  const uint8_t* room;
  Scales scales;
  Steps steps[MOST_GROUPS];

  explicit ReadyValues(const Plane& plane) : plane(plane) {}

  void make(const Runs& runs, int head, Span span, uint8_t* to, Ahead* ahead) {
    room = to;
    with_units(plane.codec, [&]<Codec C>() { make_vectors<C>(runs, head, span, to, ahead); });
  }

  // acc += weights x values of a strip; those of bf16 are what `soften` has left.
  void mix(const Task& t, const Scratch& s, int tile, Span span, Span part) const {
    with_units(plane.codec, [&]<Codec C>() {
      int first = part.start / STEP_TOKENS<C>, n_steps = (part.stop + STEP_TOKENS<C> - 1) / STEP_TOKENS<C> - first;
      if constexpr (C == Codec::bf16) {
        if (t.rows > REGISTER_ROWS) mix_halves<2, 2>(t, s, first, n_steps);
        else mix_halves<1, 4>(t, s, first, n_steps);
      } else {
        for (int row = 0; row < t.rows; row += REGISTER_ROWS) mix_bytes<C>(t, s, row, tile, span, first, n_steps);
      }
    });
  }

 private:
  template <Codec C>
  static constexpr int64_t VECTOR_BYTES = TILE_TOKENS / ROW_TOKENS<C> * REGISTER_BYTES;

  template <Codec C>
  const uint8_t* at(int vector, int step) const {
    return room + vector * VECTOR_BYTES<C> + step * REGISTER_ROWS * REGISTER_BYTES;
  }

  template <Codec C>
  void make_vectors(const Runs& runs, int head, Span span, uint8_t* to, Ahead* ahead) {
    constexpr int step = STEP_TOKENS<C>, chunk_dims = CHUNK_VECTORS<C> * LANES;
    const uint8_t* rows[TILE_TOKENS];
    find_rows<C>(runs, plane, head, rows);
    for (int i = span.start / step * step; i < (span.stop + step - 1) / step * step; i += ROW_TOKENS<C>) {
      if (ahead && i % PANEL_TOKENS == 0) ahead->take(panel_lines<C>(plane.dim));
      uint8_t* row = to + i / ROW_TOKENS<C> * REGISTER_BYTES;
      for (int chunk = 0; chunk * chunk_dims < plane.dim; ++chunk, row += CHUNK_VECTORS<C> * VECTOR_BYTES<C>)
        interleave<C>(rows + i, chunk, row, VECTOR_BYTES<C>);
    }
    if constexpr (in_integers<C>) {
      find_scales<C>(runs, plane, head, scales);
      bool whole = span.start == 0 && span.stop == TILE_TOKENS;
      auto seen = [&](int i) { return i >= span.start && i < span.stop; };
      for (int g = 0; g < scales.n_groups; ++g) make_steps<C>(scales, g, whole, seen, steps[g]);
    }
  }

  template <int M, int N>
  void mix_halves(const Task& t, const Scratch& s, int first, int n_steps) const {
    int stride = t.shape().padded_value_dim, n_vectors = plane.dim / LANES;
    auto mix_vectors = [&]<int WIDTH>(int vector) {
      RegisterOperands<WIDTH> o{reinterpret_cast<const uint8_t*>(s.scores) + first * REGISTER_BYTES,
                                TILE_TOKENS * sizeof(float), {}, REGISTER_BYTES, n_steps};
      for (int n = 0; n < WIDTH; ++n) o.b[n] = at<Codec::bf16>(vector + n, first);
      sum_in_registers<M, WIDTH>(*t.registers, o, s.acc + vector * LANES, stride * sizeof(float), true);
    };
    shape_rows<M>(*t.registers, t.rows);
    int v = 0;
    for (; v + N <= n_vectors; v += N) mix_vectors.template operator()<N>(v);
    for (; v < n_vectors; ++v) mix_vectors.template operator()<1>(v);
  }

  // Of 16 rows, group by group, since a group's scales are in its weights.
  template <Codec C>
  void mix_bytes(const Task& t, const Scratch& s, int row, int tile, Span span, int first, int n_steps) const {
    alignas(64) uint8_t weights[2][REGISTER_ROWS][TILE_TOKENS];  // high bytes, low ones
    float factors[REGISTER_ROWS];
    int n_rows = t.rows - row < REGISTER_ROWS ? t.rows - row : REGISTER_ROWS, stride = t.shape().padded_value_dim;
    for (int g = 0; g < scales.n_groups; ++g) {
      for (int r = 0; r < n_rows; ++r) {
        Steps own;
        const Steps& of_row = steps_of<C>(scales, g, steps, span, t.sight(row + r, tile), own);
        const float* from = s.scores + (row + r) * TILE_TOKENS;
        factors[r] = of_row.factor;
        for (int i = 0; i < TILE_TOKENS; i += 2 * LANES) {
          Bytes first = (Bytes)to_nearest(load<F>(from + i) * load<F>(of_row.by + i));
          Bytes second = (Bytes)to_nearest(load<F>(from + i + LANES) * load<F>(of_row.by + i + LANES));
          Bytes both = low_bytes(first, second);
          __builtin_memcpy(weights[1][r] + i, &both, 32), __builtin_memcpy(weights[0][r] + i, (char*)&both + 32, 32);
        }
      }
      int v = C == Codec::int4 ? g / SPAN_GROUPS * CHUNK_VECTORS<C> + g % SPAN_GROUPS * 2 : 0;
      int stop = C == Codec::int4 ? v + 2 : plane.dim / LANES;
      for (; v < stop; v += 2) {
        const uint8_t* b[2] = {at<C>(v, first), at<C>(v + 1, first)};
        sum_levels_in_registers<2>(*t.registers, n_rows, weights[0][0] + first * REGISTER_BYTES, TILE_TOKENS,
                                   sizeof weights[0], b, n_steps, [&](int r, int n, F sum) {
                                     float* to = s.acc + (row + r) * stride + (v + n) * LANES;
                                     store(to, load<F>(to) + sum * factors[r]);
                                   });
      }
    }
  }
};

// One head's scores, weights and mixtures over a tile.
void attend_tile_in_registers(const Task& t, const Scratch& whole, const Runs& runs, int kv_head, int tile, Span span,
                              Ahead* ahead) {
  // Of the 512 bytes a dim there, keys and rotary keys take 256 at most, and values as many.
  auto* room = reinterpret_cast<uint8_t*>(whole.tile);
  ReadyKeys keys(*t.call.keys), rope(t.call.rope ? *t.call.rope : *t.call.keys);
  ReadyValues values(*t.call.values);
  RopeQueries rope_queries(t, whole);
  room = keys.make(runs, kv_head, span, room, ahead);
  if (t.call.rope) room = rope.make(runs, 0, span, room, nullptr);
  values.make(runs, kv_head, span, room, ahead);
  for (int row = 0; row < t.rows; row += STRIP_ROWS) {
    Task strip = t;
    strip.first_row = row, strip.rows = t.rows - row < STRIP_ROWS ? t.rows - row : STRIP_ROWS;
    Scratch s = whole.strip(t.shape(), row);
    Span part = seen(strip, 0, strip.rows, tile, span);
    keys.score(strip, reinterpret_cast<const int32_t*>(s.query), s.query_scales, part, false, s.scores);
    if (t.call.rope) rope.score(strip, rope_queries.of<1>(t, row), rope_queries.scales + row, part, true, s.scores);
    weigh(strip, s, tile, span);
    if (part.start < part.stop) values.mix(strip, s, tile, span, part);
  }
}

#endif
