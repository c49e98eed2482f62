#include "tests/support/fake_cuda/memory.hpp"

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>

#include "tests/support/fake_cuda/journal.hpp"

namespace accel::testing::fake_cuda {
namespace {

constexpr std::size_t kAlignment = 512;

struct Block {
  std::size_t bytes = 0;
  int device = -1;  // -1: pinned
};

// Never destroyed, as the counters of the journal.
struct Blocks {
  std::mutex mutex;
  std::map<const char*, Block> blocks;
  std::map<int, std::size_t> used;
};
Blocks& all() {
  static auto* const blocks = new Blocks;
  return *blocks;
}

const Block* find(const Blocks& in, const void* pointer) {
  const auto* const byte = static_cast<const char*>(pointer);
  auto after = in.blocks.upper_bound(byte);
  if (after == in.blocks.begin()) return nullptr;
  const auto& [begin, block] = *--after;
  return byte < begin + block.bytes ? &block : nullptr;
}

std::size_t rounded(std::size_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

void* zeroed(std::size_t bytes) {
  void* const pointer = std::aligned_alloc(kAlignment, rounded(bytes));
  std::memset(pointer, 0, bytes);
  return pointer;
}

}  // namespace

std::size_t device_capacity() {
  static const auto capacity = static_cast<std::size_t>(setting("FAKE_CUDA_MEGABYTES", 8192)) << 20;
  return capacity;
}

std::size_t free_bytes(int device) {
  const std::lock_guard lock(all().mutex);
  return device_capacity() - all().used[device];
}

void* allocate_on(int device, std::size_t bytes) {
  static std::atomic<std::int64_t> num_calls = 0;
  const auto call = ++num_calls;
  const std::lock_guard lock(all().mutex);
  auto& used = all().used[device];
  // LibTorch tries again after it has freed its cache.
  const bool is_refused = is_faulty("fail_allocation", call) || is_faulty("fail_allocation", call - 1);
  if (is_refused || used + bytes > device_capacity()) return nullptr;
  auto* const pointer = static_cast<char*>(zeroed(bytes));
  all().blocks[pointer] = {.bytes = bytes, .device = device};
  used += bytes;
  count_bytes(static_cast<std::int64_t>(bytes));
  return pointer;
}

void free_on_device(void* pointer) {
  const std::lock_guard lock(all().mutex);
  const auto block = all().blocks.find(static_cast<char*>(pointer));
  if (block == all().blocks.end()) return;
  all().used[block->second.device] -= block->second.bytes;
  count_bytes(-static_cast<std::int64_t>(block->second.bytes));
  all().blocks.erase(block);
  std::free(pointer);
}

void* allocate_pinned(std::size_t bytes) {
  auto* const pointer = zeroed(bytes);
  pin(pointer, bytes);
  return pointer;
}

void free_pinned(void* pointer) {
  const std::lock_guard lock(all().mutex);
  if (all().blocks.erase(static_cast<char*>(pointer)) > 0) std::free(pointer);
}

void pin(void* pointer, std::size_t bytes) {
  const std::lock_guard lock(all().mutex);
  all().blocks[static_cast<char*>(pointer)] = {.bytes = bytes};
}

int device_of(const void* pointer) {
  const std::lock_guard lock(all().mutex);
  const auto* const block = find(all(), pointer);
  return block == nullptr ? -1 : block->device;
}

bool is_pinned(const void* pointer) {
  const std::lock_guard lock(all().mutex);
  const auto* const block = find(all(), pointer);
  return block != nullptr && block->device < 0;
}

void copy(void* to, const void* from, std::size_t bytes) {
  const bool to_device = device_of(to) >= 0, from_device = device_of(from) >= 0;
  if (to_device != from_device)
    count_copy(/*is_pageable=*/!is_pinned(to_device ? from : to), /*is_device_to_host=*/from_device);
  std::memmove(to, from, bytes);
}

}  // namespace accel::testing::fake_cuda
