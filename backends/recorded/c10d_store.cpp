#include "backends/recorded/c10d_store.hpp"

#include <cstdint>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <utility>

namespace accel::recorder {

C10dStore::C10dStore(c10::intrusive_ptr<c10d::Store> store, bool ends_with_rank_0)
    : store_(std::move(store)), ends_with_rank_0_(ends_with_rank_0) {}
C10dStore::~C10dStore() = default;

void C10dStore::set(const std::string& key, std::string_view value) {
  store_->set(key, std::vector<std::uint8_t>(value.begin(), value.end()));
}
std::string C10dStore::get(const std::string& key) { return store_->get_to_str(key); }
bool C10dStore::has(const std::vector<std::string>& keys) { return store_->check(keys); }
void C10dStore::erase(const std::string& key) { store_->deleteKey(key); }
std::unique_ptr<JobStore> C10dStore::clone() const {
  return std::make_unique<C10dStore>(store_->clone(), ends_with_rank_0_);
}

}  // namespace accel::recorder
