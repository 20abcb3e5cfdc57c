// Layers of which a decoding query reads few blocks, as spec/sparse.py has it: the bounds of a full
// block's keys, and which blocks each KV head reads. Those are attended as a sequence of their own.
// Included inside the namespace of an instruction set.

// ---- bounds -------------------------------------------------------------------------------------

// One key as queries meet it, before any turn of theirs; bit for bit what codecs and centres give back.
template <Codec C>
INLINE void attended_key(const Plane& p, const RowAt& from, int head, int position, float* key) {
  load_row<C>(p, from, key);
  if (p.centre.mean) add_centre(p, head, position, key);
}

// The least bf16 that is not smaller.
INLINE uint16_t bf16_above(float x) {
  uint32_t bits = bits_of(x);
  return uint16_t((bits >> 31 ? bits : bits + 0xffff) >> 16);
}

// Of a block that starts at `position`: [head][least, most][dim].
template <Codec C>
void bound_keys(const Plane& p, uint8_t* block, int block_tokens, int position) {
  alignas(64) float key[MAX_DIM + LANES], least[MAX_DIM + LANES], most[MAX_DIM + LANES];
  for (int head = 0; head < p.heads; ++head) {
    for (int token = 0; token < block_tokens; ++token) {
      attended_key<C>(p, row_at(p, block, head, token), head, position + token, key);
      if (token == 0) {
        for (int d = 0; d < p.dim; ++d) least[d] = most[d] = key[d];
        continue;
      }
      for (int d = 0; d < p.dim; ++d) {
        least[d] = key[d] < least[d] ? key[d] : least[d];
        most[d] = key[d] > most[d] ? key[d] : most[d];
      }
    }
    uint8_t* to = block + p.bounds.offset + head * p.bounds.head_stride;
    for (int d = 0; d < p.dim; ++d) {
      store(to + 2 * d, uint16_t(bf16_above(-least[d]) ^ 0x8000));
      store(to + 2 * (p.dim + d), bf16_above(most[d]));
    }
  }
}

void bound_block(uint8_t* arena, const Plane& p, const Sequences& seqs, Filled filled) {
  uint8_t* block = arena + seqs.offsets[filled.sequence * seqs.max_blocks + filled.block];
  with_codec(p, [&]<Codec C>() { bound_keys<C>(p, block, seqs.block_tokens, filled.block * seqs.block_tokens); });
}

// ---- choosing -----------------------------------------------------------------------------------

constexpr int EDGE_STEP = 2 * LANES;  // of bf16 in one load
constexpr int EDGE_ROWS = 4;           // query heads whose sums stay in registers
constexpr int AHEAD_BLOCKS = 24;       // fetched before their use, since they lie apart; as good as 48

// What a head's query multiplies the least and the most of each dim by, to have the scores that it
// expects. In each 2 * LANES the even ones come first.
INLINE void load_edge_query(const Choose& c, int token, int query_head, float* weights) {
  alignas(64) float edges[2 * MAX_DIM + EDGE_STEP];
  int dim = c.shape.dim;
  int64_t at = token * c.query.token_stride + query_head * c.query.head_stride;
  for (int d = 0; d < dim; ++d) {
    float q = c.query.bf16 ? float_of(uint32_t(static_cast<const uint16_t*>(c.query.data)[at + d]) << 16)
                           : static_cast<const float*>(c.query.data)[at + d];
    q *= c.scale;
    float beyond = magnitude(q) * c.few.reach;
    edges[d] = (q - beyond) * 0.5f, edges[dim + d] = (q + beyond) * 0.5f;
  }
  for (int i = 0; i < EDGE_STEP; ++i) edges[2 * dim + i] = 0;
  for (int i = 0; i < 2 * dim; i += EDGE_STEP)
    for (int lane = 0; lane < LANES; ++lane) {
      weights[i + lane] = edges[i + 2 * lane];
      weights[i + LANES + lane] = edges[i + 2 * lane + 1];
    }
}

