#pragma once

#include <chrono>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "backends/process/message.hpp"
#include "backends/process/payload_pool.hpp"
#include "backends/process/shared_area.hpp"

/// The two ends of a channel.
namespace accel::process {

/// What a rank asks of its proxy. Each request begins with RequestHead; the fields after it are listed here.
enum class Request : std::uint32_t {
  kGroup,     ///< number, name, ranks; answered
  kCall,      ///< number of the work, see Operation; its errors are those of the wait
  kWait,      ///< number of the work; answered: the source rank, or how many entries a sparse sum has
  kSum,       ///< number of the work, where its indices and its values go: takes a sparse sum; answered
  kPoll,      ///< number of the work; answered: whether it has ended
  kTouch,     ///< number of the work and how the program touches its tensor before its wait
  kForget,    ///< number of the work, whose buffers the rank has taken back
  kPhase,     ///< name
  kBackward,  ///< the loss
  kUpdate,    ///< an optimizer is about to step; answered
  kUpdated,   ///< UpdateReport; answered
  kEndJoin,   ///< ranks that made different numbers of updates are equal again; answered
  kDivide,    ///< name, hash (0: unknown), file and line of a weight of which each rank has kept a part
  kWrite,     ///< path, offset, bytes: the rank is about to write to a file; answered as by WriteDecision
  kWarn,      ///< name of the check that has found something, else ""; text
  kFail,      ///< text; the program has ended by this error
};

/// Where a request comes from.
struct RequestHead {
  Request request{};
  double processor_seconds = 0;  ///< that the process has used so far
  std::uint32_t line = 0;        ///< of the program; 0: unknown
  std::string file;
};
MessageWriter& operator<<(MessageWriter& message, const RequestHead& head);
RequestHead read_head(MessageReader& message);

struct Answer {
  bool has_failed = false;
  std::int64_t value = 0;
  std::string text;  ///< of the error
};

/// A collective that the rank never waited for, and its memory.
struct AbandonedWork {
  std::uint64_t number = 0;
  std::vector<std::uint64_t> offsets;
};

/// The rank's end. Thread rule: any thread of the rank; each waits for its own answer.
class RankLink {
 public:
  RankLink(std::shared_ptr<SharedArea> area, int rank);
  ~RankLink();
  RankLink(const RankLink&) = delete;
  RankLink& operator=(const RankLink&) = delete;

  [[nodiscard]] int rank() const { return rank_; }
  [[nodiscard]] int num_ranks() const { return area_->num_ranks(); }

  /// Sends a request without waiting for the proxy.
  void post(const MessageWriter& message);
  /// Like `post`, but the proxy may see the request only with the next one.
  void post_before_next(const MessageWriter& message);
  /// Sends a request and returns its answer. Throws CommError with the text of a failed one, StateError if
  /// Channel::kReplies other threads wait for answers.
  std::int64_t ask(const MessageWriter& message);
  /// How many threads of the program may send requests, as far as the caller knows; 1 at first. A thread that has sent
  /// one is known without this.
  void set_num_threads(std::uint32_t count) { num_threads_ = count; }

  /// Memory for a tensor that the proxy can see.
  std::uint64_t take(std::uint64_t bytes);
  void give(std::uint64_t offset);
  [[nodiscard]] std::byte* at(std::uint64_t offset) const { return area_->payload(rank_) + offset; }

  void abandon(AbandonedWork work);
  [[nodiscard]] std::size_t num_abandoned();
  std::vector<AbandonedWork> take_abandoned();

 private:
  void write(const MessageWriter& message, std::uint32_t reply = 0);  // under the lock
  std::uint32_t take_reply();                                         // under the lock
  void wait_while(const std::atomic<std::uint32_t>& word, std::uint32_t value) const;

  const std::shared_ptr<SharedArea> area_;
  const int rank_;
  Channel& channel_;
  const int simulator_;  // a descriptor of its process; -1: this process ends with it
  std::atomic<std::uint32_t> num_threads_{1};
  std::atomic<std::uint64_t> used_replies_{0};  // bits
  std::mutex mutex_;
  PayloadPool pool_{SharedArea::kPayloadBytes};
  bool is_used_[Channel::kEntries] = {};
  std::vector<AbandonedWork> abandoned_;
};

/// The proxy's end. Thread rule: one thread; `answer` with a reply, `wake`, `has_request` and `end` from any.
class ProxyLink {
 public:
  ProxyLink(std::shared_ptr<SharedArea> area, int rank);

  /// Waits for the rank's next request; null if its process has ended and all of its requests were read, or after
  /// `limit`.
  std::optional<MessageReader> next(std::chrono::milliseconds limit);
  [[nodiscard]] bool has_request() const { return channel_.taken != channel_.posted; }
  /// The thread that has sent the last request that was read.
  [[nodiscard]] const Sender& sender() const { return sender_; }
  /// Answers the last request that was read.
  void answer(const Answer& answer) { this->answer(answer, sender_.reply); }
  void answer(const Answer& answer, std::uint32_t reply);
  /// Sleeps until the rank's next request, the end of its process, `wake`, or `limit`; returns at once if one of them
  /// came since there were this many.
  void sleep(std::uint32_t wakeups, std::chrono::milliseconds limit);
  [[nodiscard]] std::uint32_t wakeups() const { return channel_.wakeups; }
  /// Wakes `sleep`. Any thread.
  void wake();

  [[nodiscard]] const RankEnd& end() const { return channel_.end; }
  [[nodiscard]] std::byte* at(std::uint64_t offset) const { return area_->payload(rank_) + offset; }

 private:
  const std::shared_ptr<SharedArea> area_;
  const int rank_;
  Channel& channel_;
  Sender sender_;
};

}  // namespace accel::process
