// A task's scratch memory, and what its query rows see.
// Included inside the namespace of an instruction set.

// One KV head's part of a task's scratch memory.
struct Scratch {
  float *query, *factors, *scores, *acc, *merged, *m, *l, *merged_m, *merged_l, *query_scales, *shrink, *centres, *tile;
  int32_t* excess;

  // `rows` of each head, of which this is number `head` of `heads`.
  Scratch(float* at, const Shape& s, int rows, int head, int heads) {
    auto take = [&](int64_t n) { return at += heads * n, at - heads * n + head * n; };
    tile = at, at += int64_t(TILE_TOKENS) * (s.padded_dim > s.padded_value_dim ? s.padded_dim : s.padded_value_dim);
    scores = at, at += int64_t(rows) * TILE_TOKENS;
    query = take(int64_t(rows) * s.padded_dim);
    factors = take(int64_t(rows) * s.padded_dim);
    acc = take(int64_t(rows) * s.padded_value_dim);
    merged = take(int64_t(rows) * s.padded_value_dim);
    excess = reinterpret_cast<int32_t*>(take(int64_t(rows) * MOST_GROUPS));
    m = take(rows), l = take(rows), merged_m = take(rows), merged_l = take(rows), query_scales = take(rows), shrink = take(rows);
    centres = take(int64_t(rows) * SPLIT_CENTRES);
  }

  // Of the rows from `row` on.
  Scratch strip(const Shape& s, int row) const {
    Scratch part = *this;
    part.query += row * s.padded_dim, part.factors += row * s.padded_dim, part.scores += row * TILE_TOKENS;
    part.acc += row * s.padded_value_dim, part.centres += row * SPLIT_CENTRES;
    part.m += row, part.l += row, part.query_scales += row, part.shrink += row;
    return part;
  }
};

struct Task {
  const Attend& call;
  const Entry& entry;
  int rows;  // of each head
  float* memory;
  Registers* registers;
  bool in_registers;         // of matrices, which keys, rotary keys and values fill
  bool meets_sinks = false;  // whether the scratch holds the query that does
  int first_row = 0;         // of a strip

  const Sequences& seqs() const { return *call.sequences; }
  const Shape& shape() const { return call.shape; }
  int token(int row) const { return entry.token + (first_row + row) / shape().shared; }
  int position(int row) const { return seqs().position(entry.sequence, token(row)); }
  int first_visible(int row) const { return seqs().first_visible[token(row)]; }
  Sight sight(int row, int tile) const {
    return {first_visible(row) - tile, position(row) - tile, seqs().sink_tokens - tile};
  }
  Scratch scratch(int head) const { return Scratch(memory, shape(), rows, head, entry.n_heads); }
};

// Calls `use.operator()<R>(row)` for all rows, as many at a time as the registers hold.
template <int MOST, class Use>
INLINE void by_rows(int rows, Use use) {
  int row = 0;
  for (; row + MOST <= rows; row += MOST) use.template operator()<MOST>(row);
  if constexpr (MOST > 6)
    if (row + 6 <= rows) use.template operator()<6>(row), row += 6;
  if constexpr (MOST > 3)
    if (row + 3 <= rows) use.template operator()<3>(row), row += 3;
  if constexpr (MOST > 2)
    if (row + 2 <= rows) use.template operator()<2>(row), row += 2;
  if (row < rows) use.template operator()<1>(row);
}

// The part of a tile's span that some of the rows see; sinks are seen by all.
INLINE Span seen(const Task& t, int row, int rows, int tile, Span span) {
  int stop = t.position(row + rows - 1) + 1 - tile, start = t.first_visible(row) - tile;
  if (tile + span.start < t.seqs().sink_tokens) start = 0;
  return {start > span.start ? start : span.start, stop < span.stop ? stop : span.stop};
}

// `dim` elements of a query row from `first` on, and zeros up to a whole vector.
INLINE void read_query(const Task& t, const Rows& q, int row, int head, int first, int dim, float* to) {
  int shared = t.shape().shared;
  int64_t at = (t.entry.token + row / shared) * q.token_stride +
               ((t.entry.head + head) * shared + row % shared) * q.head_stride + first;
  if (q.bf16)
    for (int d = 0; d < dim; ++d) to[d] = float_of(uint32_t(static_cast<const uint16_t*>(q.data)[at + d]) << 16);
  else __builtin_memcpy(to, static_cast<const float*>(q.data) + at, dim * sizeof(float));
  store(to + dim, F{});
}
