#include "reference/core/shared.hpp"

#include <map>
#include <mutex>
#include <utility>

namespace accel {
namespace detail {
namespace {

struct Entry {
  std::mutex mutex;  // held while the value is created
  std::weak_ptr<const void> value;
};

// Process-wide on purpose, unlike everything else in this library: the caches hold only read-only values, by weak
// reference, so no rank can observe another rank through them. Entries are never removed; a key costs a few
// bytes.
struct Cache {
  std::mutex mutex;
  std::map<std::string, std::shared_ptr<Entry>> entries;
};

Cache& cache() {
  static Cache instance;
  return instance;
}

}  // namespace

// Two levels of locks: the cache lock is held only to find the entry, and the entry lock while the value is
// created. Ranks that need different values do not wait for each other. If `make` throws, the weak pointer stays
// empty and the next waiting caller tries again. The type is part of the key because the value is stored without
// its type.
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

// Size, first and last index distinguish most permutations; equal keys are compared element by element.
using OrderKey = std::pair<std::size_t, std::pair<std::int64_t, std::int64_t>>;

struct Orders {
  std::mutex mutex;
  std::multimap<OrderKey, std::weak_ptr<const Indices>> known;
  std::size_t most = 64;  // number of entries above which expired ones are removed
};

Orders& orders() {
  static Orders instance;
  return instance;
}

}  // namespace

// The lock is held during the comparison: it takes microseconds per call and epoch. The limit for the next
// cleanup doubles with the number of live entries, so that the cost of cleaning stays constant per insertion.
std::shared_ptr<const std::vector<std::int64_t>> shared_indices(std::vector<std::int64_t> indices) {
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
