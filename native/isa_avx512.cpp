// AVX-512 (F, BW, DQ, VL): 16 lanes, 32 registers.
#include <immintrin.h>

#include "types.hpp"

#define LANES 16
#define BF16_PAIRS 0  // products take pairs of bf16 inputs
#define AMX 0         // and registers of whole matrices

namespace holdover::on_avx512 {
constexpr int TILE_ROWS = 8, MOST_SUMS = 24;  // rows of a product at once, and vectors of sums
#include "isa.hpp"
bool runs() {
  return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
}
}  // namespace holdover::on_avx512

HOLDOVER_ISA(avx512)
