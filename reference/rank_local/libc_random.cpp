// See Note [Interposition] in interpose.cpp.
#include "reference/rank_local/libc_random.hpp"

#include <dlfcn.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <utility>

#include "reference/core/thread_safety.hpp"

namespace accel {
namespace {

constexpr unsigned kFirstSeed = 1;  // of a new process

std::atomic<unsigned> process_seed{kFirstSeed};

template <typename Function>
Function* of_libc(const char* name) {
  return reinterpret_cast<Function*>(dlsym(RTLD_NEXT, name));
}

}  // namespace

class LibcRandom {
 public:
  explicit LibcRandom(unsigned seed) {
    const MutexLock lock(mutex_);
    data_.state = nullptr;
    initstate_r(seed, memory_.data(), memory_.size(), &data_);
  }
  void seed(unsigned value) {
    const MutexLock lock(mutex_);
    srandom_r(value, &data_);
  }
  long next() {
    const MutexLock lock(mutex_);
    std::int32_t value = 0;
    random_r(&data_, &value);
    return value;
  }
  void seed48(long value) {
    const MutexLock lock(mutex_);
    srand48_r(value, &data48_);
  }
  /// `draw`: drand48_r, lrand48_r or mrand48_r.
  template <typename T>
  T next48(int (*draw)(drand48_data*, T*)) {
    const MutexLock lock(mutex_);
    T value{};
    draw(&data48_, &value);
    return value;
  }

 private:
  Mutex mutex_;
  std::array<char, 128> memory_{};  // the size that the C library uses
  random_data data_ ACCEL_GUARDED_BY(mutex_){};
  drand48_data data48_ ACCEL_GUARDED_BY(mutex_){};
};

namespace {

thread_local std::shared_ptr<LibcRandom> thread_state;

}  // namespace

std::shared_ptr<LibcRandom> make_libc_random() { return std::make_shared<LibcRandom>(process_seed.load()); }

std::shared_ptr<LibcRandom> thread_libc_random() { return thread_state; }

LibcRandomScope::LibcRandomScope(std::shared_ptr<LibcRandom> state)
    : previous_(std::exchange(thread_state, std::move(state))) {}

LibcRandomScope::~LibcRandomScope() { thread_state = std::move(previous_); }

}  // namespace accel

extern "C" {

int rand() noexcept { return static_cast<int>(random()); }

void srand(unsigned seed) noexcept { srandom(seed); }

long random() noexcept {
  static auto* const original = accel::of_libc<long()>("random");
  return accel::thread_state ? accel::thread_state->next() : original();
}

void srandom(unsigned seed) noexcept {
  static auto* const original = accel::of_libc<void(unsigned)>("srandom");
  if (accel::thread_state) return accel::thread_state->seed(seed);
  accel::process_seed = seed;
  original(seed);
}

double drand48() noexcept {
  static auto* const original = accel::of_libc<double()>("drand48");
  return accel::thread_state ? accel::thread_state->next48<double>(drand48_r) : original();
}

long lrand48() noexcept {
  static auto* const original = accel::of_libc<long()>("lrand48");
  return accel::thread_state ? accel::thread_state->next48<long>(lrand48_r) : original();
}

long mrand48() noexcept {
  static auto* const original = accel::of_libc<long()>("mrand48");
  return accel::thread_state ? accel::thread_state->next48<long>(mrand48_r) : original();
}

void srand48(long seed) noexcept {
  static auto* const original = accel::of_libc<void(long)>("srand48");
  accel::thread_state ? accel::thread_state->seed48(seed) : original(seed);
}

}  // extern "C"
