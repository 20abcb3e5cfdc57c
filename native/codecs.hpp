// How rows become fields and back, byte for byte as the codecs' files in Python have it.
// Included inside the namespace of an instruction set.

struct RowAt {
  const uint8_t *data, *scale, *minimum, *high;
};

INLINE RowAt row_at(const Plane& p, const uint8_t* block, int head, int token) {
  auto at = [&](const Field& f) {
    return block + f.offset + head * f.head_stride + token * f.token_stride;
  };
  return {at(p.data), at(p.scale), at(p.minimum), at(p.high)};
}

// What the products take as stored: units of `bytes` that hold `dims` elements of a row. Rows of
// other codecs are decoded to fp32 first.
template <Codec C> struct Unit { static constexpr int bytes = 4, dims = 1; };
template <> struct Unit<Codec::bf16> { static constexpr int bytes = 4, dims = 2; };
template <> struct Unit<Codec::int8> { static constexpr int bytes = 2, dims = 2; };
template <> struct Unit<Codec::int4> { static constexpr int bytes = 4, dims = 8; };

template <Codec C>
constexpr bool in_units = C == Codec::bf16 || C == Codec::int8 || C == Codec::int4;

// A decoder gives LANES elements of a row from `d` on (`at`), or one (`one`).
template <Codec C>
struct Decoder;

template <class D, class Stored>
struct Elements {
  static bool lanes_fit(int dim) { return dim % LANES == 0; }
  INLINE F at(const RowAt& r, int d) { return D::widen(r.data + d * sizeof(Stored)); }
  INLINE float one(const RowAt& r, int d) {
    Stored lanes[LANES] = {};
    __builtin_memcpy(lanes, r.data + d * sizeof(Stored), sizeof(Stored));
    return D::widen(lanes)[0];
  }
};

template <>
struct Decoder<Codec::fp32> : Elements<Decoder<Codec::fp32>, float> {
  INLINE F widen(const void* from) { return load<F>(from); }
};

template <>
struct Decoder<Codec::fp16> : Elements<Decoder<Codec::fp16>, uint16_t> {
  INLINE F widen(const void* from) { return from_fp16(from); }
};

template <>
struct Decoder<Codec::fp8> : Elements<Decoder<Codec::fp8>, uint8_t> {
  INLINE F widen(const void* from) {
    I bits = widen8(from), magnitude = bits & 0x7f;
    I value = (I)((F)(magnitude << 20) * 0x1p120f) | ((magnitude == 0x7f) & 0x7fc00000);
    return (F)(value | ((bits & 0x80) << 24));
  }
};

// llama.cpp's types: of 32 elements the first 16 are in the low bits.
template <int bits, bool has_minimum>
struct Ggml {
  static bool lanes_fit(int) { return true; }
  INLINE F at(const RowAt& r, int d) {
    F scale = set1(half_to_float(load<uint16_t>(r.scale + d / 32 * 2)));
    if constexpr (bits == 8) return to_float(widen8_signed(r.data + d)) * scale;
    I bytes = widen8(r.data + d / 32 * 16 + d % 16);
    I levels = d % 32 < 16 ? bytes & 15 : bytes >> 4;
    if constexpr (bits == 5) {
      I lane, octet;
      for (int i = 0; i < LANES; ++i) lane[i] = (d + i) % 8, octet[i] = r.high[(d + i) / 8];
      levels |= (octet >> lane & 1) << 4;
    }
    if constexpr (has_minimum)
      return to_float(levels) * scale + half_to_float(load<uint16_t>(r.minimum + d / 32 * 2));
    else
      return to_float(levels - (1 << (bits - 1))) * scale;
  }
  INLINE float one(const RowAt& r, int d) { return at(r, d / LANES * LANES)[d % LANES]; }
};

template <> struct Decoder<Codec::q8_0> : Ggml<8, false> {};
template <> struct Decoder<Codec::q5_1> : Ggml<5, true> {};
template <> struct Decoder<Codec::q5_0> : Ggml<5, false> {};
template <> struct Decoder<Codec::q4_1> : Ggml<4, true> {};
template <> struct Decoder<Codec::q4_0> : Ggml<4, false> {};

template <Codec C>
INLINE void decode_row(const RowAt& r, int dim, int padded, float* out) {
  int d = 0;
  if (Decoder<C>::lanes_fit(dim)) {
    for (; d < dim; d += LANES) store(out + d, Decoder<C>::at(r, d));
  }
  for (; d < dim; ++d) out[d] = Decoder<C>::one(r, d);
  for (; d < padded; ++d) out[d] = 0;
}

