// AVX-512 (F, BW, DQ, VL): 16 lanes, 32 registers.
#include <immintrin.h>

#include "types.hpp"

#define LANES 16

namespace holdover::on_avx512 {
constexpr int MOST_ROWS = 6;  // query rows that share a key in registers
#include "kernels.hpp"
#include "linear.hpp"
#include "rows.hpp"
bool runs() { return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl"); }
}  // namespace holdover::on_avx512

namespace holdover {
const Isa avx512{"avx512", on_avx512::runs, on_avx512::attend_task, on_avx512::write, on_avx512::prepare, on_avx512::multiply, on_avx512::unpack_row, on_avx512::norm, on_avx512::rotate, on_avx512::within, on_avx512::cap_row};
}
