#include "backends/watch/group_recorder.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <string>
#include <thread>
#include <utility>

#include "reference/comm/transport_error.hpp"
#include "reference/diagnosis/diagnosis.hpp"
#include "reference/recorder/ending.hpp"
#include "reference/recorder/job_reader.hpp"
#include "reference/recorder/message.hpp"

namespace accel::recorder {
namespace {

// How long a rank whose call the transport has failed waits for a watch to say why.
constexpr std::chrono::milliseconds kPatience{3000};

// Whether a rank of this host has ended because of another one, and no watch has said why.
bool has_given_up(const JobRecord& record) {
  const auto ranks = record.local_ranks();
  return std::any_of(ranks.begin(), ranks.end(),
                     [&](int rank) { return record.rank(rank).end.load() == RankEnd::kConsequence; });
}

}  // namespace

std::optional<GroupRecorder> GroupRecorder::create(std::shared_ptr<RankRecorder> recorder, std::string_view name,
                                                   std::span<const int> members) {
  const auto group = recorder->add_group(name, members);
  if (!group) return std::nullopt;
  return GroupRecorder(std::move(recorder), *group);
}

GroupRecorder::Call GroupRecorder::begin(const CallFacts& facts, const Parts* parts) const {
  const Call call{recorder_->begin_collective(group_, facts, parts)};
  if (!recorder_->agrees(group_, call)) {
    recorder_->condemn(group_, call);
    throw_difference();
  }
  look(call);
  return call;
}

GroupRecorder::Call GroupRecorder::begin_message(const CallFacts& facts, int peer, int tag) const {
  const Call call{recorder_->begin_message(group_, facts, peer, tag), /*is_message=*/true};
  const auto& record = *recorder_->record();
  if (auto difference = message_difference(record, recorder_->rank(), call.position))
    publish_ending(record, std::move(*difference));
  look(call);
  return call;
}

void GroupRecorder::look(const Call& call) const {
  if (recorder_->is_condemned(group_, call, call.is_message)) throw_difference();
  throw_ending();
}

void GroupRecorder::explain(const Call& call, std::string_view message) const {
  const auto& record = *recorder_->record();
  if (record.has_verdict()) throw_difference();
  const auto failure = transport_failure_of(message);
  if (failure == TransportFailure::kLate || failure == TransportFailure::kLostRank) {
    recorder_->set_failed(call);
    // Before a call is late, a watch has had time to say why.
    if (!record.is_watched() && failure == TransportFailure::kLostRank) await_ending();
  }
  const auto place = place_at(record.rank(recorder_->rank()), call.position);
  throw comm_error(fmt::format("rank {}{}", recorder_->rank(), place ? ": " + describe(*place) : ""), message);
}

// If a watch has ended the job.
void GroupRecorder::throw_ending() const {
  auto ending = ending_of(*recorder_->record());
  if (!ending) return;
  if (ending->kind != Diagnosis::Kind::kRankFailure) throw DiagnosedError(std::move(*ending));
  throw CommError(fmt::format("rank {}: released from waiting: {}", recorder_->rank(), ending->text));
}

// The same, if it does so within the patience.
void GroupRecorder::await_ending() const {
  const auto deadline = std::chrono::steady_clock::now() + kPatience;
  for (bool is_last = false; !is_last; std::this_thread::sleep_for(std::chrono::milliseconds(10))) {
    is_last = std::chrono::steady_clock::now() >= deadline || has_given_up(*recorder_->record());
    throw_ending();
  }
}

// A watch that sees the ranks of other hosts knows more than this host's record, but not of splits.
void GroupRecorder::throw_difference() const {
  const auto& record = recorder_->record();
  if (!record->has_all_ranks()) await_ending();
  auto difference = await_difference(record);
  if (!record->has_all_ranks()) {
    publish_ending(*record, std::move(difference));
    throw_ending();
  }
  throw DiagnosedError(std::move(difference));
}

}  // namespace accel::recorder