// Whether rows are stored turned: queries and results are turned too then.
template <Codec C>
constexpr bool is_turned = C == Codec::int8 || C == Codec::int4;

// The values of int4's levels. Products take them raised, so that none is negative.
constexpr int8_t INT4_VALUES[16] = {-127, -98, -77, -60, -45, -31, -18, -6, 6, 18, 31, 45, 60, 77, 98, 127};
constexpr int INT4_RAISE = -INT4_VALUES[0];
struct RaisedValues {
  alignas(16) uint8_t at[16];
  constexpr RaisedValues() : at{} {
    for (int i = 0; i < 16; ++i) at[i] = uint8_t(INT4_VALUES[i] + INT4_RAISE);
  }
};
constexpr RaisedValues INT4_RAISED;
constexpr int INT4_GROUP = SPAN_DIMS / SPAN_GROUPS;

INLINE int int4_groups(int dim) { return (dim + SPAN_DIMS - 1) / SPAN_DIMS * SPAN_GROUPS; }
INLINE int int4_group(int d) { return d / SPAN_DIMS * SPAN_GROUPS + d % 4 / 2; }
INLINE int int4_dim(int g, int i) { return g / SPAN_GROUPS * SPAN_DIMS + i / 2 * 4 + g % SPAN_GROUPS * 2 + i % 2; }

#include "rotation.hpp"

// ---- encoding -----------------------------------------------------------------------------------

INLINE uint32_t bits_of(float x) { return __builtin_bit_cast(uint32_t, x); }
INLINE float float_of(uint32_t bits) { return __builtin_bit_cast(float, bits); }
INLINE float magnitude(float x) { return float_of(bits_of(x) & 0x7fffffff); }
INLINE bool finite(float x) { return (bits_of(x) & 0x7f800000) != 0x7f800000; }

INLINE uint16_t to_bf16(float x) {
  uint32_t bits = bits_of(x);
  return x == x ? uint16_t((bits + 0x7fff + (bits >> 16 & 1)) >> 16) : 0x7fc0;
}

INLINE uint16_t to_fp16(float x) {
  uint32_t bits = bits_of(x), sign = bits >> 16 & 0x8000;
  bits &= 0x7fffffff;
  if (bits > 0x7f800000) return uint16_t(sign | 0x7e00);
  if (bits >= 0x47800000) return uint16_t(sign | 0x7c00);
  if (bits < 0x38800000) return uint16_t(sign | (bits_of(float_of(bits) + 0.5f) - 0x3f000000));
  return uint16_t(sign | (bits + 0xc8000fffu + (bits >> 13 & 1)) >> 13);
}

INLINE uint16_t without_sign_of_zero(uint16_t half) { return half == 0x8000 ? uint16_t(0) : half; }

INLINE uint8_t to_fp8(float x) {
  uint32_t bits = bits_of(x), sign = bits >> 24 & 0x80;
  bits &= 0x7fffffff;
  if (bits > 0x7f800000) return uint8_t(sign | 0x7f);
  bits = bits < 0x43e00000 ? bits : 0x43e00000;  // 448
  if (bits < 0x3c800000) return uint8_t(sign | (bits_of(float_of(bits) + 0x1p14f) - 0x46800000));
  return uint8_t(sign | (bits + 0xc407ffffu + (bits >> 20 & 1)) >> 20);
}

// To the nearest integer, to even, in [low, high]; NaN is 0.
INLINE float level(float x, float low, float high) {
  x = x == x ? x : 0.0f;
  x = x > low ? x : low;
  x = x < high ? x : high;
  return (x + 12582912.0f) - 12582912.0f;
}

// Levels of llama.cpp are cut down after adding a half; NaN is 0.
INLINE float cut(float x, float low, float high) {
  x = x == x ? x : 0.0f;
  x = x > low ? x : low;
  x = x < high ? x : high;
  return float(int(x));
}

struct Range {
  float low, high;
};

// Both are NaN where any element is.
INLINE Range range_of(const float* x, int n) {
  int32_t low = INT32_MAX, high = INT32_MIN;
  for (int i = 0; i < n; ++i) {
    int32_t bits = int32_t(bits_of(x[i]));
    int32_t ordered = bits ^ (bits >> 31 & 0x7fffffff);
    low = ordered < low ? ordered : low;
    high = ordered > high ? ordered : high;
  }
  auto back = [](int32_t ordered) { return float_of(uint32_t(ordered ^ (ordered >> 31 & 0x7fffffff))); };
  Range r = {back(low), back(high)};
  bool whole = r.low == r.low && r.high == r.high;
  return whole ? r : Range{__builtin_nanf(""), __builtin_nanf("")};
}

