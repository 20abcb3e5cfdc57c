// Products in AMX's registers of whole matrices, or the same sums written out where there are none.
// Included inside the namespace of an instruction set.
//
// A register has 16 rows of 64 bytes.  C[row][column] += A[row][k] x B[k][column]  takes 32 inputs k of
// bf16, which B has in pairs: [pair][column][2], as the panels of a matrix and of 16 tokens' keys do.
// Even inputs and odd ones are summed apart, in order, and both sums are then added to C: so a row's
// sums are the same whatever rows and columns are beside it. Of bytes it takes 64, which B has in quads;
// numbers of 16 bits are two products, of their high bytes and of their low ones, and exact. What is less
// than 2^-126 counts as zero, in C too.

constexpr int REGISTER_ROWS = 16, REGISTER_BYTES = 64;
constexpr int REGISTER_COLUMNS = 16, REGISTER_INPUTS = 32, REGISTER_LEVELS = 64;  // of 32, 16 and 8 bits

// Whether rows are of whole registers.
INLINE bool fills_registers(const Plane& p) {
  if (!AMX) return false;
  if (p.codec == Codec::bf16) return p.dim % REGISTER_INPUTS == 0;
  return (p.codec == Codec::int8 || p.codec == Codec::int4) && p.dim % REGISTER_LEVELS == 0;
}

// Whether a task does, of so many rows. Sums of levels are the same without, and few rows then faster.
INLINE bool use_registers(const Attend& call, int rows) {
  bool fill = true, levels = true;
  for (const Plane* p : {call.keys, call.values, call.rope ? call.rope : call.keys})
    fill &= fills_registers(*p), levels &= p->codec != Codec::bf16;
  return fill && !(levels && rows <= REGISTER_ROWS);
}

// C is registers 0 to 3, A 4 and 5, B 6 and 7. In assembly, since the compiler's own functions take
// literal numbers and tell it neither what they read of memory nor what they write.
class Registers {
#if defined(__AMX_BF16__)
  int n_first = 0, n_second = 0;

 public:
  ~Registers() {
    if (n_first) asm volatile("tilerelease");
  }

  // Rows of A and C: of one register and the next, or of all C where there is no next.
  void shape(int first, int second) {
    if (first == n_first && second == n_second) return;
    struct alignas(64) {
      uint8_t palette = 1, start_row = 0, reserved[14] = {};
      uint16_t row_bytes[16] = {};
      uint8_t n_rows[16] = {};
    } config;
    for (int i = 0; i < 8; ++i) config.row_bytes[i] = REGISTER_BYTES, config.n_rows[i] = REGISTER_ROWS;
    for (int i = 0; i < 4; ++i) config.n_rows[i] = uint8_t(i > 1 && second ? second : first);
    config.n_rows[4] = uint8_t(first), config.n_rows[5] = uint8_t(second ? second : first);
    asm volatile("ldtilecfg %0" ::"m"(config));
    n_first = first, n_second = second;
  }

