#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "reference/comm/collective_backend.hpp"
#include "reference/recorder/rank_recorder.hpp"

namespace accel::recorder {

/// Returns a backend that records the calls of a group, compares them with those of the other ranks, and forwards them.
/// A call that differs throws DiagnosedError on every rank of the host. `members`: world ranks, by group rank. Returns
/// `backend` itself if the record has no room for another group.
c10::intrusive_ptr<c10d::Backend> recorded(c10::intrusive_ptr<c10d::Backend> backend, std::string_view name,
                                           const std::vector<int>& members, std::shared_ptr<RankRecorder> recorder);

/// What the simulator's Call holds of these arguments.
CallFacts facts_of(const CollectiveArgs& args);
/// What the rank of an all-to-all sends and expects; nothing for other collectives.
std::optional<Parts> parts_of(const CollectiveArgs& args, int num_ranks);

}  // namespace accel::recorder
