#include "reference/core/shared.hpp"

#include <map>
#include <mutex>

namespace accel::detail {
namespace {

struct Entry {
  std::mutex mutex;  // held while the value is made
  std::weak_ptr<const void> value;
};

// The cache is the one place that is process-wide on purpose: it holds read-only values only, by weak reference.
struct Cache {
  std::mutex mutex;
  std::map<std::string, std::shared_ptr<Entry>> entries;
};

Cache& cache() {
  static Cache instance;
  return instance;
}

}  // namespace

std::shared_ptr<const void> shared_value(const std::string& key, const char* type,
                                         const std::function<std::shared_ptr<const void>()>& make) {
  std::shared_ptr<Entry> entry;
  {
    const std::lock_guard lock(cache().mutex);
    auto& slot = cache().entries[key + '\0' + type];
    if (!slot) slot = std::make_shared<Entry>();
    entry = slot;
  }
  const std::lock_guard lock(entry->mutex);
  if (auto value = entry->value.lock()) return value;
  auto value = make();
  entry->value = value;
  return value;
}

}  // namespace accel::detail
