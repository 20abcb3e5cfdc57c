// Attention over the paged cache and encoding into it, for one instruction set.
//
// A task attends for the query rows of some tokens that share a KV head: row = token * shared + head.
//   per split of 1,024 keys:  m, l, acc = -huge, 0, 0
//     per tile of 128 keys:   scores, mask, new maximum, weights, acc += weights x values
//   merged in order, then divided by the sum of weights.
// Levels of quantised rows meet queries and weights as they are; scales and minima are applied to
// scores, and to weights before values. For few rows keys and values are decoded in registers as they are used; for many rows a tile is
// decoded once into scratch. Both do the same arithmetic in the same order.

#include "vec.hpp"
#include "codecs.hpp"

namespace {

constexpr float LEAST = -1e30f;  // a maximum of nothing: finite, so that differences are numbers
constexpr int FEW_ROWS = 2 * MOST_ROWS;
constexpr int AHEAD = 32;  // rows: two blocks, as a rule

struct Scratch {
  float *query, *scores, *acc, *merged, *m, *l, *merged_m, *merged_l, *query_sums, *tile;

  Scratch(float* at, const Shape& s, int rows) {
    auto take = [&](int64_t n) { return at += n, at - n; };
    query = take(int64_t(rows) * s.padded_dim);
    scores = take(int64_t(rows) * TILE_TOKENS);
    acc = take(int64_t(rows) * s.padded_value_dim);
    merged = take(int64_t(rows) * s.padded_value_dim);
    tile = take(int64_t(TILE_TOKENS) * (s.padded_dim > s.padded_value_dim ? s.padded_dim : s.padded_value_dim));
    m = take(rows), l = take(rows), merged_m = take(rows), merged_l = take(rows), query_sums = take(rows);
  }
};

// Tokens [start, stop) of a tile: where their rows lie.
struct TileRows {
  int start, stop;
  RowAt rows[TILE_TOKENS];
};

// Scales and minima of a tile's rows, group by group; 0 beside the tile's span.
struct Levels {
  Grouping groups;
  alignas(64) float scales[MAX_DIM / 32][TILE_TOKENS];
  alignas(64) float minima[MAX_DIM / 32][TILE_TOKENS];
};

struct Span {
  int start, stop;
};

struct Task {
  const Attend& call;
  const Entry& entry;
  int kv_head, rows;
  Scratch scratch;

  const Sequences& seqs() const { return *call.sequences; }
  const Shape& shape() const { return call.shape; }
  int position(int row) const { return seqs().position(entry.sequence, entry.token + row / shape().shared); }
  int first_visible(int row) const { return seqs().first_visible[entry.token + row / shape().shared]; }
};

// Fetches what lies beside the rows' data too; the data follow as they are used.
void find_rows(const Task& t, const Plane& p, int tile, Span span, TileRows& found) {
  const Sequences& seqs = t.seqs();
  const int64_t* offsets = seqs.offsets + t.entry.sequence * seqs.max_blocks;
  found.start = span.start - tile, found.stop = span.stop - tile;
  int block = span.start / seqs.block_tokens, token = span.start % seqs.block_tokens;
  for (int i = found.start; i < found.stop;) {
    RowAt row = row_at(p, t.call.arena + offsets[block++], t.kv_head, token);
    if (p.codec >= Codec::int8) __builtin_prefetch(row.scale), __builtin_prefetch(row.minimum);
    for (; token < seqs.block_tokens && i < found.stop; ++token, ++i) {
      found.rows[i] = row;
      row.data += p.data.token_stride, row.scale += p.scale.token_stride;
      row.minimum += p.minimum.token_stride, row.high += p.high.token_stride;
    }
    token = 0;
  }
}

void load_halves(const TileRows& tile, const uint8_t* RowAt::* field, int group, int n_groups, float* to) {
  for (int i = tile.start; i < tile.stop;) {
    const uint8_t* from = tile.rows[i].*field + 2 * group;
    if (n_groups == 1 && i + LANES <= tile.stop && tile.rows[i + LANES - 1].*field == from + 2 * (LANES - 1)) {
      store(to + i, from_fp16(from));
      i += LANES;
    } else {
      to[i++] = half_to_float(load<uint16_t>(from));
    }
  }
}

void load_levels(const Plane& p, const TileRows& tile, Levels& levels) {
  levels.groups = grouping(p);
  for (int g = 0; g < levels.groups.n_groups; ++g) {
    for (float* to : {levels.scales[g], levels.minima[g]}) {
      for (int i = 0; i < tile.start; ++i) to[i] = 0;
      for (int i = tile.stop; i < TILE_TOKENS; ++i) to[i] = 0;
    }
    if (levels.groups.wide)
      for (int i = tile.start; i < tile.stop; ++i) levels.scales[g][i] = load<float>(tile.rows[i].scale);
    else
      load_halves(tile, &RowAt::scale, g, levels.groups.n_groups, levels.scales[g]);
    if (levels.groups.has_minimum)
      load_halves(tile, &RowAt::minimum, g, levels.groups.n_groups, levels.minima[g]);
  }
}

// What a product fetches as it goes: the row AHEAD rows on, of its own tile or else of the next.
struct Ahead {
  const TileRows* next;  // none: nothing is fetched
  int n_bytes, next_bytes;

