#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/record_function.h>
#include <c10/util/intrusive_ptr.h>

#include <memory>
#include <vector>

/// Sees the tensors of the operators that a thread calls, to find those that touch memory which a pending collective
/// uses.
///
/// A backward pass uses the callbacks that were registered when it began: a watch that is started in it sees nothing of
/// it. Collectives issued there belong to a gradient reducer, which waits for them before the pass ends.
///
/// Thread rule: one watch per thread, used by it.
namespace accel {

/// Whether the tensor's elements lie in memory.
bool has_memory(const at::Tensor& tensor);

/// The bytes from the first element to the last. A strided tensor with gaps is one range, which may overlap with a
/// tensor that lies in the gaps.
struct MemoryRange {
  const char* begin = nullptr;
  const char* end = nullptr;
  [[nodiscard]] bool overlaps(const MemoryRange& other) const { return begin < other.end && other.begin < end; }
};
MemoryRange memory_range(const at::Tensor& tensor);

class OperatorWatch {
 public:
  OperatorWatch(const OperatorWatch&) = delete;
  OperatorWatch& operator=(const OperatorWatch&) = delete;

 protected:
  OperatorWatch() = default;
  virtual ~OperatorWatch() = default;

  /// Called for the memory of each tensor that an operator other than a view or a collective is about to read or write.
  virtual void touch(const MemoryRange& range, bool writes, const char* op) = 0;

  /// Starts and stops: a watch slows down every operator. Do nothing inside a backward pass.
  void start();
  void stop();

 private:
  static std::unique_ptr<at::ObserverContext> on_operator(const at::RecordFunction& function);
  void inspect(const at::RecordFunction& function);
  void touch_tensor(const at::Tensor& tensor, bool writes, const char* op);

  at::CallbackHandle handle_ = at::INVALID_CALLBACK_HANDLE;
};

/// What a collective uses until the program waits for it.
struct UsedMemory {
  MemoryRange range;
  bool is_written = false;                                   ///< by the collective
  c10::weak_intrusive_ptr<c10::intrusive_ptr_target> owner;  ///< expired: the memory may belong to another tensor

  /// Whether the program, or another collective, must wait before it reads or writes there.
  [[nodiscard]] bool conflicts_with(const MemoryRange& other, bool writes) const {
    return (writes || is_written) && range.overlaps(other) && !owner.expired();
  }
};
/// For a sparse tensor, returns the tensor itself, because it gets new indices and values, and its present ones, which
/// are only read.
std::vector<UsedMemory> used_memory(const std::vector<at::Tensor>& tensors, bool are_written);
/// Whether nobody can touch it any more.
bool are_freed(const std::vector<UsedMemory>& memory);

}  // namespace accel
