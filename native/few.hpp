// A step of a group with sparse layers: what its tasks are there. What of them is chosen differs from
// layer to layer and lies in the cache's room for choices; how much is chosen does not.
//
//   wave 0   promises of its queries, beside what all queries of prompts do | what they attend to
//   wave 1   promises                                                       | ...
//
// A wave is as many queries as the room holds. What a KV head of a query reads is a sequence of its own.
#pragma once
#include <vector>

#include "types.hpp"

namespace holdover {

// Room for the choices of waves, of queries of so many blocks at most.
struct ChoiceRoom {
  uint8_t* at = nullptr;
  int64_t n_bytes = 0;

  static int64_t query_bytes(int kv_heads, int query_heads, int read_blocks, int most_blocks);
  static int64_t needed_bytes(int kv_heads, int query_heads, int read_blocks, int most_blocks, int max_sequences);
};

struct Wave {
  std::vector<FewQuery> queries;
  std::vector<Piece> pieces;
  std::vector<int32_t> query_start, context_tokens;  // of what is read, by query and KV head
  Tasks tasks;
};

class FewStep {
 public:
  // `prompt_tokens` [sequences]; `first_position` of queries that leave something out is no earlier.
  FewStep(const Sequences&, const int32_t* prompt_tokens, Few);

  std::vector<Filled> filled;   // in this step
  std::vector<int32_t> stops;   // of each sequence's query tokens that read all
  bool any() const { return !all.empty(); }
  int read_blocks() const { return few.read(); }

  void cut(const Shape&, int64_t part_floats, const ChoiceRoom&);
  Tasks beside;  // of the queries that read all
  std::vector<Wave> waves;

  // In a layer's step; the arrays of the wave's choices are in `room`.
  Choose choice(const Wave&, const uint8_t* arena, const Plane& keys, const Sequences&, const Shape&, const Rows& query,
                float scale, const ChoiceRoom& room, int* finished) const;
  Sequences chosen(const Wave&, const Sequences&, const Choose&) const;

 private:
  const Sequences& seqs;
  Few few;
  std::vector<FewQuery> all;

  void add_wave(size_t first, size_t stop, const Shape&, int64_t part_floats);
};

}  // namespace holdover
