// Memory of a program that trains, which links accel::jemalloc.
#pragma once

namespace accel::programs {

// Before `num_ranks` ranks of this process start, as threads. With more than 512 what is long free goes back to the system,
// which slows their steps and takes a fifth off their memory.
void give_back_free_memory_of(int num_ranks);

}  // namespace accel::programs
