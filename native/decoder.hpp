// A whole step of a decoder: from token ids to logits in one call and one parallel region.
//
//   per layer   norm -> qkv -> q/k norm, rotation, rows into the cache -> attention -> output
//               norm -> gate and up -> down;  each half is added to the residual stream
//
// The residual stream and everything between products is fp32, whatever the weights are. A row's
// result depends on its own sequence alone: products sum in one order, and norms and rotations see
// one row. So the batch, the cut of a prompt and the number of threads never show in it.
#pragma once
#include <vector>

#include "step.hpp"

namespace holdover {

struct Numbers {
  int hidden, inner, vocab, query_heads, kv_heads, head_dim, ropes;
  bool sink_queries;  // whether some layer's sinks meet a query of their own
  Element element;

  int query_width() const { return query_heads * head_dim; }
  int qkv_width() const { return (query_heads + 2 * kv_heads) * head_dim; }
};

// What a step needs beside weights and cache, in one allocation.
struct Buffers {
  float* residual;   // [tokens, hidden]
  float* wide;       // [tokens, q, k and v] or [tokens, inner]
  float* narrow;     // [tokens, query width] or [tokens or rows, hidden]
  float* angles;     // [ropes, tokens, head dim]: cosines, then sines
  float* sink_query; // [tokens, query width], where there are any
  uint8_t* operand;  // rows as the next product takes them
  float* logits;     // [rows, vocab]
  int64_t bytes;

  Buffers(const Numbers&, int tokens, int rows, Address at);  // 0: sizes alone
};

struct Rope {
  const float* turns;  // per token, of each pair
  float factor;        // of cosines and sines
  int64_t last_place;  // positions after it are turned as it is
};

struct Layer {
  Matrix qkv, output, gate, up, down;
  const float *attention_norm, *attention_post_norm, *query_norm, *key_norm;  // null where it has none
  const float *mlp_norm, *mlp_post_norm;
  int rope, sink_rope;       // the second turns the query that meets sinks; -1: the query does
  int group, storage;        // whose rows it attends to; its own where it stores some
};

// What is watched for values that are not finite, or too large for how they are stored.
struct Watch {
  std::vector<uint8_t> layers;  // per layer, whether its new rows are looked at
  float most;
  uint8_t* wrong;  // [tokens]
  float* taken;    // or null: [layers, tokens, query and KV heads, head dim], queries and keys as they are turned
};

struct Decoder {
  Numbers numbers;
  Matrix embedding, head;
  const float* norm;
  float norm_eps, embedding_scale, attention_scale, attention_softcap, final_softcap;
  Activation activation;
  int max_tokens, max_rows;
  Buffers buffers;
  std::vector<Rope> ropes;
  std::vector<Layer> layers;

  // Logits are left in the buffers.
  void forward(const int64_t* token_ids, const int64_t* positions, const std::vector<GroupStep*>& groups,
               const int64_t* logit_rows, int n_rows, const Watch&) const;
};

}  // namespace holdover
