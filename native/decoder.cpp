#include "decoder.hpp"

#include <algorithm>
#include <cmath>

namespace holdover {

namespace {

constexpr int FEW_TOKENS = 2;                // whose rows the thread that ends a stage sees to itself
constexpr int64_t TASK_BYTES = 48 << 10;     // of weights, in a product of few rows
constexpr int64_t WIDE_TASK_BYTES = 1 << 17;  // in a product of many
constexpr int TASK_ROWS = 96;

int ceil_div(int64_t n, int64_t by) { return int((n + by - 1) / by); }
int64_t aligned(int64_t n) { return (n + 63) / 64 * 64; }

// One step of one decoder, as each thread walks through it.
struct Pass {
  const Decoder& model;
  const int64_t *token_ids, *positions, *logit_rows;
  const std::vector<GroupStep*>& groups;
  const Watch& watch;
  int n_tokens, n_rows;
  Shape shape;
  std::vector<int> finished;  // per layer, what `Attend` counts
  int64_t finished_of_layer;

  const Numbers& n() const { return model.numbers; }
  const Buffers& b() const { return model.buffers; }
  const Cache& cache() const { return groups[0]->cache; }
  const Isa& isa() const { return *cache().isa; }
  using Walk = Stages::Walk;

  void run(Walk& walk) {
    if (n_tokens) layers(walk);  // a stage without tasks would never end
    logits(walk);
  }

  void layers(Walk& walk) {
    for_tokens(walk, [&](int t) { embed(t); });
    for (size_t i = 0; i < model.layers.size(); ++i) {
      const Layer& l = model.layers[i];
      const Layer* next = i + 1 < model.layers.size() ? &model.layers[i + 1] : nullptr;
      product(walk, {&l.qkv, nullptr, b().operand, b().wide, n().qkv_width(), false, {}}, n_tokens,
              [&](int start, int stop) { heads(l, int(i), start, stop); });
      bound(walk, l, int(i));
      attend(walk, l, int(i));
      add_product(walk, l.output, l.attention_post_norm, l.mlp_norm);
      Product inner{&l.up, &l.gate, b().operand, b().wide, n().inner, false, model.activation};
      product(walk, inner, n_tokens, [&](int start, int stop) {
        for (int t = start; t < stop; ++t) prepare(b().wide + int64_t(t) * n().inner, n().inner, t);
      });
      add_product(walk, l.down, l.mlp_post_norm, next ? next->attention_norm : nullptr);
    }
  }

  // ---- stages ---------------------------------------------------------------------------------

  int row_tasks(int rows) const { return std::min(rows, 4 * cache().team.threads); }

  template <class Each>
  void for_rows(Walk& walk, int rows, Each each) {
    int n_tasks = row_tasks(rows);
    auto edge = [&](int i) { return int(int64_t(rows) * i / n_tasks); };
    walk.stage(n_tasks, [&](int task) { each(edge(task), edge(task + 1)); }, [] {});
  }

  template <class Each>
  void for_tokens(Walk& walk, Each each) {
    for_rows(walk, n_tokens, [&](int start, int stop) {
      for (int t = start; t < stop; ++t) each(t);
    });
  }

  // A stage, and then `each(start, stop)` of its rows: by one thread where there are few.
  template <class Body, class Each>
  void stage_and_rows(Walk& walk, int n_tasks, Body body, int rows, Each each) {
    if (rows <= FEW_TOKENS) return walk.stage(n_tasks, body, [&] { each(0, rows); });
    walk.stage(n_tasks, body, [] {});
    for_rows(walk, rows, each);
  }

  template <class Each>
  void product(Walk& walk, const Product& p, int rows, Each each) {
    int64_t bytes = panel_bytes(p.matrix->element, p.matrix->inputs) * (p.gate ? 2 : 1);
    int row_tasks = ceil_div(rows, TASK_ROWS), n_panels = p.matrix->n_panels();
    int task_panels = int(std::max<int64_t>(1, (rows <= TASK_ROWS / 4 ? TASK_BYTES : WIDE_TASK_BYTES) / bytes));
    if (task_panels > 1) task_panels -= task_panels % isa().panels_at_once;
    int panel_tasks = ceil_div(n_panels, task_panels);
    auto one = [&](int task) {
      int panel = task / row_tasks * task_panels, rows_at = task % row_tasks;
      auto edge = [&](int i) { return int(int64_t(rows) * i / row_tasks); };
      isa().multiply(p, edge(rows_at), edge(rows_at + 1), panel, std::min(panel + task_panels, n_panels));
    };
    stage_and_rows(walk, panel_tasks * row_tasks, one, rows, each);
  }

  // To the residual stream, through a norm where there is one; then the norm of what comes next.
  void add_product(Walk& walk, const Matrix& matrix, const float* post_norm, const float* next_norm) {
    float* result = post_norm ? b().narrow : b().residual;
    Product p{&matrix, nullptr, b().operand, result, n().hidden, !post_norm, {}};
    product(walk, p, n_tokens, [&](int start, int stop) {
      for (int t = start; t < stop; ++t) {
        float *row = b().narrow + int64_t(t) * n().hidden, *residual = b().residual + int64_t(t) * n().hidden;
        if (post_norm) {
          isa().norm(row, post_norm, n().hidden, model.norm_eps, row);
          for (int i = 0; i < n().hidden; ++i) residual[i] += row[i];
        }
        if (next_norm) norm(t, next_norm);
      }
    });
  }

