// Memory settings of training programs, which link accel::jemalloc.
#pragma once

namespace accel::programs {

// Call before `num_ranks` ranks start as threads of this process. With more than 512 ranks, memory that has been free
// for ten seconds returns to the system, which makes steps slower but keeps thousands of ranks within memory.
void limit_retained_memory(int num_ranks);

}  // namespace accel::programs
