// Tests only: the code of AMX, its products of registers written out.
#include <immintrin.h>

#include "types.hpp"

#define LANES 16
#define BF16_PAIRS 1  // products take pairs of bf16 inputs
#define AMX 1         // and registers of whole matrices

namespace holdover::on_wide_amx {
constexpr int TILE_ROWS = 8, MOST_SUMS = 24;  // rows of a product at once, and vectors of sums
#include "isa.hpp"
bool runs() {
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c");
}
}  // namespace holdover::on_wide_amx

HOLDOVER_ISA(wide_amx)
