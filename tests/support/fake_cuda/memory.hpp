#pragma once

#include <cstddef>

/// Device memory and pinned memory, which are blocks of host memory. Thread rule: any thread.
namespace accel::testing::fake_cuda {

/// Bytes of one device: FAKE_CUDA_MEGABYTES, or 8 GiB.
std::size_t device_capacity();
std::size_t free_bytes(int device);

/// Zeroed memory of a device, or null if the device has too few free bytes.
void* allocate_on(int device, std::size_t bytes);
void free_on_device(void* pointer);
void* allocate_pinned(std::size_t bytes);
void free_pinned(void* pointer);

/// Device of the allocation that contains a pointer, or -1.
int device_of(const void* pointer);
bool is_pinned(const void* pointer);
/// Memory of the program that copies may access without a copy through the runtime.
void pin(void* pointer, std::size_t bytes);

/// Copies as cudaMemcpy does, and counts.
void copy(void* to, const void* from, std::size_t bytes);

}  // namespace accel::testing::fake_cuda
