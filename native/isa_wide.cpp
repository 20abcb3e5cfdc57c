// Tests only: the code of AVX-512, its 16 lanes made of two AVX2 registers.
#include <immintrin.h>

#include "types.hpp"

#define LANES 16

namespace holdover::on_wide {
constexpr int MOST_ROWS = 6;  // query rows that share a key in registers
#include "kernels.hpp"
#include "linear.hpp"
#include "rows.hpp"
bool runs() { return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c"); }
}  // namespace holdover::on_wide

namespace holdover {
const Isa wide{"wide", on_wide::runs, on_wide::attend_task, on_wide::write, on_wide::prepare, on_wide::multiply, on_wide::unpack_row, on_wide::norm, on_wide::rotate, on_wide::within, on_wide::cap_row};
}
