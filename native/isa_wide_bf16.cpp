// Tests only: the code of AVX-512 with BF16, its dot products written out.
#include <immintrin.h>

#include "types.hpp"

#define LANES 16
#define BF16_PAIRS 1  // products take pairs of bf16 inputs
#define AMX 0         // and registers of whole matrices

namespace holdover::on_wide_bf16 {
constexpr int TILE_ROWS = 8, MOST_SUMS = 24;  // rows of a product at once, and vectors of sums
#include "isa.hpp"
bool runs() {
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c");
}
}  // namespace holdover::on_wide_bf16

HOLDOVER_ISA(wide_bf16)
