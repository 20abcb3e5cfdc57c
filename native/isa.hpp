// All kernels, for the instruction set in whose namespace this is included.
#include "kernels.hpp"
#include "transcode.hpp"
#include "linear.hpp"
#include "rows.hpp"

#define HOLDOVER_ISA(name)                                                                         \
  namespace holdover {                                                                             \
  const Isa name{#name, BF16_PAIRS, AMX ? 2 : 1, on_##name::runs, on_##name::attend_task,          \
                 on_##name::write, on_##name::transcode, on_##name::prepare, on_##name::multiply,  \
                 on_##name::unpack_row, on_##name::norm, on_##name::rotate, on_##name::within,     \
                 on_##name::cap_row, on_##name::bound_block, on_##name::choose};                   \
  }