  inline __attribute__((always_inline)) void fetch(const TileRows& tile, int i) const {
    if (!next) return;
    int at = i + AHEAD;
    bool own = at < tile.stop;
    const TileRows& from = own ? tile : *next;
    at = own ? at : next->start + at - tile.stop;
    if (at >= from.stop) return;
    const uint8_t* data = from.rows[at].data;
    for (int byte = 0, stop = own ? n_bytes : next_bytes; byte < stop; byte += 64)
      __builtin_prefetch(data + byte);
  }
};

// ---- products -----------------------------------------------------------------------------------

// One group of dims in a product: [start, stop), and the scales of its levels, if it has any.
struct Group {
  int start, stop;
  const float *scales, *minima;

  Group(const Levels& levels, int g, int width) {
    const Grouping& all = levels.groups;
    start = g * all.group_dims;
    stop = g + 1 < all.n_groups ? start + all.group_dims : width;
    scales = all.n_groups ? levels.scales[g] : nullptr;
    minima = all.has_minimum ? levels.minima[g] : nullptr;
  }
};

// Adds to the scores of R query rows and the keys i to i + 3; keys outside the tile's span score
// whatever: they are hidden afterwards.
template <Codec C, int R>
INLINE void score_four(const TileRows& keys, int i, const float* query, int dim, Group group, int stride,
                       const float* query_sums, float* scores) {
  const RowAt* k[4];
  for (int j = 0; j < 4; ++j) {
    int at = i + j < keys.start ? keys.start : i + j < keys.stop ? i + j : keys.stop - 1;
    k[j] = &keys.rows[at];
  }
  F acc[R][4] = {};
  for (int d = group.start; d < group.stop; d += LANES) {
    F key[4];
    for (int j = 0; j < 4; ++j) key[j] = Decoder<C>::at(*k[j], dim, d);
    for (int r = 0; r < R; ++r) {
      F q = load<F>(query + r * stride + d);
      for (int j = 0; j < 4; ++j) acc[r][j] = fma(q, key[j], acc[r][j]);
    }
  }
  for (int r = 0; r < R; ++r) {
    F4 found = sums(acc[r][0], acc[r][1], acc[r][2], acc[r][3]);
    if (group.scales) found *= load<F4>(group.scales + i);
    if (group.minima) found += load<F4>(group.minima + i) * query_sums[r];
    float* to = scores + r * TILE_TOKENS + i;
    store(to, group.start ? load<F4>(to) + found : found);
  }
}

template <Codec C, int R>
INLINE void score_rows(const Task& t, const TileRows& keys, int i, int row, int dim, Group group) {
  const Scratch& s = t.scratch;
  int stride = t.shape().padded_dim;
  score_four<C, R>(keys, i, s.query + row * stride, dim, group, stride, s.query_sums + row,
                   s.scores + row * TILE_TOKENS);
}

template <Codec C>
void score(const Task& t, const TileRows& keys, int dim, Group group, Ahead ahead) {
  if (group.minima)
    for (int row = 0; row < t.rows; ++row) {
      float total = 0;
      for (int d = group.start; d < group.stop; ++d) total += t.scratch.query[row * t.shape().padded_dim + d];
      t.scratch.query_sums[row] = total;
    }
  for (int i = keys.start / 4 * 4; i < keys.stop; i += 4) {
    for (int j = 0; j < 4; ++j) ahead.fetch(keys, i + j);
    int row = 0;
    for (; row + MOST_ROWS <= t.rows; row += MOST_ROWS) score_rows<C, MOST_ROWS>(t, keys, i, row, dim, group);
    for (; row + 2 <= t.rows; row += 2) score_rows<C, 2>(t, keys, i, row, dim, group);
    if (row < t.rows) score_rows<C, 1>(t, keys, i, row, dim, group);
  }
}

// acc += weights x values for R rows and V vectors of dims from d on.
template <Codec C, int R, int V>
INLINE void mix_some(const TileRows& values, const float* weights, int dim, int d, int stride, float* acc,
                     Ahead ahead) {
  F sum[R][V];
  for (int r = 0; r < R; ++r)
    for (int v = 0; v < V; ++v) sum[r][v] = load<F>(acc + r * stride + d + v * LANES);
  for (int i = values.start; i < values.stop; ++i) {
    ahead.fetch(values, i);
    F value[V];
    for (int v = 0; v < V; ++v) value[v] = Decoder<C>::at(values.rows[i], dim, d + v * LANES);
    for (int r = 0; r < R; ++r) {
      F weight = set1(weights[r * TILE_TOKENS + i]);
      for (int v = 0; v < V; ++v) sum[r][v] = fma(weight, value[v], sum[r][v]);
    }
  }
  for (int r = 0; r < R; ++r)
    for (int v = 0; v < V; ++v) store(acc + r * stride + d + v * LANES, sum[r][v]);
}

template <Codec C, int R>
INLINE void mix_rows(const Task& t, const TileRows& values, int row, int dim, Group group, Ahead& ahead) {
  int stride = t.shape().padded_value_dim, d = group.start;
  const float* weights = t.scratch.scores + row * TILE_TOKENS;
  float* acc = t.scratch.acc + row * stride;
  alignas(64) float scaled[R * TILE_TOKENS];
  if (group.scales) {
    for (int i = 0; i < R * TILE_TOKENS; i += LANES)
      store(scaled + i, load<F>(weights + i) * load<F>(group.scales + i % TILE_TOKENS));
  }
  for (int r = 0; group.minima && r < R; ++r) {
    F total = {};
    for (int i = 0; i < TILE_TOKENS; i += LANES)
      total = fma(load<F>(weights + r * TILE_TOKENS + i), load<F>(group.minima + i), total);
    F each = set1(sum(total));
    for (int at = d; at < group.stop; at += LANES) store(acc + r * stride + at, load<F>(acc + r * stride + at) + each);
  }
  if (group.scales) weights = scaled;
  for (; d + 4 * LANES <= group.stop; d += 4 * LANES, ahead.next = nullptr)
    mix_some<C, R, 4>(values, weights, dim, d, stride, acc, ahead);
  for (; d < group.stop; d += LANES, ahead.next = nullptr)
    mix_some<C, R, 1>(values, weights, dim, d, stride, acc, ahead);
}

template <Codec C>
void mix(const Task& t, const TileRows& values, int dim, Group group, Ahead ahead) {
  int row = 0;
  for (; row + MOST_ROWS <= t.rows; row += MOST_ROWS) mix_rows<C, MOST_ROWS>(t, values, row, dim, group, ahead);
  for (; row + 2 <= t.rows; row += 2) mix_rows<C, 2>(t, values, row, dim, group, ahead);
  if (row < t.rows) mix_rows<C, 1>(t, values, row, dim, group, ahead);
}

template <Codec C>
void decode_tile(const TileRows& tile, int dim, int padded, float* to, TileRows& decoded) {
  decoded.start = tile.start, decoded.stop = tile.stop;
  for (int i = tile.start; i < tile.stop; ++i) {
    decode_row<C>(tile.rows[i], dim, padded, to + i * padded);
    decoded.rows[i].data = reinterpret_cast<const uint8_t*>(to + i * padded);
  }
}

// Runs `use.operator()<codec>(rows, dim, width)` on rows as stored, or on rows decoded into scratch.
template <class Use>
INLINE void with_rows(const Task& t, const Plane& p, const TileRows& tile, Use use) {
  int padded = (p.dim + LANES - 1) / LANES * LANES;
  TileRows decoded;
#define ONE(name)                                                                           \
  case Codec::name:                                                                         \
    if (Decoder<Codec::name>::lanes_fit(p.dim) && Codec::name <= Codec::int4 &&             \
        (t.rows <= FEW_ROWS || Codec::name == Codec::fp32))                                 \
      return use.template operator()<Codec::name <= Codec::int4 ? Codec::name : Codec::fp32>( \
          tile, p.dim, p.dim);                                                              \
    decode_tile<Codec::name>(tile, p.dim, padded, t.scratch.tile, decoded);                 \
    break;
  switch (p.codec) { EVERY_CODEC(ONE) }
#undef ONE
  use.template operator()<Codec::fp32>(decoded, padded, padded);
}

// ---- softmax ------------------------------------------------------------------------------------

// Hides what a row may not see of the tile's span, and whatever lies beside the span.
void hide(const Task& t, int row, int tile, const TileRows& keys) {
  float* scores = t.scratch.scores + row * TILE_TOKENS;
  const float hidden = -__builtin_inff();
  for (int i = 0; i < keys.start; ++i) scores[i] = hidden;
  for (int i = keys.stop; i < TILE_TOKENS; ++i) scores[i] = hidden;
  int first = t.first_visible(row) - tile, last = t.position(row) - tile;
  int sinks = t.seqs().sink_tokens - tile;
  if (first <= keys.start && last >= keys.stop - 1) return;
  for (int i = keys.start; i < keys.stop; ++i)
    if (i > last || (i < first && i >= sinks)) scores[i] = hidden;
}

void soften(const Task& t, int row) {
  float *scores = t.scratch.scores + row * TILE_TOKENS, &m = t.scratch.m[row], &l = t.scratch.l[row];
  F most = set1(LEAST);
  for (int i = 0; i < TILE_TOKENS; i += LANES) {
    F s = load<F>(scores + i);
    most = select(s > most, s, most);
  }
  float largest_score = largest(most);
  if (largest_score > m) {
    F shrink = exp(set1(m - largest_score));
    float* acc = t.scratch.acc + row * t.shape().padded_value_dim;
    for (int d = 0; d < t.shape().padded_value_dim; d += LANES) store(acc + d, load<F>(acc + d) * shrink);
    l *= shrink[0];
    m = largest_score;
  }
  F total = {}, from = set1(m);
  for (int i = 0; i < TILE_TOKENS; i += LANES) {
    F weight = exp(load<F>(scores + i) - from);
    store(scores + i, weight);
    total += weight;
  }
  l += sum(total);
}

void cap(float* scores, float softcap) {
  F most = set1(softcap);
  for (int i = 0; i < TILE_TOKENS; i += LANES)
    store(scores + i, most * tanh(load<F>(scores + i) / most));
}

// ---- one task -----------------------------------------------------------------------------------

void load_queries(const Task& t) {
  const Shape& s = t.shape();
  const Rows& q = t.call.query;
  for (int row = 0; row < t.rows; ++row) {
    int64_t at = (t.entry.token + row / s.shared) * q.token_stride +
                 (t.kv_head * s.shared + row % s.shared) * q.head_stride;
    float* to = t.scratch.query + row * s.padded_dim;
    for (int d = 0; d < s.dim; ++d) {
      float x = q.bf16 ? float_of(uint32_t(static_cast<const uint16_t*>(q.data)[at + d]) << 16)
                       : static_cast<const float*>(q.data)[at + d];
      to[d] = x * t.call.scale;
    }
    for (int d = s.dim; d < s.padded_dim; ++d) to[d] = 0;
  }
}

void store_results(const Task& t, const float* acc, const float* l) {
  const Shape& s = t.shape();
  int heads = s.kv_heads * s.shared;
  for (int row = 0; row < t.rows; ++row) {
    int64_t at = ((t.entry.token + row / s.shared) * int64_t(heads) + t.kv_head * s.shared +
                  row % s.shared) * s.value_dim;
    const float* from = acc + row * s.padded_value_dim;
    for (int d = 0; d < s.value_dim; ++d) {
      float x = from[d] / l[row];
      if (t.call.query.bf16) static_cast<uint16_t*>(t.call.result)[at + d] = to_bf16(x);
      else static_cast<float*>(t.call.result)[at + d] = x;
    }
  }
}

void merge(const Task& t, const float* m, const float* l, const float* acc) {
  const Scratch& to = t.scratch;
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
struct Visible {
  Span spans[2];

  explicit Visible(const Task& t) {
    int stop = t.position(t.rows - 1) + 1, start = t.first_visible(0);
    int sinks = t.seqs().sink_tokens < stop ? t.seqs().sink_tokens : stop;
    if (sinks >= start) start = 0, sinks = 0;
    spans[0] = {0, sinks}, spans[1] = {start, stop};
  }

  // The part of span `i` between two positions; empty: start >= stop.
  Span within(int i, int from, int to) const {
    return {spans[i].start > from ? spans[i].start : from, spans[i].stop < to ? spans[i].stop : to};
  }
};

int row_bytes(const Plane& p) {
  int bits = p.codec == Codec::fp32 ? 32 : p.codec <= Codec::fp16 ? 16 : p.codec == Codec::int4 ? 4 : 8;
  return p.dim * bits / 8;
}

void attend_tile(const Task& t, int tile, const TileRows& keys, const TileRows& values, const TileRows* next) {
  const Plane &k = *t.call.keys, &v = *t.call.values;
  int k_bytes = row_bytes(k), v_bytes = row_bytes(v);
  bool few = t.rows <= FEW_ROWS;
  Levels levels;
  load_levels(k, keys, levels);
  with_rows(t, k, keys, [&]<Codec C>(const TileRows& rows, int dim, int width) {
    Ahead ahead{few ? &values : nullptr, k_bytes, v_bytes};
    for (int g = 0; g == 0 || g < levels.groups.n_groups; ++g, ahead.next = nullptr)
      score<C>(t, rows, dim, Group(levels, g, width), ahead);
  });
  for (int row = 0; row < t.rows; ++row) {
    if (t.call.softcap != 0) cap(t.scratch.scores + row * TILE_TOKENS, t.call.softcap);
    hide(t, row, tile, keys);
    soften(t, row);
  }
  load_levels(v, values, levels);
  with_rows(t, v, values, [&]<Codec C>(const TileRows& rows, int dim, int width) {
    Ahead ahead{few ? next : nullptr, v_bytes, k_bytes};
    for (int g = 0; g == 0 || g < levels.groups.n_groups; ++g, ahead.next = nullptr)
      mix<C>(t, rows, dim, Group(levels, g, width), ahead);
  });
}

// Leaves its result in the scratch's m, l and acc.
void attend_split(const Task& t, const Visible& visible, int split) {
  begin(t, t.scratch.m, t.scratch.l, t.scratch.acc);
  TileRows rows[2], values;  // keys of this tile and of the next
  int n = 0;
  Span spans[2 * SPLIT_TOKENS / TILE_TOKENS];
  int tiles[2 * SPLIT_TOKENS / TILE_TOKENS];
  for (int tile = split * SPLIT_TOKENS; tile < (split + 1) * SPLIT_TOKENS; tile += TILE_TOKENS)
    for (int i = 0; i < 2; ++i) {
      Span span = visible.within(i, tile, tile + TILE_TOKENS);
      if (span.start < span.stop) spans[n] = span, tiles[n++] = tile;
    }
  for (int i = 0; i < n; ++i) {
    if (i == 0) find_rows(t, *t.call.keys, tiles[0], spans[0], rows[0]);
    if (i + 1 < n) find_rows(t, *t.call.keys, tiles[i + 1], spans[i + 1], rows[(i + 1) % 2]);
    find_rows(t, *t.call.values, tiles[i], spans[i], values);
    attend_tile(t, tiles[i], rows[i % 2], values, i + 1 < n ? &rows[(i + 1) % 2] : nullptr);
  }
}

void attend_task(const Attend& call, int entry_index, int kv_head, float* scratch) {
  const Entry& entry = call.entries[entry_index];
  const Shape& s = call.shape;
  int rows = entry.n_tokens * s.shared, width = rows * s.padded_value_dim;
  Task t{call, entry, kv_head, rows, Scratch(scratch, s, rows)};
  load_queries(t);
  Visible visible(t);
  const Scratch& own = t.scratch;
  begin(t, own.merged_m, own.merged_l, own.merged);
  if (entry.join < 0) {
    int stop = t.position(rows - 1);
    for (int split = 0; split <= stop / SPLIT_TOKENS; ++split) {
      attend_split(t, visible, split);
      merge(t, own.m, own.l, own.acc);
    }
    return store_results(t, own.merged, own.merged_l);
  }
  const Join& join = call.joins[entry.join];
  int64_t part_floats = s.part_floats(entry.n_tokens);
  float* parts = call.parts + join.slot + kv_head * join.n_parts * part_floats;
  float* mine = parts + entry.part * part_floats;
  attend_split(t, visible, entry.split);
  __builtin_memcpy(mine, own.acc, width * sizeof(float));
  __builtin_memcpy(mine + width, own.m, rows * sizeof(float));
  __builtin_memcpy(mine + width + rows, own.l, rows * sizeof(float));
  int* finished = call.finished + entry.join * s.kv_heads + kv_head;
  if (__atomic_add_fetch(finished, 1, __ATOMIC_ACQ_REL) < join.n_parts) return;
  for (int part = 0; part < join.n_parts; ++part) {
    const float* acc = parts + part * part_floats;
    merge(t, acc + width, acc + width + rows, acc);
  }
  store_results(t, own.merged, own.merged_l);
}

// ---- writing ------------------------------------------------------------------------------------

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
          if (C == Codec::bf16) {
            __builtin_memcpy(const_cast<uint8_t*>(to.data), from, p.dim * sizeof(uint16_t));
            continue;
          }
          for (int d = 0; d < p.dim; ++d) row[d] = float_of(uint32_t(from[d]) << 16);
          encode_row<C>(row, p.dim, to);
        } else {
          encode_row<C>(static_cast<const float*>(call.rows.data) + at, p.dim, to);
        }
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

}  // namespace
