#pragma once

/// Clang's thread-safety annotations (checked by the `clang` preset; empty elsewhere).
///
///     std::vector<Slot> slots_ ACCEL_GUARDED_BY(mutex_);
#if defined(__clang__)
#define ACCEL_THREAD_ANNOTATION(x) __attribute__((x))
#else
#define ACCEL_THREAD_ANNOTATION(x)
#endif

#define ACCEL_CAPABILITY(x) ACCEL_THREAD_ANNOTATION(capability(x))
#define ACCEL_SCOPED_CAPABILITY ACCEL_THREAD_ANNOTATION(scoped_lockable)
#define ACCEL_GUARDED_BY(x) ACCEL_THREAD_ANNOTATION(guarded_by(x))
#define ACCEL_REQUIRES(...) ACCEL_THREAD_ANNOTATION(requires_capability(__VA_ARGS__))
#define ACCEL_ACQUIRE(...) ACCEL_THREAD_ANNOTATION(acquire_capability(__VA_ARGS__))
#define ACCEL_RELEASE(...) ACCEL_THREAD_ANNOTATION(release_capability(__VA_ARGS__))
#define ACCEL_EXCLUDES(...) ACCEL_THREAD_ANNOTATION(locks_excluded(__VA_ARGS__))

#include <condition_variable>
#include <mutex>

namespace accel {

/// std::mutex with annotations for the analysis.
class ACCEL_CAPABILITY("mutex") Mutex {
 public:
  void lock() ACCEL_ACQUIRE() { mutex_.lock(); }
  void unlock() ACCEL_RELEASE() { mutex_.unlock(); }
  std::mutex& native() { return mutex_; }

 private:
  std::mutex mutex_;
};

/// Lock guard with annotations for the analysis.
class ACCEL_SCOPED_CAPABILITY MutexLock {
 public:
  explicit MutexLock(Mutex& mutex) ACCEL_ACQUIRE(mutex) : lock_(mutex.native()) {}
  ~MutexLock() ACCEL_RELEASE() {}
  std::unique_lock<std::mutex>& native() { return lock_; }

 private:
  std::unique_lock<std::mutex> lock_;
};

}  // namespace accel
