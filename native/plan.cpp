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

constexpr int CHUNK_ROWS = 96;      // query rows (tokens times heads that share) of one task
constexpr int SPLIT_QUERIES = 8;    // a sequence of so few query tokens may be split by keys
constexpr int64_t MOST_PARTS_BYTES = 4 << 20;

int round_up(int n, int to) { return (n + to - 1) / to * to; }
int ceil_div(int n, int by) { return (n + by - 1) / by; }

void check_alive(const Sequences& seqs, int s, int start, int stop) {
  for (int b = start / seqs.block_tokens; b < ceil_div(stop, seqs.block_tokens); ++b)
    if (seqs.offsets[s * seqs.max_blocks + b] < 0)
      throw std::invalid_argument("sequence " + std::to_string(s) + " reads block " +
                                  std::to_string(b) + ", which is dead");
}

}  // namespace

Shape Shape::of(int kv_heads, int query_heads, int dim, int value_dim) {
  return {kv_heads, query_heads / kv_heads, dim, value_dim, round_up(dim, WIDEST_LANES),
          round_up(value_dim, WIDEST_LANES)};
}

int Shape::chunk_tokens() const { return std::clamp(CHUNK_ROWS / shared, 1, 48); }

int64_t Shape::scratch_floats() const {
  // queries, scores, result of a split, merged result | their maxima, sums, sums of queries | a decoded tile
  int64_t rows = std::max(CHUNK_ROWS, shared);
  int64_t row = padded_dim + TILE_TOKENS + 2 * padded_value_dim + 5;
  int64_t tile = int64_t(TILE_TOKENS) * std::max(padded_dim, padded_value_dim);
  return (rows * row + tile + WIDEST_LANES - 1) / WIDEST_LANES * WIDEST_LANES;
}

int64_t Shape::part_floats(int n_tokens) const {
  return int64_t(n_tokens) * shared * (padded_value_dim + 2);
}

int64_t parts_capacity(const Shape& shape, int max_sequences, int max_context_tokens) {
  int64_t n_splits = ceil_div(max_context_tokens, SPLIT_TOKENS);
  if (n_splits < 2) return 0;
  int64_t one = shape.part_floats(1) * shape.kv_heads * n_splits;
  return std::max(one, std::min(one * max_sequences, MOST_PARTS_BYTES / int64_t(sizeof(float))));
}

Tasks plan_tasks(const Sequences& seqs, const Shape& shape, int64_t part_floats) {
  Tasks tasks;
  int64_t used = 0;
  std::vector<int64_t> work;
  for (int s = 0; s < seqs.n_sequences; ++s) {
    for (int at = seqs.query_start[s]; at < seqs.query_start[s + 1]; at += shape.chunk_tokens()) {
      int n = std::min(shape.chunk_tokens(), seqs.query_start[s + 1] - at);
      int stop = seqs.position(s, at) + n, start = seqs.first_visible[at];
      int sinks = std::min({seqs.sink_tokens, stop, start});
      check_alive(seqs, s, 0, sinks);
      check_alive(seqs, s, start, stop);
      std::vector<int> splits;
      for (int i = 0; i < ceil_div(stop, SPLIT_TOKENS); ++i)
        if (i * SPLIT_TOKENS < sinks || (i + 1) * SPLIT_TOKENS > start) splits.push_back(i);
      int64_t one = shape.part_floats(n) * shape.kv_heads, need = one * int64_t(splits.size());
      if (splits.size() < 2 || seqs.n_queries(s) > SPLIT_QUERIES || used + need > part_floats) {
        tasks.entries.push_back({s, at, n, -1, -1, 0});
        work.push_back(int64_t(n) * (stop - start + sinks));
        continue;
      }
      int join = int(tasks.joins.size());
      tasks.joins.push_back({int(tasks.entries.size()), int(splits.size()), used});
      used += need;
      for (int part = 0; part < int(splits.size()); ++part) {
        tasks.entries.push_back({s, at, n, splits[part], join, part});
        work.push_back(int64_t(n) * SPLIT_TOKENS);
      }
    }
  }
  // The longest first: what is left at the end is short.
  std::vector<int> order(tasks.entries.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = int(i);
  std::stable_sort(order.begin(), order.end(), [&](int a, int b) { return work[a] > work[b]; });
  std::vector<Entry> sorted;
  for (int i : order) sorted.push_back(tasks.entries[i]);
  for (size_t i = 0; i < sorted.size(); ++i)
    if (sorted[i].join >= 0) tasks.joins[sorted[i].join].entry = int(i);
  tasks.entries = std::move(sorted);
  return tasks;
}

}  // namespace holdover
