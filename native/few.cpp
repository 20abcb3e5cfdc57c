#include "few.hpp"

#include <algorithm>
#include <stdexcept>

namespace holdover {

namespace {

constexpr int PIECE_BLOCKS = 256;  // candidates of one task
constexpr int PIECES = 8;          // what a query reads is split into about so many tasks
constexpr int64_t MOST_ROOM_BYTES = 2 << 20;

int64_t aligned(int64_t n) { return (n + 63) / 64 * 64; }
int ceil_div(int n, int by) { return (n + by - 1) / by; }
int64_t scores_bytes(int most_blocks) { return aligned(int64_t(most_blocks) * sizeof(float)); }

}  // namespace

int64_t ChoiceRoom::query_bytes(int kv_heads, int query_heads, int read_blocks, int most_blocks) {
  int64_t chosen = aligned(read_blocks * int64_t(sizeof(int64_t))) + aligned(read_blocks * int64_t(sizeof(int32_t)));
  return query_heads * scores_bytes(most_blocks) + kv_heads * chosen;
}

int64_t ChoiceRoom::needed_bytes(int kv_heads, int query_heads, int read_blocks, int most_blocks, int max_sequences) {
  int64_t one = query_bytes(kv_heads, query_heads, read_blocks, most_blocks);
  return one * std::clamp<int64_t>(MOST_ROOM_BYTES / one, 1, max_sequences);
}

FewStep::FewStep(const Sequences& seqs, const int32_t* prompt_tokens, Few few) : seqs(seqs), few(few) {
  for (int s = 0; s < seqs.n_sequences; ++s) {
    int stop = seqs.context_tokens[s], start = stop - seqs.n_queries(s);
    for (int block = start / seqs.block_tokens; (block + 1) * seqs.block_tokens <= stop; ++block)
      filled.push_back({s, block});
    int first = std::max(prompt_tokens[s], few.read() * seqs.block_tokens);
    first = std::clamp(first, start, stop);
    stops.push_back(seqs.query_start[s] + first - start);
    for (int position = first; position < stop; ++position) {
      int n_blocks = position / seqs.block_tokens + 1;
      all.push_back({s, stops.back() + position - first, n_blocks,
                     ceil_div(n_blocks - few.sinks - few.latest, PIECE_BLOCKS)});
    }
    for (int b = 0; first < stop && b < ceil_div(stop, seqs.block_tokens); ++b)
      if (seqs.offsets[s * seqs.max_blocks + b] < 0) throw std::invalid_argument("a dead block might be chosen");
  }
}

void FewStep::cut(const Shape& shape, int64_t part_floats, const ChoiceRoom& room) {
  waves.clear();
  if (!any()) return;
  beside = plan_tasks(seqs, shape, part_floats, stops.data());
  int64_t one = ChoiceRoom::query_bytes(shape.kv_heads, shape.kv_heads * shape.shared, few.read(), int(seqs.max_blocks));
  if (one > room.n_bytes) throw std::invalid_argument("the room for choices is smaller than was stated");
  size_t at_once = size_t(room.n_bytes / one);
  for (size_t at = 0; at < all.size(); at += at_once) add_wave(at, std::min(at + at_once, all.size()), shape, part_floats);
}

void FewStep::add_wave(size_t first, size_t stop, const Shape& shape, int64_t part_floats) {
  Wave wave{{all.begin() + first, all.begin() + stop}, {}, {0}, {}, {}};
  int64_t used = 0;
  for (int q = 0; q < int(wave.queries.size()); ++q) {
    const FewQuery& query = wave.queries[q];
    for (int at = few.sinks, end = query.n_blocks - few.latest; at < end; at += PIECE_BLOCKS)
      wave.pieces.push_back({q, at, std::min(at + PIECE_BLOCKS, end)});
    int position = seqs.position(query.sequence, query.token);
    int n_tokens = (few.read() - 1) * seqs.block_tokens + position % seqs.block_tokens + 1;
    int n_splits = ceil_div(n_tokens, SPLIT_TOKENS), size = ceil_div(n_splits, PIECES);
    for (int head = 0; head < shape.kv_heads; ++head) {
      int s = int(wave.context_tokens.size());
      wave.query_start.push_back(query.token + 1);
      wave.context_tokens.push_back(n_tokens);
      int64_t need = shape.part_floats(shape.shared) * n_splits;
      wave.tasks.elements += int64_t(n_tokens) * (shape.dim + shape.value_dim);
      if (n_splits < 2 || used + need > part_floats) {
        wave.tasks.entries.push_back({s, query.token, 1, head, 1, 0, 0, -1, 0});
        continue;
      }
      int join = int(wave.tasks.joins.size()), n_tasks = ceil_div(n_splits, size);
      for (int part = 0; part < n_splits; part += size)
        wave.tasks.entries.push_back({s, query.token, 1, head, 1, part, std::min(size, n_splits - part), join, part});
      wave.tasks.joins.push_back({n_tasks, n_splits, used});
      used += need;
    }
  }
  waves.push_back(std::move(wave));
}

Choose FewStep::choice(const Wave& wave, const uint8_t* arena, const Plane& keys, const Sequences& sequences,
                       const Shape& shape, const Rows& query, float scale, const ChoiceRoom& room, int* finished) const {
  int64_t n = int64_t(wave.queries.size()) * shape.kv_heads;
  int64_t scores = scores_bytes(int(sequences.max_blocks));
  uint8_t* offsets = room.at + n * shape.shared * scores;
  uint8_t* starts = offsets + aligned(n * few.read() * int64_t(sizeof(int64_t)));
  return {arena, &keys, &sequences, wave.queries.data(), wave.pieces.data(), shape, query, scale, few,
          scores / int64_t(sizeof(float)), reinterpret_cast<float*>(room.at),
          reinterpret_cast<int64_t*>(offsets), reinterpret_cast<int32_t*>(starts), finished};
}

Sequences FewStep::chosen(const Wave& wave, const Sequences& sequences, const Choose& choice) const {
  return {int(wave.context_tokens.size()), sequences.block_tokens, 0, few.read(), wave.query_start.data(),
          wave.context_tokens.data(), choice.offsets, sequences.first_visible, choice.starts};
}

}  // namespace holdover
