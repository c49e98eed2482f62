#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <source_location>
#include <string>
#include <vector>

namespace c10d {
class ProcessGroup;
class Work;
}  // namespace c10d

/// A group of ranks: the one value through which everything above talks to Gloo, NCCL or the simulator.
///
///     Group group = context.world;
///     group.all_reduce(tensor, ReduceOp::kMean).wait();
///
/// Every method but rank(), size(), name() and send/recv is a collective: every rank of the group calls it, in the same
/// order, with tensors of equal shape and dtype. A group of one rank without a process group does nothing and returns
/// what one rank would see. `where` is the caller's line, for diagnoses. Thread rule: one thread per rank at a time.
namespace accel {

enum class ReduceOp { kSum, kMean, kProduct, kMin, kMax, kBitwiseAnd, kBitwiseOr, kBitwiseXor };

/// A collective under way. Its tensors hold the result after `wait()` and must not be touched before.
class Work {
 public:
  Work() = default;
  Work(c10::intrusive_ptr<c10d::Work> work, std::string what);
  ~Work();
  Work(Work&&) noexcept;
  Work& operator=(Work&&) noexcept;

  /// Throws CommError on a timeout, a lost peer or a mismatched call; its message names the rank and the operation.
  void wait();

 private:
  c10::intrusive_ptr<c10d::Work> work_;
  std::string what_;
};

class Group {
 public:
  /// One rank, no communication.
  Group();
  Group(std::string name, c10::intrusive_ptr<c10d::ProcessGroup> process_group);

  [[nodiscard]] int rank() const;
  [[nodiscard]] int size() const;
  [[nodiscard]] const std::string& name() const;
  /// c10d's own handle, for everything that this class does not wrap; null for a group of one without a backend.
  [[nodiscard]] const c10::intrusive_ptr<c10d::ProcessGroup>& process_group() const;

  /// Reduces `tensor` over all ranks, in place. Dtype: floating or integer; kMean floating only.
  [[nodiscard]] Work all_reduce(at::Tensor& tensor, ReduceOp op = ReduceOp::kSum,
                                std::source_location where = std::source_location::current()) const;
  /// Copies `tensor` of rank `root` into every rank's `tensor`.
  [[nodiscard]] Work broadcast(at::Tensor& tensor, int root = 0,
                               std::source_location where = std::source_location::current()) const;
  /// (n, ...) on each rank -> (size() * n, ...) in the order of the ranks.
  [[nodiscard]] at::Tensor all_gather(const at::Tensor& tensor,
                                      std::source_location where = std::source_location::current()) const;
  /// Ranks' `input`s in their order, one after another, in every rank's `output`; the same dtype, sizes (n) and (size()
  /// * n). A rank's `input` may be its own place in `output`.
  [[nodiscard]] Work all_gather_into(at::Tensor& output, const at::Tensor& input,
                                     std::source_location where = std::source_location::current()) const;
  /// The sum of all ranks' `input`s, of which each rank's `output` gets its part; the same dtype, sizes (size() * n)
  /// and (n).
  [[nodiscard]] Work reduce_scatter(at::Tensor& output, const at::Tensor& input,
                                    std::source_location where = std::source_location::current()) const;
  /// Returns once every rank has called it.
  void barrier(std::source_location where = std::source_location::current()) const;
  /// Point to point; `tag` separates streams between the same two ranks.
  [[nodiscard]] Work send(at::Tensor& tensor, int destination, int tag = 0,
                          std::source_location where = std::source_location::current()) const;
  [[nodiscard]] Work recv(at::Tensor& tensor, int source, int tag = 0,
                          std::source_location where = std::source_location::current()) const;

 private:
  struct State;
  std::shared_ptr<State> state_;
};

}  // namespace accel
