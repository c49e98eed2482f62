#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string_view>

#include "reference/core/errors.hpp"
#include "reference/recorder/rank_recorder.hpp"

namespace accel::recorder {

/// The calls of a rank in one group: records them, compares them with those of the other ranks, and tells the cause if
/// one has to fail.
///
///     const auto call = recorder.begin(facts);            // throws if the ranks' calls differ
///     const RankRecorder::Wait mark(recorder.rank(), call);
///     while (!is_over()) recorder.look(call);             // throws if the job has to end
///     recorder.rank().end(call);
///
/// The errors are DiagnosedError, alike on every rank of the host, or CommError if another rank has failed. Thread
/// rule: any thread.
class GroupRecorder {
 public:
  struct Call : RankRecorder::Begun {
    bool is_message = false;
  };

  /// Nothing if the record has no room for another group. `members`: world ranks, by group rank.
  static std::optional<GroupRecorder> create(std::shared_ptr<RankRecorder> recorder, std::string_view name,
                                             std::span<const int> members);

  [[nodiscard]] RankRecorder& rank() const { return *recorder_; }
  /// `parts`: of an all-to-all, else null.
  [[nodiscard]] Call begin(const CallFacts& facts, const Parts* parts = nullptr) const;
  /// `peer`: group rank; -1: any.
  [[nodiscard]] Call begin_message(const CallFacts& facts, int peer, int tag) const;
  void look(const Call& call) const;
  /// The cause of the error with this message, by which the transport has failed in the call.
  [[noreturn]] void explain(const Call& call, std::string_view message) const;

 private:
  GroupRecorder(std::shared_ptr<RankRecorder> recorder, int group) : recorder_(std::move(recorder)), group_(group) {}
  void throw_ending() const;
  void await_ending() const;
  [[noreturn]] void throw_difference() const;

  std::shared_ptr<RankRecorder> recorder_;
  int group_;  // its index in the record
};

}  // namespace accel::recorder
