#pragma once

#include <torch/csrc/distributed/c10d/Work.hpp>

#include <memory>
#include <vector>

#include "sim/ranks/group_member.hpp"

namespace accel::sim {

/// A pending collective: c10d's handle on a Meeting.
class SimWork : public c10d::Work {
 public:
  SimWork(const Member& member, StartedCall<at::Tensor> started, c10d::OpType type,
          std::vector<std::vector<at::Tensor>> results);

  /// Blocks the rank; rethrows the meeting's error. Ignores `timeout`: the world's applies.
  bool wait(std::chrono::milliseconds timeout) override;
  bool isCompleted() override { return world_->poll(world_rank_, *meeting_); }
  bool isSuccess() const override { return meeting_->has_ended() && !meeting_->error(world_rank_); }
  std::exception_ptr exception() const override { return meeting_->error(world_rank_); }
  int sourceRank() const override { return meeting_->peer(); }
  std::vector<at::Tensor> result() override;
  std::uint64_t getSequencenumber() const override { return meeting_->sequence(); }
  /// Returns a future that completes with the meeting. If called inside a backward pass (as DDP does), the pass also
  /// waits for the meeting at its end, so that the engine sees a rank that blocks there.
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override;

 private:
  std::shared_ptr<World> world_;
  std::shared_ptr<BufferGuard> guard_;
  std::shared_ptr<Meeting> meeting_;
  std::vector<PendingMemory> partial_;
  int world_rank_;
  std::vector<std::vector<at::Tensor>> results_;
  c10::intrusive_ptr<c10::ivalue::Future> future_;
};

}  // namespace accel::sim
