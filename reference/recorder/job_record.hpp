#pragma once

#include <sys/types.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <ranges>

#include "reference/core/collective.hpp"

/// The memory in which the ranks of one host record their calls, for each other and for whoever watches them. It is
/// read without the ranks' help: while they are stuck or stopped, and after they have died.
///
///     const auto record = JobRecord::create({.world_size = 4, .num_local = 4});   // a launcher, or local rank 0
///     const auto record = JobRecord::attach(descriptor);                          // a rank, which inherited it
///
/// An anonymous file in memory: it has no name, and the kernel frees it when the last process that maps it ends. Zero
/// at first; memory is used by the page. Thread rule: any thread of any process; the comments say who writes what.
namespace accel::recorder {

/// The variable in which a launcher passes the descriptor of its JobRecord to the ranks.
inline constexpr const char* kRecordVariable = "ACCEL_RECORD";
inline constexpr const char* kNoRecord = "off";  ///< its value for ranks that record nothing

inline constexpr int kMaxRanks = 4096;
inline constexpr std::size_t kCalls = 256;     ///< of a rank that are kept, and of each of its groups
inline constexpr std::size_t kGroups = 64;     ///< of a rank that are recorded
inline constexpr std::size_t kThreads = 16;    ///< of a rank that can wait at a time
inline constexpr std::size_t kTexts = 1024;    ///< different file names and library calls of a rank
inline constexpr std::size_t kNumbers = 24;    ///< of the shapes of a call
inline constexpr std::size_t kExchanges = 16;  ///< of a rank: its last all-to-alls

/// What a rank calls.
struct CallFacts {
  static constexpr std::uint8_t kNoReduction = 0xff;

  Collective op{};
  std::uint8_t reduce_op = kNoReduction;  ///< c10d::ReduceOp::RedOpType
  std::int8_t dtype = -1;                 ///< c10::ScalarType; -1: there is no tensor
  std::int8_t sparse_dim = -1;
  std::uint8_t num_numbers = 0;
  bool is_cut = false;     ///< more shapes than `numbers` has room for
  bool is_on_gpu = false;  ///< in a group that has one transport for GPUs and one for the host
  std::int32_t root = -1;
  std::int64_t bytes = 0;
  std::uint64_t shapes_hash = 0,
                strides_hash = 0;  ///< of all tensors; those without strides do not count in the second
  /// Per tensor: the number of dimensions, kHasStrides added if strides follow; the sizes; the strides.
  std::int64_t numbers[kNumbers] = {};