// Of R heads and B blocks; each sum is the same whatever blocks are beside it.
template <int R, int B>
INLINE void edge_products(const uint8_t* const* edges, int n, const float* weights, int64_t stride, F (*products)[R]) {
  F sums[B][R] = {};
  auto step = [&](int i, auto bits_of_block) {
    F even[R], odd[R];
    for (int r = 0; r < R; ++r) even[r] = load<F>(weights + r * stride + i);
    for (int b = 0; b < B; ++b)
      for (int r = 0; r < R; ++r) sums[b][r] = fma((F)(bits_of_block(b) << 16), even[r], sums[b][r]);
    for (int r = 0; r < R; ++r) odd[r] = load<F>(weights + r * stride + i + LANES);
    for (int b = 0; b < B; ++b)
      for (int r = 0; r < R; ++r) sums[b][r] = fma((F)(bits_of_block(b) & (int32_t)0xffff0000), odd[r], sums[b][r]);
  };
  int i = 0;
  for (; i + EDGE_STEP <= n; i += EDGE_STEP) step(i, [&](int b) { return load<I>(edges[b] + 2 * i); });
  if (i < n)
    step(i, [&](int b) {
      I x = {};
      __builtin_memcpy(&x, edges[b] + 2 * i, 2 * (n - i));
      return x;
    });
  for (int b = 0; b < B; ++b)
    for (int r = 0; r < R; ++r) products[b][r] = sums[b][r];
}

// Floats as integers of the same order.
INLINE int32_t ordered(float x) {
  auto bits = int32_t(bits_of(x));
  return bits ^ (bits >> 31 & 0x7fffffff);
}

// How many of `n`, a multiple of LANES, are not below.
INLINE int count_from(const int32_t* values, int n, int32_t least) {
  I found = {};
  for (int i = 0; i < n; i += LANES) found -= (I)(load<I>(values + i) >= all(least));
  int total = 0;
  for (int lane = 0; lane < LANES; ++lane) total += found[lane];
  return total;
}

// The largest value of which there are `wanted` not below it; or another with exactly so many.
INLINE int32_t threshold(const int32_t* values, int n, int wanted) {
  int32_t least = INT32_MIN;
  for (int bit = 31; bit >= 0; --bit) {
    int32_t higher = bit == 31 ? 0 : least | int32_t(1u << bit);
    int found = count_from(values, n, higher);
    if (found >= wanted) least = higher;
    if (found == wanted) break;
  }
  return least;
}

// Adds to each candidate's promise its share of a head's softmax over `n`, a multiple of LANES. The scores are used up.
INLINE void add_shares(float* scores, int n, float* promises, bool first) {
  F most = set1(LEAST), total = {};
  for (int i = 0; i < n; i += LANES) most = larger(load<F>(scores + i), most);
  F from = set1(largest(most));
  for (int i = 0; i < n; i += LANES) {
    F weight = weight_of(load<F>(scores + i) - from);
    total += weight;
    store(scores + i, weight);
  }
  F part = set1(1.0f / sum(total));
  for (int i = 0; i < n; i += LANES) {
    F share = load<F>(scores + i) * part;
    store(promises + i, first ? share : load<F>(promises + i) + share);
  }
}

// The blocks that one KV head of a query reads, in order, of equal candidates the earlier ones. The
// first head's scores become promises.
void pick_blocks(const Choose& c, const FewQuery& query, float* scores, int64_t* offsets, int32_t* starts) {
  const Sequences& seqs = *c.sequences;
  int first = c.few.sinks, stop = query.n_blocks - c.few.latest, n = stop - first, padded = (n + LANES - 1) / LANES * LANES;
  for (int head = 0; head < c.shape.shared; ++head) {
    float* of_head = scores + head * c.most_candidates;
    for (int i = n; i < padded; ++i) of_head[i] = -__builtin_inff();
    add_shares(of_head, padded, scores, head == 0);
  }
  auto* promises = reinterpret_cast<int32_t*>(scores);
  for (int i = 0; i < padded; ++i) promises[i] = i < n ? ordered(load<float>(scores + i)) : INT32_MIN;
  int32_t least = threshold(promises, padded, c.few.blocks);
  int above = least == INT32_MAX ? 0 : count_from(promises, padded, least + 1), equal = c.few.blocks - above, at = 0;
  auto take = [&](int block) {
    offsets[at] = seqs.offsets[query.sequence * seqs.max_blocks + block];
    starts[at++] = block * seqs.block_tokens;
  };
  for (int block = 0; block < first; ++block) take(block);
  // Without branches, which nobody can foresee; the place after the last is one of the latest blocks'.
  for (int i = 0; i < n; ++i) {
    bool is_equal = promises[i] == least, is_read = (promises[i] > least) | (is_equal & (equal > 0));
    equal -= is_equal;
    take(first + i);
    at -= !is_read;
  }
  for (int block = stop; block < query.n_blocks; ++block) take(block);
}

