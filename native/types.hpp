// What the bindings, the planner of tasks and the kernels of every instruction set share: plain data.
// Byte offsets and strides come from the layout's fields; nothing here multiplies heads by dims.
#pragma once
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace holdover {

constexpr int TILE_TOKENS = 128;    // keys of one softmax update, at multiples of itself
constexpr int SPLIT_TOKENS = 256;   // keys of one partial result, at multiples of itself
constexpr int PANEL_TOKENS = 16;    // keys that a product takes side by side
constexpr int CENTRE_TOKENS = 16;   // keys with one centre, at multiples of itself
constexpr int TILE_CENTRES = TILE_TOKENS / CENTRE_TOKENS;
constexpr int SPAN_DIMS = 64;       // of int4: two groups, dims 0 and 1 of each four, and the others
constexpr int SPAN_GROUPS = 2;
constexpr int MOST_GROUPS = 16;     // scales of a row: MAX_DIM / 32
constexpr int MAX_DIM = 512;
constexpr int PADDED_DIMS = 64;  // scratch rows are whole chunks of dims on every instruction set

// Compiled into each caller: a shared copy could be one made for another instruction set.
#define HOLDOVER_INLINE inline __attribute__((always_inline))

enum class Codec : int { fp32, bf16, fp16, fp8, int8, int4, q8_0, q5_1, q5_0, q4_1, q4_0 };

// A row's part of a field is units of bytes in a run, `unit_stride` apart: all in a run, or with the
// block's tokens between them.
struct Field {
  int64_t offset, head_stride, token_stride, unit_stride, unit_bytes;  // bytes; offset in the block
};

// What a layer's keys are stored less of, or null: see centre.hpp. `mean` and `spread` are
// [head][dim], `table`, which layers share, [tile][cosines of dim / 2 pairs, then sines][centre]; it
// reaches as far as `most_tokens`.
struct Centre {
  const float *mean, *spread, *table;
  int64_t most_tokens;
};

// Where a block of a sparse layer keeps the least and the most of its keys, bf16 [head][2][dim].
struct Bounds {
  int64_t offset = -1, head_stride = 0;  // bytes; -1: nowhere

  HOLDOVER_INLINE bool kept() const { return offset >= 0; }
};

// One layer's plane. `data` holds levels or values; a codec without scale, minimum or fifth bits
// leaves those fields at zero and never reads them.
struct Plane {
  Codec codec;
  int heads, dim;
  Field data, scale, minimum, high;
  Centre centre;
  Bounds bounds = {};
};

// The sequences of a step as one group of layers sees them.
struct Sequences {
  int n_sequences, block_tokens, sink_tokens;
  int64_t max_blocks;
  const int32_t *query_start, *context_tokens;
  const int64_t* offsets;        // [sequences, max_blocks] bytes in the arena, -1 where dead
  const int32_t* first_visible;  // [tokens]
  const int32_t* block_starts = nullptr;  // [sequences, max_blocks] positions of chosen blocks; null: one after another

  HOLDOVER_INLINE int n_queries(int s) const { return query_start[s + 1] - query_start[s]; }
  HOLDOVER_INLINE int position(int s, int token) const { return context_tokens[s] - query_start[s + 1] + token; }
};

// Rows of fp32 or bf16 outside the cache; strides in elements, dims contiguous.
struct Rows {
  const void* data;
  bool bf16;
  int64_t token_stride, head_stride;
};

// Consecutive query tokens and KV heads that one task attends for, over all their keys or some
// splits of them.
struct Entry {
  int sequence, token, n_tokens;
  int head, n_heads;
  int split, n_splits;  // without a join: all
  int join;             // whose partial results are merged by the last to finish; -1: none
  int part;             // place of its first split among them
};

struct Join {
  int n_tasks, n_parts;
  int64_t slot;  // floats from the start of the partial results
};

struct Shape {
  int kv_heads, shared, dim, value_dim;  // query heads that share a KV head; dims of queries and values
  int padded_dim, padded_value_dim;

  static Shape of(int kv_heads, int query_heads, int dim, int value_dim);
  int chunk_tokens() const;  // query tokens of one task
  int64_t scratch_floats() const;  // of one thread, at so many query heads or fewer
  int64_t part_floats(int n_rows) const;  // one partial result
};

struct Tasks {
  std::vector<Entry> entries;
  std::vector<Join> joins;
  int64_t elements;  // of keys and values that are multiplied, all in all
};

// `part_floats` is the room for partial results. Raises std::invalid_argument for a dead block that
// some query reads.
// Of each sequence the query tokens before `stops`; null: all.
Tasks plan_tasks(const Sequences&, const Shape&, int64_t part_floats, const int32_t* stops = nullptr);

// Floats for partial results that are always there, within limits.
int64_t parts_capacity(const Shape&, int max_sequences, int max_context_tokens);

struct Attend {
  const uint8_t* arena;
  const Plane *keys, *values;
  const Sequences* sequences;
  const Entry* entries;
  const Join* joins;
  int* finished;  // [joins], atomic
  Shape shape;
  Rows query;
  Rows sink_query;           // what meets the sinks in its place; without data: the query itself
  const float* sink_logits;  // or null: [query heads], each one more term of its head's sum of weights
  void* result;  // [tokens, query heads, value dim] of the query's type
  float scale, softcap;
  float* parts;
  const Plane* rope = nullptr;  // rotary keys of latents, which are keys and values: see latent.hpp
};

struct Write {
  uint8_t* arena;
  const Plane* plane;
  const Sequences* sequences;
  Rows rows;
};

// ---- sparse layers ------------------------------------------------------------------------------

// A block that becomes full in a step.
struct Filled {
  int sequence, block;
};

// Blocks of a context that a decoding query reads: the first, the most promising, the latest.
struct Few {
  int sinks, blocks, latest;
  float reach;  // from the middle of a block's keys to their bound

  HOLDOVER_INLINE int read() const { return sinks + blocks + latest; }
};

// A query that reads few blocks of the `n_blocks` of its context, and pieces of its candidates.
struct FewQuery {
  int sequence, token, n_blocks, n_pieces;
};

struct Piece {
  int query, start, stop;
};

// `query` counts within one wave, as do the arrays that follow.
struct Choose {
  const uint8_t* arena;
  const Plane* keys;
  const Sequences* sequences;
  const FewQuery* queries;
  const Piece* pieces;
  Shape shape;
  Rows query;
  float scale;
  Few few;
  int64_t most_candidates;
  float* scores;      // [queries, KV heads, query heads that share one, most_candidates]
  int64_t* offsets;   // [queries, KV heads, few.read()] of the blocks that are read
  int32_t* starts;    // the same, their first positions
  int* finished;      // [queries], atomic
};

// ---- linear layers ------------------------------------------------------------------------------

enum class Element : int { fp32, bf16, int8 };  // how a matrix's weights are stored
constexpr int PANEL = 16;                       // outputs of a panel
constexpr int STREAMS = 4;                      // panels that a row meets at once: no task should have fewer
constexpr int SEGMENT = 256;                    // inputs that share a scale where weights are int8

// [outputs, inputs] in panels of 16 outputs: fp32 [panel][input][16], bf16 and int8
// [panel][input pair][16][2]. Padded with zeros to whole panels and an even number of inputs.
struct Matrix {
  Element element;
  int outputs, inputs;
  const uint8_t* panels;
  const float* scales;  // [outputs padded], int8 only
  const float* bias;    // [outputs] or null

  HOLDOVER_INLINE int n_panels() const { return (outputs + PANEL - 1) / PANEL; }
};

// Bytes of one panel; of panels and scales, each a multiple of 64; and of one row as a product takes
// it, the same on every instruction set and a multiple of 64.
int64_t panel_bytes(Element, int inputs);
int64_t matrix_bytes(Element, int outputs, int inputs);
int64_t operand_bytes(Element, int inputs);

// `rows` are consecutive outputs, from `first_output` on, of a matrix whose memory is `to`.
void pack(Element, const float* rows, int n_rows, int outputs, int inputs, int first_output, uint8_t* to);
Matrix packed(Element, int outputs, int inputs, const uint8_t* from, const float* bias);

enum class Activation : int { none, silu, gelu_tanh, gelu };

// result = operand x matrix^T + bias, or activation(operand x gate^T + bias) times that.
struct Product {
  const Matrix* matrix;
  const Matrix* gate;      // or null; of the same element, outputs and inputs
  const uint8_t* operand;  // rows of operand_bytes
  float* result;
  int64_t result_stride;  // floats
  bool add;               // to what result holds
  Activation activation;  // of the gate
};

struct Isa {
  const char* name;
  bool rounds_rows;    // to bf16, for products with bf16
  int panels_at_once;  // of many rows
  bool (*runs)();
  void (*attend)(const Attend&, int entry, float* scratch);
  void (*write)(const Write&, int token_start, int token_stop);
  // A plane's rows of a block, from one form of it to another. `start_position` is its first token's.
  void (*transcode)(const Plane& from, const Plane& to, const uint8_t* source, uint8_t* target, int n_tokens,
                    int64_t start_position);

  // A row as products with weights of this kind take it.
  void (*prepare)(const float* row, int inputs, Element, uint8_t* operand_row);
  // Any range of rows and panels. An element is summed in one order whatever the range.
  void (*multiply)(const Product&, int row_start, int row_stop, int panel_start, int panel_stop);
  // One output's weights.
  void (*unpack_row)(const Matrix&, int output, float* to);

  // x / rms(x) * weight; `to` may be x. A row with what is not finite keeps some of it.
  void (*norm)(const float* x, const float* weight, int n, float eps, float* to);
  void (*rotate)(float* head, int half, const float* cosines, const float* sines);
  bool (*within)(const float* x, int n, float most);  // no magnitude above, none NaN
  void (*cap)(float* x, int n, float most);           // most * tanh(x / most)

  void (*bound_block)(uint8_t* arena, const Plane& keys, const Sequences&, Filled);
  void (*choose)(const Choose&, int piece);
};

extern const Isa portable, avx2, avx512, avx512_bf16, amx, wide, wide_bf16, wide_amx;

}  // namespace holdover
