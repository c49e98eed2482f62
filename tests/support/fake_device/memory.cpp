#include "tests/support/fake_device/memory.hpp"

#include <cstdlib>
#include <cstring>
#include <list>

#include "tests/support/fake_device/device.hpp"
#include "tests/support/fake_device/execution.hpp"

namespace accel::testing::fake_device {
namespace {

constexpr std::size_t kAlignment = 512;

struct Block {
  std::size_t bytes = 0;
  StreamKey stream;
  std::vector<StreamKey> recorded;
};

// A freed block, and what must be done before it is used again.
struct Freed {
  char* data;
  Block block;
  Clock done;
};

struct Memory {
  std::mutex mutex;
  std::map<char*, Block> used;
  std::list<Freed> freed;
  std::map<int, std::int64_t> bytes;
  std::int64_t limit = 0;
};
Memory& memory() {
  static auto* const all = new Memory;  // never destroyed: tensors in static variables free their blocks later
  return *all;
}

// The bytes of a new tensor are whatever its memory held; NaNs show that somebody reads them.
char* take(StreamKey stream, std::size_t bytes) {
  const std::lock_guard lock(memory().mutex);
  for (auto freed = memory().freed.begin(); freed != memory().freed.end(); ++freed) {
    if (freed->block.bytes != bytes || freed->block.stream != stream || !races().host_knows(freed->done)) continue;
    if (!freed->done.empty()) races().forget(freed->data, bytes);
    auto* const data = freed->data;
    memory().freed.erase(freed);
    memory().used[data] = {.bytes = bytes, .stream = stream};
    return data;
  }
  auto* const data = static_cast<char*>(std::aligned_alloc(kAlignment, bytes));
  races().forget(data, bytes);
  memory().used[data] = {.bytes = bytes, .stream = stream};
  return data;
}

void give_back(void* pointer) {
  auto* const data = static_cast<char*>(pointer);
  const std::lock_guard lock(memory().mutex);
  const auto found = memory().used.find(data);
  if (found == memory().used.end()) return;
  Freed freed{.data = data, .block = found->second, .done = {}};
  for (const auto stream : freed.block.recorded) {
    for (const auto& [key, time] : races().snapshot(stream)) freed.done[key] = std::max(freed.done[key], time);
  }
  const auto bytes = static_cast<std::int64_t>(freed.block.bytes);
  memory().bytes[freed.block.stream.device] -= bytes;
  c10::reportMemoryUsageToProfiler(data, -bytes, 0, 0, device(freed.block.stream.device));
  memory().used.erase(found);
  memory().freed.push_front(std::move(freed));  // the latest one is used first, as in CUDA
}

class DeviceAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(std::size_t bytes) override {
    const auto stream = current_key(current_index());
    const c10::Device on = device(stream.device);
    if (bytes == 0) return {nullptr, nullptr, &give_back, on};
    const auto rounded = (bytes + kAlignment - 1) / kAlignment * kAlignment;
    {
      const std::lock_guard lock(memory().mutex);
      auto& used = memory().bytes[stream.device];
      TORCH_CHECK_WITH(OutOfMemoryError,
                       memory().limit == 0 || used + static_cast<std::int64_t>(rounded) <= memory().limit,
                       "fake device out of memory: tried to allocate ", bytes, " bytes");
      used += static_cast<std::int64_t>(rounded);
    }
    auto* const data = take(stream, rounded);
    std::memset(data, 0xff, rounded);
    c10::reportMemoryUsageToProfiler(data, static_cast<std::int64_t>(rounded), 0, 0, on);
    return {data, data, &give_back, on};
  }
  [[nodiscard]] c10::DeleterFnPtr raw_deleter() const override { return &give_back; }
  void copy_data(void* to, const void* from, std::size_t bytes) const override { default_copy_data(to, from, bytes); }
};

struct Pinned {
  std::mutex mutex;
  std::map<const char*, std::size_t> blocks;
};
Pinned& pinned() {
  static auto* const all = new Pinned;
  return *all;
}

class PinnedAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(std::size_t bytes) override {
    auto* const data = static_cast<char*>(std::aligned_alloc(kAlignment, (bytes / kAlignment + 1) * kAlignment));
    const std::lock_guard lock(pinned().mutex);
    pinned().blocks[data] = bytes;
    return {data, data, &free, at::kCPU};
  }
  [[nodiscard]] c10::DeleterFnPtr raw_deleter() const override { return &free; }
  void copy_data(void* to, const void* from, std::size_t bytes) const override { default_copy_data(to, from, bytes); }

 private:
  static void free(void* data) {
    const std::lock_guard lock(pinned().mutex);
    const auto block = pinned().blocks.extract(static_cast<const char*>(data));
    if (block) forget_pinned_memory(data, block.mapped());
    std::free(data);
  }
};

}  // namespace

c10::Allocator& pinned_allocator() {
  static auto* const the = new PinnedAllocator;
  return *the;
}

bool is_pinned(const void* data) {
  const std::lock_guard lock(pinned().mutex);
  const auto* const byte = static_cast<const char*>(data);
  const auto after = pinned().blocks.upper_bound(byte);
  if (after == pinned().blocks.begin()) return false;
  const auto& [begin, bytes] = *std::prev(after);
  return byte < begin + std::max<std::size_t>(bytes, 1);
}

c10::Allocator& allocator() {
  static auto* const the = new DeviceAllocator;
  return *the;
}

void record_on_stream(const void* data, StreamKey stream) {
  const std::lock_guard lock(memory().mutex);
  const auto found = memory().used.find(static_cast<char*>(const_cast<void*>(data)));
  if (found != memory().used.end() && found->second.stream != stream) found->second.recorded.push_back(stream);
}

StreamKey stream_of_memory(const at::Tensor& tensor) {
  const std::lock_guard lock(memory().mutex);
  const auto found = memory().used.find(static_cast<char*>(tensor.storage().mutable_data()));
  TORCH_CHECK(found != memory().used.end(), "the tensor is not on the fake device");
  return found->second.stream;
}

void set_memory_limit(std::int64_t bytes) {
  const std::lock_guard lock(memory().mutex);
  memory().limit = bytes;
}

std::int64_t used_bytes(int index) {
  const std::lock_guard lock(memory().mutex);
  return memory().bytes[index];
}

}  // namespace accel::testing::fake_device
