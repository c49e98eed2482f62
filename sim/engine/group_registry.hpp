#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "reference/core/thread_safety.hpp"
#include "sim/engine/group_state.hpp"

namespace accel::sim {

/// The groups of a world, by name.
///
/// Thread rule: any thread. The mutex is not taken during a collective.
class GroupRegistry {
 public:
  explicit GroupRegistry(const FailureRecord& failures) : failures_(failures) {}

  /// The group of this name; made at its first use. Throws ArgumentError if ranks disagree on its members.
  std::shared_ptr<Group> group(const std::string& name, const std::vector<int>& ranks);
  [[nodiscard]] std::vector<std::shared_ptr<Group>> all();

 private:
  const FailureRecord& failures_;
  Mutex mutex_;
  std::map<std::string, std::shared_ptr<Group>> groups_ ACCEL_GUARDED_BY(mutex_);
};

}  // namespace accel::sim
