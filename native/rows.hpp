// What a step does to single rows between its products, for one instruction set.

namespace {

// x / rms(x) * weight.
void norm(const float* x, const float* weight, int n, float eps, float* to) {
  F a = {}, b = {};
  int i = 0;
  for (; i + 2 * LANES <= n; i += 2 * LANES) {
    F v = load<F>(x + i), w = load<F>(x + i + LANES);
    a = fma(v, v, a), b = fma(w, w, b);
  }
  for (; i < n; i += LANES) {
    F v = load_some(x + i, n - i);
    a = fma(v, v, a);
  }
  float squares = sum(a + b), factor = 1.0f / __builtin_sqrtf(squares / float(n) + eps);
  for (i = 0; i < n; ++i) to[i] = x[i] * factor * weight[i];
}

// Turns each pair (element, element + half).
void rotate(float* head, int half, const float* cosines, const float* sines) {
  for (int i = 0; i < half; ++i) {
    float a = head[i], b = head[half + i];
    head[i] = a * cosines[i] - b * sines[i];
    head[half + i] = b * cosines[i] + a * sines[i];
  }
}

// Whether no magnitude is above `most`, and none is NaN.
bool within(const float* x, int n, float most) {
  int32_t limit = int32_t(bits_of(most)), beyond = 0;
  for (int i = 0; i < n; ++i) beyond |= int32_t(bits_of(x[i]) & 0x7fffffff) > limit;
  return !beyond;
}

void cap_row(float* x, int n, float most) {
  for (int i = 0; i < n; i += LANES) {
    F value = most * tanh(load_some(x + i, n - i) / most);
    for (int lane = 0; lane < LANES && i + lane < n; ++lane) x[i + lane] = value[lane];
  }
}

}  // namespace
