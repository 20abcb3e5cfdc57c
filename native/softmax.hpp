// Scores of a task's rows become weights.
// Included inside the namespace of an instruction set.

// Hides what a row may not see of the tile's span, and whatever lies beside the span.
void hide(float* scores, const Sight& sight, Span span) {
  const float hidden = -__builtin_inff();
  for (int i = 0; i < span.start; ++i) scores[i] = hidden;
  for (int i = span.stop; i < TILE_TOKENS; ++i) scores[i] = hidden;
  if (sight.all_of(span)) return;
  for (int i = span.start; i < span.stop; ++i)
    if (!sight.has(i)) scores[i] = hidden;
}

// Scores become weights, all rows' side by side since each step waits for the one before. `rounded`:
// to bf16, which is what they are summed and multiplied as.
void soften(const Task& t, const Scratch& s, bool rounded) {
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
    for (int i = 0; i < TILE_TOKENS; i += LANES) {
      F weight = weight_of(load<F>(scores + i) - from);
      if (rounded) weight = (F)(((I)weight + 0x7fff + ((I)weight >> 16 & 1)) & (int32_t)0xffff0000);
      store(scores + i, weight);
      total += weight;
    }
    s.l[row] += sum(total);
  }
}

void cap(float* scores, float softcap) {
  F most = set1(softcap);
  for (int i = 0; i < TILE_TOKENS; i += LANES)
    store(scores + i, most * tanh(load<F>(scores + i) / most));
}
