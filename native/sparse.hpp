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
constexpr int AHEAD_BLOCKS = 8;        // that are fetched before their use: they lie apart

// What a head's query multiplies the least and the most of each dim by, to have the scores that it
// expects. In each 2 * LANES the even ones come first.
INLINE void load_edge_query(const Choose& c, int token, int query_head, float* weights) {
  alignas(64) float edges[2 * MAX_DIM];
  int dim = c.shape.dim;
  int64_t at = token * c.query.token_stride + query_head * c.query.head_stride;
  for (int d = 0; d < dim; ++d) {
    float q = c.query.bf16 ? float_of(uint32_t(static_cast<const uint16_t*>(c.query.data)[at + d]) << 16)
                           : static_cast<const float*>(c.query.data)[at + d];
    q *= c.scale;
    float beyond = magnitude(q) * c.few.reach;
    edges[d] = (q - beyond) * 0.5f, edges[dim + d] = (q + beyond) * 0.5f;
  }
  for (int i = 0; i < 2 * dim; i += EDGE_STEP)
    for (int lane = 0; lane < EDGE_STEP; ++lane)
      weights[i + lane % 2 * LANES + lane / 2] = i + lane < 2 * dim ? edges[i + lane] : 0;
}

// Of R heads and one block.
template <int R>
INLINE void edge_products(const uint8_t* edges, int n, const float* weights, int64_t stride, F* products) {
  F even[R] = {}, odd[R] = {};
  for (int i = 0; i < n; i += EDGE_STEP) {
    I x = {};
    if (i + EDGE_STEP <= n) x = load<I>(edges + 2 * i);
    else __builtin_memcpy(&x, edges + 2 * i, 2 * (n - i));
    for (int r = 0; r < R; ++r) {
      even[r] = fma((F)(x << 16), load<F>(weights + r * stride + i), even[r]);
      odd[r] = fma((F)(x & (int32_t)0xffff0000), load<F>(weights + r * stride + i + LANES), odd[r]);
    }
  }
  for (int r = 0; r < R; ++r) products[r] = even[r] + odd[r];
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

// Adds to each candidate's promise its share of a head's softmax over `n`, a multiple of LANES.
INLINE void add_shares(const float* scores, int n, float* promises, bool first) {
  F most = set1(LEAST), total = {};
  for (int i = 0; i < n; i += LANES) most = larger(load<F>(scores + i), most);
  F from = set1(largest(most));
  for (int i = 0; i < n; i += LANES) total += exp(load<F>(scores + i) - from);
  F part = set1(1.0f / sum(total));
  for (int i = 0; i < n; i += LANES) {
    F share = exp(load<F>(scores + i) - from) * part;
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
  for (int i = 0; i < n; ++i)
    if (promises[i] > least || (promises[i] == least && equal-- > 0)) take(first + i);
  for (int block = stop; block < query.n_blocks; ++block) take(block);
}

// Scores of R query heads that share a KV head, from one piece's blocks.
template <int R>
INLINE void expect_scores(const Choose& c, const Piece& piece, const int64_t* blocks, int64_t edges, const float* weights,
                          int64_t stride, float* scores) {
  int n_edges = 2 * c.keys->dim;
  const uint8_t* at = c.arena + edges;
  for (int block = piece.start; block < piece.stop; block += 4) {
    F products[4][R] = {};
    int n = piece.stop - block < 4 ? piece.stop - block : 4;
    for (int i = 0; i < n; ++i) {
      if (block + i + AHEAD_BLOCKS < piece.stop)
        for (int byte = 0; byte < 2 * n_edges; byte += 64)
          __builtin_prefetch(at + blocks[block + i + AHEAD_BLOCKS] + byte);
      edge_products<R>(at + blocks[block + i], n_edges, weights, stride, products[i]);
    }
    for (int r = 0; r < R; ++r) {
      F4 four = sums(products[0][r], products[1][r], products[2][r], products[3][r]);
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
  for (int head = 0; head < heads; ++head)
    by_rows<EDGE_ROWS>(shared, [&]<int R>(int row) {
      int query_head = head * shared + row;
      for (int r = 0; r < R; ++r) load_edge_query(c, query.token, query_head + r, weights + r * stride);
      expect_scores<R>(c, piece, blocks, p.bounds.offset + head * p.bounds.head_stride, weights, stride,
                       all + query_head * c.most_candidates);
    });
  if (__atomic_add_fetch(c.finished + piece.query, 1, __ATOMIC_ACQ_REL) < query.n_pieces) return;
  for (int head = 0; head < heads; ++head) {
    int64_t at = (int64_t(piece.query) * heads + head) * c.few.read();
    pick_blocks(c, query, all + head * shared * c.most_candidates, c.offsets + at, c.starts + at);
  }
}
