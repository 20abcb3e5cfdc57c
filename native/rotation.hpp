// Rows turned so that no element stands out, as codecs/_rotation.py has it, bit for bit: signs, then
// a Walsh-Hadamard transform over the largest power of two that divides the dims, in place.
// Included inside the namespace of an instruction set.

constexpr uint64_t SIGNS = 0x9E3779B97F4A7C15;

typedef std::make_integer_sequence<int, LANES> Lanes;

// Dims are a multiple of 8, and what is beside them up to a
// whole vector may be anything.
template <int... L>
inline void flip_signs(float* x, int dim, std::integer_sequence<int, L...>) {
  for (int d = 0; d < dim; d += LANES) {
    U bits = uint32_t(SIGNS >> (d % 64)) - U{};
    store(x + d, (U)load<F>(x + d) ^ (bits << U{(31 - L)...} & 0x80000000u));
  }
}

// Sums and differences of elements STEP apart, in a vector.
template <int STEP, int... L>
INLINE F combined(F x, std::integer_sequence<int, L...>) {
  F first = __builtin_shufflevector(x, x, (L & ~STEP)...), second = __builtin_shufflevector(x, x, (L | STEP)...);
  return first + (F)((U)second ^ U{(L & STEP ? 0x80000000u : 0u)...});
}

inline void transform(float* x, int dim) {
  int width = dim & -dim;
  for (int d = 0; d < dim; d += LANES) {
    F v = combined<2>(combined<1>(load<F>(x + d), Lanes{}), Lanes{});
    if constexpr (LANES > 4) v = combined<4>(v, Lanes{});
    if constexpr (LANES > 8)
      if (width > 8) v = combined<8>(v, Lanes{});
    store(x + d, v);
  }
  for (int step = LANES; step < width; step *= 2)
    for (int at = 0; at < dim; at += 2 * step)
      for (int i = at; i < at + step; i += LANES) {
        F first = load<F>(x + i), second = load<F>(x + i + step);
        store(x + i, first + second), store(x + i + step, first - second);
      }
  F factor = set1(float(1 / __builtin_sqrt(double(width))));
  for (int d = 0; d < dim; d += LANES) store(x + d, load<F>(x + d) * factor);
}

inline void turn(float* x, int dim) { flip_signs(x, dim, Lanes{}), transform(x, dim); }
inline void turn_back(float* x, int dim) { transform(x, dim), flip_signs(x, dim, Lanes{}); }
