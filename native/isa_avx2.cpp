// AVX2 with FMA and F16C: 8 lanes, 16 registers.
#include <immintrin.h>

#include "types.hpp"

#define LANES 8
#define BF16_PAIRS 0  // products take pairs of bf16 inputs
#define AMX 0         // and registers of whole matrices

namespace holdover::on_avx2 {
constexpr int TILE_ROWS = 6, MOST_SUMS = 12;  // rows of a product at once, and vectors of sums
#include "isa.hpp"
bool runs() {
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c");
}
}  // namespace holdover::on_avx2

HOLDOVER_ISA(avx2)
