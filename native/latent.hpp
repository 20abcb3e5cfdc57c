// Latent attention: query heads of a token that share one cached row, a latent and a rotary key.
// Included inside the namespace of an instruction set, by kernels.hpp.
//
//   score = query[:rank] . latent + query[rank:] . rope        values are the latents themselves
//
// The latents are keys and values as any others, in one codec; their tile is found once for all query
// heads. What is here adds the products with rotary keys, which may be in another codec.

// Queries as products with rotary keys take them: words behind those for the latents, and scales and
// excess in the room of the factors of centres, which latents have not.
struct RopeQueries {
  int32_t* words;
  float* scales;
  int32_t* excess;

  RopeQueries(const Task& t, const Scratch& s)
      : words(reinterpret_cast<int32_t*>(s.query)), scales(s.factors),
        excess(reinterpret_cast<int32_t*>(s.factors + t.rows)) {}

  // Of R rows from `row` on; words of latents are at most as many as their dims.
  template <int R>
  int32_t* of(const Task& t, int row) const { return words + row * t.shape().padded_dim + R * t.call.keys->dim; }
};

template <Codec C>
void load_rope_queries(const Task& t) {
  constexpr Codec K = in_units<C> ? C : Codec::fp32;
  int dim = t.call.rope->dim, first_dim = t.call.keys->dim;
  int n_words = row_words<K>(t, dim);
  alignas(64) float x[MAX_DIM + LANES];
  alignas(64) int32_t words[MAX_DIM];
  RopeQueries queries(t, t.scratch(0));
  by_query_rows(t, [&]<int R>(int first) {
    int32_t* to = queries.of<R>(t, first);
    for (int r = 0; r < R; ++r) {
      int row = first + r;
      read_query(t, t.call.query, row, 0, first_dim, dim, x);
      if constexpr (is_turned<C>) turn(x, dim);
      queries.scales[row] = prepare_words<K>(t, x, dim, words, queries.excess + row * MOST_GROUPS);
      for (int i = 0; i < n_words; ++i) to[i * R + r] = words[i];
    }
  });
}

template <Codec C>
void add_rope_scores(const Task& t, const Scratch& s, const Runs& runs, int tile, Span span) {
  const Plane& p = *t.call.rope;
  KeyPanels keys;
  Scales scales;
  find_keys<C>(runs, p, 0, span, s.tile, keys);
  find_scales<C>(runs, p, 0, scales);
  constexpr Codec K = in_units<C> ? C : Codec::fp32;
  RopeQueries queries(t, s);
  by_rows<KEY_ROWS>(t.rows, [&]<int R>(int row) {
    alignas(64) float scores[R * TILE_TOKENS];
    Span part = seen(t, row, R, tile, span);
    Queries q{queries.of<R>(t, row), queries.scales + row, queries.excess + row * MOST_GROUPS, p.dim,
              query_parts(t)};
    for (int i = part.start / PANEL_TOKENS; i * PANEL_TOKENS < part.stop; ++i) {
      score_panel<K, R>(keys, i, q, scales, scores);
      for (int r = 0; r < R; ++r)
        for (int at = i * PANEL_TOKENS; at < (i + 1) * PANEL_TOKENS; at += LANES) {
          float* to = s.scores + (row + r) * TILE_TOKENS + at;
          store(to, load<F>(to) + load<F>(scores + r * TILE_TOKENS + at));
        }
    }
  });
}
