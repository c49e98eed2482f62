// Note [Comparing before bytes move]
// A rank publishes the fingerprint of its n-th collective of a group, a full fence follows, and then it reads what the
// other members have published for theirs. Of two ranks whose calls differ, at least the second sees the first. It does
// not start its collective, so no collective that needs all members can complete with them: the others wait until they
// see the verdict. A collective whose root needs nobody may have completed before; its result is that of the root's
// call.
#include "reference/recorder/rank_recorder.hpp"

#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <thread>

#include "reference/recorder/exchange.hpp"
#include "reference/recorder/hash.hpp"

namespace accel::recorder {
namespace {

constexpr std::int64_t kPatienceNs = 1'000'000'000;

std::int64_t now_ns() {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec * 1'000'000'000 + now.tv_nsec;
}

std::uint64_t hash_of(std::string_view text) {
  std::uint64_t hash = text.size();
  for (; text.size() >= 8; text.remove_prefix(8)) {
    std::uint64_t word = 0;
    std::memcpy(&word, text.data(), 8);
    hash = mixed(hash, word);
  }
  std::uint64_t rest = 0;
  if (!text.empty()) std::memcpy(&rest, text.data(), text.size());
  return mixed(hash, rest);
}

// Of everything that `agree` compares.
std::uint64_t fingerprint_of(const CallFacts& facts, std::string_view library_call) {
  const auto byte = [](auto value) { return std::uint64_t{static_cast<std::uint8_t>(value)}; };
  const auto kinds = byte(facts.op) | byte(facts.reduce_op) << 8 | byte(facts.dtype) << 16 |
                     byte(facts.sparse_dim) << 24 | std::uint64_t{static_cast<std::uint32_t>(facts.root)} << 32;
  return mixed(mixed(mixed(mixed(0x61'63'63'65'6c + facts.is_on_gpu, kinds), facts.shapes_hash), facts.strides_hash),
               hash_of(library_call));
}

// Of a fingerprint and all earlier ones. 0 if another thread has not written the one before, and from then on.
std::uint64_t chain_of(const RecordedGroup& group, std::uint64_t sequence, std::uint64_t fingerprint) {
  if (sequence == 0) return mixed(1, fingerprint);
  const auto& before = group.slots[(sequence - 1) % kCalls];
  if (before.number.load(std::memory_order_acquire) != sequence) return 0;
  const auto chain = before.chain.load(std::memory_order_relaxed);
  return chain == 0 ? 0 : mixed(chain, fingerprint);
}

void copy_text(std::span<char> to, std::string_view text) {
  const auto length = std::min(text.size(), to.size() - 1);
  std::memcpy(to.data(), text.data(), length);
  to[length] = '\0';
}

// Counts a thread of a rank while it lives.
class CountedThread {
 public:
  ~CountedThread() { end(); }
  void count(const std::shared_ptr<JobRecord>& record, int rank) {
    if (record_ == record && rank_ == rank) return;
    end();
    record_ = record;
    rank_ = rank;
    pid_ = getpid();
    ++record->rank(rank).num_threads;
  }

 private:
  // A child that was forked without exec is no thread of the rank.
  void end() {
    if (record_ && pid_ == getpid()) --record_->rank(rank_).num_threads;
  }