// Into the second cache: there is room for more on the way to it than to the first.
INLINE void fetch(const uint8_t* from, int n_bytes) {
  for (int byte = 0; byte < n_bytes; byte += 64) __builtin_prefetch(from + byte, 0, 2);
}

// Scores of R query heads that share a KV head, from one piece's blocks; `edges` lie so far into a block, and
// those that are met next, `next`.
template <int R>
INLINE void expect_scores(const Choose& c, const Piece& piece, const int64_t* blocks, int64_t edges, int64_t next,
                          const float* weights, int64_t stride, float* scores) {
  constexpr int B = LANES == 16 || R < 3 ? 4 : R == 3 ? 3 : 2;  // so that sums stay in registers
  int n_edges = 2 * c.keys->dim;
  for (int block = piece.start; block < piece.stop; block += B) {
    F products[B][R];
    const uint8_t* at[B];
    int n = piece.stop - block < B ? piece.stop - block : B;
    for (int i = 0; i < B; ++i) {
      at[i] = c.arena + edges + blocks[block + (i < n ? i : 0)];
      int ahead = block + i + AHEAD_BLOCKS;
      if (ahead < piece.stop) fetch(c.arena + edges + blocks[ahead], 2 * n_edges);
      else if (ahead - piece.stop + piece.start < piece.stop)
        fetch(c.arena + next + blocks[ahead - piece.stop + piece.start], 2 * n_edges);
    }
    edge_products<R, B>(at, n_edges, weights, stride, products);
    for (int r = 0; r < R; ++r) {
      F4 four = sums(products[0][r], products[1][r], products[B > 2 ? 2 : 0][r], products[B > 3 ? 3 : 0][r]);
      for (int i = 0; i < n; ++i) scores[r * c.most_candidates + block + i - c.few.sinks] = four[i];
    }
  }
}

// One piece of a query's candidates; whoever finishes its last piece picks.
void choose(const Choose& c, int piece_index) {
  const Piece& piece = c.pieces[piece_index];
  const FewQuery& query = c.queries[piece.query];
  const Plane& p = *c.keys;
  const int64_t* blocks = c.sequences->offsets + query.sequence * c.sequences->max_blocks;
  constexpr int64_t stride = 2 * MAX_DIM;
  alignas(64) float weights[EDGE_ROWS * stride];
  int heads = c.shape.kv_heads, shared = c.shape.shared;
  float* all = c.scores + int64_t(piece.query) * heads * shared * c.most_candidates;
  auto edges_of = [&](int head) { return p.bounds.offset + head * p.bounds.head_stride; };
  for (int block = piece.start; block < piece.stop && block < piece.start + AHEAD_BLOCKS; ++block)
    fetch(c.arena + edges_of(0) + blocks[block], 4 * p.dim);
  for (int head = 0; head < heads; ++head)
    by_rows<EDGE_ROWS>(shared, [&]<int R>(int row) {
      int query_head = head * shared + row, next = row + R < shared || head + 1 == heads ? head : head + 1;
      for (int r = 0; r < R; ++r) load_edge_query(c, query.token, query_head + r, weights + r * stride);
      expect_scores<R>(c, piece, blocks, edges_of(head), edges_of(next), weights, stride,
                       all + query_head * c.most_candidates);
    });
  if (__atomic_add_fetch(c.finished + piece.query, 1, __ATOMIC_ACQ_REL) < query.n_pieces) return;
  for (int head = 0; head < heads; ++head) {
    int64_t at = (int64_t(piece.query) * heads + head) * c.few.read();
    pick_blocks(c, query, all + head * shared * c.most_candidates, c.offsets + at, c.starts + at);
  }
}
