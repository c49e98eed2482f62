#pragma once

#include <cstdint>
#include <exception>
#include <functional>
#include <optional>

#include "reference/core/errors.hpp"
#include "reference/elastic/membership.hpp"

namespace accel::elastic {

/// A collective was given up, because a rank of the world is lost: the others continue in another view.
class RankLost : public CommError {
 public:
  using CommError::CommError;
};

/// The training of this rank is over; the text says why.
class NotAMember : public CommError {
 public:
  NotAMember(EndReason reason, const std::string& text) : CommError(text), reason_(reason) {}
  [[nodiscard]] EndReason reason() const { return reason_; }

 private:
  EndReason reason_;
};

/// A rank among those of a training that goes on without the ranks it loses. What a backend gives to ElasticRun.
///
///     auto view = ranks.next_world();
///     while (position < end) {
///       try {
///         const auto sum = exchange();                         // over context.world
///         if (ranks.complete(*view, position + 1, [&] { apply(sum); })) ++position; else view = ranks.next_world();
///       } catch (const std::exception& error) {
///         if (!ranks.is_loss(error)) throw;
///         view = ranks.next_world();
///       }
///     }
///
/// Thread rule: the rank's thread.
class ElasticRanks {
 public:
  ElasticRanks() = default;
  virtual ~ElasticRanks() = default;
  ElasticRanks(const ElasticRanks&) = delete;
  ElasticRanks& operator=(const ElasticRanks&) = delete;

  /// Waits for a view other than the last one, and makes its members the ranks of the world: sets rank, world size and
  /// groups of the context. If the last view is current, as after an error of the transport, a new one is asked for.
  /// Nothing if a rank has ended the training, which is then complete. A rank that joins waits for the first view with
  /// it, and has no state before its first `complete`. Throws NotAMember.
  [[nodiscard]] virtual std::optional<View> next_world() = 0;
  /// Changes the state from one position to the next: no view is agreed upon meanwhile. Does nothing and returns false
  /// if the view is not current. If `change` throws, this rank counts as one without state.
  virtual bool complete(const View& view, std::int64_t position, const std::function<void()>& change) = 0;
  /// With which rank of the job the member has started; one that joins, in place of which.
  [[nodiscard]] virtual int rank_of(MemberId member) const = 0;
  /// Whether this error of a collective means that a rank is lost.
  [[nodiscard]] virtual bool is_loss(const std::exception& error) const = 0;
  /// The training is complete on all ranks. Afterwards a lost rank ends the job.
  virtual void finish() = 0;
};

}  // namespace accel::elastic
