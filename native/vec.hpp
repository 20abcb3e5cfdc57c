// LANES floats at a time, in the compiler's vector types: the same source at 4, 8 and 16 lanes.
// Included inside the namespace of an instruction set, so that no two share a compiled function.

typedef float F __attribute__((vector_size(LANES * 4)));
typedef int32_t I __attribute__((vector_size(LANES * 4)));
typedef uint32_t U __attribute__((vector_size(LANES * 4)));
typedef int8_t I8 __attribute__((vector_size(LANES)));
typedef uint8_t U8 __attribute__((vector_size(LANES)));
typedef uint16_t U16 __attribute__((vector_size(LANES * 2)));
typedef int8_t I8x2 __attribute__((vector_size(LANES * 2)));
typedef int16_t I16x2 __attribute__((vector_size(LANES * 4)));
typedef float F4 __attribute__((vector_size(16)));
typedef int32_t I4 __attribute__((vector_size(16)));

#define INLINE static inline __attribute__((always_inline))
#define INLINE_MEMBER inline __attribute__((always_inline))

template <class V>
INLINE V load(const void* from) {
  V v;
  __builtin_memcpy(&v, from, sizeof v);
  return v;
}

template <class V>
INLINE void store(void* to, V v) {
  __builtin_memcpy(to, &v, sizeof v);
}

INLINE F set1(float x) { return x - F{}; }  // keeps the sign of zero
INLINE F select(I mask, F yes, F no) { return (F)(((I)yes & mask) | ((I)no & ~mask)); }

INLINE F fma(F a, F b, F c) {
#if defined(__AVX512F__) && LANES == 16
  return (F)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
#elif defined(__FMA__) && LANES == 8
  return (F)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
#else
  return a * b + c;
#endif
}

// Unsigned 16 bit, unsigned and signed 8 bit integers in memory to 32 bit.
INLINE I widen16(const void* from) {
#if defined(__AVX512F__) && LANES == 16
  return (I)_mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i*)from));
#elif defined(__AVX2__) && LANES == 8
  return (I)_mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i*)from));
#else
  return __builtin_convertvector(load<U16>(from), I);
#endif
}

INLINE I widen8(const void* from) {
#if defined(__AVX512F__) && LANES == 16
  return (I)_mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i*)from));
#elif defined(__AVX2__) && LANES == 8
  return (I)_mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i*)from));
#else
  return __builtin_convertvector(load<U8>(from), I);
#endif
}

INLINE I widen8_signed(const void* from) {
#if defined(__AVX512F__) && LANES == 16
  return (I)_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i*)from));
#elif defined(__AVX2__) && LANES == 8
  return (I)_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i*)from));
#else
  return __builtin_convertvector(load<I8>(from), I);
#endif
}

// To nearest, to even, of what is far from the limits.
INLINE I to_nearest(F x) {
#if defined(__AVX512F__) && LANES == 16
  return (I)_mm512_cvtps_epi32((__m512)x);
#elif defined(__AVX2__) && LANES == 8
  return (I)_mm256_cvtps_epi32((__m256)x);
#else
  return (I)((U)(x + 12582912.0f) << 10) >> 10;
#endif
}

INLINE F to_float(I x) { return __builtin_convertvector(x, F); }

INLINE F from_fp16(const void* from) {
#if defined(__AVX512F__) && LANES == 16
  return (F)_mm512_cvtph_ps(_mm256_loadu_si256((const __m256i*)from));
#elif defined(__F16C__) && LANES == 8
  return (F)_mm256_cvtph_ps(_mm_loadu_si128((const __m128i*)from));
#else
  I bits = widen16(from);
  F value = (F)((bits & 0x7fff) << 13) * 0x1p112f;  // subnormals come out right
  I special = (bits & 0x7c00) == 0x7c00;
  I infinite = ((bits & 0x3ff) << 13) | 0x7f800000;
  return (F)((special & infinite) | (~special & (I)value) | ((bits & 0x8000) << 16));
#endif
}

INLINE float half_to_float(uint16_t bits) {
#if defined(__F16C__)
  return _cvtsh_ss(bits);
#else
  alignas(F) uint16_t lanes[LANES] = {bits};
  return from_fp16(lanes)[0];
#endif
}

// ---- pairs: two numbers of 16 bits in each lane of 32 ----

INLINE I all(int32_t x) { return x - I{}; }

