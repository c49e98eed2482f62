#pragma once

#include <algorithm>
#include <cstddef>
#include <list>
#include <memory>

#include "reference/core/thread_safety.hpp"

namespace accel::sources {

/// Keeps the row groups that were used last.
///
///     const auto rows = cache.get(group, [&] { return read(group); });
///
/// Thread rule: any thread. Threads that need the same group wait until one of them has read it; other groups are read
/// at the same time. If reading throws, the next caller reads again.
template <typename Rows>
class RowGroupCache {
 public:
  /// `capacity`: at least 1. Groups that a caller still holds are in memory too.
  explicit RowGroupCache(std::size_t capacity) : capacity_(capacity) {}

  template <typename Read>
  std::shared_ptr<const Rows> get(std::size_t group, Read&& read) {
    const auto slot = slot_of(group);
    const MutexLock lock(slot->mutex);
    if (!slot->rows) slot->rows = std::make_shared<const Rows>(read());
    return slot->rows;
  }

 private:
  struct Slot {
    explicit Slot(std::size_t number) : group(number) {}
    const std::size_t group;
    Mutex mutex;
    std::shared_ptr<const Rows> rows ACCEL_GUARDED_BY(mutex);
  };

  std::shared_ptr<Slot> slot_of(std::size_t group) {
    const MutexLock lock(mutex_);
    const auto found =
        std::find_if(slots_.begin(), slots_.end(), [&](const auto& slot) { return slot->group == group; });
    if (found != slots_.end()) {
      slots_.splice(slots_.begin(), slots_, found);
    } else {
      slots_.push_front(std::make_shared<Slot>(group));
      if (slots_.size() > capacity_) slots_.pop_back();
    }
    return slots_.front();
  }

  const std::size_t capacity_;
  Mutex mutex_;
  std::list<std::shared_ptr<Slot>> slots_ ACCEL_GUARDED_BY(mutex_);  // the group that was used last is the first
};

}  // namespace accel::sources
