#pragma once

#include <ATen/core/Tensor.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <torch/csrc/distributed/c10d/Work.hpp>
#include <vector>

#include "backends/process/link.hpp"
#include "backends/process/operation.hpp"
#include "backends/process/request.hpp"

namespace accel::process {

/// A rank's tensor and the shared memory that stands for it in a collective.
struct Buffer {
  at::Tensor tensor;
  std::uint64_t offset = 0, bytes = 0;
  bool is_written = false;   ///< by the collective
  int divisor = 1;           ///< of the result: complex numbers are divided by LibTorch, not by the simulator
  std::uint64_t sample = 0;  ///< hash at the call: the program must not change it before its wait; 0: not taken
};

/// A pending collective of a ProcessBackend.
class ProcessWork : public c10d::Work {
 public:
  using Results = std::vector<std::vector<at::Tensor>>;
  ProcessWork(std::shared_ptr<RankLink> link, std::shared_ptr<const ProgramHooks> hooks, std::uint64_t number,
              c10d::OpType type, std::vector<Buffer> buffers, Results results);
  /// A work that was never waited for leaves its memory to the link: other ranks may still read it.
  ~ProcessWork() override;

  /// Blocks the rank; throws CommError with the simulator's text. Ignores `timeout`: the simulator's applies.
  bool wait(std::chrono::milliseconds timeout) override;
  bool isCompleted() override;
  bool isSuccess() const override { return is_over_ && error_ == nullptr; }
  std::exception_ptr exception() const override { return error_; }
  int sourceRank() const override { return source_; }
  std::vector<at::Tensor> result() override;
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override;

 private:
  void finish();
  [[nodiscard]] bool has_changed() const;  // a tensor, since the call
  void take_sparse_sum(std::int64_t num_entries);
  void take_results();
  void complete(c10::ivalue::Future& future) const;

  const std::shared_ptr<RankLink> link_;
  const std::shared_ptr<const ProgramHooks> hooks_;
  const std::uint64_t number_;
  std::mutex mutex_;
  std::vector<Buffer> buffers_;
  Results results_;
  std::atomic<bool> is_over_{false};
  std::exception_ptr error_;
  int source_ = -1;
  c10::intrusive_ptr<c10::ivalue::Future> future_;
};

/// Takes memory of the payload for a tensor.
PlacedTensor take_place(RankLink& link, const at::Tensor& tensor);

/// Frees the memory of works that were never waited for and have ended.
void free_abandoned(RankLink& link, const ProgramHooks& hooks);

}  // namespace accel::process
