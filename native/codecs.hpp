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

INLINE void encode_int8(const float* x, int dim, uint8_t* data, uint8_t* scale_to) {
  uint32_t most = 0;
  for (int d = 0; d < dim; ++d) {
    uint32_t bits = bits_of(x[d]) & 0x7fffffff;
    most = bits > most ? bits : most;  // NaN is above inf
  }
  float scale = float_of(most) / 127.0f, divisor = scale > 0 ? scale : 1.0f;
  for (int d = 0; d < dim; ++d) data[d] = uint8_t(int8_t(level(x[d] / divisor, -127, 127)));
  store(scale_to, finite(scale) ? scale : __builtin_nanf(""));
}

INLINE void encode_int4(const float* x, int dim, uint8_t* data, uint8_t* scale_to, uint8_t* minimum_to) {
  uint8_t levels[MAX_DIM];
  for (int g = 0; g * GROUP_DIMS < dim; ++g) {
    const float* group = x + g * GROUP_DIMS;
    int n = dim - g * GROUP_DIMS < GROUP_DIMS ? dim - g * GROUP_DIMS : GROUP_DIMS;
    Range r = range_of(group, n);
    uint16_t minimum = without_sign_of_zero(to_fp16(r.low));
    float low = half_to_float(minimum);
    uint16_t scale = to_fp16((r.high - low) / 15.0f);
    float step = half_to_float(scale);
    float divisor = step > 0 ? step : __builtin_inff();
    for (int d = 0; d < n; ++d) levels[g * GROUP_DIMS + d] = uint8_t(level((group[d] - low) / divisor, 0, 15));
    store(scale_to + 2 * g, finite(step) && finite(low) ? scale : uint16_t(0x7e00));
    store(minimum_to + 2 * g, minimum);
  }
  for (int d = 0; d < dim / 2; ++d) data[d] = uint8_t(levels[2 * d] | levels[2 * d + 1] << 4);
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
  if constexpr (C == Codec::int4) encode_int4(x, dim, data, scale, minimum);
  if constexpr (C == Codec::q8_0) encode_ggml<8, false>(x, dim, data, scale, minimum, high);
  if constexpr (C == Codec::q5_1) encode_ggml<5, true>(x, dim, data, scale, minimum, high);
  if constexpr (C == Codec::q5_0) encode_ggml<5, false>(x, dim, data, scale, minimum, high);
  if constexpr (C == Codec::q4_1) encode_ggml<4, true>(x, dim, data, scale, minimum, high);
  if constexpr (C == Codec::q4_0) encode_ggml<4, false>(x, dim, data, scale, minimum, high);
}

#define EVERY_CODEC(DO)                                                                       \
  DO(fp32) DO(bf16) DO(fp16) DO(fp8) DO(int8) DO(int4) DO(q8_0) DO(q5_1) DO(q5_0) DO(q4_1) \
      DO(q4_0)
