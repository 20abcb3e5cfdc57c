// The Python module: takes flat arrays and addresses, cuts a step into tasks, runs them on a team of
// threads with the GIL released. Who calls it keeps arrays and tensors alive.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/array.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>

#include "types.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace holdover {
namespace {

using Ints = nb::ndarray<const int32_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Offsets = nb::ndarray<const int64_t, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using Address = uintptr_t;

constexpr const char* CODECS[] = {"fp32", "bf16", "fp16", "fp8",  "int8", "int4",
                                  "q8_0", "q5_1", "q5_0", "q4_1", "q4_0"};
constexpr int64_t PARALLEL_ELEMENTS = 1 << 15;  // fewer are written by the caller alone

// Those that run here, the best last.
std::vector<const Isa*> isas() {
  std::vector<const Isa*> all = {&portable};
#if defined(__x86_64__)
#if defined(HOLDOVER_WIDE)
  all.push_back(&wide);
#endif
  all.push_back(&avx2);
  all.push_back(&avx512);
#endif
  std::erase_if(all, [](const Isa* isa) { return !isa->runs(); });
  return all;
}

// Threads that are torch's own: `parallel` is GOMP_parallel of the OpenMP library it has loaded, so
// that no second pool spins beside the first. Without one, threads are started for each call.
struct Team {
  using Parallel = void (*)(void (*)(void*), void*, unsigned, unsigned);
  Parallel parallel;
  int threads;

  template <class Body>
  void run(int n_tasks, Body body) const {
    struct Shared {
      Body& body;
      int n_tasks;
      std::atomic<int> next_task{0}, next_thread{0};
    } shared{body, n_tasks};
    auto work = [](void* at) {
      auto& s = *static_cast<Shared*>(at);
      int thread = s.next_thread++;
      for (int task; (task = s.next_task++) < s.n_tasks;) s.body(task, thread);
    };
    int n = std::min(threads, n_tasks);
    if (n <= 1) return work(&shared);
    if (parallel) return parallel(work, &shared, unsigned(threads), 0);
    std::vector<std::thread> others;
    for (int i = 1; i < n; ++i) others.emplace_back(work, &shared);
    work(&shared);
    for (auto& other : others) other.join();
  }
};

Plane make_plane(const std::string& codec, int heads, int dim,
                 const std::array<std::array<int64_t, 3>, 4>& fields) {
  auto found = std::find(std::begin(CODECS), std::end(CODECS), codec);
  if (found == std::end(CODECS)) throw std::invalid_argument("no codec " + codec);
  if (dim < 1 || dim > MAX_DIM) throw std::invalid_argument("a row has 1 to 512 dims");
  auto field = [&](int i) { return Field{fields[i][0], fields[i][1], fields[i][2]}; };
  return {Codec(found - std::begin(CODECS)), heads, dim, field(0), field(1), field(2), field(3)};
}

struct Cache {
  uint8_t* arena;
  float* workspace;
  int64_t workspace_floats;
  int block_tokens;
  const Isa* isa;
  Team team;

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
      if (start < 0 || stop > int64_t(offsets.shape(1)) * cache.block_tokens)
        throw std::invalid_argument("a sequence is longer than its block table");
      for (int position = start; position < stop; ++position)
        if (sequences.offsets[s * sequences.max_blocks + position / cache.block_tokens] < 0)
          throw std::invalid_argument("a new token has no block");
    }
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
  }

  void attend(const Plane& keys, const Plane& values, int query_heads, Address query, bool bf16,
              int64_t token_stride, int64_t head_stride, Address result, float scale, float softcap) {
    Shape shape = Shape::of(keys.heads, query_heads, keys.dim, values.dim);
    int64_t scratch_floats = shape.scratch_floats();
    float* parts = cache.workspace + cache.team.threads * scratch_floats;
    int64_t part_floats = cache.workspace_floats - cache.team.threads * scratch_floats;
    if (part_floats < 0) throw std::invalid_argument("the workspace is smaller than was stated");
    if (shape.shared != shared) {
      tasks = plan_tasks(sequences, shape, part_floats);
      shared = shape.shared;
    }
    finished.assign(tasks.joins.size() * keys.heads, 0);
    Attend call{cache.arena, &keys, &values, &sequences, tasks.entries.data(), tasks.joins.data(),
                finished.data(), shape,
                {reinterpret_cast<const void*>(query), bf16, token_stride, head_stride},
                reinterpret_cast<void*>(result), scale, softcap, parts};
    cache.team.run(int(tasks.entries.size()) * keys.heads, [&](int task, int thread) {
      float* scratch = cache.workspace + thread * scratch_floats;
      cache.isa->attend(call, task / keys.heads, task % keys.heads, scratch);
    });
  }
};

int64_t workspace_bytes(int kv_heads, int query_heads, int dim, int value_dim, int threads,
                        int max_sequences, int max_context_tokens) {
  Shape shape = Shape::of(kv_heads, query_heads, dim, value_dim);
  int64_t floats = threads * shape.scratch_floats();
  return (floats + parts_capacity(shape, max_sequences, max_context_tokens)) * int64_t(sizeof(float));
}

}  // namespace

NB_MODULE(_native, m) {
  // What an engine holds at exit is frozen out of the collector, so Python never lets go of it.
  nb::set_leak_warnings(false);
  m.def("isas", [] {
    std::vector<std::string> names;
    for (const Isa* isa : isas()) names.push_back(isa->name);
    return names;
  });
  m.def("codecs", [] { return std::vector<std::string>(std::begin(CODECS), std::end(CODECS)); });
  m.attr("MAX_DIM") = MAX_DIM;
  m.def("workspace_bytes", &workspace_bytes, "kv_heads"_a, "query_heads"_a, "dim"_a, "value_dim"_a,
        "threads"_a, "max_sequences"_a, "max_context_tokens"_a);
  nb::class_<Plane>(m, "Plane").def(
      "__init__",
      [](Plane* self, const std::string& codec, int heads, int dim,
         const std::array<std::array<int64_t, 3>, 4>& fields) {
        new (self) Plane(make_plane(codec, heads, dim, fields));
      },
      "codec"_a, "heads"_a, "dim"_a, "fields"_a);
  nb::class_<Cache>(m, "Cache").def(
      nb::init<Address, Address, int64_t, int, const std::string&, Address, int>(), "arena"_a,
      "workspace"_a, "workspace_bytes"_a, "block_tokens"_a, "isa"_a, "parallel"_a, "threads"_a);
  nb::class_<GroupStep>(m, "GroupStep")
      .def(nb::init<const Cache&, Ints, Ints, Offsets, Ints, int>(), nb::keep_alive<1, 2>())
      .def("write", &GroupStep::write, nb::call_guard<nb::gil_scoped_release>())
      .def("attend", &GroupStep::attend, nb::call_guard<nb::gil_scoped_release>());
}

}  // namespace holdover
