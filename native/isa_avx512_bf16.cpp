// AVX-512 with its dot products of bf16 (BF16) and int16 (VNNI).
#include <immintrin.h>

#include "types.hpp"

#define LANES 16
#define BF16_PAIRS 1  // products take pairs of bf16 inputs
#define AMX 0         // and registers of whole matrices

namespace holdover::on_avx512_bf16 {
constexpr int TILE_ROWS = 8, MOST_SUMS = 24;  // rows of a product at once, and vectors of sums
#include "isa.hpp"
bool runs() {
  return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
         __builtin_cpu_supports("avx512bf16") && __builtin_cpu_supports("avx512vnni");
}
}  // namespace holdover::on_avx512_bf16

HOLDOVER_ISA(avx512_bf16)