  template <int R>
  INLINE_MEMBER void zero() {
    asm volatile("tilezero %%tmm%c0" ::"i"(R));
  }
  template <int R>
  INLINE_MEMBER void load(const void* from, int64_t stride) {
    asm volatile("tileloadd (%0,%1,1), %%tmm%c2" ::"r"(from), "r"(stride), "i"(R) : "memory");
  }
  template <int R>
  INLINE_MEMBER void store(void* to, int64_t stride) {
    asm volatile("tilestored %%tmm%c2, (%0,%1,1)" ::"r"(to), "r"(stride), "i"(R) : "memory");
  }
  template <int C, int A, int B>
  INLINE_MEMBER void add_product() {
    asm volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(C), "i"(A), "i"(B));
  }
  // Signed bytes of B, and of A signed or unsigned ones.
  template <int C, int A, int B, bool SIGNED>
  INLINE_MEMBER void add_levels() {
    if constexpr (SIGNED) asm volatile("tdpbssd %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(C), "i"(A), "i"(B));
    else asm volatile("tdpbusd %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(C), "i"(A), "i"(B));
  }
#else
  typedef uint32_t Register[REGISTER_ROWS][REGISTER_COLUMNS];
  Register all[8];
  int n_first = 0, n_second = 0;

  int n_rows(int i) const {
    if (i > 5) return REGISTER_ROWS;
    return n_second && (i == 2 || i == 3 || i == 5) ? n_second : n_first;
  }

 public:
  void shape(int first, int second) { n_first = first, n_second = second; }

  template <int R>
  void zero() {
    __builtin_memset(all[R], 0, sizeof all[R]);
  }
  template <int R>
  void load(const void* from, int64_t stride) {
    for (int r = 0; r < n_rows(R); ++r)
      __builtin_memcpy(all[R][r], static_cast<const uint8_t*>(from) + r * stride, REGISTER_BYTES);
  }
  template <int R>
  void store(void* to, int64_t stride) {
    for (int r = 0; r < n_rows(R); ++r)
      __builtin_memcpy(static_cast<uint8_t*>(to) + r * stride, all[R][r], REGISTER_BYTES);
  }
  template <int C, int A, int B>
  void add_product() {
    for (int r = 0; r < n_rows(C); ++r)
      for (int column = 0; column < REGISTER_COLUMNS; ++column) {
        float even = 0, odd = 0;
        for (int pair = 0; pair < REGISTER_INPUTS / 2; ++pair) {
          uint32_t a = all[A][r][pair], b = all[B][pair][column];
          even += float_of(a << 16) * float_of(b << 16);
          odd += float_of(a & 0xffff0000) * float_of(b & 0xffff0000);
        }
        all[C][r][column] = bits_of(float_of(all[C][r][column]) + (even + odd));
      }
  }
  template <int C, int A, int B, bool SIGNED>
  void add_levels() {
    for (int r = 0; r < n_rows(C); ++r)
      for (int column = 0; column < REGISTER_COLUMNS; ++column)
        for (int k = 0; k < REGISTER_LEVELS; ++k) {
          int shift = k % 4 * 8;
          uint32_t a = all[A][r][k / 4] >> shift & 255, b = all[B][k / 4][column] >> shift & 255;
          all[C][r][column] += uint32_t((SIGNED ? int8_t(a) : int(a)) * int8_t(b));
        }
  }
#endif
};

// So many rows in M registers.
template <int M>
INLINE void shape_rows(Registers& registers, int n_rows) {
  registers.shape(M == 2 ? REGISTER_ROWS : n_rows, M == 2 ? n_rows - REGISTER_ROWS : 0);
}

// Rows of A, `a_row` bytes apart and 64 bytes for each step; and of each of N registers' columns the
// pairs of B, `b_row` bytes apart, 16 for each step. A has all steps `parts` times, one behind the other.
template <int N>
struct RegisterOperands {
  const uint8_t* a;
  int64_t a_row;
  const uint8_t* b[N];
  int64_t b_row;
  int n_steps, parts = 1;
};

// Sums of M x N registers, to rows of fp32 `stride` bytes apart; `add`: to what is there.
template <int M, int N>
INLINE void sum_in_registers(Registers& registers, const RegisterOperands<N>& o, float* to, int64_t stride, bool add) {
  static_assert(M * N <= 4 && (M == 1 || N <= 2));
  auto each_sum = [&](auto use) {
    [&]<int... I>(std::integer_sequence<int, I...>) {
      (use.template operator()<I / N, I % N, (M == 2 ? I / N * 2 + I % N : I)>(), ...);
    }(std::make_integer_sequence<int, M * N>{});
  };
  auto place = [&](int m, int n) {
    return reinterpret_cast<uint8_t*>(to + n * REGISTER_COLUMNS) + m * REGISTER_ROWS * stride;
  };
  each_sum([&]<int m, int n, int c>() {
    if (add) registers.load<c>(place(m, n), stride);
    else registers.zero<c>();
  });
  const uint8_t* a = o.a;
  for (int part = 0; part < o.parts; ++part) {
    int64_t b = 0, b_step = REGISTER_ROWS * o.b_row;
    for (int step = 0; step < o.n_steps; ++step, a += REGISTER_BYTES, b += b_step) {
      registers.load<4>(a, o.a_row);
      if constexpr (M == 2) registers.load<5>(a + REGISTER_ROWS * o.a_row, o.a_row);
      [&]<int... I>(std::integer_sequence<int, I...>) {
        auto column = [&]<int n>() {
          registers.load<6 + n % 2>(o.b[n] + b, o.b_row);
          registers.add_product<n, 4, 6 + n % 2>();
          if constexpr (M == 2) registers.add_product<2 + n, 5, 6 + n % 2>();
        };
        (column.template operator()<I>(), ...);
      }(std::make_integer_sequence<int, N>{});
    }
  }
  each_sum([&]<int m, int n, int c>() { registers.store<c>(place(m, n), stride); });
}

// Numbers of 16 bits and a sign times levels of 8: rows of high bytes, and of low ones `low` bytes
// behind; of N registers' columns the quads of B. Calls `use(row, n, sums)` with a vector of exact sums.
template <int N, class Use>
INLINE void sum_levels_in_registers(Registers& registers, int n_rows, const uint8_t* a, int64_t a_row, int64_t low,
                                    const uint8_t* const (&b)[N], int n_steps, Use use) {
  static_assert(N <= 2);
  alignas(64) uint32_t sums[2][REGISTER_ROWS][N * REGISTER_COLUMNS];
  registers.shape(n_rows, n_rows);
  auto each = [&](auto with) {
    with.template operator()<0>();
    if constexpr (N == 2) with.template operator()<1>();
  };
  each([&]<int n>() { registers.zero<n>(), registers.zero<2 + n>(); });
  for (int step = 0; step < n_steps; ++step, a += REGISTER_BYTES) {
    registers.load<4>(a, a_row), registers.load<5>(a + low, a_row);
    each([&]<int n>() {
      registers.load<6 + n>(b[n] + step * REGISTER_ROWS * REGISTER_BYTES, REGISTER_BYTES);
      registers.add_levels<n, 4, 6 + n, true>();
      registers.add_levels<2 + n, 5, 6 + n, false>();
    });
  }
  each([&]<int n>() {
    registers.store<n>(sums[0][0] + n * REGISTER_COLUMNS, sizeof sums[0][0]);
    registers.store<2 + n>(sums[1][0] + n * REGISTER_COLUMNS, sizeof sums[0][0]);
  });
  for (int r = 0; r < n_rows; ++r)
    for (int n = 0; n < N; ++n) {
      U high = load<U>(sums[0][r] + n * LANES), low = load<U>(sums[1][r] + n * LANES);
      use(r, n, to_float((I)((high << 8) + low)));
    }
}
