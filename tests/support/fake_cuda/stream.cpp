#include "tests/support/fake_cuda/stream.hpp"

#include <algorithm>
#include <map>

#include "tests/support/fake_cuda/journal.hpp"

namespace accel::testing::fake_cuda {
namespace {

thread_local int thread_device = 0;

void drop_done(Completions& completions) {
  std::erase_if(completions, [](const auto& completion) { return completion->is_done(); });
}

// Of all streams. Never destroyed, since streams may outlive it otherwise.
std::mutex& mutex_of_devices() {
  static auto* const mutex = new std::mutex;
  return *mutex;
}
std::map<int, Completions>& pending_of_devices() {
  static auto* const pending = new std::map<int, Completions>;
  return *pending;
}

}  // namespace

void Completion::finish() {
  const std::lock_guard lock(mutex_);
  done_ = true;
  changed_.notify_all();
}

void Completion::wait() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return done_; });
}

bool Completion::is_done() {
  const std::lock_guard lock(mutex_);
  return done_;
}

void wait_for(const Completions& completions) {
  for (const auto& completion : completions) completion->wait();
}

bool are_done(const Completions& completions) {
  return std::all_of(completions.begin(), completions.end(), [](const auto& each) { return each->is_done(); });
}

void Stream::add(const Completions& completions) {
  const std::lock_guard lock(mutex_);
  drop_done(pending_);
  pending_.insert(pending_.end(), completions.begin(), completions.end());
  const std::lock_guard lock_of_devices(mutex_of_devices());
  auto& all = pending_of_devices()[device_];
  drop_done(all);
  all.insert(all.end(), completions.begin(), completions.end());
}

Completions pending_on(int device) {
  const std::lock_guard lock(mutex_of_devices());
  auto& all = pending_of_devices()[device];
  drop_done(all);
  return all;
}

Completions Stream::pending() {
  const std::lock_guard lock(mutex_);
  drop_done(pending_);
  return pending_;
}

void Event::record(Stream& stream) {
  auto pending = stream.pending();
  const std::lock_guard lock(mutex_);
  pending_ = std::move(pending);
}

Completions Event::pending() {
  const std::lock_guard lock(mutex_);
  drop_done(pending_);
  return pending_;
}

Stream& default_stream(int device) {
  static auto* const mutex = new std::mutex;
  static auto* const streams = new std::map<int, Stream>;
  const std::lock_guard lock(*mutex);
  return streams->try_emplace(device, device).first->second;
}

Stream& stream_of(void* handle) {
  return handle == nullptr ? default_stream(current_device()) : *static_cast<Stream*>(handle);
}

int current_device() { return thread_device; }
void set_current_device(int device) { thread_device = device; }
int num_devices() {
  static const auto count = static_cast<int>(setting("FAKE_CUDA_DEVICES", 2));
  return count;
}

}  // namespace accel::testing::fake_cuda
