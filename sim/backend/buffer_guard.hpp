#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <string>
#include <vector>

#include "reference/comm/operator_watch.hpp"
#include "sim/engine/world.hpp"

/// Watches the tensors that a rank has passed to collectives. Between the call and `wait()` the program must not touch
/// what a collective writes, nor change what it reads. Real backends have a race there and usually give the right
/// numbers.
///
/// Inspects every LibTorch operator that this thread calls in the meantime by its schema: views are harmless, reads and
/// writes are not. Accesses that bypass the operators (raw pointers) are found by samples of the bytes, taken at the
/// call and again when all ranks have arrived.
///
/// Thread rule: the rank's thread.
namespace accel::sim {

class BufferGuard : private OperatorWatch {
 public:
  BufferGuard(World& world, int rank) : world_(world), rank_(rank) {}
  ~BufferGuard() override;

  /// Starts watching the memory of a collective, as it was before the call: the collective may have ended, and have
  /// given a tensor other memory. Fails the run if it overlaps with that of another pending collective.
  void issue(std::shared_ptr<Meeting> meeting, const Call& call, std::vector<UsedMemory> memory);
  /// Stops watching: `wait()` has returned.
  void release(const Meeting& meeting);
  /// Stops watching when the meeting ends, because a future and not `wait()` is used.
  void release_at_end(const Meeting& meeting);
  /// Fails the run if the meeting is watched: its tensor is "read by add", "changed" or the like, which the guard does
  /// not see.
  void report_touch(const Meeting& meeting, const std::string& what);
  /// Keeps watching a tensor with partial results, as after a reduce on a rank that is not the root: reading it is a
  /// finding.
  void hold_partial(const Meeting& meeting, const at::Tensor& tensor);

 private:
  struct InFlight {
    std::shared_ptr<Meeting> meeting;
    SourceLine where;
    std::vector<UsedMemory> memory;
    bool ends_with_meeting = false;
    bool is_partial = false;
  };

  void touch(const MemoryRange& range, bool writes, const char* op) override;
  void stop_if_idle();
  void fail(const InFlight& in_flight, const std::string& what);

  World& world_;
  int rank_;
  std::vector<InFlight> in_flight_;
};

/// Combines the samples of the tensors, see sample_fingerprint.
std::uint64_t sample_bytes(const std::vector<at::Tensor>& tensors);

}  // namespace accel::sim
