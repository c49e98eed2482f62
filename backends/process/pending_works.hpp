#pragma once

#include <vector>

#include "backends/process/process_work.hpp"
#include "reference/comm/operator_watch.hpp"

namespace accel::process {

/// The asynchronous works of this thread that it has not waited for yet. Tells the proxy of operators that touch their
/// tensors too early.
class PendingWorks : private OperatorWatch {
 public:
  ~PendingWorks() override { stop(); }
  /// That of the calling thread.
  static PendingWorks& of_this_thread();
  void add(const c10::intrusive_ptr<ProcessWork>& work);
  /// A work has ended or was dropped; another thread may have waited for it.
  void forget();

 private:
  void touch(const at::Tensor& tensor, bool writes, const char* op) override;

  std::vector<c10::weak_intrusive_ptr<ProcessWork>> works_;
};

}  // namespace accel::process
