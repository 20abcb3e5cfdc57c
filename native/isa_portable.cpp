// For any machine: 4 lanes of what the compiler has, without fused products.

#include "types.hpp"

#define LANES 4

namespace holdover::on_portable {
constexpr int MOST_ROWS = 3;  // query rows that share a key in registers
#include "kernels.hpp"
#include "linear.hpp"
#include "rows.hpp"
bool runs() { return true; }
}  // namespace holdover::on_portable

namespace holdover {
const Isa portable{"portable", on_portable::runs, on_portable::attend_task, on_portable::write, on_portable::prepare, on_portable::multiply, on_portable::unpack_row, on_portable::norm, on_portable::rotate, on_portable::within, on_portable::cap_row};
}