// Signed 8 bit integers in memory to 16 bit.
INLINE I widen_pairs(const uint8_t* from) {
#if defined(__AVX512BW__) && LANES == 16
  return (I)_mm512_cvtepi8_epi16(_mm256_loadu_si256((const __m256i*)from));
#elif defined(__AVX2__) && LANES == 8
  return (I)_mm256_cvtepi8_epi16(_mm_loadu_si128((const __m128i*)from));
#else
  return (I)__builtin_convertvector(load<I8x2>(from), I16x2);
#endif
}

// Two vectors of what 16 bits hold, side by side.
INLINE void store_halves(int16_t* to, I first, I second) {
#if defined(__AVX2__) && LANES == 8
  store(to, _mm256_permute4x64_epi64(_mm256_packs_epi32((__m256i)first, (__m256i)second), 0xd8));
#else
  typedef int16_t Halves __attribute__((vector_size(LANES * 2)));
  store(to, __builtin_convertvector(first, Halves)), store(to + LANES, __builtin_convertvector(second, Halves));
#endif
}

// Of int32 vectors; more than they hold wraps around.
template <class V>
INLINE V wrapping_sum(V a, V b) {
  typedef uint32_t Unsigned __attribute__((vector_size(sizeof(V))));
  return (V)((Unsigned)a + (Unsigned)b);
}

// sum + the products of two int16 in each 32 bits; wraps around.
template <class V>
INLINE V add_pairs(V sum, V a, V b) {
#if defined(__AVX512VNNI__)
  if constexpr (sizeof(V) == 64) return (V)_mm512_dpwssd_epi32((__m512i)sum, (__m512i)a, (__m512i)b);
  if constexpr (sizeof(V) == 32) return (V)_mm256_dpwssd_epi32((__m256i)sum, (__m256i)a, (__m256i)b);
#elif defined(__AVX512BW__)
  if constexpr (sizeof(V) == 64) return wrapping_sum(sum, (V)_mm512_madd_epi16((__m512i)a, (__m512i)b));
#endif
#if defined(__AVX2__)
  if constexpr (sizeof(V) == 32) return wrapping_sum(sum, (V)_mm256_madd_epi16((__m256i)a, (__m256i)b));
#endif
#if defined(__SSE2__)
  typedef short V8 __attribute__((vector_size(16)));
  if constexpr (sizeof(V) == 16) return wrapping_sum(sum, (V)__builtin_ia32_pmaddwd128((V8)a, (V8)b));
#endif
  return wrapping_sum(sum, ((a << 16) >> 16) * ((b << 16) >> 16) + (a >> 16) * (b >> 16));
}

// sum + the products of two bf16 in each 32 bits, in fp32.
INLINE F add_bf16_pairs(F sum, I a, I b) {
#if defined(__AVX512BF16__) && LANES == 16
  return (F)_mm512_dpbf16_ps((__m512)sum, (__m512bh)a, (__m512bh)b);
#else
  sum = fma((F)(a & (int32_t)0xffff0000), (F)(b & (int32_t)0xffff0000), sum);
  return fma((F)(a << 16), (F)(b << 16), sum);
#endif
}

// Two vectors rounded to bf16, one behind the other.
INLINE I to_halves(F first, F second) {
#if defined(__AVX512BF16__) && LANES == 16
  return (I)_mm512_cvtne2ps_pbh((__m512)second, (__m512)first);
#else
  typedef uint16_t Halves __attribute__((vector_size(LANES * 2)));
  alignas(64) uint16_t both[2 * LANES];
  auto rounded = [](F x) { return __builtin_convertvector(((U)x + 0x7fff + ((U)x >> 16 & 1)) >> 16, Halves); };
  store(both, rounded(first)), store(both + LANES, rounded(second));
  return load<I>(both);
#endif
}

