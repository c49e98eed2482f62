#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace accel::recorder {

/// The store at which the ranks of a job meet, whatever program serves it. A function throws if it is out of reach.
///
/// Thread rule: any thread.
class JobStore {
 public:
  JobStore() = default;
  virtual ~JobStore() = default;
  JobStore(const JobStore&) = delete;
  JobStore& operator=(const JobStore&) = delete;

  virtual void set(const std::string& key, std::string_view value) = 0;
  /// Waits until the key is set.
  virtual std::string get(const std::string& key) = 0;
  virtual bool has(const std::vector<std::string>& keys) = 0;
  virtual void erase(const std::string& key) = 0;
  /// A separate connection, so that no call waits for one of another thread.
  [[nodiscard]] virtual std::unique_ptr<JobStore> clone() const = 0;
  /// Whether rank 0 serves it.
  [[nodiscard]] virtual bool ends_with_rank_0() const = 0;
};

}  // namespace accel::recorder
