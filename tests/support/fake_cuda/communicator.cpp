#include "tests/support/fake_cuda/communicator.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <csignal>
#include <cstring>
#include <limits>
#include <thread>

#include "tests/support/fake_cuda/journal.hpp"
#include "tests/support/fake_cuda/reduction.hpp"

namespace accel::testing::fake_cuda {
namespace {

constexpr int kRanksMax = 16;
constexpr std::size_t kPiece = 1 << 18;  // bytes that a rank publishes at a time
constexpr std::size_t kLetter = 1 << 16;

// What ranks compare before a collective.
struct Header {
  OperationKind kind;
  std::uint64_t count;
  int type, reduction, peer;
  bool operator==(const Header&) const = default;
};

struct Mailbox {
  std::atomic<bool> is_full;
  std::uint64_t bytes;
  std::array<char, kLetter> letter;
};

void pause() { std::this_thread::sleep_for(std::chrono::microseconds(50)); }

}  // namespace

// In memory that all ranks map; zero bytes are its initial state.
struct SharedState {
  std::atomic<int> num_joined, num_arrived, error;
  std::atomic<std::uint64_t> generation;
  std::array<Header, kRanksMax> headers;
  std::array<std::array<Mailbox, kRanksMax>, kRanksMax> mailboxes;  // [from][to]
  std::array<std::array<char, kPiece>, kRanksMax> pieces;
};

namespace {

SharedState* map_shared(const std::string& name) {
  const int file = shm_open(name.c_str(), O_RDWR | O_CREAT, 0600);
  if (file < 0 || ftruncate(file, sizeof(SharedState)) != 0) std::abort();
  void* const memory = mmap(nullptr, sizeof(SharedState), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  close(file);
  if (memory == MAP_FAILED) std::abort();
  return static_cast<SharedState*>(memory);
}

}  // namespace

std::size_t bytes_of(ncclDataType_t type) {
  switch (type) {
    case ncclInt32:
    case ncclUint32:
    case ncclFloat32: return 4;
    case ncclInt64:
    case ncclUint64:
    case ncclFloat64: return 8;
    case ncclFloat16:
    case ncclBfloat16: return 2;
    default: return 1;
  }
}

std::string name_of(const Operation& operation) {
  switch (operation.kind) {
    case OperationKind::kAllReduce: return "all_reduce";
    case OperationKind::kReduce: return "reduce";
    case OperationKind::kBroadcast: return "broadcast";
    case OperationKind::kAllGather: return "all_gather";
    case OperationKind::kReduceScatter: return "reduce_scatter";
    case OperationKind::kAllToAll: return "all_to_all";
    case OperationKind::kSend: return "send";
    case OperationKind::kReceive: return "receive";
  }
  return "";
}

Communicator::Communicator(const std::string& name, int rank, int size)
    : rank_(rank), size_(size), shared_(map_shared(name)) {
  ++shared_->num_joined;
  while (shared_->num_joined < size) pause();
  if (rank == 0) shm_unlink(name.c_str());
  std::thread([this] { work(); }).detach();
}

void Communicator::enqueue(std::vector<Operation> together, Stream& stream) {
  auto done = std::make_shared<Completion>();
  const std::lock_guard lock(mutex_);
  tasks_.push_back({.operations = std::move(together), .after = stream.pending(), .done = done});
  enqueued_.push_back(done);
  stream.add({done});
  changed_.notify_all();
}

ncclResult_t Communicator::error() const { return static_cast<ncclResult_t>(shared_->error.load()); }

void Communicator::abort() {
  aborted_ = true;
  finish();
}

void Communicator::finish() {
  Completions enqueued;
  {
    const std::lock_guard lock(mutex_);
    enqueued = std::exchange(enqueued_, {});
  }
  wait_for(enqueued);
}

void Communicator::work() {
  for (;;) {
    Task task;
    {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [&] { return !tasks_.empty(); });
      task = std::move(tasks_.front());
      tasks_.pop_front();
    }
    wait_for(task.after);
    if (!aborted_ && !run(task.operations)) wait_for_abort();
    task.done->finish();
  }
}

bool Communicator::is_ended() const { return aborted_ || shared_->error != ncclSuccess; }

void Communicator::wait_for_abort() {
  while (!aborted_) pause();
}

bool Communicator::run(const std::vector<Operation>& operations) {
  static std::atomic<std::int64_t> num_collectives = 0;
  const bool is_transfer =
      operations.front().kind == OperationKind::kSend || operations.front().kind == OperationKind::kReceive;
  if (is_transfer) return run_transfers(operations);
  const auto number = ++num_collectives;
  if (is_faulty("die_in_collective", number)) std::raise(SIGKILL);
  if (is_faulty("hang_collective", number)) return false;
  if (is_faulty("fail_collective", number)) shared_->error = ncclRemoteError;
  return agrees(operations.front()) && run_collective(operations.front());
}

// Generations make the barrier usable again at once.
bool Communicator::barrier() {
  const auto generation = shared_->generation.load();
  if (++shared_->num_arrived == size_) {
    shared_->num_arrived = 0;
    ++shared_->generation;
    return !is_ended();
  }
  while (shared_->generation == generation) {
    if (is_ended()) return false;
    std::this_thread::yield();
  }
  return !is_ended();
}

bool Communicator::agrees(const Operation& operation) {
  shared_->headers[rank_] = {.kind = operation.kind,
                             .count = operation.count,
                             .type = operation.type,
                             .reduction = operation.reduction,
                             .peer = operation.peer};
  if (!barrier()) return false;
  for (int other = 0; other < size_; ++other) {
    if (shared_->headers[other] == shared_->headers[rank_]) continue;
    log("ranks disagree: " + name_of(operation) + " of " + std::to_string(operation.count) + " elements, but rank " +
        std::to_string(other) + " calls something else");
    shared_->error = ncclInvalidUsage;
    return false;
  }
  return barrier();
}

bool Communicator::exchange(
    const char* input, std::size_t bytes,
    const std::function<void(int rank, std::size_t offset, const char* piece, std::size_t size)>& use) {
  for (std::size_t offset = 0; offset < bytes; offset += kPiece) {
    const auto size = std::min(kPiece, bytes - offset);
    if (input != nullptr) std::memcpy(shared_->pieces[rank_].data(), input + offset, size);
    if (!barrier()) return false;
    for (int rank = 0; rank < size_; ++rank) use(rank, offset, shared_->pieces[rank].data(), size);
    if (!barrier()) return false;
  }
  return true;
}

bool Communicator::run_collective(const Operation& operation) {
  const auto width = bytes_of(operation.type);
  const auto bytes = operation.count * width, num_ranks = static_cast<std::size_t>(size_);
  // The part of a piece that belongs to the block of `count` elements that begins at `begin`, copied or reduced.
  const auto take = [&](std::size_t begin, std::size_t offset, const char* piece, std::size_t size, auto&& into) {
    const auto from = std::max(begin, offset), to = std::min(begin + bytes, offset + size);
    if (from < to) into(operation.output + (from - begin), piece + (from - offset), to - from);
  };
  const auto reduce = [&](int rank) {
    return [&, rank](char* to, const char* from, std::size_t size) {
      if (rank == 0)
        std::memcpy(to, from, size);
      else
        accumulate(to, from, size / width, operation.type, operation.reduction);
      if (rank + 1 == size_ && operation.reduction == ncclAvg) divide(to, size / width, operation.type, size_);
    };
  };
  const auto copy = [](char* to, const char* from, std::size_t size) { std::memcpy(to, from, size); };
  switch (operation.kind) {
    case OperationKind::kAllReduce:
    case OperationKind::kReduce:
      return exchange(operation.input, bytes, [&](int rank, std::size_t offset, const char* piece, std::size_t size) {
        if (operation.kind == OperationKind::kAllReduce || operation.peer == rank_)
          take(0, offset, piece, size, reduce(rank));
      });
    case OperationKind::kBroadcast:
      return exchange(operation.peer == rank_ ? operation.input : nullptr, bytes,
                      [&](int rank, std::size_t offset, const char* piece, std::size_t size) {
                        if (rank == operation.peer) take(0, offset, piece, size, copy);
                      });
    case OperationKind::kAllGather:
      return exchange(operation.input, bytes, [&](int rank, std::size_t offset, const char* piece, std::size_t size) {
        std::memcpy(operation.output + rank * bytes + offset, piece, size);
      });
    case OperationKind::kReduceScatter:
      return exchange(operation.input, num_ranks * bytes,
                      [&](int rank, std::size_t offset, const char* piece, std::size_t size) {
                        take(rank_ * bytes, offset, piece, size, reduce(rank));
                      });
    case OperationKind::kAllToAll:
      return exchange(
          operation.input, num_ranks * bytes, [&](int rank, std::size_t offset, const char* piece, std::size_t size) {
            take(rank_ * bytes, offset, piece, size,
                 [&](char* to, const char* from, std::size_t part) { std::memcpy(to + rank * bytes, from, part); });
          });
    default: return false;
  }
}

// All transfers of a group progress together, since NCCL allows a rank to send before it receives.
bool Communicator::run_transfers(const std::vector<Operation>& transfers) {
  std::vector<std::size_t> done(transfers.size(), 0);
  for (bool is_complete = false; !is_complete;) {
    is_complete = true;
    for (std::size_t index = 0; index < transfers.size(); ++index) {
      const auto& transfer = transfers[index];
      const auto bytes = transfer.count * bytes_of(transfer.type);
      if (done[index] == bytes) continue;
      is_complete = false;
      const bool sends = transfer.kind == OperationKind::kSend;
      auto& box = sends ? shared_->mailboxes[rank_][transfer.peer] : shared_->mailboxes[transfer.peer][rank_];
      if (box.is_full == sends) continue;
      if (sends) {
        box.bytes = std::min(kLetter, bytes - done[index]);
        std::memcpy(box.letter.data(), transfer.input + done[index], box.bytes);
      } else {
        std::memcpy(transfer.output + done[index], box.letter.data(), box.bytes);
      }
      done[index] += box.bytes;
      box.is_full = sends;
    }
    if (is_ended()) return false;
    std::this_thread::yield();
  }
  return true;
}

}  // namespace accel::testing::fake_cuda
