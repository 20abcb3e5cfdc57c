// What keys are stored less of, as kernels/_centre.py has it, bit for bit where rows are written.
// Included inside the namespace of an instruction set.
//
//   stored = (key - centre) / spread        score = (query x spread) . stored + query . centre
//
// Every 16 tokens have one centre: the head's mean, turned as the table says, which has the 8 centres
// of a tile in lanes. So query . centre is one short product for a whole tile; for the two of a split
// at once, since the loads of factors are what it takes.

constexpr int SPLIT_TILES = SPLIT_TOKENS / TILE_TOKENS, SPLIT_CENTRES = SPLIT_TILES * TILE_CENTRES;
constexpr int CENTRE_ROWS = 3;  // whose sums stay in registers

typedef float Centres __attribute__((vector_size(TILE_CENTRES * 4)));

INLINE void add_product(Centres& sum, const Centres& a, float b) {
#if defined(__FMA__)
  sum = (Centres)_mm256_fmadd_ps((__m256)a, _mm256_set1_ps(b), (__m256)sum);
#else
  sum += a * b;
#endif
}

INLINE const float* tile_turns(const Plane& p, int position) {
  return p.centre.table + int64_t(position / TILE_TOKENS) * p.dim * TILE_CENTRES;
}

// Calls `use(d, centre, spread)` for each dim of a head's centre at a position.
template <class Use>
INLINE void each_centre(const Plane& p, int head, int position, Use use) {
  const float *mean = p.centre.mean + head * p.dim, *spread = p.centre.spread + head * p.dim;
  const float *cosines = tile_turns(p, position) + position % TILE_TOKENS / CENTRE_TOKENS;
  int half = p.dim / 2;
  const float* sines = cosines + half * TILE_CENTRES;
  for (int i = 0; i < half; ++i) {
    float cosine = cosines[i * TILE_CENTRES], sine = sines[i * TILE_CENTRES];
    use(i, mean[i] * cosine - mean[half + i] * sine, spread[i]);
    use(half + i, mean[half + i] * cosine + mean[i] * sine, spread[half + i]);
  }
}

// What is stored of a key; `to` may be the row.
INLINE void subtract_centre(const Plane& p, int head, int position, const float* row, float* to) {
  each_centre(p, head, position, [&](int d, float centre, float spread) { to[d] = (row[d] - centre) / spread; });
}

// The inverse, in place.
INLINE void add_centre(const Plane& p, int head, int position, float* row) {
  each_centre(p, head, position, [&](int d, float centre, float spread) { row[d] = row[d] * spread + centre; });
}

// By what a query row multiplies cosines and sines, to have its products with centres. Leaves the
// row as it is multiplied with what is stored.
INLINE void split_query(const Plane& p, int head, float scale, float* query, float* to) {
  const float *mean = p.centre.mean + head * p.dim, *spread = p.centre.spread + head * p.dim;
  int half = p.dim / 2;
  for (int i = 0; i < half; ++i) {
    to[i] = (query[i] * mean[i] + query[half + i] * mean[half + i]) * scale;
    to[half + i] = (query[half + i] * mean[i] - query[i] * mean[half + i]) * scale;
  }
  for (int d = 0; d < p.dim; ++d) query[d] *= spread[d];
}

// query x centre of R rows, for the tiles of a split that begin before `stop`: [row][SPLIT_CENTRES].
template <int R>
INLINE void find_centres(const Plane& p, int split, int stop, const float* factors, int stride, float* found) {
  Centres by_cosines[R][SPLIT_TILES], by_sines[R][SPLIT_TILES];
  for (int r = 0; r < R; ++r)
    for (int t = 0; t < SPLIT_TILES; ++t) by_cosines[r][t] = by_sines[r][t] = Centres{};
  const float* tables[SPLIT_TILES];  // the last one again, where the table may have ended
  for (int t = 0, tile = split * SPLIT_TOKENS; t < SPLIT_TILES; ++t, tile += TILE_TOKENS)
    tables[t] = t && tile >= stop ? tables[t - 1] : tile_turns(p, tile);
  int half = p.dim / 2;
  auto add = [&](Centres (&sums)[R][SPLIT_TILES], int i) {
    Centres turns[SPLIT_TILES];
    for (int t = 0; t < SPLIT_TILES; ++t) __builtin_memcpy(turns + t, tables[t] + i * TILE_CENTRES, sizeof turns[t]);
    for (int r = 0; r < R; ++r)
      for (int t = 0; t < SPLIT_TILES; ++t) add_product(sums[r][t], turns[t], factors[r * stride + i]);
  };
  for (int i = 0; i < half; ++i) add(by_cosines, i), add(by_sines, half + i);
  for (int r = 0; r < R; ++r)
    for (int t = 0; t < SPLIT_TILES; ++t) {
      Centres sum = by_cosines[r][t] + by_sines[r][t];
      __builtin_memcpy(found + r * SPLIT_CENTRES + t * TILE_CENTRES, &sum, sizeof sum);
    }
}

// Adds those of a tile to a row's scores, in the tile's span.
INLINE void add_centres(const float* centres, Span span, float* scores) {
  for (int c = span.start / CENTRE_TOKENS; c * CENTRE_TOKENS < span.stop; ++c) {
    F one = set1(centres[c]);
    float* to = scores + c * CENTRE_TOKENS;
    for (int i = 0; i < CENTRE_TOKENS; i += LANES) store(to + i, load<F>(to + i) + one);
  }
}

// The same where a tile is of blocks that were chosen from anywhere.
INLINE void add_chosen_centre(const Plane& p, int position, const float* factors, int n, float* scores) {
  int half = p.dim / 2;
  const float* cosines = tile_turns(p, position) + position % TILE_TOKENS / CENTRE_TOKENS;
  const float* sines = cosines + half * TILE_CENTRES;
  float by_cosines = 0, by_sines = 0;
  for (int i = 0; i < half; ++i) {
#if defined(__FMA__)
    by_cosines = __builtin_fmaf(cosines[i * TILE_CENTRES], factors[i], by_cosines);
    by_sines = __builtin_fmaf(sines[i * TILE_CENTRES], factors[half + i], by_sines);
#else
    by_cosines += cosines[i * TILE_CENTRES] * factors[i];
    by_sines += sines[i * TILE_CENTRES] * factors[half + i];
#endif
  }
  for (int i = 0; i < n; ++i) scores[i] += by_cosines + by_sines;
}
