#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <source_location>
#include <string>
#include <vector>

#include "reference/core/errors.hpp"

namespace c10d {
class ProcessGroup;
class Work;
}  // namespace c10d

/// A group of ranks: the interface through which all upper layers use Gloo, NCCL or the simulator.
///
///     Group group = context.world;
///     group.all_reduce(tensor, ReduceOp::kMean).wait();
///
/// All methods except rank(), size(), name(), process_group() and send/recv are collectives: every rank of the group
/// calls them in the same order, with tensors of equal shape and dtype. Reductions accept the dtypes of is_exchanged
/// (comm/dtypes.hpp), and sums of complex numbers; other collectives accept every dtype, and send as bytes what no
/// backend knows. A group of one rank without a process group does not communicate and returns what one rank would see.
/// `where` is the caller's location, for hang reports. Thread rule: one thread per rank at a time.
namespace accel {

enum class ReduceOp { kSum, kMean, kProduct, kMin, kMax, kBitwiseAnd, kBitwiseOr, kBitwiseXor };

/// The error of a collective that c10d reported as `error`: what failed, the first line of its text, and advice.
CommError comm_error(const std::string& what, const std::exception& error);

/// A collective in progress. Its tensors hold the result after `wait()` and must not be accessed before.
class Work {
 public:
  Work() = default;
  Work(c10::intrusive_ptr<c10d::Work> work, std::string what);
  ~Work();
  Work(Work&&) noexcept;
  Work& operator=(Work&&) noexcept;

  /// Blocks until the result is available. Throws CommError, which names the rank and the operation, on a timeout, a
  /// lost peer or a mismatched call.
  void wait();

 private:
  c10::intrusive_ptr<c10d::Work> work_;
  std::string what_;
};

class Group {
 public:
  /// A group of one rank, without communication.
  Group();
  Group(std::string name, c10::intrusive_ptr<c10d::ProcessGroup> process_group);

  [[nodiscard]] int rank() const;
  [[nodiscard]] int size() const;
  [[nodiscard]] const std::string& name() const;
  /// The c10d handle, for operations that this class does not wrap; null for a group of one rank without a backend.
  [[nodiscard]] const c10::intrusive_ptr<c10d::ProcessGroup>& process_group() const;
  /// From now on this group, and every copy of it, is the `other` one: its ranks have changed. Returns what it was.
  Group replace_everywhere(const Group& other);

  /// Reduces `tensor` over all ranks, in place. Dtype: floating or integer; floating only for kMean. Throws
  /// ArgumentError for another dtype, and for a bitwise operation of NCCL.
  [[nodiscard]] Work all_reduce(at::Tensor& tensor, ReduceOp op = ReduceOp::kSum,
                                std::source_location where = std::source_location::current()) const;
  /// Copies `tensor` of rank `root` into every rank's `tensor`.
  [[nodiscard]] Work broadcast(at::Tensor& tensor, int root = 0,
                               std::source_location where = std::source_location::current()) const;
  /// Concatenates the tensors of all ranks in rank order: (n, ...) on each rank gives (size() * n, ...).
  [[nodiscard]] at::Tensor all_gather(const at::Tensor& tensor,
                                      std::source_location where = std::source_location::current()) const;
  /// Concatenates the `input`s of all ranks in rank order into every rank's `output`. Both have the same dtype and the
  /// sizes (n) and (size() * n). A rank's `input` may be its own slice of `output`.
  [[nodiscard]] Work all_gather_into(at::Tensor& output, const at::Tensor& input,
                                     std::source_location where = std::source_location::current()) const;
  /// Sums the `input`s of all ranks and stores each rank's slice of the sum in its `output`. Both have the same dtype
  /// and the sizes (size() * n) and (n).
  [[nodiscard]] Work reduce_scatter(at::Tensor& output, const at::Tensor& input,
                                    std::source_location where = std::source_location::current()) const;
  /// Sends `input_splits[r]` rows of `input` to rank r, in rank order, and stores the `output_splits[r]` rows that rank
  /// r sends in `output`. Splits may be 0; empty splits are equal parts. Both tensors have the same dtype and the same
  /// sizes after dimension 0. `output` is contiguous.
  [[nodiscard]] Work all_to_all(at::Tensor& output, const at::Tensor& input,
                                std::vector<std::int64_t> output_splits = {},
                                std::vector<std::int64_t> input_splits = {},
                                std::source_location where = std::source_location::current()) const;
  /// Blocks until every rank has called it.
  void barrier(std::source_location where = std::source_location::current()) const;
  /// Point-to-point transfer. `tag` separates streams between the same two ranks; NCCL supports only 0.
  [[nodiscard]] Work send(at::Tensor& tensor, int destination, int tag = 0,
                          std::source_location where = std::source_location::current()) const;
  [[nodiscard]] Work recv(at::Tensor& tensor, int source, int tag = 0,
                          std::source_location where = std::source_location::current()) const;

 private:
  struct State;
  std::shared_ptr<State> state_;
};

}  // namespace accel
