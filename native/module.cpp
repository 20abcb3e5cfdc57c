// The Python module: takes flat arrays and addresses, cuts a step into tasks, runs them on a team of
// threads with the GIL released. Who calls it keeps arrays and tensors alive.
#include <nanobind/nanobind.h>
#include <nanobind/stl/array.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <array>
#include <stdexcept>
#include <string>
#include <tuple>

#include "decoder.hpp"
#include "step.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace holdover {
namespace {

constexpr const char* ELEMENTS[] = {"fp32", "bf16", "int8"};
constexpr const char* ACTIVATIONS[] = {"none", "silu", "gelu_tanh", "gelu"};
constexpr const char* CODECS[] = {"fp32", "bf16", "fp16", "fp8",  "int8", "int4",
                                  "q8_0", "q5_1", "q5_0", "q4_1", "q4_0"};

// The value of an enum whose names these are.
template <class Enum, size_t N>
Enum named(const char* const (&names)[N], const std::string& name) {
  auto found = std::find(std::begin(names), std::end(names), name);
  if (found == std::end(names)) throw std::invalid_argument("there is no " + name);
  return Enum(found - std::begin(names));
}

Plane make_plane(const std::string& codec, int heads, int dim,
                 const std::array<std::array<int64_t, 5>, 4>& fields, const Centre& centre, const Bounds& bounds) {
  if (dim < 1 || dim > MAX_DIM) throw std::invalid_argument("a row has 1 to 512 dims");
  auto field = [&](int i) {
    return Field{fields[i][0], fields[i][1], fields[i][2], fields[i][3], fields[i][4]};
  };
  return {named<Codec>(CODECS, codec), heads, dim, field(0), field(1), field(2), field(3), centre, bounds};
}

int64_t workspace_bytes(int kv_heads, int query_heads, int dim, int value_dim, int threads,
                        int max_sequences, int max_context_tokens) {
  Shape shape = Shape::of(kv_heads, query_heads, dim, value_dim);
  int64_t floats = threads * shape.scratch_floats();
  return (floats + parts_capacity(shape, max_sequences, max_context_tokens)) * int64_t(sizeof(float));
}

template <class T>
T* at(Address address) {
  return reinterpret_cast<T*>(address);
}

// Address, whether bf16, and strides of tokens and heads; address 0: none.
using RowsAt = std::tuple<Address, bool, int64_t, int64_t>;

Rows rows_at(const RowsAt& given) {
  auto [address, bf16, token_stride, head_stride] = given;
  return {at<void>(address), bf16, token_stride, head_stride};
}

Numbers numbers_of(int hidden, int inner, int vocab, int query_heads, int kv_heads, int head_dim,
                   int ropes, bool sink_queries, const std::string& element) {
  return {hidden, inner, vocab, query_heads, kv_heads, head_dim, ropes, sink_queries,
          named<Element>(ELEMENTS, element)};
}

const Isa& isa_named(const std::string& name) {
  for (const Isa* isa : isas())
    if (isa->name == name) return *isa;
  throw std::invalid_argument("no instruction set " + name);
}

// A group's blocks from one form to another, in the thread that calls it.
struct Transcoder {
  const Isa* isa;
  std::vector<std::pair<Plane, Plane>> planes;  // of each layer and plane that differs
  int block_tokens;

  Transcoder(const std::string& isa_name, const std::vector<std::pair<Plane, Plane>>& planes, int block_tokens)
      : isa(&isa_named(isa_name)), planes(planes), block_tokens(block_tokens) {
    for (const auto& [from, to] : planes)
      if (from.heads != to.heads || from.dim != to.dim) throw std::invalid_argument("two forms of unlike planes");
  }

  void run(Address source, Address target, int64_t start_position) const {
    for (const auto& [from, to] : planes)
      isa->transcode(from, to, at<uint8_t>(source), at<uint8_t>(target), block_tokens, start_position);
  }
};

// Products of the same rows with several matrices, in tasks of STREAMS panels: for tests and measurements.
struct Products {
  const Isa* isa;
  std::vector<Matrix*> matrices, gates;
  Team team;
  using Range = std::pair<int, int>;

