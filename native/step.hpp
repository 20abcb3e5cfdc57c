// The cache as one engine has it, and one group of layers in one step. Who calls keeps the arrays.
#pragma once
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <algorithm>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "few.hpp"
#include "team.hpp"
#include "types.hpp"

namespace holdover {

namespace nb = nanobind;

using Ints = nb::ndarray<const int32_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Offsets = nb::ndarray<const int64_t, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using Address = uintptr_t;

constexpr int64_t PARALLEL_ELEMENTS = 1 << 15;  // fewer are written by the caller alone

// Those that run here, the best last.
inline std::vector<const Isa*> isas() {
  std::vector<const Isa*> all = {&portable};
#if defined(__x86_64__)
#if defined(HOLDOVER_WIDE)
  all.push_back(&wide);
  all.push_back(&wide_bf16);
  all.push_back(&wide_amx);
#endif
  all.push_back(&avx2);
  all.push_back(&avx512);
  all.push_back(&avx512_bf16);
  all.push_back(&amx);
#endif
  std::erase_if(all, [](const Isa* isa) { return !isa->runs(); });
  return all;
}

struct Cache {
  uint8_t* arena;
  float* workspace;
  int64_t workspace_floats;
  int block_tokens;
  int64_t most_tokens = INT64_MAX;  // of a sequence: as far as the centres of keys reach
  const Isa* isa;
  Team team;
  int max_sequences = 1, max_blocks = 0;  // of a step, and of a sequence
  std::vector<std::pair<Plane, Plane>> planes;  // keys and values, of each layer that stores some

  Cache(Address arena, Address workspace, int64_t workspace_bytes, int block_tokens,
        const std::string& isa_name, Address parallel, int threads)
      : arena(reinterpret_cast<uint8_t*>(arena)),
        workspace(reinterpret_cast<float*>(workspace)),
        workspace_floats(workspace_bytes / int64_t(sizeof(float))),
        block_tokens(block_tokens),
        isa(nullptr),
        team{reinterpret_cast<Team::Parallel>(parallel), threads} {
    for (const Isa* one : isas())
      if (one->name == isa_name) isa = one;
    if (!isa) throw std::invalid_argument("no instruction set " + isa_name);
  }

  // The workspace is scratch of each thread, and then room for partial results.
  float* scratch(const Shape& shape, int thread) const { return workspace + thread * shape.scratch_floats(); }
  float* parts(const Shape& shape) const { return scratch(shape, team.threads); }

  // The workspace's end, in groups that need it.
  ChoiceRoom choices(const Shape& shape, int read_blocks) const {
    int64_t n = ChoiceRoom::needed_bytes(shape.kv_heads, shape.kv_heads * shape.shared, read_blocks, max_blocks,
                                         max_sequences);
    return {reinterpret_cast<uint8_t*>(workspace + workspace_floats) - n, n};
  }
};

// One group of layers in one step. Tasks are cut at the first attend, and again should the number
// of query heads change.
struct GroupStep {
  const Cache& cache;
  Ints query_start, context_tokens, first_visible;
  Offsets offsets;
  Sequences sequences;
  Tasks tasks;
  int shared = 0;
  std::vector<int> finished;
  std::unique_ptr<FewStep> few;  // of a group with sparse layers
  ChoiceRoom choices;

  GroupStep(const Cache& cache, Ints query_start, Ints context_tokens, Offsets offsets,
            Ints first_visible, int sink_tokens)
      : cache(cache), query_start(query_start), context_tokens(context_tokens),
        first_visible(first_visible), offsets(offsets) {
    int n = int(context_tokens.shape(0));
    if (int(query_start.shape(0)) != n + 1 || int(offsets.shape(0)) != n)
      throw std::invalid_argument("arrays of a step differ in their number of sequences");
    sequences = {n, cache.block_tokens, sink_tokens, int64_t(offsets.shape(1)), query_start.data(),
                 context_tokens.data(), offsets.data(), first_visible.data()};
    if (int(first_visible.shape(0)) != query_start.data()[n])
      throw std::invalid_argument("one first visible position for each token is needed");
    for (int s = 0; s < n; ++s) {
      int stop = context_tokens.data()[s], start = stop - sequences.n_queries(s);
      if (stop > cache.most_tokens) throw std::invalid_argument("a sequence is longer than its keys have centres");
      if (start < 0 || stop > int64_t(offsets.shape(1)) * cache.block_tokens)
        throw std::invalid_argument("a sequence is longer than its block table");
      for (int position = start; position < stop; ++position)
        if (sequences.offsets[s * sequences.max_blocks + position / cache.block_tokens] < 0)
          throw std::invalid_argument("a new token has no block");
    }
  }

