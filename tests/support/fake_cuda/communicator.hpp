#pragma once

#include <nccl.h>

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "tests/support/fake_cuda/stream.hpp"

/// Communicators of a simulated NCCL: the processes of a job exchange bytes through shared memory.
namespace accel::testing::fake_cuda {

enum class OperationKind { kAllReduce, kReduce, kBroadcast, kAllGather, kReduceScatter, kAllToAll, kSend, kReceive };

struct Operation {
  OperationKind kind = OperationKind::kAllReduce;
  const char* input = nullptr;
  char* output = nullptr;
  std::size_t count = 0;  ///< elements, as NCCL counts them for this operation
  ncclDataType_t type = ncclFloat32;
  ncclRedOp_t reduction = ncclSum;
  int peer = 0;  ///< root, or the other rank
};

std::size_t bytes_of(ncclDataType_t type);
std::string name_of(const Operation& operation);

struct SharedState;

/// One rank's end. Operations run in order on a thread of the communicator, each after what its stream waited for.
/// An operation that ranks call differently, or that a fault hits, never completes; `error` says so, and `abort` ends
/// it, as in NCCL. Thread rule: any thread.
class Communicator {
 public:
  /// Collective: returns when all ranks have joined. `name` is unique to the communicator.
  Communicator(const std::string& name, int rank, int size);

  [[nodiscard]] int rank() const { return rank_; }
  [[nodiscard]] int size() const { return size_; }
  /// Adds operations that run together: one collective, or the sends and receives of a NCCL group.
  void enqueue(std::vector<Operation> together, Stream& stream);
  [[nodiscard]] ncclResult_t error() const;
  /// Ends running and waiting operations.
  void abort();
  /// Waits for the operations that were enqueued.
  void finish();

 private:
  struct Task {
    std::vector<Operation> operations;
    Completions after;
    std::shared_ptr<Completion> done;
  };

  void work();
  bool run(const std::vector<Operation>& operations);
  bool agrees(const Operation& operation);
  bool barrier();
  void wait_for_abort();
  bool run_collective(const Operation& operation);
  bool run_transfers(const std::vector<Operation>& transfers);
  /// Publishes `bytes` bytes in pieces; `use` gets each piece of every rank: rank, offset, bytes, size.
  bool exchange(const char* input, std::size_t bytes,
                const std::function<void(int rank, std::size_t offset, const char* piece, std::size_t size)>& use);
  [[nodiscard]] bool is_ended() const;

  const int rank_, size_;
  SharedState* shared_ = nullptr;
  std::atomic<bool> aborted_ = false;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Task> tasks_;
  Completions enqueued_;
};

}  // namespace accel::testing::fake_cuda