  void prepare(Address rows, int n_rows, Address operand) const {
    const Matrix& m = *matrices[0];
    for (int r = 0; r < n_rows; ++r)
      isa->prepare(at<float>(rows) + int64_t(r) * m.inputs, m.inputs, m.element,
                   at<uint8_t>(operand) + r * operand_bytes(m.element, m.inputs));
  }

  void multiply(Address operand, Range rows, Range panels, Address result, int64_t stride, bool add,
                const std::string& activation) const {
    std::vector<std::array<int, 2>> tasks;
    for (int m = 0; m < int(matrices.size()); ++m)
      for (int panel = panels.first; panel < std::min(panels.second, matrices[m]->n_panels()); panel += STREAMS)
        tasks.push_back({m, panel});
    team.run(int(tasks.size()), [&](int task, int) {
      auto [m, panel] = tasks[task];
      Product p{matrices[m], gates.empty() ? nullptr : gates[m], at<uint8_t>(operand), at<float>(result), stride,
                add, named<Activation>(ACTIVATIONS, activation)};
      isa->multiply(p, rows.first, rows.second, panel,
                    std::min({panel + STREAMS, panels.second, matrices[m]->n_panels()}));
    });
  }
};

void bind_products(nb::module_& m) {
  auto release = nb::call_guard<nb::gil_scoped_release>();
  m.def("operand_bytes", [](const std::string& element, int inputs) {
    return operand_bytes(named<Element>(ELEMENTS, element), inputs);
  });
  m.def("unpack_row", [](const std::string& isa, const Matrix& matrix, int output, Address to) {
    isa_named(isa).unpack_row(matrix, output, at<float>(to));
  });
  nb::class_<Products>(m, "Products")
      .def("__init__", [](Products* self, const std::string& isa, const std::vector<Matrix*>& matrices,
                          const std::vector<Matrix*>& gates, Address parallel, int threads) {
        new (self) Products{&isa_named(isa), matrices, gates, {reinterpret_cast<Team::Parallel>(parallel), threads}};
      }, "isa"_a, "matrices"_a, "gates"_a, "parallel"_a, "threads"_a, nb::keep_alive<1, 3>(), nb::keep_alive<1, 4>())
      .def("prepare", &Products::prepare, "rows"_a, "n_rows"_a, "operand"_a, release)
      .def("multiply", &Products::multiply, "operand"_a, "rows"_a, "panels"_a, "result"_a, "result_stride"_a,
           "add"_a, "activation"_a, release);
}

void bind_decoder(nb::module_& m) {
  auto release = nb::call_guard<nb::gil_scoped_release>();
  m.def("matrix_bytes", [](const std::string& element, int outputs, int inputs) {
    return matrix_bytes(named<Element>(ELEMENTS, element), outputs, inputs);
  });
  m.def("pack", [](const std::string& element, Address rows, int n_rows, int outputs, int inputs,
                   int first_output, Address to) {
    pack(named<Element>(ELEMENTS, element), at<float>(rows), n_rows, outputs, inputs, first_output, at<uint8_t>(to));
  }, release);
  nb::class_<Matrix>(m, "Matrix")
      .def("__init__", [](Matrix* self, const std::string& element, int outputs, int inputs, Address from,
                          Address bias) {
        new (self) Matrix(packed(named<Element>(ELEMENTS, element), outputs, inputs, at<uint8_t>(from), at<float>(bias)));
      });
  nb::class_<Numbers>(m, "Numbers")
      .def("__init__", [](Numbers* self, int hidden, int inner, int vocab, int query_heads, int kv_heads,
                          int head_dim, int ropes, bool sink_queries, const std::string& element) {
        new (self) Numbers(numbers_of(hidden, inner, vocab, query_heads, kv_heads, head_dim, ropes, sink_queries,
                                      element));
      }, "hidden"_a, "inner"_a, "vocab"_a, "query_heads"_a, "kv_heads"_a, "head_dim"_a, "ropes"_a, "sink_queries"_a,
         "element"_a)
      .def("buffer_bytes", [](const Numbers& n, int tokens, int rows) {
        return Buffers(n, tokens, rows, 0).bytes;
      })
      .def("logits_offset", [](const Numbers& n, int tokens, int rows) {
        return reinterpret_cast<Address>(Buffers(n, tokens, rows, 0).logits);
      });
  nb::class_<Layer>(m, "Layer")
      .def("__init__", [](Layer* self, const Matrix& qkv, const Matrix& output, const Matrix& gate, const Matrix& up,
                          const Matrix& down, Address attention_norm, Address attention_post_norm,
                          Address query_norm, Address key_norm, Address mlp_norm, Address mlp_post_norm,
                          int rope, int sink_rope, int group, int storage) {
        new (self) Layer{qkv, output, gate, up, down, at<float>(attention_norm), at<float>(attention_post_norm),
                         at<float>(query_norm), at<float>(key_norm), at<float>(mlp_norm),
                         at<float>(mlp_post_norm), rope, sink_rope, group, storage};
      }, "qkv"_a, "output"_a, "gate"_a, "up"_a, "down"_a, "attention_norm"_a, "attention_post_norm"_a,
         "query_norm"_a, "key_norm"_a, "mlp_norm"_a, "mlp_post_norm"_a, "rope"_a, "sink_rope"_a, "group"_a,
         "storage"_a);
  nb::class_<Decoder>(m, "Decoder")
      .def("__init__", [](Decoder* self, const Numbers& numbers, const Matrix& embedding, const Matrix& head,
                          Address norm, float norm_eps, float embedding_scale, float attention_scale,
                          float attention_softcap, float final_softcap, const std::string& activation,
                          int max_tokens, int max_rows, Address buffers,
                          const std::vector<std::tuple<Address, float, int64_t>>& ropes, const std::vector<Layer*>& layers) {
        Decoder made{numbers, embedding, head, at<float>(norm), norm_eps, embedding_scale, attention_scale,
                     attention_softcap, final_softcap, named<Activation>(ACTIVATIONS, activation), max_tokens,
                     max_rows, Buffers(numbers, max_tokens, max_rows, buffers), {}, {}};
        for (auto [turns, factor, last_place] : ropes) made.ropes.push_back({at<float>(turns), factor, last_place});
        for (const Layer* layer : layers) made.layers.push_back(*layer);
        new (self) Decoder(std::move(made));
      }, "numbers"_a, "embedding"_a, "head"_a, "norm"_a, "norm_eps"_a, "embedding_scale"_a, "attention_scale"_a,
         "attention_softcap"_a, "final_softcap"_a, "activation"_a, "max_tokens"_a, "max_rows"_a, "buffers"_a,
         "ropes"_a, "layers"_a)
      .def("forward", [](const Decoder& self, Address token_ids, Address positions,
                         const std::vector<GroupStep*>& groups, Address logit_rows, int n_rows,
                         const std::vector<int>& watched, float most, Address wrong, Address taken) {
        nb::gil_scoped_release released;
        Watch watch{std::vector<uint8_t>(self.layers.size(), 0), most, at<uint8_t>(wrong), at<float>(taken)};
        for (int layer : watched) watch.layers.at(layer) = 1;
        self.forward(at<int64_t>(token_ids), at<int64_t>(positions), groups, at<int64_t>(logit_rows), n_rows, watch);
      });
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
  m.def("rounds_rows", [](const std::string& isa) { return isa_named(isa).rounds_rows; });
  m.def("codecs", [] { return std::vector<std::string>(std::begin(CODECS), std::end(CODECS)); });
  m.attr("MAX_DIM") = MAX_DIM;
  m.attr("TILE_TOKENS") = TILE_TOKENS;
  m.attr("SPLIT_TOKENS") = SPLIT_TOKENS;
  m.def("workspace_bytes", &workspace_bytes, "kv_heads"_a, "query_heads"_a, "dim"_a, "value_dim"_a,
        "threads"_a, "max_sequences"_a, "max_context_tokens"_a);
  m.def("choices_bytes", &ChoiceRoom::needed_bytes, "kv_heads"_a, "query_heads"_a, "read_blocks"_a,
        "most_blocks"_a, "max_sequences"_a);
  nb::class_<Plane>(m, "Plane").def(
      "__init__",
      [](Plane* self, const std::string& codec, int heads, int dim,
         const std::array<std::array<int64_t, 5>, 4>& fields, Address centre_rows,
         Address centre_table, int64_t centre_tokens, std::pair<int64_t, int64_t> bounds) {
        const float* rows = at<float>(centre_rows);
        Centre centre{rows, rows ? rows + heads * dim : nullptr, at<float>(centre_table), centre_tokens};
        new (self) Plane(make_plane(codec, heads, dim, fields, centre, {bounds.first, bounds.second}));
      },
      "codec"_a, "heads"_a, "dim"_a, "fields"_a, "centre_rows"_a, "centre_table"_a, "centre_tokens"_a,
      "bounds"_a = std::pair<int64_t, int64_t>{-1, 0});
  nb::class_<Cache>(m, "Cache").def(
      nb::init<Address, Address, int64_t, int, const std::string&, Address, int>(), "arena"_a,
      "workspace"_a, "workspace_bytes"_a, "block_tokens"_a, "isa"_a, "parallel"_a, "threads"_a)
      .def("set_planes", [](Cache& self, int layer, const Plane& keys, const Plane& values) {
        if (int(self.planes.size()) <= layer) self.planes.resize(layer + 1);
        self.planes[layer] = {keys, values};
        if (keys.centre.mean) self.most_tokens = std::min(self.most_tokens, keys.centre.most_tokens);
      })
      .def("set_limits", [](Cache& self, int max_sequences, int max_blocks) {
        self.max_sequences = max_sequences, self.max_blocks = max_blocks;
      });
  nb::class_<GroupStep>(m, "GroupStep")
      .def(nb::init<const Cache&, Ints, Ints, Offsets, Ints, int>(), nb::keep_alive<1, 2>())
      .def("read_few", &GroupStep::read_few, "prompt_tokens"_a, "sinks"_a, "blocks"_a, "latest"_a, "reach"_a)
      .def("write", &GroupStep::write, nb::call_guard<nb::gil_scoped_release>())
      .def("attend", [](GroupStep& self, const Plane& keys, const Plane& values, int query_heads, const RowsAt& query,
                        const RowsAt& sink_query, Address sink_logits, Address result, float scale, float softcap) {
        self.attend(keys, values, query_heads, rows_at(query), rows_at(sink_query), sink_logits, result, scale,
                    softcap);
      }, nb::call_guard<nb::gil_scoped_release>())
      .def("attend_latent", [](GroupStep& self, const Plane& latent, const Plane& rope, int query_heads,
                               const RowsAt& query, Address result, float scale, float softcap) {
        self.attend_latent(latent, rope, query_heads, rows_at(query), result, scale, softcap);
      }, nb::call_guard<nb::gil_scoped_release>());
  nb::class_<Transcoder>(m, "Transcoder")
      .def(nb::init<const std::string&, const std::vector<std::pair<Plane, Plane>>&, int>(), "isa"_a, "planes"_a,
           "block_tokens"_a)
      .def("run", &Transcoder::run, "source"_a, "target"_a, "start_position"_a, nb::call_guard<nb::gil_scoped_release>());
  bind_products(m);
  bind_decoder(m);
}

}  // namespace holdover
