// The device's guard and hooks: current device, streams, events, generators.
#include "tests/support/fake_device/device.hpp"

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <torch/csrc/distributed/c10d/reducer_timer.hpp>

#include <array>
#include <atomic>
#include <cstring>
#include <functional>
#include <mutex>
#include <optional>
#include <string_view>

#include "tests/support/fake_device/execution.hpp"
#include "tests/support/fake_device/memory.hpp"

namespace accel::testing::fake_device {
namespace {

struct Counters {
  std::atomic<std::int64_t> host_waits = 0, pageable_copies = 0, operators = 0;
};
Counters counters;

thread_local c10::DeviceIndex thread_device = 0;
thread_local std::array<c10::StreamId, kNumDevices> thread_streams{};
// Streams beside the default one are taken from a pool in turn, as on CUDA.
constexpr c10::StreamId kPoolSize = 16;
std::array<std::atomic<c10::StreamId>, kNumDevices> num_taken{};

// --- copies to the host ---------------------------------------------------------------------------------------------

// A copy that happens when the host has waited for it.
struct LateCopy {
  Clock done;
  std::function<void()> copy;
};
thread_local std::vector<LateCopy> late_copies;

// --- copies from the host -------------------------------------------------------------------------------------------

struct WatchedMemory {
  Clock done;
  std::string_view bytes;
  std::size_t hash = 0;
};
std::mutex watched_mutex;
std::vector<WatchedMemory> watched;

void check_watched_memory() {
  const std::lock_guard lock(watched_mutex);
  std::erase_if(watched, [](const WatchedMemory& memory) {
    if (!races().host_knows(memory.done)) return false;
    if (std::hash<std::string_view>()(memory.bytes) != memory.hash)
      races().report("the host changed pinned memory while a copy from it to the device was pending");
    return true;
  });
}

}  // namespace

void watch_pinned_memory(Clock done, const void* data, std::size_t bytes) {
  const std::string_view view(static_cast<const char*>(data), bytes);
  const std::lock_guard lock(watched_mutex);
  watched.push_back({std::move(done), view, std::hash<std::string_view>()(view)});
}

void forget_pinned_memory(const void* data, std::size_t bytes) {
  const auto* const begin = static_cast<const char*>(data);
  const std::lock_guard lock(watched_mutex);
  std::erase_if(watched, [&](const WatchedMemory& memory) {
    return memory.bytes.data() >= begin && memory.bytes.data() < begin + std::max<std::size_t>(bytes, 1);
  });
}

StreamKey key_of(const c10::Stream& stream) { return {stream.device_index(), stream.id()}; }
StreamKey current_key(c10::DeviceIndex index) { return {index, thread_streams[static_cast<std::size_t>(index)]}; }
c10::DeviceIndex current_index() { return thread_device; }

void host_waits_for(const Clock& event) {
  ++counters.host_waits;
  races().host_wait(event);
  check_watched_memory();
  std::erase_if(late_copies, [](const LateCopy& late) {
    const bool is_done = races().host_knows(late.done);
    if (is_done) late.copy();
    return is_done;
  });
}

void copy_when_host_waits(Clock done, std::function<void()> copy) {
  late_copies.push_back({std::move(done), std::move(copy)});
}
void count_operator() { ++counters.operators; }
void count_pageable_copy() { ++counters.pageable_copies; }

void resize_storage(const c10::Storage& storage, std::size_t bytes) {
  auto data = storage.allocator()->allocate(bytes);
  std::memcpy(data.get(), storage.data(), std::min(bytes, storage.nbytes()));
  storage.unsafeGetStorageImpl()->set_data_ptr_noswap(std::move(data));
  storage.unsafeGetStorageImpl()->set_nbytes(bytes);
}

namespace {

// --- guard ----------------------------------------------------------------------------------------------------------

struct Event {
  Clock clock;
};

struct Guard final : c10::impl::DeviceGuardImplInterface {
  static constexpr c10::DeviceType static_type = kType;
  Guard() = default;
  explicit Guard(c10::DeviceType) {}
  c10::DeviceType type() const override { return kType; }
  c10::Device exchangeDevice(c10::Device to) const override {
    return {kType, std::exchange(thread_device, to.has_index() ? to.index() : thread_device)};
  }
  c10::Device getDevice() const override { return {kType, thread_device}; }
  void setDevice(c10::Device to) const override { thread_device = to.index(); }
  void uncheckedSetDevice(c10::Device to) const noexcept override { thread_device = to.index(); }
  c10::Stream getStream(c10::Device on) const override { return current_stream(index_of(on)); }
  c10::Stream getDefaultStream(c10::Device on) const override { return stream(index_of(on), 0); }
  c10::Stream getStreamFromGlobalPool(c10::Device on, bool) const override {
    return stream(index_of(on), 1 + num_taken[static_cast<std::size_t>(index_of(on))]++ % kPoolSize);
  }
  c10::Stream getNewStream(c10::Device on, int) const override { return getStreamFromGlobalPool(on, false); }
  c10::Stream exchangeStream(c10::Stream to) const override {
    const auto place = static_cast<std::size_t>(to.device_index());
    return stream(to.device_index(), std::exchange(thread_streams[place], to.id()));
  }
  c10::DeviceIndex deviceCount() const noexcept override { return kNumDevices; }
  void record(void** event, const c10::Stream& on, c10::DeviceIndex, c10::EventFlag) const override {
    if (*event == nullptr) *event = new Event;
    static_cast<Event*>(*event)->clock = races().snapshot(key_of(on));
  }
  void block(void* event, const c10::Stream& waiting) const override {
    if (event != nullptr) races().wait(key_of(waiting), static_cast<Event*>(event)->clock);
  }
  // Whoever asks and is told so knows it.
  bool queryEvent(void* event) const override {
    if (event != nullptr) races().host_wait(static_cast<Event*>(event)->clock);
    return true;
  }
  bool queryStream(const c10::Stream& on) const override {
    return races().host_wait(races().snapshot(key_of(on))), true;
  }
  void destroyEvent(void* event, c10::DeviceIndex) const noexcept override { delete static_cast<Event*>(event); }
  void synchronizeStream(const c10::Stream& on) const override { host_waits_for(races().snapshot(key_of(on))); }
  void synchronizeEvent(void* event) const override {
    if (event != nullptr) host_waits_for(static_cast<Event*>(event)->clock);
  }
  void synchronizeDevice(c10::DeviceIndex index) const override {
    host_waits_for(races().snapshot(current_key(index)));
  }
  void recordDataPtrOnStream(const c10::DataPtr& data, const c10::Stream& on) const override {
    record_on_stream(data.get(), key_of(on));
  }

