#pragma once

#include <c10/util/intrusive_ptr.h>

#include "backends/watch/job_store.hpp"

namespace c10d {
class Store;
}

namespace accel::recorder {

class C10dStore : public JobStore {
 public:
  C10dStore(c10::intrusive_ptr<c10d::Store> store, bool ends_with_rank_0);
  ~C10dStore() override;

  void set(const std::string& key, std::string_view value) override;
  std::string get(const std::string& key) override;
  bool has(const std::vector<std::string>& keys) override;
  void erase(const std::string& key) override;
  [[nodiscard]] std::unique_ptr<JobStore> clone() const override;
  [[nodiscard]] bool ends_with_rank_0() const override { return ends_with_rank_0_; }

 private:
  c10::intrusive_ptr<c10d::Store> store_;
  bool ends_with_rank_0_;
};

}  // namespace accel::recorder
