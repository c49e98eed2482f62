// Memory of a program that trains, which links accel::jemalloc.
#pragma once

namespace accel::programs {

// Before `num_ranks` ranks of this process start, as threads: with more than 512, memory that is free for long goes
// back to the system; their steps are slower by that.
void give_back_free_memory_of(int num_ranks);

}  // namespace accel::programs
