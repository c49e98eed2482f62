#include "reference/core/shared.hpp"

#include <map>
#include <mutex>
#include <utility>

namespace accel {
namespace detail {
namespace {

struct Entry {
  std::mutex mutex;  // held while the value is made
  std::weak_ptr<const void> value;
};

// The caches are the one place that is process-wide on purpose: they hold read-only values only, by weak reference.
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

}  // namespace detail

namespace {

using Indices = std::vector<std::int64_t>;

// By size and ends, which tell most orders apart.
using OrderKey = std::pair<std::size_t, std::pair<std::int64_t, std::int64_t>>;

struct Orders {
  std::mutex mutex;
  std::multimap<OrderKey, std::weak_ptr<const Indices>> known;
  std::size_t most = 64;  // before those that nobody has any more are dropped
};

Orders& orders() {
  static Orders instance;
  return instance;
}

}  // namespace

std::shared_ptr<const std::vector<std::int64_t>> shared_copy(std::vector<std::int64_t> indices) {
  const OrderKey key{indices.size(), indices.empty() ? std::pair<std::int64_t, std::int64_t>()
                                                     : std::pair(indices.front(), indices.back())};
  const std::lock_guard lock(orders().mutex);
  auto& known = orders().known;
  for (auto [entry, end] = known.equal_range(key); entry != end;) {
    auto copy = entry->second.lock();
    if (copy && *copy == indices) return copy;
    entry = copy ? std::next(entry) : known.erase(entry);
  }
  auto copy = std::make_shared<const Indices>(std::move(indices));
  known.emplace(key, copy);
  if (known.size() > orders().most) {
    std::erase_if(known, [](const auto& entry) { return entry.second.expired(); });
    orders().most = std::max<std::size_t>(64, 2 * known.size());
  }
  return copy;
}

}  // namespace accel