// As fp32 of 16 zero bits: the least that is not smaller.
INLINE float rounded_up(float x) { return float_of((bits_of(x) + 0xffff) & 0xffff0000); }

INLINE float largest_magnitude(const float* x, int n) {
  uint32_t most = 0;
  for (int i = 0; i < n; ++i) {
    uint32_t bits = bits_of(x[i]) & 0x7fffffff;
    most = bits > most ? bits : most;  // NaN is above inf
  }
  return float_of(most);
}

INLINE void encode_int8(const float* row, int dim, uint8_t* data, uint8_t* scale_to) {
  alignas(64) float x[MAX_DIM];
  __builtin_memcpy(x, row, dim * sizeof(float));
  turn(x, dim);
  float scale = largest_magnitude(x, dim) / 127.0f;
  scale = finite(scale) ? rounded_up(scale) : scale;
  float divisor = scale > 0 ? scale : 1.0f;
  for (int d = 0; d < dim; ++d) data[d] = uint8_t(int8_t(level(x[d] / divisor, -127, 127)));
  store(scale_to, finite(scale) ? uint16_t(bits_of(scale) >> 16) : uint16_t(0x7fc0));
}

// int4's values from 0 up, by their places.
INLINE F magnitude_of(I place) {
  const int8_t* from = INT4_VALUES + 8;
#if defined(__AVX2__) && LANES == 8
  F table = {float(from[0]), float(from[1]), float(from[2]), float(from[3]),
             float(from[4]), float(from[5]), float(from[6]), float(from[7])};
  return (F)_mm256_permutevar8x32_ps((__m256)table, (__m256i)place);
#else
  F level = set1(from[0]);
  for (int e = 0; e < 7; ++e) level += (F)((I)set1(from[e + 1] - from[e]) & (place > e));
  return level;
#endif
}

// The levels of a group under a scale, and their squared error; `there` is 0 for what fills it up.
INLINE float int4_levels(const float* x, const float* there, float step, uint8_t* levels) {
  alignas(64) float error[INT4_GROUP];
  alignas(64) int32_t numbers[INT4_GROUP];
  F inverse = set1(1 / step);
  for (int i = 0; i < INT4_GROUP; i += LANES) {
    F value = load<F>(x + i), scaled = value * inverse, size = (F)((I)scaled & 0x7fffffff);
    I place = {};
    for (int e = 8; e < 15; ++e) place -= size > set1((INT4_VALUES[e] + INT4_VALUES[e + 1]) / 2.0f);
    I negative = scaled < F{};
    store(numbers + i, ((place + 8) ^ negative) & 15);
    F level = (F)((I)magnitude_of(place) | (negative & (int32_t)0x80000000));
    F missing = (value - level * step) * load<F>(there + i);
    store(error + i, missing * missing);
  }
  for (int i = 0; i < INT4_GROUP; ++i) levels[i] = uint8_t(numbers[i]);
  for (int half = INT4_GROUP / 2; half > 0; half /= 2)
    for (int i = 0; i < half; ++i) error[i] += error[i + half];
  return error[0];
}

INLINE void encode_int4(const float* row, int dim, uint8_t* data, uint8_t* scale_to) {
  constexpr float SHARES[] = {1, 0.94f, 0.88f, 0.82f, 0.76f, 1.06f};
  alignas(64) float x[MAX_DIM], group[INT4_GROUP], there[INT4_GROUP];
  __builtin_memcpy(x, row, dim * sizeof(float));
  turn(x, dim);
  for (int d = 0; d < dim / 2; ++d) data[d] = 0;
  for (int g = 0; g < int4_groups(dim); ++g) {
    for (int i = 0; i < INT4_GROUP; ++i) {
      int d = int4_dim(g, i);
      group[i] = d < dim ? x[d] : 0, there[i] = d < dim;
    }
    float largest = largest_magnitude(group, INT4_GROUP) / 127.0f, least = 0;
    uint16_t best = 0;
    uint8_t levels[INT4_GROUP], tried[INT4_GROUP];
    for (float share : SHARES) {
      uint16_t scale = to_fp16(largest * share);
      float error = int4_levels(group, there, half_to_float(scale), tried);
      if (share != 1 && !(error < least)) continue;
      least = error, best = scale;
      __builtin_memcpy(levels, tried, INT4_GROUP);
    }
    store(scale_to + 2 * g, finite(half_to_float(best)) ? best : uint16_t(0x7e00));
    for (int i = 0; i < INT4_GROUP; ++i) {
      int d = int4_dim(g, i);
      if (d < dim) data[d / 2] |= levels[i] << d % 2 * 4;
    }
  }
}

