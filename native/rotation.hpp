// Rows turned so that no element stands out, as codecs/_rotation.py has it, bit for bit: signs, then
// a Walsh-Hadamard transform over the largest power of two that divides the dims, in place.
// Included inside the namespace of an instruction set.

constexpr uint64_t SIGNS = 0x9E3779B97F4A7C15;

inline void flip_signs(float* x, int dim) {
  for (int d = 0; d < dim; ++d) x[d] = SIGNS >> (d % 64) & 1 ? -x[d] : x[d];
}

inline void transform(float* x, int dim) {
  int width = dim & -dim;
  for (int step = 1; step < width; step *= 2)
    for (int at = 0; at < dim; at += 2 * step)
      for (int i = at; i < at + step; ++i) {
        float first = x[i], second = x[i + step];
        x[i] = first + second, x[i + step] = first - second;
      }
  float factor = float(1 / __builtin_sqrt(double(width)));
  for (int d = 0; d < dim; ++d) x[d] *= factor;
}

inline void turn(float* x, int dim) { flip_signs(x, dim), transform(x, dim); }
inline void turn_back(float* x, int dim) { transform(x, dim), flip_signs(x, dim); }