  // ---- rows -----------------------------------------------------------------------------------

  void prepare(const float* row, int inputs, int at) {
    int64_t bytes = operand_bytes(n().element, inputs);
    isa().prepare(row, inputs, n().element, b().operand + at * bytes);
  }

  void norm(int t, const float* weight) {
    float* row = b().narrow + int64_t(t) * n().hidden;
    isa().norm(b().residual + int64_t(t) * n().hidden, weight, n().hidden, model.norm_eps, row);
    prepare(row, n().hidden, t);
  }

  void embed(int t) {
    float* row = b().residual + int64_t(t) * n().hidden;
    isa().unpack_row(model.embedding, int(token_ids[t]), row);
    if (model.embedding_scale != 1)
      for (int i = 0; i < n().hidden; ++i) row[i] *= model.embedding_scale;
    int half = n().head_dim / 2;
    for (size_t r = 0; r < model.ropes.size(); ++r) {
      const Rope& rope = model.ropes[r];
      float* cosines = angles(int(r), t);
      for (int i = 0; i < half; ++i) {
        double theta = double(std::min(positions[t], rope.last_place)) * rope.turns[i];
        cosines[i] = float(std::cos(theta)) * rope.factor;
        cosines[half + i] = float(std::sin(theta)) * rope.factor;
      }
    }
    norm(t, model.layers[0].attention_norm);
  }

  float* angles(int rope, int t) const {
    return b().angles + (int64_t(rope) * model.max_tokens + t) * n().head_dim;
  }

  // Of rows fresh from their product: norms, rotation, and keys and values into the cache.
  void heads(const Layer& l, int layer, int start, int stop) {
    int dim = n().head_dim, turned = n().query_heads + n().kv_heads;
    bool stores = l.storage == layer, watched = watch.layers[layer];
    for (int t = start; t < stop; ++t) {
      float *row = b().wide + int64_t(t) * n().qkv_width(), *keys = row + n().query_width();
      const float *cosines = angles(l.rope, t), *sines = cosines + dim / 2;
      for (int h = 0; h < turned; ++h) {
        const float* weight = h < n().query_heads ? l.query_norm : l.key_norm;
        if (weight) isa().norm(row + h * dim, weight, dim, model.norm_eps, row + h * dim);
        if (l.sink_rope >= 0 && h < n().query_heads) {
          const float* at_sinks = angles(l.sink_rope, t);
          float* to = b().sink_query + int64_t(t) * n().query_width() + h * dim;
          isa().rotate(std::copy_n(row + h * dim, dim, to) - dim, dim / 2, at_sinks, at_sinks + dim / 2);
        }
        isa().rotate(row + h * dim, dim / 2, cosines, sines);
      }
      if (watched && !isa().within(keys, 2 * n().kv_heads * dim, watch.most)) watch.wrong[t] = 1;
    }
    int64_t width = int64_t(turned) * dim;
    for (int t = start; watch.taken && t < stop; ++t)
      std::copy_n(b().wide + t * int64_t(n().qkv_width()), width, watch.taken + (int64_t(layer) * n_tokens + t) * width);
    if (!stores) return;
    const GroupStep& group = *groups[l.group];
    const auto& [keys, values] = cache().planes[layer];
    const float* rows = b().wide + n().query_width();
    isa().write({cache().arena, &keys, &group.sequences, {rows, false, n().qkv_width(), dim}}, start, stop);
    rows += n().kv_heads * dim;
    isa().write({cache().arena, &values, &group.sequences, {rows, false, n().qkv_width(), dim}}, start, stop);
  }

  // Of the blocks that have become full, in a sparse layer that stores rows.
  void bound(Walk& walk, const Layer& l, int layer) {
    const GroupStep& group = *groups[l.group];
    if (l.storage != layer || !cache().planes[layer].first.bounds.kept() || group.few->filled.empty()) return;
    const Plane& keys = cache().planes[layer].first;
    walk.stage(int(group.few->filled.size()), [&](int task) {
      isa().bound_block(cache().arena, keys, group.sequences, group.few->filled[task]);
    }, [] {});
  }

  void attend(Walk& walk, const Layer& l, int layer) {
    const GroupStep& group = *groups[l.group];
    const auto& [keys, values] = cache().planes[l.storage];
    int* counts = finished.data() + layer * finished_of_layer;
    auto call = [&](const Sequences& sequences, const Tasks& tasks) {
      return Attend{cache().arena, &keys, &values, &sequences, tasks.entries.data(), tasks.joins.data(), counts, shape,
                    {b().wide, false, n().qkv_width(), n().head_dim},
                    {l.sink_rope < 0 ? nullptr : b().sink_query, false, n().query_width(), n().head_dim}, nullptr,
                    b().narrow, model.attention_scale, model.attention_softcap, cache().parts(shape)};
    };
    auto one = [&](const Attend& of, int task) { isa().attend(of, task, cache().scratch(shape, walk.thread)); };
    auto rows = [&](int start, int stop) {
      int width = n().query_width();
      for (int t = start; t < stop; ++t) prepare(b().narrow + int64_t(t) * width, width, t);
    };
    if (!group.reads_few(keys)) {
      Attend all = call(group.sequences, group.tasks);
      return stage_and_rows(walk, int(group.tasks.entries.size()), [&](int task) { one(all, task); }, n_tokens, rows);
    }
    attend_few(walk, group, keys, counts, call, one, rows);
  }