  void cut(const Shape& shape) {
    if (few) choices = cache.choices(shape, few->read_blocks());
    int64_t part_floats = cache.workspace_floats - (cache.parts(shape) - cache.workspace);
    part_floats -= choices.n_bytes / int64_t(sizeof(float));
    if (part_floats < 0) throw std::invalid_argument("the workspace is smaller than was stated");
    if (shape.shared == shared) return;
    tasks = plan_tasks(sequences, shape, part_floats);
    if (few) few->cut(shape, part_floats, choices);
    shared = shape.shared;
  }

  // To be called before anything else where the group has sparse layers.
  void read_few(Ints prompt_tokens, int sinks, int blocks, int latest, float reach) {
    if (int(prompt_tokens.shape(0)) != sequences.n_sequences)
      throw std::invalid_argument("arrays of a step differ in their number of sequences");
    few = std::make_unique<FewStep>(sequences, prompt_tokens.data(), Few{sinks, blocks, latest, reach});
  }

  bool reads_few(const Plane& keys) const { return keys.bounds.kept() && few && few->any(); }

  // What tasks of one layer count: those that are joined, and pieces of choices.
  int64_t n_counts() const {
    size_t n = few ? few->beside.joins.size() : 0;
    if (few)
      for (const Wave& wave : few->waves) n += wave.queries.size() + wave.tasks.joins.size();
    return int64_t(std::max(n, tasks.joins.size()));
  }

  int n_tokens() const { return sequences.query_start[sequences.n_sequences]; }

  void write(const Plane& plane, Address rows, bool bf16, int64_t token_stride, int64_t head_stride) {
    Write call{cache.arena, &plane, &sequences,
               {reinterpret_cast<const void*>(rows), bf16, token_stride, head_stride}};
    int tokens = n_tokens();
    int64_t elements = int64_t(tokens) * plane.heads * plane.dim;
    int n_tasks = elements < PARALLEL_ELEMENTS ? 1 : std::min(tokens, 4 * cache.team.threads);
    cache.team.run(n_tasks, [&](int task, int) {
      auto edge = [&](int i) { return int(int64_t(tokens) * i / n_tasks); };
      cache.isa->write(call, edge(task), edge(task + 1));
    });
    if (!plane.bounds.kept()) return;
    if (!few) throw std::invalid_argument("a sparse layer's group was not told what it reads");
    cache.team.run(int(few->filled.size()), [&](int task, int) {
      cache.isa->bound_block(cache.arena, plane, sequences, few->filled[task]);
    });
  }

  void attend(const Plane& keys, const Plane& values, int query_heads, const Rows& query, const Rows& sink_query,
              Address sink_logits, Address result, float scale, float softcap) {
    attend_over(keys, values, nullptr, query_heads, query, sink_query, sink_logits, result, scale, softcap);
  }

  // Queries have the dims of both planes, one behind the other.
  void attend_latent(const Plane& latent, const Plane& rope, int query_heads, const Rows& query, Address result,
                     float scale, float softcap) {
    if (latent.heads != 1 || rope.heads != 1) throw std::invalid_argument("latents have one row a token");
    attend_over(latent, latent, &rope, query_heads, query, {}, 0, result, scale, softcap);
  }

  void attend_over(const Plane& keys, const Plane& values, const Plane* rope, int query_heads, const Rows& query,
                   const Rows& sink_query, Address sink_logits, Address result, float scale, float softcap) {
    Shape shape = Shape::of(keys.heads, query_heads, keys.dim + (rope ? rope->dim : 0), values.dim);
    cut(shape);
    Attend call{cache.arena, &keys, &values, nullptr, nullptr, nullptr, nullptr, shape,
                query, sink_query, reinterpret_cast<const float*>(sink_logits), reinterpret_cast<void*>(result),
                scale, softcap, cache.parts(shape), rope};
    if (!reads_few(keys)) return run(call, sequences, tasks);
    run(call, sequences, few->beside);
    for (const Wave& wave : few->waves) {
      std::vector<int> chosen(wave.queries.size(), 0);
      Choose choice = few->choice(wave, cache.arena, keys, sequences, shape, call.query, scale, choices, chosen.data());
      cache.team.run(int(wave.pieces.size()), [&](int piece, int) { cache.isa->choose(choice, piece); });
      Sequences read = few->chosen(wave, sequences, choice);
      run(call, read, wave.tasks);
    }
  }

 private:
  void run(Attend call, const Sequences& seqs, const Tasks& of) {
    finished.assign(of.joins.size(), 0);
    call.sequences = &seqs, call.entries = of.entries.data(), call.joins = of.joins.data();
    call.finished = finished.data();
    auto attend = [&](int task, int thread) { cache.isa->attend(call, task, cache.scratch(call.shape, thread)); };
    int n_tasks = int(of.entries.size());
    if (of.elements >= PARALLEL_ELEMENTS) return cache.team.run(n_tasks, attend);
    for (int task = 0; task < n_tasks; ++task) attend(task, 0);
  }
};

}  // namespace holdover
