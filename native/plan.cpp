// Which tasks a step is cut into, and how much scratch memory they take.
//
// A query's result depends on its own keys alone: tiles and splits lie at multiples of their size,
// partial results are merged in order, and a tile or split that a query cannot see changes nothing.
// So the cut below, the batch, and the number of threads never show in a result.
#include <algorithm>
#include <stdexcept>
#include <string>

#include "types.hpp"

namespace holdover {

namespace {

constexpr int CHUNK_ROWS = 96;    // query rows (tokens times heads that share) of one task
constexpr int SPLIT_QUERIES = 8;  // a sequence of so few query tokens may be split by keys
constexpr int PIECES = 8;         // a sequence is split into about so many tasks
constexpr int64_t MOST_PARTS_BYTES = 4 << 20;

int round_up(int n, int to) { return (n + to - 1) / to * to; }
int ceil_div(int n, int by) { return (n + by - 1) / by; }

void check_alive(const Sequences& seqs, int s, int start, int stop) {
  for (int b = start / seqs.block_tokens; b < ceil_div(stop, seqs.block_tokens); ++b)
    if (seqs.offsets[s * seqs.max_blocks + b] < 0)
      throw std::invalid_argument("sequence " + std::to_string(s) + " reads block " +
                                  std::to_string(b) + ", which is dead");
}

// Splits of keys that some of `n` query tokens from `token` on see.
struct Reads {
  int start, stop, sinks;
  std::vector<int> splits;

  Reads(const Sequences& seqs, int s, int token, int n)
      : start(seqs.first_visible[token]), stop(seqs.position(s, token) + n),
        sinks(std::min({seqs.sink_tokens, stop, start})) {
    for (int i = 0; i < ceil_div(stop, SPLIT_TOKENS); ++i)
      if (i * SPLIT_TOKENS < sinks || (i + 1) * SPLIT_TOKENS > start) splits.push_back(i);
  }
  int tokens() const { return stop - start + sinks; }
};

bool few(const Sequences& seqs, int s) { return seqs.n_queries(s) <= SPLIT_QUERIES; }

// KV heads of one task: all of them, so that a block is read from end to end, where there are
// tasks enough for every thread.
int heads_per_task(const Sequences& seqs, const Shape& shape) {
  int n = 0;
  for (int s = 0; s < seqs.n_sequences; ++s)
    if (few(seqs, s) && seqs.n_queries(s))
      n += int(Reads(seqs, s, seqs.query_start[s], seqs.n_queries(s)).splits.size());
  return n < PIECES ? 1 : shape.kv_heads;
}

}  // namespace

Shape Shape::of(int kv_heads, int query_heads, int dim, int value_dim) {
  return {kv_heads, query_heads / kv_heads, dim, value_dim, round_up(dim, PADDED_DIMS),
          round_up(value_dim, PADDED_DIMS)};
}

int Shape::chunk_tokens() const { return std::clamp(CHUNK_ROWS / shared, 1, 48); }

int64_t Shape::scratch_floats() const {
  // queries, their factors of centres, scores, result of a split, merged result | maxima, sums, what
  // maxima grew by; scale and sums of queries, their products with centres
  int64_t rows = std::max(CHUNK_ROWS, shared);
  int64_t row = 2 * padded_dim + TILE_TOKENS + 2 * padded_value_dim + 6 + MOST_GROUPS + SPLIT_TOKENS / CENTRE_TOKENS;
  int64_t tile = int64_t(TILE_TOKENS) * std::max(padded_dim, padded_value_dim);  // gathered, decoded or put in order
  return round_up(int(rows * row + tile), PADDED_DIMS);
}

int64_t Shape::part_floats(int n_rows) const { return int64_t(n_rows) * (padded_value_dim + 2); }

int64_t parts_capacity(const Shape& shape, int max_sequences, int max_context_tokens) {
  int64_t n_splits = ceil_div(max_context_tokens, SPLIT_TOKENS);
  if (n_splits < 2) return 0;
  int64_t one = shape.part_floats(shape.shared * shape.kv_heads) * n_splits;
  return std::max(one, std::min(one * max_sequences, MOST_PARTS_BYTES / int64_t(sizeof(float))));
}

Tasks plan_tasks(const Sequences& seqs, const Shape& shape, int64_t part_floats, const int32_t* stops) {
  Tasks tasks{{}, {}, 0};
  int64_t used = 0;
  std::vector<int64_t> work;
  int most_heads = heads_per_task(seqs, shape);
  auto add = [&](Entry entry, int64_t tokens) {
    tasks.entries.push_back(entry);
    work.push_back(tokens * entry.n_tokens * entry.n_heads);
    tasks.elements += work.back() * (shape.dim + shape.value_dim);
  };
  for (int s = 0; s < seqs.n_sequences; ++s) {
    int end = stops ? stops[s] : seqs.query_start[s + 1];
    for (int at = seqs.query_start[s]; at < end; at += shape.chunk_tokens()) {
      int n = std::min(shape.chunk_tokens(), end - at);
      Reads reads(seqs, s, at, n);
      check_alive(seqs, s, 0, reads.sinks);
      check_alive(seqs, s, reads.start, reads.stop);
      int n_splits = int(reads.splits.size());
      int at_once = few(seqs, s) ? std::clamp(CHUNK_ROWS / (n * shape.shared), 1, most_heads) : 1;
      for (int head = 0; head < shape.kv_heads; head += at_once) {
        int n_heads = std::min(at_once, shape.kv_heads - head);
        int64_t need = shape.part_floats(n * shape.shared * n_heads) * n_splits;
        if (n_splits < 2 || !few(seqs, s) || used + need > part_floats) {
          add({s, at, n, head, n_heads, 0, 0, -1, 0}, reads.tokens());
          continue;
        }
        int join = int(tasks.joins.size()), size = ceil_div(n_splits, PIECES), n_tasks = 0;
        for (int part = 0; part < n_splits; ++n_tasks) {
          int stop = part + 1;  // sinks and the rest may lie apart
          while (stop < std::min(part + size, n_splits) && reads.splits[stop] == reads.splits[stop - 1] + 1) ++stop;
          add({s, at, n, head, n_heads, reads.splits[part], stop - part, join, part},
              int64_t(stop - part) * SPLIT_TOKENS);
          part = stop;
        }
        tasks.joins.push_back({n_tasks, n_splits, used});
        used += need;
      }
    }
  }
  // The longest first: what is left at the end is short.
  std::vector<int> order(tasks.entries.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = int(i);
  std::stable_sort(order.begin(), order.end(), [&](int a, int b) { return work[a] > work[b]; });
  std::vector<Entry> sorted;
  for (int i : order) sorted.push_back(tasks.entries[i]);
  tasks.entries = std::move(sorted);
  return tasks;
}

}  // namespace holdover