// Sums of four vectors. The order is the same for each: halves are folded, then pairs.
INLINE F4 sums(F a, F b, F c, F d) {
#if LANES == 4
#define FOLD(x) (x)
#elif LANES == 8
#define FOLD(x) (__builtin_shufflevector(x, x, 0, 1, 2, 3) + __builtin_shufflevector(x, x, 4, 5, 6, 7))
#else
  typedef float F8 __attribute__((vector_size(32)));
#define HALF(x) \
  ((F8)(__builtin_shufflevector(x, x, 0, 1, 2, 3, 4, 5, 6, 7) + \
        __builtin_shufflevector(x, x, 8, 9, 10, 11, 12, 13, 14, 15)))
#define FOLD8(x) (__builtin_shufflevector(x, x, 0, 1, 2, 3) + __builtin_shufflevector(x, x, 4, 5, 6, 7))
#define FOLD(x) FOLD8(HALF(x))
#endif
  F4 e = FOLD(a), f = FOLD(b), g = FOLD(c), h = FOLD(d);
  F4 ef = __builtin_shufflevector(e, f, 0, 4, 1, 5) + __builtin_shufflevector(e, f, 2, 6, 3, 7);
  F4 gh = __builtin_shufflevector(g, h, 0, 4, 1, 5) + __builtin_shufflevector(g, h, 2, 6, 3, 7);
  return __builtin_shufflevector(ef, gh, 0, 1, 4, 5) + __builtin_shufflevector(ef, gh, 2, 3, 6, 7);
}

INLINE float sum(F x) { return sums(x, x, x, x)[0]; }

// x where it is larger, and not NaN.
template <class V>
INLINE V larger(V x, V y) {
#if defined(__AVX512F__)
  if constexpr (sizeof(V) == 64) return (V)_mm512_max_ps((__m512)x, (__m512)y);
#endif
#if defined(__AVX__)
  if constexpr (sizeof(V) == 32) return (V)_mm256_max_ps((__m256)x, (__m256)y);
#endif
  auto above = x > y;
  return (V)((above & (decltype(above))x) | (~above & (decltype(above))y));
}

// The largest, where none is NaN.
INLINE float largest(F x) {
  F4 parts[LANES / 4];
  store(parts, x);
  F4 most = parts[0];
  for (int i = 1; i < LANES / 4; ++i) most = larger(parts[i], most);
  most = larger(__builtin_shufflevector(most, most, 2, 3, 2, 3), most);
  return larger(__builtin_shufflevector(most, most, 1, 1, 1, 1), most)[0];
}

// For x <= 88; 0 below -87, 1 exactly at 0, NaN for NaN.
INLINE F exp(F x) {
  const F magic = set1(12582912.0f);  // 1.5 * 2^23: its sum's low bits are the rounded integer
  F shifted = fma(x, set1(1.44269504f), magic);
  F n = shifted - magic;
  F r = fma(n, set1(-0.693359375f), x);
  r = fma(n, set1(2.12194440e-4f), r);
  F p = set1(1.9875691500e-4f);
  p = fma(p, r, set1(1.3981999507e-3f));
  p = fma(p, r, set1(8.3334519073e-3f));
  p = fma(p, r, set1(4.1665795894e-2f));
  p = fma(p, r, set1(1.6666665459e-1f));
  p = fma(p, r, set1(5.0000001201e-1f));
  p = fma(p, r * r, r) + 1.0f;
  U power = ((U)shifted << 23) + 0x3f800000u;
  return (F)((I)(p * (F)power) & ~(x < set1(-87.0f)));
}

// exp(x) to 1e-6 in fewer steps, for x <= 0: 0 below -86, 1 exactly at 0, NaN for NaN.
INLINE F weight_of(F x) {
  const F magic = set1(12582912.0f), log2e = set1(1.44269504f);
  F shifted = fma(x, log2e, magic);
  F r = fma(x, log2e, magic - shifted);
  F p = fma(set1(1.326472731e-3f), r, set1(9.671512991e-3f));  // of 2^r, to 1e-7 from -1/2 to 1/2
  p = fma(p, r, set1(5.550733581e-2f));
  p = fma(p, r, set1(2.402224243e-1f));
  p = fma(p, r, set1(6.931470037e-1f));
  p = fma(p, r, set1(1.0f));
  return (F)((I)((U)p + ((U)shifted << 23)) & ~(x < set1(-86.0f)));
}

INLINE F tanh(F x) {
  F capped = select(x > set1(10.0f), set1(10.0f), select(x < set1(-10.0f), set1(-10.0f), x));
  F square = x * x;
  F p = set1(-5.70498872745e-3f);
  p = fma(p, square, set1(2.06390887954e-2f));
  p = fma(p, square, set1(-5.37397155531e-2f));
  p = fma(p, square, set1(1.33314422036e-1f));
  p = fma(p, square, set1(-3.33332819422e-1f));
  F small = fma(p * square, x, x);
  F large = 1.0f - 2.0f / (exp(capped + capped) + 1.0f);
  return select((I)(F)((I)x & 0x7fffffff) < (I)set1(0.625f), small, large);
}