  std::shared_ptr<JobRecord> record_;
  int rank_ = -1;
  pid_t pid_ = 0;
};
thread_local CountedThread counted_thread;

std::atomic<std::uint64_t> num_recorders{0};

// The last texts of a thread, so that it seldom needs the lock.
struct CachedText {
  std::uint64_t recorder = 0;
  std::uint64_t key = 0;
  std::uint16_t index = 0;
};
thread_local std::array<CachedText, 16> cached_texts;

}  // namespace

RankRecorder::RankRecorder(std::shared_ptr<JobRecord> record, int rank)
    : record_(std::move(record)), rank_(rank), id_(++num_recorders), own_(record_->rank(rank)) {
  // A script may run several programs one after the other. This one has not met its peers yet, so none reads the
  // record.
  if (own_.pid.load() != 0) record_->clear(rank);
  groups_of_peers_.reserve(kGroups);
  own_.pid = getpid();
}

std::optional<int> RankRecorder::add_group(std::string_view name, std::span<const int> members) {
  const MutexLock lock(groups_mutex_);
  const auto index = own_.num_groups.load();
  if (index == kGroups || members.size() > kMaxRanks) return std::nullopt;
  auto& group = own_.groups[index];
  copy_text(group.name, name);
  group.size = static_cast<std::int32_t>(members.size());
  std::copy(members.begin(), members.end(), group.members);
  auto& places = groups_of_peers_.emplace_back(members.size());
  for (auto& place : places) place.store(-1, std::memory_order_relaxed);
  own_.num_groups.store(index + 1, std::memory_order_release);
  return static_cast<int>(index);
}

// `key` stands for the text.
std::uint16_t RankRecorder::cached_index(std::uint64_t key, std::string_view text) {
  auto& cached = cached_texts[key % cached_texts.size()];
  if (cached.recorder != id_ || cached.key != key) cached = {id_, key, text_index(text)};
  return cached.index;
}

// Texts beyond the table's room are recorded as unknown.
std::uint16_t RankRecorder::text_index(std::string_view text) {
  const MutexLock lock(texts_mutex_);
  const auto count = own_.num_texts.load();
  const auto kept = text.substr(0, sizeof own_.texts[0] - 1);
  for (std::uint32_t index = 0; index < count; ++index) {
    if (kept == own_.texts[index]) return static_cast<std::uint16_t>(index + 1);
  }
  if (count == kTexts) return 0;
  copy_text(own_.texts[count], text);
  own_.num_texts.store(count + 1, std::memory_order_release);
  return static_cast<std::uint16_t>(count + 1);
}

RecordedCall& RankRecorder::write(int group, const CallFacts& facts, int peer, std::uint64_t position) {
  counted_thread.count(record_, rank_);
  own_.failed_call.store(0, std::memory_order_relaxed);
  auto& call = own_.calls[position % kCalls];
  call.position.store(0, std::memory_order_relaxed);
  std::atomic_thread_fence(std::memory_order_release);
  const auto site = CallSite::current();
  const auto library_call = CallSite::library_call();
  call.line = site.line;
  call.file = site.line == 0 ? 0 : cached_index(mixed(0, reinterpret_cast<std::uint64_t>(site.file)), site.file);
  call.library_call = library_call.empty() ? 0 : cached_index(hash_of(library_call), library_call);
  call.group = static_cast<std::uint16_t>(group);
  call.peer = peer;
  call.exchange = 0;
  call.facts = facts;
  call.begin_ns.store(now_ns(), std::memory_order_relaxed);
  call.wait_ns.store(0, std::memory_order_relaxed);
  call.end_ns.store(0, std::memory_order_relaxed);
  return call;
}

// Returns where the parts are, from 1.
std::uint32_t RankRecorder::write_exchange(const Parts& parts, std::uint64_t position) {
  const auto index = own_.num_exchanges.fetch_add(1, std::memory_order_relaxed) % kExchanges;
  auto& exchange = own_.exchanges[index];
  exchange.position.store(0, std::memory_order_relaxed);
  std::atomic_thread_fence(std::memory_order_release);
  std::copy(parts.sent.begin(), parts.sent.end(), exchange.sent);
  std::copy(parts.expected.begin(), parts.expected.end(), exchange.expected);
  exchange.position.store(position, std::memory_order_release);
  return static_cast<std::uint32_t>(index) + 1;
}

RankRecorder::Begun RankRecorder::begin_collective(int group, const CallFacts& facts, const Parts* parts) {
  auto& own_group = own_.groups[group];
  const Begun begun{own_.num_calls.fetch_add(1, std::memory_order_relaxed) + 1,
                    own_group.num_calls.fetch_add(1, std::memory_order_relaxed)};
  auto& call = write(group, facts, /*peer=*/-1, begun.position);
  call.sequence = begun.sequence;
  if (parts != nullptr) call.exchange = write_exchange(*parts, begun.position);
  call.position.store(begun.position, std::memory_order_release);
  auto& slot = own_group.slots[begun.sequence % kCalls];
  slot.number.store(0, std::memory_order_relaxed);
  std::atomic_thread_fence(std::memory_order_release);
  const auto fingerprint = fingerprint_of(facts, CallSite::library_call());
  slot.fingerprint.store(fingerprint, std::memory_order_relaxed);
  slot.chain.store(chain_of(own_group, begun.sequence, fingerprint), std::memory_order_relaxed);
  slot.position.store(begun.position, std::memory_order_relaxed);
  slot.number.store(begun.sequence + 1, std::memory_order_release);
  std::atomic_thread_fence(std::memory_order_seq_cst);  // see Note [Comparing before bytes move]
  return begun;
}

RankRecorder::Begun RankRecorder::begin_message(int group, const CallFacts& facts, int peer, int tag) {
  auto& own_group = own_.groups[group];
  if (tag != 0 && peer >= 0) own_group.uses_tags[peer].store(true, std::memory_order_release);
  auto& count = peer < 0 ? own_group.received_from_any
                         : (facts.op == Collective::kSend ? own_group.sent : own_group.received)[peer];
  const Begun begun{own_.num_calls.fetch_add(1, std::memory_order_relaxed) + 1, count.load(std::memory_order_relaxed)};
  auto& call = write(group, facts, peer, begun.position);
  call.sequence = begun.sequence;
  call.position.store(begun.position, std::memory_order_release);
  count.fetch_add(1, std::memory_order_release);
  std::atomic_thread_fence(std::memory_order_seq_cst);  // see Note [Comparing before bytes move]
  return begun;
}

void RankRecorder::end(const Begun& begun) {
  auto& call = own_.calls[begun.position % kCalls];
  if (call.position.load(std::memory_order_relaxed) == begun.position)
    call.end_ns.store(now_ns(), std::memory_order_relaxed);
}

bool RankRecorder::agrees(int group, const Begun& begun) {
  const auto& own_group = own_.groups[group];
  const auto own = own_group.slots[begun.sequence % kCalls].fingerprint.load(std::memory_order_relaxed);
  const bool is_all_to_all = own_.calls[begun.position % kCalls].exchange != 0;
  const MemberCall own_call{own_, begun.position, is_all_to_all ? member_index(own_group, rank_) : -1};
  if (is_all_to_all && mismatch_of(own_call, own_call)) return false;
  auto& places = groups_of_peers_[group];
  for (std::int32_t member = 0; member < own_group.size; ++member) {
    const int peer = own_group.members[member];
    if (peer == rank_ || !record_->is_local(peer)) continue;
    const auto& other = record_->rank(peer);
    auto place = places[member].load(std::memory_order_relaxed);
    if (place < 0) {
      place = static_cast<std::int16_t>(group_index(other, own_group.name));
      if (place < 0) continue;  // it has not joined the group yet
      places[member].store(place, std::memory_order_relaxed);
    }
    const auto& slot = other.groups[place].slots[begun.sequence % kCalls];
    if (slot.number.load(std::memory_order_acquire) != begun.sequence + 1) continue;  // not yet, or long ago
    const auto theirs = slot.fingerprint.load(std::memory_order_relaxed);
    const MemberCall other_call{other, slot.position.load(std::memory_order_relaxed), member};
    std::atomic_thread_fence(std::memory_order_acquire);
    if (slot.number.load(std::memory_order_relaxed) != begun.sequence + 1) continue;
    if (theirs != own) return false;
    if (is_all_to_all && (mismatch_of(own_call, other_call) || mismatch_of(other_call, own_call))) return false;
  }
  return true;
}

void RankRecorder::condemn(int group, const Begun& begun) {
  auto& verdict = record_->verdict();
  std::uint32_t none = 0;
  if (verdict.state.compare_exchange_strong(none, 1)) {
    verdict.sequence = begun.sequence;
    verdict.found_ns = now_ns();
    verdict.finder = rank_;
    verdict.group = static_cast<std::uint32_t>(group);
    verdict.state.store(2, std::memory_order_release);
  }
  while (!has_verdict()) std::this_thread::yield();
}

bool RankRecorder::is_condemned_by_verdict(int group, const Begun& call, bool is_message) const {
  const auto& verdict = record_->verdict();
  if (now_ns() - verdict.found_ns > kPatienceNs) return true;
  const auto& condemned = record_->rank(verdict.finder).groups[verdict.group];
  return !is_message && call.sequence >= verdict.sequence && std::strcmp(condemned.name, own_.groups[group].name) == 0;
}

void RankRecorder::set_end(RankEnd end, std::string_view message) {
  copy_text(own_.message, message);
  own_.end.store(end, std::memory_order_release);
}

RankRecorder::Wait::Wait(RankRecorder& recorder, const Begun& call) {
  counted_thread.count(recorder.record_, recorder.rank_);
  auto& recorded = recorder.own_.calls[call.position % kCalls];
  if (recorded.position.load(std::memory_order_relaxed) == call.position)
    recorded.wait_ns.store(now_ns(), std::memory_order_relaxed);
  for (auto& place : recorder.own_.waits) {
    std::uint64_t none = 0;
    if (!place.compare_exchange_strong(none, call.position)) continue;
    place_ = &place;
    return;
  }
}

RankRecorder::Wait::~Wait() {
  if (place_ != nullptr) place_->store(0, std::memory_order_release);
}

}  // namespace accel::recorder
