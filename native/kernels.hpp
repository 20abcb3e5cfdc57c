// Attention over the paged cache, for one instruction set.
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
#include "amx.hpp"
#include "tiles.hpp"
#include "products.hpp"
#include "mixtures.hpp"
#include "centre.hpp"

constexpr float LEAST = -1e30f;  // a maximum of nothing: finite, so that differences are numbers
constexpr int AHEAD_TOKENS = 8;  // tasks of more query tokens are bound by arithmetic

#include "task.hpp"
#include "softmax.hpp"
#include "queries.hpp"
#include "latent.hpp"
#include "attend_amx.hpp"

template <Codec C>
void score(const Task& t, const Scratch& s, const Runs& runs, int kv_head, int tile, Span span, Ahead* ahead) {
  const Plane& p = *t.call.keys;
  KeyPanels keys;
  Scales scales;
  find_keys<C>(runs, p, kv_head, span, s.tile, keys);
  find_scales<C>(runs, p, kv_head, scales);
  constexpr Codec K = in_units<C> ? C : Codec::fp32;
  int n_lines = panel_lines<K>(p.dim);
  by_rows<KEY_ROWS>(t.rows, [&]<int R>(int row) {
    Span part = seen(t, row, R, tile, span);
    Queries q{reinterpret_cast<const int32_t*>(s.query) + row * t.shape().padded_dim, s.query_scales + row,
              s.excess + row * MOST_GROUPS, p.dim, query_parts(t)};
    for (int i = part.start / PANEL_TOKENS; i * PANEL_TOKENS < part.stop; ++i) {
      if (ahead && row == 0) ahead->take(n_lines);
      score_panel<K, R>(keys, i, q, scales, s.scores + row * TILE_TOKENS);
    }
  });
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

// ---- one task -----------------------------------------------------------------------------------

template <Codec C>
void load_queries(const Task& t, const Rows& q) {
  constexpr Codec K = in_units<C> ? C : Codec::fp32;
  const Shape& shape = t.shape();
  int dim = t.call.keys->dim;
  int n_words = row_words<K>(t, dim);
  alignas(64) float x[MAX_DIM + LANES];
  alignas(64) int32_t words[MAX_DIM];
  for (int head = 0; head < t.entry.n_heads; ++head) {
    Scratch s = t.scratch(head);
    by_query_rows(t, [&]<int R>(int first) {
      auto* to = reinterpret_cast<int32_t*>(s.query) + first * shape.padded_dim;
      for (int r = 0; r < R; ++r) {
        int row = first + r;
        read_query(t, q, row, head, 0, dim, x);
        if (t.call.keys->centre.mean)
          split_query(*t.call.keys, t.entry.head + head, t.call.scale, x, s.factors + row * shape.padded_dim);
        if constexpr (is_turned<C>) turn(x, dim);
        s.query_scales[row] = prepare_words<K>(t, x, dim, words, s.excess + row * MOST_GROUPS);
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
      auto place = [&](int vectors, int lanes, auto dim_of) {
        for (int d = 0; d < shape.value_dim; d += vectors * lanes)
          for (int lane = 0; lane < lanes; ++lane)
            for (int v = 0; v < vectors; ++v) placed[d + dim_of(v, lane)] = sums[d + v * lanes + lane] / total;
      };
      if (t.in_registers) place(CHUNK_VECTORS<K>, LANES, register_dim<K>);
      else place(Chunk<K>::vectors, Chunk<K>::lanes, Chunk<K>::dim_of);
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
#if AMX
    if (t.in_registers) {
      attend_tile_in_registers(t, s, runs, kv_head, tile, span, ahead);
      continue;
    }
#endif
    with_codec(*t.call.keys, [&]<Codec C>() { score<C>(t, s, runs, kv_head, tile, span, ahead); });
    if (t.call.rope) with_codec(*t.call.rope, [&]<Codec C>() { add_rope_scores<C>(t, s, runs, tile, span); });
    weigh(t, s, tile, span);
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
  Registers registers;
  int rows = entry.n_tokens * call.shape.shared;
  Task t{call, entry, rows, memory, &registers, use_registers(call, rows)};
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

#include "write.hpp"
#include "sparse.hpp"

}  // namespace