template <int bits, bool has_minimum>
void encode_ggml(const float* x, int dim, const uint8_t* row_data, uint8_t* scale_to,
                 uint8_t* minimum_to, uint8_t* high_to) {
  uint8_t* data = const_cast<uint8_t*>(row_data);
  constexpr int top = bits == 8 ? 127 : (1 << bits) - 1, half = 1 << (bits - 1);
  for (int g = 0; g < dim / 32; ++g) {
    const float* group = x + 32 * g;
    float scale, low = 0, offset = half + 0.5f;
    if constexpr (has_minimum) {
      Range r = range_of(group, 32);
      scale = (r.high - r.low) / top, low = r.low, offset = 0.5f;
      store(minimum_to + 2 * g, without_sign_of_zero(to_fp16(low)));
    } else {
      int farthest = 0;
      for (int i = 1; i < 32; ++i)
        if ((bits_of(group[i]) & 0x7fffffff) > (bits_of(group[farthest]) & 0x7fffffff) &&
            group[farthest] == group[farthest])
          farthest = i;
      scale = bits == 8 ? magnitude(group[farthest]) / 127.0f : group[farthest] / float(-half);
    }
    float inverse = scale != 0 ? 1.0f / scale : 0.0f;
    uint8_t levels[32];
    for (int i = 0; i < 32; ++i) {
      float x = (has_minimum ? group[i] - low : group[i]) * inverse;
      if constexpr (bits == 8) {
        data[32 * g + i] = uint8_t(int8_t(cut(x + __builtin_copysignf(0.5f, x), -127, 127)));
      } else {
        levels[i] = uint8_t(cut(x + offset, 0, top));
      }
    }
    uint16_t stored = to_fp16(scale);
    store(scale_to + 2 * g, finite(half_to_float(stored)) ? stored : uint16_t(0x7e00));
    if constexpr (bits == 8) continue;
    for (int i = 0; i < 16; ++i)
      data[16 * g + i] = uint8_t((levels[i] & 15) | (levels[16 + i] & 15) << 4);
    if constexpr (bits == 5) {
      for (int i = 0; i < 4; ++i) {
        int octet = 0;
        for (int b = 0; b < 8; ++b) octet |= (levels[8 * i + b] >> 4) << b;
        high_to[4 * g + i] = uint8_t(octet);
      }
    }
  }
}

template <Codec C>
INLINE void encode_row(const float* x, int dim, const RowAt& to) {
  uint8_t* data = const_cast<uint8_t*>(to.data);
  uint8_t* scale = const_cast<uint8_t*>(to.scale);
  uint8_t* minimum = const_cast<uint8_t*>(to.minimum);
  uint8_t* high = const_cast<uint8_t*>(to.high);
  if constexpr (C == Codec::fp32) __builtin_memcpy(data, x, dim * sizeof(float));
  if constexpr (C == Codec::bf16)
    for (int d = 0; d < dim; ++d) store(data + 2 * d, to_bf16(x[d]));
  if constexpr (C == Codec::fp16)
    for (int d = 0; d < dim; ++d) store(data + 2 * d, to_fp16(x[d]));
  if constexpr (C == Codec::fp8)
    for (int d = 0; d < dim; ++d) data[d] = to_fp8(x[d]);
  if constexpr (C == Codec::int8) encode_int8(x, dim, data, scale);
  if constexpr (C == Codec::int4) encode_int4(x, dim, data, scale);
  if constexpr (C == Codec::q8_0) encode_ggml<8, false>(x, dim, data, scale, minimum, high);
  if constexpr (C == Codec::q5_1) encode_ggml<5, true>(x, dim, data, scale, minimum, high);
  if constexpr (C == Codec::q5_0) encode_ggml<5, false>(x, dim, data, scale, minimum, high);
  if constexpr (C == Codec::q4_1) encode_ggml<4, true>(x, dim, data, scale, minimum, high);
  if constexpr (C == Codec::q4_0) encode_ggml<4, false>(x, dim, data, scale, minimum, high);
}

#define EVERY_CODEC(DO)                                                                       \
  DO(fp32) DO(bf16) DO(fp16) DO(fp8) DO(int8) DO(int4) DO(q8_0) DO(q5_1) DO(q5_0) DO(q4_1) \
      DO(q4_0)