  // Waves of queries that read few blocks, the first beside all that read all.
  template <class Call, class One, class Rows>
  void attend_few(Walk& walk, const GroupStep& group, const Plane& keys, int* counts, Call call, One one, Rows rows) {
    const FewStep& few = *group.few;
    Attend all = call(group.sequences, few.beside);
    int beside = int(few.beside.entries.size());
    counts += few.beside.joins.size();
    for (const Wave& wave : few.waves) {
      Choose choice = few.choice(wave, cache().arena, keys, group.sequences, shape, all.query, all.scale,
                                 group.choices, counts);
      counts += wave.queries.size();
      walk.stage(beside + int(wave.pieces.size()), [&](int task) {
        if (task < beside) one(all, task);
        else isa().choose(choice, task - beside);
      }, [] {});
      beside = 0;
      Sequences read = few.chosen(wave, group.sequences, choice);
      Attend chosen = call(read, wave.tasks);
      chosen.finished = counts;
      counts += wave.tasks.joins.size();
      int n_tasks = int(wave.tasks.entries.size());
      auto attend = [&](int task) { one(chosen, task); };
      if (&wave == &few.waves.back()) stage_and_rows(walk, n_tasks, attend, n_tokens, rows);
      else walk.stage(n_tasks, attend, [] {});
    }
  }

  void logits(Walk& walk) {
    if (n_rows == 0) return;
    for_rows(walk, n_rows, [&](int start, int stop) {
      for (int r = start; r < stop; ++r) {
        float* row = b().narrow + int64_t(r) * n().hidden;
        const float* from = b().residual + logit_rows[r] * n().hidden;
        isa().norm(from, model.norm, n().hidden, model.norm_eps, row);
        prepare(row, n().hidden, r);
      }
    });
    Product p{&model.head, nullptr, b().operand, b().logits, n().vocab, false, {}};
    product(walk, p, n_rows, [&](int start, int stop) {
      if (model.final_softcap == 0) return;
      for (int r = start; r < stop; ++r)
        isa().cap(b().logits + int64_t(r) * n().vocab, n().vocab, model.final_softcap);
    });
  }
};

}  // namespace

Buffers::Buffers(const Numbers& n, int tokens, int rows, Address at) {
  int64_t used = 0;
  auto take = [&](int64_t n_bytes) {
    uint8_t* part = reinterpret_cast<uint8_t*>(at + used);
    used += aligned(n_bytes);
    return part;
  };
  auto floats = [&](int64_t count) { return reinterpret_cast<float*>(take(count * sizeof(float))); };
  int64_t all = tokens, most = std::max(tokens, rows);
  residual = floats(all * n.hidden);
  wide = floats(all * std::max(n.qkv_width(), n.inner));
  narrow = floats(std::max(all * n.query_width(), most * n.hidden));
  angles = floats(all * n.ropes * n.head_dim);
  sink_query = floats(n.sink_queries ? all * n.query_width() : 0);
  int64_t widest = std::max(operand_bytes(n.element, n.query_width()), operand_bytes(n.element, n.inner));
  operand = take(std::max(all * widest, most * operand_bytes(n.element, n.hidden)));
  logits = floats(int64_t(rows) * n.vocab);
  bytes = used;
}

void Decoder::forward(const int64_t* token_ids, const int64_t* positions, const std::vector<GroupStep*>& groups,
                      const int64_t* logit_rows, int n_rows, const Watch& watch) const {
  int n_tokens = groups[0]->n_tokens();
  if (n_tokens > max_tokens || n_rows > max_rows)
    throw std::invalid_argument("a step is larger than the buffers");
  const Cache& cache = groups[0]->cache;
  Shape shape = Shape::of(numbers.kv_heads, numbers.query_heads, numbers.head_dim, numbers.head_dim);
  int64_t counts = 0;
  int n_stages = 10;
  for (GroupStep* group : groups) {
    group->cut(shape);
    counts = std::max(counts, group->n_counts());
    if (group->few) n_stages = std::max(n_stages, 11 + 2 * int(group->few->waves.size()));
  }
  Pass pass{*this, token_ids, positions, logit_rows, groups, watch, n_tokens, n_rows, shape,
            std::vector<int>(counts * layers.size(), 0), counts};
  Stages stages(int(layers.size()) * n_stages + 4);
  cache.team.together(cache.team.threads, [&](int thread) {
    Stages::Walk walk{stages, thread};
    pass.run(walk);
  });
}

}  // namespace holdover
