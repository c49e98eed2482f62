#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/record_function.h>

#include <memory>
#include <source_location>
#include <string>
#include <vector>

#include "sim/engine/world.hpp"

/// Watches the tensors that a rank has given to collectives. Between the call and `wait()` nobody may touch what a
/// collective writes, nor change what it reads; real backends race there, and give the right numbers most of the time.
///
/// Every operator of LibTorch that this thread calls meanwhile is looked at, by its schema: views are harmless, reads
/// and writes are not. What goes past the operators (raw pointers) shows in samples of the bytes, taken at the call and
/// again when all have arrived.
///
/// Thread rule: the rank's thread.
namespace accel::sim {

class BufferGuard {
 public:
  BufferGuard(World& world, int rank) : world_(world), rank_(rank) {}
  ~BufferGuard();
  BufferGuard(const BufferGuard&) = delete;
  BufferGuard& operator=(const BufferGuard&) = delete;

  /// A collective is about to be under way. `written` is what it writes, in place or not. Fails the run if these
  /// overlap with those of another that is under way.
  void issue(std::shared_ptr<Meeting> meeting, const Call& call, const std::vector<at::Tensor>& read,
             const std::vector<at::Tensor>& written);
  /// `wait()` has returned.
  void release(const Meeting& meeting);
  /// Somebody waits for its future: it is over when the meeting is.
  void release_at_end(const Meeting& meeting);
  /// Holds partial results, as after a reduce on a rank that is not the root: reading it is a finding.
  void hold_partial(const Meeting& meeting, const at::Tensor& tensor);

 private:
  struct Range {
    const char* begin = nullptr;
    const char* end = nullptr;
    bool is_written = false;
    c10::weak_intrusive_ptr<c10::StorageImpl> storage;  // once freed, its memory may be another tensor's
  };
  struct InFlight {
    std::shared_ptr<Meeting> meeting;
    std::source_location where;
    std::vector<Range> ranges;
    bool ends_with_meeting = false;
    bool is_partial = false;
  };

  static std::unique_ptr<at::ObserverContext> on_operator(const at::RecordFunction& function);
  void inspect(const at::RecordFunction& function);
  static Range range_of(const at::Tensor& tensor, bool is_written);
  void touch(const at::Tensor& tensor, bool writes, const char* op);
  void watch();
  void unwatch_if_idle();
  void fail(const InFlight& in_flight, const std::string& what);

  World& world_;
  int rank_;
  std::vector<InFlight> in_flight_;
  at::CallbackHandle handle_ = at::INVALID_CALLBACK_HANDLE;
};

/// Of up to 64 pieces of the tensors' bytes: changes of a whole tensor show, and of small tensors every one.
std::uint64_t sample_bytes(const std::vector<at::Tensor>& tensors);

}  // namespace accel::sim
