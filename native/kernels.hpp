// Attention over the paged cache and encoding into it, for one instruction set.
//
// A task attends for the query rows of some tokens that share a KV head, for one head after another:
// row = token * shared + head.
//   per split of 256 keys:  m, l, acc = -huge, 0, 0
//     per tile of 128 keys: scores, mask, new maximum, weights, acc += weights x values
//   merged in order, then divided by the sum of weights.
// bf16, int8 and int4 are multiplied as they are stored, rows of other codecs as fp32 that a tile is
// decoded to. The arithmetic of a row and its order are the same whatever rows are beside it.

#include "vec.hpp"
#include "codecs.hpp"
namespace {
#include "tiles.hpp"
#include "products.hpp"
#include "centre.hpp"

constexpr float LEAST = -1e30f;  // a maximum of nothing: finite, so that differences are numbers
constexpr int AHEAD_TOKENS = 8;  // tasks of more query tokens are bound by arithmetic

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
};

struct Task {
  const Attend& call;
  const Entry& entry;
  int rows;  // of each head
  float* memory;
  bool meets_sinks = false;  // whether the scratch holds the query that does

  const Sequences& seqs() const { return *call.sequences; }
  const Shape& shape() const { return call.shape; }
  int position(int row) const { return seqs().position(entry.sequence, entry.token + row / shape().shared); }
  int first_visible(int row) const { return seqs().first_visible[entry.token + row / shape().shared]; }
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

#include "latent.hpp"

template <Codec C>
void score(const Task& t, const Scratch& s, const Runs& runs, int kv_head, int tile, Span span, Ahead* ahead) {
  const Plane& p = *t.call.keys;
  KeyPanels keys;
  Scales scales;
  find_keys<C>(runs, p, kv_head, span, s.tile, keys);
  find_scales<C>(runs, p, kv_head, scales);
  constexpr Codec K = in_units<C> ? C : Codec::fp32;
  int parts = t.call.query.bf16 ? 1 : 2, n_lines = panel_lines<K>(p.dim);
  by_rows<KEY_ROWS>(t.rows, [&]<int R>(int row) {
    Span part = seen(t, row, R, tile, span);
    Queries q{reinterpret_cast<const int32_t*>(s.query) + row * t.shape().padded_dim, s.query_scales + row,
              s.excess + row * MOST_GROUPS, p.dim, parts};
    for (int i = part.start / PANEL_TOKENS; i * PANEL_TOKENS < part.stop; ++i) {
      if (ahead && row == 0) ahead->take(n_lines);
      score_panel<K, R>(keys, i, q, scales, s.scores + row * TILE_TOKENS);
    }
  });
}

// A tile of chosen blocks: each 16 tokens of a block have a centre of their own.
void centre_chosen(const Task& t, const Scratch& s, int tile, Span span) {
  const Sequences& seqs = t.seqs();
  for (int i = span.start; i < span.stop;) {
    int block = (tile + i) / seqs.block_tokens, token = (tile + i) % seqs.block_tokens;
    int position = seqs.block_starts[t.entry.sequence * seqs.max_blocks + block] + token;
    int n = CENTRE_TOKENS - position % CENTRE_TOKENS;
    n = seqs.block_tokens - token < n ? seqs.block_tokens - token : n;
    n = span.stop - i < n ? span.stop - i : n;
    for (int row = 0; row < t.rows; ++row)
      add_chosen_centre(*t.call.keys, position, s.factors + row * t.shape().padded_dim, n, s.scores + row * TILE_TOKENS + i);
    i += n;
  }
}

void centre(const Task& t, const Scratch& s, int split) {
  int stride = t.shape().padded_dim, stop = t.position(t.rows - 1) + 1;
  by_rows<CENTRE_ROWS>(t.rows, [&]<int R>(int row) {
    find_centres<R>(*t.call.keys, split, stop, s.factors + row * stride, stride, s.centres + row * SPLIT_CENTRES);
  });
}

template <Codec C>
void mix(const Task& t, const Scratch& s, const Runs& runs, int kv_head, int tile, Span span, Ahead* ahead) {
  const Plane& p = *t.call.values;
  constexpr Codec K = in_units<C> ? C : Codec::fp32;
  constexpr int chunk_dims = in_integers<K> ? Chunk<K>::dims : VALUE_VECTORS * LANES;
  ValueRows values;
  Scales scales;
  find_values<C>(runs, p, kv_head, span, chunk_dims, s.tile, values);
  find_scales<C>(runs, p, kv_head, scales);
  Steps steps[in_integers<K> ? MOST_GROUPS : 1];
  if constexpr (in_integers<K>) {
    bool whole = span.start == 0 && span.stop == TILE_TOKENS;
    auto seen = [&](int i) { return i >= span.start && i < span.stop; };
    for (int g = 0; g < scales.n_groups; ++g) make_steps<K>(scales, g, whole, seen, steps[g]);
  }
  int stride = t.shape().padded_value_dim;
  by_rows<VALUE_ROWS>(t.rows, [&]<int R>(int row) {
    Span part = seen(t, row, R, tile, span);
    if (part.start >= part.stop) return;
    Sight sights[R];
    for (int r = 0; r < R; ++r) sights[r] = t.sight(row + r, tile);
    mix_rows<K, R>(values, part.start, part.stop, s.scores + row * TILE_TOKENS, scales, steps, span, sights, p.dim,
                   stride, s.acc + row * stride, row ? nullptr : ahead);
  });
}

// ---- softmax ------------------------------------------------------------------------------------

// Hides what a row may not see of the tile's span, and whatever lies beside the span.
void hide(float* scores, const Sight& sight, Span span) {
  const float hidden = -__builtin_inff();
  for (int i = 0; i < span.start; ++i) scores[i] = hidden;
  for (int i = span.stop; i < TILE_TOKENS; ++i) scores[i] = hidden;
  if (sight.all_of(span)) return;
  for (int i = span.start; i < span.stop; ++i)
    if (!sight.has(i)) scores[i] = hidden;
}

// Scores become weights, all rows' side by side since each step waits for the one before. `rounded`:
// to bf16, which is what they are summed and multiplied as.
void soften(const Task& t, const Scratch& s, bool rounded) {
  int width = t.shape().padded_value_dim;
  for (int row = 0; row < t.rows; ++row) {
    const float* scores = s.scores + row * TILE_TOKENS;
    F most[2] = {set1(LEAST), set1(LEAST)};
    for (int i = 0; i < TILE_TOKENS; i += 2 * LANES)
      for (int v = 0; v < 2; ++v) most[v] = larger(load<F>(scores + i + v * LANES), most[v]);
    float largest_score = largest(larger(most[0], most[1]));
    s.shrink[row] = s.m[row];
    s.m[row] = largest_score > s.m[row] ? largest_score : s.m[row];
  }
  for (int row = 0; row < t.rows; ++row) s.shrink[row] -= s.m[row];
  for (int row = 0; row < t.rows; ++row) {
    if (s.shrink[row] == 0) continue;
    F shrink = exp(set1(s.shrink[row]));
    float* acc = s.acc + row * width;
    for (int d = 0; d < width; d += LANES) store(acc + d, load<F>(acc + d) * shrink);
    s.l[row] *= shrink[0];
  }
  for (int row = 0; row < t.rows; ++row) {
    float* scores = s.scores + row * TILE_TOKENS;
    F total = {}, from = set1(s.m[row]);
    for (int i = 0; i < TILE_TOKENS; i += LANES) {
      F weight = weight_of(load<F>(scores + i) - from);
      if (rounded) weight = (F)(((I)weight + 0x7fff + ((I)weight >> 16 & 1)) & (int32_t)0xffff0000);
      store(scores + i, weight);
      total += weight;
    }
    s.l[row] += sum(total);
  }
}

void cap(float* scores, float softcap) {
  F most = set1(softcap);
  for (int i = 0; i < TILE_TOKENS; i += LANES)
    store(scores + i, most * tanh(load<F>(scores + i) / most));
}

// ---- one task -----------------------------------------------------------------------------------

template <Codec C>
void load_queries(const Task& t, const Rows& q) {
  constexpr Codec K = in_units<C> ? C : Codec::fp32;
  const Shape& shape = t.shape();
  int dim = t.call.keys->dim;
  int parts = q.bf16 ? 1 : 2, n_words = query_words<K>(dim, parts);
  alignas(64) float x[MAX_DIM + LANES];
  alignas(64) int32_t words[MAX_DIM];
  for (int head = 0; head < t.entry.n_heads; ++head) {
    Scratch s = t.scratch(head);
    by_rows<KEY_ROWS>(t.rows, [&]<int R>(int first) {
      auto* to = reinterpret_cast<int32_t*>(s.query) + first * shape.padded_dim;
      for (int r = 0; r < R; ++r) {
        int row = first + r;
        read_query(t, q, row, head, 0, dim, x);
        if (t.call.keys->centre.mean)
          split_query(*t.call.keys, t.entry.head + head, t.call.scale, x, s.factors + row * shape.padded_dim);
        if constexpr (is_turned<C>) turn(x, dim);
        s.query_scales[row] =
            prepare_query<K>(x, dim, parts, t.call.scale, words, s.excess + row * MOST_GROUPS);
        for (int i = 0; i < n_words; ++i) to[i * R + r] = words[i];
      }
    });
  }
}

template <Codec C>
void store_results(const Task& t) {
  const Shape& shape = t.shape();
  constexpr Codec K = in_units<C> ? C : Codec::fp32;
  int heads = shape.kv_heads * shape.shared;
  for (int head = 0; head < t.entry.n_heads; ++head) {
    Scratch s = t.scratch(head);
    for (int row = 0; row < t.rows; ++row) {
      int64_t at = ((t.entry.token + row / shape.shared) * int64_t(heads) +
                    (t.entry.head + head) * shape.shared + row % shape.shared) * shape.value_dim;
      float *sums = s.merged + row * shape.padded_value_dim, total = s.merged_l[row];
      if (t.call.sink_logits) {  // a term that weighs nothing: of the largest weight, as the others are
        int query_head = (t.entry.head + head) * shape.shared + row % shape.shared;
        float logit = t.call.sink_logits[query_head], most = logit > s.merged_m[row] ? logit : s.merged_m[row];
        F keep = exp(set1(s.merged_m[row] - most)), more = exp(set1(logit - most));
        for (int d = 0; d < shape.padded_value_dim; d += LANES) store(sums + d, load<F>(sums + d) * keep);
        total = total * keep[0] + more[0];
      }
      alignas(64) float placed[MAX_DIM + Chunk<K>::dims];
      for (int d = 0; d < shape.value_dim; d += Chunk<K>::dims)
        for (int lane = 0; lane < Chunk<K>::lanes; ++lane)
          for (int v = 0; v < Chunk<K>::vectors; ++v)
            placed[d + Chunk<K>::dim_of(v, lane)] = sums[d + v * Chunk<K>::lanes + lane] / total;
      if constexpr (is_turned<C>) turn_back(placed, shape.value_dim);
      if (t.call.query.bf16) {
        auto* to = static_cast<uint16_t*>(t.call.result) + at;
        for (int d = 0; d < shape.value_dim; ++d) to[d] = to_bf16(placed[d]);
      } else {
        auto* to = static_cast<float*>(t.call.result) + at;
        for (int d = 0; d < shape.value_dim; ++d) to[d] = placed[d];
      }
    }
  }
}

// Calls `use.operator()<codec>()`.
template <class Use>
INLINE void with_codec(const Plane& p, Use use) {
#define ONE(name) \
  case Codec::name: return use.template operator()<Codec::name>();
  switch (p.codec) { EVERY_CODEC(ONE) }
#undef ONE
}

void merge(const Task& t, const Scratch& to, const float* m, const float* l, const float* acc) {
  int width = t.shape().padded_value_dim;
  for (int row = 0; row < t.rows; ++row) {
    float most = m[row] > to.merged_m[row] ? m[row] : to.merged_m[row];
    F keep = exp(set1(to.merged_m[row] - most)), add = exp(set1(m[row] - most));
    for (int d = row * width; d < (row + 1) * width; d += LANES)
      store(to.merged + d, fma(load<F>(to.merged + d), keep, load<F>(acc + d) * add));
    to.merged_l[row] = to.merged_l[row] * keep[0] + l[row] * add[0];
    to.merged_m[row] = most;
  }
}

void begin(const Task& t, float* m, float* l, float* acc) {
  for (int row = 0; row < t.rows; ++row) m[row] = LEAST, l[row] = 0;
  for (int i = 0; i < t.rows * t.shape().padded_value_dim; ++i) acc[i] = 0;
}

// The span of a tile that some row of the task may see, at most two of them: sinks, and the rest.
// Where they touch they are one, unless sinks have a query of their own.
struct Visible {
  Span spans[2];

