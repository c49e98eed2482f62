#include "backends/process/link.hpp"

#include <poll.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <bit>

#include "reference/core/system/futex.hpp"

namespace accel::process {
namespace {

constexpr auto kSimulatorCheck = std::chrono::seconds(1);

int open_process(pid_t pid) { return pid == 0 ? -1 : static_cast<int>(syscall(SYS_pidfd_open, pid, 0)); }

// glibc has gettid() from 2.30 on.
pid_t this_thread() { return static_cast<pid_t>(syscall(SYS_gettid)); }

}  // namespace

MessageWriter& operator<<(MessageWriter& message, const RequestHead& head) {
  return message.put(head.request).put(head.processor_seconds).put(head.line).put(head.file);
}

RequestHead read_head(MessageReader& message) {
  RequestHead head;
  head.request = message.get<Request>();
  head.processor_seconds = message.get<double>();
  head.line = message.get<std::uint32_t>();
  head.file = message.text();
  return head;
}

RankLink::RankLink(std::shared_ptr<SharedArea> area, int rank)
    : area_(std::move(area)),
      rank_(rank),
      channel_(area_->channel(rank)),
      simulator_(open_process(area_->simulator())) {}

RankLink::~RankLink() {
  if (simulator_ >= 0) close(simulator_);
}

// Throws CommError if the simulator, which changes the word, has ended.
void RankLink::wait_while(const std::atomic<std::uint32_t>& word, std::uint32_t value) const {
  while (word.load() == value) {
    if (area_->simulator() == 0) {
      futex_wait(word, value, FutexScope::kProcesses);
      continue;
    }
    futex_wait(word, value, FutexScope::kProcesses, kSimulatorCheck);
    pollfd process{simulator_, POLLIN, 0};
    const bool has_ended = simulator_ < 0 || poll(&process, 1, 0) > 0;
    if (has_ended && word.load() == value)
      throw CommError(fmt::format("rank {}: the simulator of this process group has ended", rank_));
  }
}

// The entry's previous request, kEntries earlier, has been read by now, so its bytes are free.
void RankLink::write(const MessageWriter& message, std::uint32_t reply) {
  const auto number = channel_.posted.load();
  for (auto taken = channel_.taken.load(); number - taken >= Channel::kEntries; taken = channel_.taken.load()) {
    wake_proxy(channel_);
    wait_while(channel_.taken, taken);
  }
  auto& entry = channel_.entries[number % Channel::kEntries];
  if (std::exchange(is_used_[number % Channel::kEntries], true)) pool_.give(entry.offset);
  const auto& bytes = message.bytes();
  entry = {.offset = pool_.take(bytes.size()),
           .bytes = bytes.size(),
           .sender = {.reply = reply, .thread = this_thread(), .num_threads = num_threads_}};
  std::copy_n(bytes.data(), bytes.size(), reinterpret_cast<char*>(at(entry.offset)));
  channel_.posted = number + 1;
}

void RankLink::post(const MessageWriter& message) {
  const std::lock_guard lock(mutex_);
  write(message);
  wake_proxy(channel_);
}

void RankLink::post_before_next(const MessageWriter& message) {
  const std::lock_guard lock(mutex_);
  write(message);
}

// The lowest that no thread uses: a rank with one calling thread always has the first.
std::uint32_t RankLink::take_reply() {
  const auto reply = static_cast<std::uint32_t>(std::countr_one(used_replies_.load()));
  check_state(reply < Channel::kReplies,
              "rank {}: {} of its threads wait for the simulator; expected at most {} threads that make collectives",
              rank_, reply + 1, Channel::kReplies);
  used_replies_ |= std::uint64_t{1} << reply;
  return reply;
}

std::int64_t RankLink::ask(const MessageWriter& message) {
  std::unique_lock lock(mutex_);
  struct TakenReply {
    RankLink& link;
    const std::uint32_t number = link.take_reply();
    ~TakenReply() { link.used_replies_ &= ~(std::uint64_t{1} << number); }
  } const taken{*this};
  const auto& reply = channel_.replies[taken.number];
  const auto before = reply.answered.load();
  write(message, taken.number);
  lock.unlock();
  wake_proxy(channel_);
  wait_while(reply.answered, before);
  if (reply.has_failed != 0) throw CommError(std::string(reply.text, reply.text_bytes));
  return reply.value;
}

std::uint64_t RankLink::take(std::uint64_t bytes) {
  const std::lock_guard lock(mutex_);
  return pool_.take(bytes);
}

void RankLink::give(std::uint64_t offset) {
  const std::lock_guard lock(mutex_);
  pool_.give(offset);
}

void RankLink::abandon(AbandonedWork work) {
  const std::lock_guard lock(mutex_);
  abandoned_.push_back(std::move(work));
}

std::size_t RankLink::num_abandoned() {
  const std::lock_guard lock(mutex_);
  return abandoned_.size();
}

std::vector<AbandonedWork> RankLink::take_abandoned() {
  const std::lock_guard lock(mutex_);
  return std::exchange(abandoned_, {});
}

ProxyLink::ProxyLink(std::shared_ptr<SharedArea> area, int rank)
    : area_(std::move(area)), rank_(rank), channel_(area_->channel(rank)) {}

// The wake-ups are read before the counters: what is posted after that raises them again, and the wait returns at once.
std::optional<MessageReader> ProxyLink::next(std::chrono::milliseconds limit) {
  const auto wakeups = channel_.wakeups.load();
  const auto number = channel_.taken.load();
  if (number == channel_.posted.load()) {
    if (channel_.end.has_ended != 0) return std::nullopt;
    futex_wait(channel_.wakeups, wakeups, FutexScope::kProcesses, limit);
    if (number == channel_.posted.load()) return std::nullopt;
  }
  const auto& entry = channel_.entries[number % Channel::kEntries];
  const bool is_within =
      entry.offset <= SharedArea::kPayloadBytes && entry.bytes <= SharedArea::kPayloadBytes - entry.offset;
  ensure(is_within, "rank {}: a request lies outside of its payload", rank_);
  MessageReader message(std::string(reinterpret_cast<const char*>(at(entry.offset)), entry.bytes));
  sender_ = entry.sender;
  ensure(sender_.reply < Channel::kReplies, "rank {}: a request has no place for its answer", rank_);
  channel_.taken = number + 1;
  futex_wake(channel_.taken, FutexScope::kProcesses);
  return message;
}

void ProxyLink::sleep(std::uint32_t wakeups, std::chrono::milliseconds limit) {
  futex_wait(channel_.wakeups, wakeups, FutexScope::kProcesses, limit);
}

void ProxyLink::wake() { wake_proxy(channel_); }

void ProxyLink::answer(const Answer& answer, std::uint32_t reply) {
  auto& place = channel_.replies[reply];
  place.has_failed = answer.has_failed ? 1 : 0;
  place.value = answer.value;
  place.text_bytes = std::min(answer.text.size(), Channel::kTextBytes);
  std::copy_n(answer.text.data(), place.text_bytes, place.text);
  ++place.answered;
  futex_wake(place.answered, FutexScope::kProcesses);
}

}  // namespace accel::process
