// For any machine: 4 lanes of what the compiler has, without fused products.

#include "types.hpp"

#define LANES 4
#define BF16_PAIRS 0  // products take pairs of bf16 inputs
#define AMX 0         // and registers of whole matrices

namespace holdover::on_portable {
constexpr int TILE_ROWS = 3, MOST_SUMS = 12;  // rows of a product at once, and vectors of sums
#include "isa.hpp"
bool runs() {
  return true;
}
}  // namespace holdover::on_portable

HOLDOVER_ISA(portable)
