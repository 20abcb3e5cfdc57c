// Scores of a task's rows become weights.
// Included inside the namespace of an instruction set.

// Hides what a row may not see of the tile's span, and whatever lies beside the span.
void hide(float* scores, const Sight& sight, Span span) {
  if (span.start == 0 && span.stop == TILE_TOKENS && sight.all_of(span)) return;
  const F hidden = set1(-__builtin_inff());
  int stop = sight.last < span.stop ? sight.last + 1 : span.stop;
  alignas(64) int32_t numbers[LANES];
  for (int i = 0; i < LANES; ++i) numbers[i] = i;
  I token = load<I>(numbers);
  for (int i = 0; i < TILE_TOKENS; i += LANES, token += LANES) {
    I seen = (token >= span.start) & (token < stop) & ((token >= sight.first) | (token < sight.sinks));
    store(scores + i, select(seen, load<F>(scores + i), hidden));
  }
}

// Scores become weights, all rows' side by side since each step waits for the one before. Those of
// values in bf16 are rounded to it where they are multiplied so, and summed as they are rounded; for
// registers they are left in bf16.
void soften(const Task& t, const Scratch& s) {
  bool rounded = BF16_PAIRS && t.call.values->codec == Codec::bf16, in_halves = rounded && t.in_registers;
  int width = t.shape().padded_value_dim;
  for (int row = 0; row < t.rows; ++row) {
    const float* scores = s.scores + row * TILE_TOKENS;
    F most[2] = {set1(LEAST), set1(LEAST)};
    for (int i = 0; i < TILE_TOKENS; i += 2 * LANES)
      for (int v = 0; v < 2; ++v) most[v] = larger(load<F>(scores + i + v * LANES), most[v]);
    float largest_score = largest(larger(most[0], most[1]));
    s.shrink[row] = s.m[row];
    s.m[row] = largest_score > s.m[row] ? largest_score : s.m[row];
  }
  for (int row = 0; row < t.rows; ++row) s.shrink[row] -= s.m[row];
  for (int row = 0; row < t.rows; ++row) {
    if (s.shrink[row] == 0) continue;
    F shrink = exp(set1(s.shrink[row]));
    float* acc = s.acc + row * width;
    for (int d = 0; d < width; d += LANES) store(acc + d, load<F>(acc + d) * shrink);
    s.l[row] *= shrink[0];
  }
  for (int row = 0; row < t.rows; ++row) {
    float* scores = s.scores + row * TILE_TOKENS;
    F total = {}, from = set1(s.m[row]);
    if (in_halves) {
      for (int i = 0; i < TILE_TOKENS; i += 2 * LANES) {
        F first = weight_of(load<F>(scores + i) - from), second = weight_of(load<F>(scores + i + LANES) - from);
        I halves = to_halves(first, second);
        store(reinterpret_cast<uint8_t*>(scores) + 2 * i, halves);
        total = add_bf16_pairs(total, halves, all(0x3f803f80));  // times one
      }
    } else {
      for (int i = 0; i < TILE_TOKENS; i += LANES) {
        F weight = weight_of(load<F>(scores + i) - from);
        if (rounded) weight = (F)(((I)weight + 0x7fff + ((I)weight >> 16 & 1)) & (int32_t)0xffff0000);
        store(scores + i, weight);
        total += weight;
      }
    }
    s.l[row] += sum(total);
  }
}

void cap(float* scores, float softcap) {
  F most = set1(softcap);
  for (int i = 0; i < TILE_TOKENS; i += LANES)
    store(scores + i, most * tanh(load<F>(scores + i) / most));
}

// A tile of chosen blocks: each 16 tokens of a block have a centre of their own.
void centre_chosen(const Task& t, const Scratch& s, int tile, Span span) {
  const Sequences& seqs = t.seqs();
  for (int i = span.start; i < span.stop;) {
    int block = (tile + i) / seqs.block_tokens, token = (tile + i) % seqs.block_tokens;
    int position = seqs.block_starts[t.entry.sequence * seqs.max_blocks + block] + token;
    int n = CENTRE_TOKENS - position % CENTRE_TOKENS;
    n = seqs.block_tokens - token < n ? seqs.block_tokens - token : n;
    n = span.stop - i < n ? span.stop - i : n;
    for (int row = 0; row < t.rows; ++row)
      add_chosen_centre(*t.call.keys, position, s.factors + row * t.shape().padded_dim, n, s.scores + row * TILE_TOKENS + i);
    i += n;
  }
}

// Scores become weights: with centres and caps, of what rows see.
void weigh(const Task& t, const Scratch& s, int tile, Span span) {
  bool centred = t.call.keys->centre.mean, chosen = t.seqs().block_starts;
  if (centred && chosen) centre_chosen(t, s, tile, span);
  for (int row = 0; row < t.rows; ++row) {
    const float* centres = s.centres + row * SPLIT_CENTRES + tile % SPLIT_TOKENS / TILE_TOKENS * TILE_CENTRES;
    if (centred && !chosen) add_centres(centres, span, s.scores + row * TILE_TOKENS);
    if (t.call.softcap != 0) cap(s.scores + row * TILE_TOKENS, t.call.softcap);
    hide(s.scores + row * TILE_TOKENS, t.sight(row, tile), span);
  }
  soften(t, s);
}