 private:
  static c10::DeviceIndex index_of(c10::Device on) { return on.has_index() ? on.index() : thread_device; }
  static c10::Stream stream(c10::DeviceIndex index, c10::StreamId id) {
    return c10::Stream(c10::Stream::UNSAFE, {kType, index}, id);
  }
};
C10_REGISTER_GUARD_IMPL(PrivateUse1, Guard)

struct Hooks final : at::PrivateUse1HooksInterface {
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
  c10::DeviceIndex deviceCount() const override { return kNumDevices; }
  c10::DeviceIndex getCurrentDevice() const override { return thread_device; }
  void setCurrentDevice(c10::DeviceIndex index) const override { thread_device = index; }
  c10::DeviceIndex exchangeDevice(c10::DeviceIndex to) const override { return std::exchange(thread_device, to); }
  const at::Generator& getDefaultGenerator(c10::DeviceIndex index) const override {
    static auto* const generators = [] {
      auto* const all = new std::vector<at::Generator>;
      for (int i = 0; i < kNumDevices; ++i)
        all->push_back(at::make_generator<at::CPUGeneratorImpl>(c10::default_rng_seed_val));
      return all;
    }();
    return generators->at(static_cast<std::size_t>(index < 0 ? thread_device : index));
  }
  bool isPinnedPtr(const void* data) const override { return is_pinned(data); }
  c10::Allocator* getPinnedMemoryAllocator() const override { return &pinned_allocator(); }
  void resizePrivateUse1Bytes(const c10::Storage& storage, std::size_t bytes) const override {
    resize_storage(storage, bytes);
  }
};

[[maybe_unused]] const bool is_registered = [] {
  c10::register_privateuse1_backend("fake");
  c10::SetAllocator(kType, &allocator());
  at::RegisterPrivateUse1HooksInterface(new Hooks);
  return true;
}();

}  // namespace

// DDP's logger measures times.
struct NoTimer final : c10d::Timer {
  explicit NoTimer(c10::Device) {}
  std::optional<std::int64_t> measureDifference(Event, Event) override { return 0; }
};

c10::Device device(int index) {
  TORCH_CHECK(has_operators);
  return {kType, static_cast<c10::DeviceIndex>(index)};
}
c10::Stream current_stream(int index) {
  return c10::Stream(c10::Stream::UNSAFE, device(index), thread_streams[static_cast<std::size_t>(index)]);
}
Counts counts() { return {counters.host_waits, counters.pageable_copies, counters.operators}; }
void clear_counts() { counters.host_waits = counters.pageable_copies = counters.operators = 0; }

}  // namespace accel::testing::fake_device

namespace c10d {
C10_REGISTER_TYPED_CLASS(TimerRegistry, c10::DeviceType::PrivateUse1, accel::testing::fake_device::NoTimer);
}
