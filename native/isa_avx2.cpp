// AVX2 with FMA and F16C: 8 lanes, 16 registers.
#include <immintrin.h>

#include "types.hpp"

#define LANES 8

namespace holdover::on_avx2 {
constexpr int MOST_ROWS = 3;  // query rows that share a key in registers
#include "kernels.hpp"
#include "linear.hpp"
#include "rows.hpp"
bool runs() { return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c"); }
}  // namespace holdover::on_avx2

namespace holdover {
const Isa avx2{"avx2", on_avx2::runs, on_avx2::attend_task, on_avx2::write, on_avx2::prepare, on_avx2::multiply, on_avx2::unpack_row, on_avx2::norm, on_avx2::rotate, on_avx2::within, on_avx2::cap_row};
}