  static constexpr std::int64_t kHasStrides = 1 << 16;
};

/// One call of a rank. Its thread writes it.
struct RecordedCall {
  std::atomic<std::uint64_t> position;  ///< 1 for the rank's first call; 0 while it is written
  std::atomic<std::int64_t> begin_ns;   ///< CLOCK_MONOTONIC
  std::atomic<std::int64_t> wait_ns;    ///< when the rank began to wait for the end; 0: never
  std::atomic<std::int64_t> end_ns;     ///< 0 until the rank has seen the end
  std::uint64_t sequence;               ///< of a collective in its group, of a message for its two ranks
  std::uint32_t line;
  std::uint16_t group, file, library_call;  ///< texts: 0 for none, else from 1
  std::int32_t peer;                        ///< of a message: group rank; -1: any
  std::uint32_t exchange;                   ///< of an all-to-all: where its parts are kept; 0: it is another collective
  CallFacts facts;
};

/// What a rank sends to another one in an all-to-all, or expects from it.
struct Part {
  std::int64_t rows = 0;      ///< of a list of tensors: the elements
  std::int64_t elements = 0;  ///< which Gloo compares
};

/// The parts of an all-to-all of a rank, by group rank.
struct Exchange {
  std::atomic<std::uint64_t> position;  ///< of its RecordedCall; 0 while it is written
  Part sent[kMaxRanks], expected[kMaxRanks];
};

/// A group of a rank, and the fingerprints of its last collectives.
struct RecordedGroup {
  struct Slot {
    std::atomic<std::uint64_t> number;  ///< the collective's sequence number plus 1; written last
    std::atomic<std::uint64_t> fingerprint;
    std::atomic<std::uint64_t> chain;     ///< of this and all earlier fingerprints; 0: not known
    std::atomic<std::uint64_t> position;  ///< of the RecordedCall
  };
  char name[64];
  std::int32_t size;
  std::atomic<std::uint64_t> num_calls;                             ///< collectives that the rank has joined
  std::int32_t members[kMaxRanks];                                  ///< world ranks, by group rank
  std::atomic<std::uint32_t> sent[kMaxRanks], received[kMaxRanks];  ///< messages that were posted, by group rank
  std::atomic<bool> uses_tags[kMaxRanks];                           ///< other than 0, in messages to or from this rank
  std::atomic<std::uint32_t> received_from_any;
  Slot slots[kCalls];
};

enum class RankEnd : std::uint32_t {
  kNone,
  kLeft,         ///< returned from its program
  kFailed,       ///< with an error of its own
  kConsequence,  ///< with an error because another rank has ended, is late or differs
};

struct alignas(4096) RankRecord {
  std::atomic<pid_t> pid;  ///< 0: not started
  std::atomic<RankEnd> end;
  std::atomic<bool> may_be_lost;  ///< the rank is in an elastic training: the others continue without it
  std::atomic<std::uint64_t> num_calls;
  std::atomic<std::uint32_t> num_threads;          ///< threads that have made calls or waited, and live
  std::atomic<std::uint32_t> num_program_threads;  ///< of a program that counts its threads, or 0
  std::atomic<std::uint64_t> waits[kThreads];      ///< positions of the calls that threads wait in; 0: none
  std::atomic<std::uint64_t>
      gpu_wait;  ///< position of the first call that has not ended on the GPU, for which no thread
                 ///< need wait; 0: none
  std::atomic<std::uint64_t> failed_call;  ///< position of the last call, if the transport has failed in it; else 0
  std::atomic<std::uint32_t> num_groups, num_texts;
  char texts[kTexts][256];
  char message[4096];  ///< of the error that has ended the rank; written before `end`
  RecordedCall calls[kCalls];
  RecordedGroup groups[kGroups];
  std::atomic<std::uint32_t> num_exchanges;
  Exchange exchanges[kExchanges];
};

/// A collective whose calls differ: the first one that a rank has found.
struct Verdict {
  std::atomic<std::uint32_t> state;  ///< 0: none; 1: being written; 2: valid
  std::uint64_t sequence;
  std::int64_t found_ns;  ///< CLOCK_MONOTONIC
  std::int32_t finder;    ///< world rank
  std::uint32_t group;    ///< of the finder
};

/// Why the job has to end, as a watcher has found. See ending.hpp.
struct alignas(4096) Ending {
  std::atomic<std::uint32_t> state;  ///< 0: none; 1: being written; 2: valid
  std::uint32_t length;
  std::atomic<bool> is_printed;
  char diagnosis[(1 << 20) - 16];  ///< as JSON
};

/// Where the rank keeps the group of this name; -1: not announced.
int group_index(const RankRecord& rank, const char* name);
/// The group rank of a world rank; -1: it is no member.
int member_index(const RecordedGroup& group, int world_rank);

struct JobRecordOptions {
  int world_size = 1;
  int first_rank = 0;  ///< world rank of the host's first rank; the ranks of a host are consecutive
  int num_local = 1;
};

class JobRecord {
 public:
  /// Throws ConfigError if a number is out of range, or the kernel refuses the memory.
  static std::shared_ptr<JobRecord> create(const JobRecordOptions& options);
  /// Throws ConfigError if the descriptor is not a record of this version.
  static std::shared_ptr<JobRecord> attach(int descriptor);
  ~JobRecord();
  JobRecord(const JobRecord&) = delete;
  JobRecord& operator=(const JobRecord&) = delete;

  /// Of the file, which is closed on exec.
  [[nodiscard]] int descriptor() const { return descriptor_; }
  [[nodiscard]] std::byte* begin() const { return begin_; }
  [[nodiscard]] int world_size() const;
  [[nodiscard]] int first_rank() const;
  [[nodiscard]] int num_local() const;
  [[nodiscard]] bool is_local(int world_rank) const {
    return world_rank >= first_rank() && world_rank < first_rank() + num_local();
  }
  [[nodiscard]] bool has_all_ranks() const { return num_local() == world_size(); }
  /// World ranks of this host, in their order.
  [[nodiscard]] auto local_ranks() const { return std::views::iota(first_rank(), first_rank() + num_local()); }
  /// `world_rank` is local.
  [[nodiscard]] RankRecord& rank(int world_rank) const;
  [[nodiscard]] Verdict& verdict() const;
  [[nodiscard]] bool has_verdict() const { return verdict().state.load(std::memory_order_acquire) == 2; }
  [[nodiscard]] Ending& ending() const;
  /// Whether a launcher explains what ranks see of the end of others, so that they need not print it.
  [[nodiscard]] std::atomic<bool>& is_watched() const;
  /// Whether ranks have been in an elastic training: see RankRecord::may_be_lost.
  [[nodiscard]] std::atomic<bool>& is_elastic() const;
  /// Forgets all that is recorded, for the next attempt of a job. No rank may be running.
  void clear() const;
  /// Forgets what an earlier program of the rank has recorded.
  void clear(int world_rank) const;

 private:
  struct Header;
  JobRecord(int descriptor, std::size_t bytes);
  [[nodiscard]] Header& header() const;

  int descriptor_;
  std::size_t bytes_;
  std::byte* begin_;
};

}  // namespace accel::recorder
