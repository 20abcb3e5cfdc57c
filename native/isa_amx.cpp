// AVX-512 with BF16 and VNNI, and AMX's registers of matrices, for which a process asks the system.
#include <immintrin.h>
#if defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#endif

#include "types.hpp"

#define LANES 16
#define BF16_PAIRS 1  // products take pairs of bf16 inputs
#define AMX 1         // and registers of whole matrices

namespace holdover::on_amx {
constexpr int TILE_ROWS = 8, MOST_SUMS = 24;  // rows of a product at once, and vectors of sums
#include "isa.hpp"
bool runs() {
#if defined(__linux__)
  constexpr long ask_for_state = 0x1023, tile_data = 18;  // ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA
  return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
         __builtin_cpu_supports("avx512bf16") && __builtin_cpu_supports("avx512vnni") &&
         __builtin_cpu_supports("avx512vbmi") && __builtin_cpu_supports("amx-tile") &&
         __builtin_cpu_supports("amx-bf16") && __builtin_cpu_supports("amx-int8") &&
         syscall(SYS_arch_prctl, ask_for_state, tile_data) == 0;
#else
  return false;
#endif
}
}  // namespace holdover::on_amx

HOLDOVER_ISA(amx)
