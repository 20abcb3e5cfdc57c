// AVX-512 with BF16 and VNNI, and AMX's registers of matrices, for which a process asks the system.
#include <immintrin.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "types.hpp"

#define LANES 16
#define BF16_PAIRS 1  // products take pairs of bf16 inputs
#define AMX 1         // and registers of whole matrices

namespace holdover::on_amx {
constexpr int TILE_ROWS = 8, MOST_SUMS = 24;  // rows of a product at once, and vectors of sums
#include "isa.hpp"
constexpr long ASK_FOR_STATE = 0x1023, TILE_DATA = 18;  // ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA
bool runs() {
  return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
         __builtin_cpu_supports("avx512bf16") && __builtin_cpu_supports("avx512vnni") &&
         __builtin_cpu_supports("avx512vbmi") && __builtin_cpu_supports("amx-tile") && __builtin_cpu_supports("amx-bf16") &&
         syscall(SYS_arch_prctl, ASK_FOR_STATE, TILE_DATA) == 0;
}
}  // namespace holdover::on_amx

HOLDOVER_ISA(amx)