  explicit Visible(const Task& t) {
    int stop = t.position(t.rows - 1) + 1, start = t.first_visible(0);
    int sinks = t.seqs().sink_tokens < stop ? t.seqs().sink_tokens : stop;
    if (t.call.sink_query.data) start = start > sinks ? start : sinks;
    else if (sinks >= start) start = 0, sinks = 0;
    spans[0] = {0, sinks}, spans[1] = {start, stop};
  }

  // The part of span `i` between two positions; empty: start >= stop.
  Span within(int i, int from, int to) const {
    return {spans[i].start > from ? spans[i].start : from, spans[i].stop < to ? spans[i].stop : to};
  }
};

void attend_tile(const Task& t, int tile, Span span, Ahead* ahead) {
  Runs runs(t.seqs(), t.call.arena, t.entry.sequence, tile, span);
  for (int head = 0; head < t.entry.n_heads; ++head) {
    Scratch s = t.scratch(head);
    int kv_head = t.entry.head + head;
    if (ahead) ahead->pace(tile + TILE_TOKENS);
    with_codec(*t.call.keys, [&]<Codec C>() { score<C>(t, s, runs, kv_head, tile, span, ahead); });
    if (t.call.rope) with_codec(*t.call.rope, [&]<Codec C>() { add_rope_scores<C>(t, s, runs, tile, span); });
    bool centred = t.call.keys->centre.mean, chosen = t.seqs().block_starts;
    if (centred && chosen) centre_chosen(t, s, tile, span);
    for (int row = 0; row < t.rows; ++row) {
      const float* centres = s.centres + row * SPLIT_CENTRES + tile % SPLIT_TOKENS / TILE_TOKENS * TILE_CENTRES;
      if (centred && !chosen) add_centres(centres, span, s.scores + row * TILE_TOKENS);
      if (t.call.softcap != 0) cap(s.scores + row * TILE_TOKENS, t.call.softcap);
      hide(s.scores + row * TILE_TOKENS, t.sight(row, tile), span);
    }
    soften(t, s, BF16_PAIRS && t.call.values->codec == Codec::bf16);
    with_codec(*t.call.values, [&]<Codec C>() { mix<C>(t, s, runs, kv_head, tile, span, ahead); });
  }
}

// Puts the query that meets sinks, or the one that meets all else, into the scratch; whether it was another.
bool use_query(Task& t, bool meets_sinks) {
  if (!t.call.sink_query.data || t.meets_sinks == meets_sinks) return false;
  t.meets_sinks = meets_sinks;
  const Rows& query = meets_sinks ? t.call.sink_query : t.call.query;
  with_codec(*t.call.keys, [&]<Codec C>() { load_queries<C>(t, query); });
  return true;
}

// Leaves its result in the scratch's m, l and acc.
void attend_split(Task& t, const Visible& visible, int split, Ahead* ahead) {
  for (int head = 0; head < t.entry.n_heads; ++head) {
    Scratch s = t.scratch(head);
    begin(t, s.m, s.l, s.acc);
  }
  bool by_split = t.call.keys->centre.mean && !t.seqs().block_starts, centred = !by_split;
  for (int tile = split * SPLIT_TOKENS; tile < (split + 1) * SPLIT_TOKENS; tile += TILE_TOKENS)
    for (int i = 0; i < 2; ++i) {
      Span span = visible.within(i, tile, tile + TILE_TOKENS);
      if (span.start >= span.stop) continue;
      if (use_query(t, i == 0)) centred = !by_split;
      for (int head = 0; head < t.entry.n_heads && !centred; ++head) centre(t, t.scratch(head), split);
      centred = true;
      attend_tile(t, tile, {span.start - tile, span.stop - tile}, ahead);
    }
}

// A sequence's partial results: per part and head of the task [rows][dim], maxima, sums.
void attend_part(Task& t, const Visible& visible, Ahead* ahead) {
  const Entry& entry = t.entry;
  const Join& join = t.call.joins[entry.join];
  int width = t.rows * t.shape().padded_value_dim;
  int64_t part_floats = t.shape().part_floats(t.rows * entry.n_heads);
  float* parts = t.call.parts + join.slot;
  auto part_of = [&](int part, int head) { return parts + part * part_floats + head * (width + 2 * t.rows); };
  for (int i = 0; i < entry.n_splits; ++i) {
    attend_split(t, visible, entry.split + i, ahead);
    for (int head = 0; head < entry.n_heads; ++head) {
      Scratch s = t.scratch(head);
      float* to = part_of(entry.part + i, head);
      __builtin_memcpy(to, s.acc, width * sizeof(float));
      __builtin_memcpy(to + width, s.m, t.rows * sizeof(float));
      __builtin_memcpy(to + width + t.rows, s.l, t.rows * sizeof(float));
    }
  }
  if (__atomic_add_fetch(t.call.finished + entry.join, 1, __ATOMIC_ACQ_REL) < join.n_tasks) return;
  for (int head = 0; head < entry.n_heads; ++head)
    for (int part = 0; part < join.n_parts; ++part) {
      const float* from = part_of(part, head);
      merge(t, t.scratch(head), from + width, from + width + t.rows, from);
    }
  with_codec(*t.call.values, [&]<Codec C>() { store_results<C>(t); });
}

void attend_task(const Attend& call, int entry_index, float* memory) {
  const Entry& entry = call.entries[entry_index];
  Task t{call, entry, entry.n_tokens * call.shape.shared, memory};
  Visible visible(t);
  bool whole = entry.join < 0;
  int last = t.position(t.rows - 1) / SPLIT_TOKENS;
  int first = whole ? 0 : entry.split, stop = whole ? last + 1 : first + entry.n_splits;
  Span read = visible.within(1, first * SPLIT_TOKENS, stop * SPLIT_TOKENS);
  Ahead fetching(call, entry, read.start, read.stop);
  Ahead* ahead = entry.n_tokens <= AHEAD_TOKENS ? &fetching : nullptr;
  if (ahead) ahead->begin();
  with_codec(*call.keys, [&]<Codec C>() { load_queries<C>(t, call.query); });
  if (call.rope) with_codec(*call.rope, [&]<Codec C>() { load_rope_queries<C>(t); });
  for (int head = 0; head < entry.n_heads; ++head) {
    Scratch s = t.scratch(head);
    begin(t, s.merged_m, s.merged_l, s.merged);
  }
  if (!whole) return attend_part(t, visible, ahead);
  for (int split = first; split < stop; ++split) {
    attend_split(t, visible, split, ahead);
    for (int head = 0; head < entry.n_heads; ++head) {
      Scratch s = t.scratch(head);
      merge(t, s, s.m, s.l, s.acc);
    }
  }
  with_codec(*call.values, [&]<Codec C>() { store_results<C>(t); });
}

// ---- writing ------------------------------------------------------------------------------------

template <int bytes>
INLINE void scatter(const uint8_t* from, const Field& f, uint8_t* to, int n_bytes) {
  for (int at = 0; at < n_bytes; at += bytes, to += f.unit_stride) __builtin_memcpy(to, from + at, bytes);
}

template <Codec C>
INLINE void store_row(const Plane& p, const float* row, const RowAt& to) {
  if constexpr (in_units<C>) {
    alignas(64) uint8_t data[MAX_DIM * 2], scale[2 * MOST_GROUPS];
    encode_row<C>(row, p.dim, {data, scale, nullptr, nullptr});
    scatter<Unit<C>::bytes>(data, p.data, const_cast<uint8_t*>(to.data), p.dim / Unit<C>::dims * Unit<C>::bytes);
    if constexpr (is_turned<C>)
      scatter<2>(scale, p.scale, const_cast<uint8_t*>(to.scale), C == Codec::int4 ? 2 * int4_groups(p.dim) : 2);
  } else {
    encode_row<C>(row, p.dim, to);
  }
}

template <Codec C>
void write_rows(const Write& call, int token_start, int token_stop) {
  const Sequences& seqs = *call.sequences;
  const Plane& p = *call.plane;
  alignas(64) float row[MAX_DIM];
  for (int s = 0; s < seqs.n_sequences; ++s) {
    int start = seqs.query_start[s] > token_start ? seqs.query_start[s] : token_start;
    int stop = seqs.query_start[s + 1] < token_stop ? seqs.query_start[s + 1] : token_stop;
    for (int token = start; token < stop; ++token) {
      int position = seqs.position(s, token);
      const uint8_t* block = call.arena + seqs.offsets[s * seqs.max_blocks + position / seqs.block_tokens];
      for (int head = 0; head < p.heads; ++head) {
        RowAt to = row_at(p, block, head, position % seqs.block_tokens);
        int64_t at = token * call.rows.token_stride + head * call.rows.head_stride;
        if (call.rows.bf16) {
          const uint16_t* from = static_cast<const uint16_t*>(call.rows.data) + at;
          if (C == Codec::bf16 && !p.centre.mean) {
            scatter<4>(reinterpret_cast<const uint8_t*>(from), p.data, const_cast<uint8_t*>(to.data), 2 * p.dim);
            continue;
          }
          for (int d = 0; d < p.dim; ++d) row[d] = float_of(uint32_t(from[d]) << 16);
        }
        const float* stored = call.rows.bf16 ? row : static_cast<const float*>(call.rows.data) + at;
        if (p.centre.mean) subtract_centre(p, head, position, stored, row), stored = row;
        store_row<C>(p, stored, to);
      }
    }
  }
}

void write(const Write& call, int token_start, int token_stop) {
#define ONE(name) \
  case Codec::name: return write_rows<Codec::name>(call, token_start, token_stop);
  switch (call.plane->codec) { EVERY_CODEC(ONE) }
#undef ONE
}

#include "sparse.hpp"

}  // namespace
