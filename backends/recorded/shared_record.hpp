#pragma once

#include <memory>

#include "backends/recorded/rank_watch.hpp"
#include "reference/config/environment.hpp"
#include "reference/recorder/rank_recorder.hpp"
#include "reference/state/rank_context.hpp"

namespace c10d {
class Store;
}

namespace accel::recorder {

/// Returns the recorder of this rank: in its launcher's record, or, under torchrun, mpirun or srun, in one that the
/// first rank of the host creates and the others open. Null for a job of one rank, and where the kernel refuses the
/// memory. Collective over the ranks of a host.
std::shared_ptr<RankRecorder> make_recorder(const LaunchEnvironment& launch, c10d::Store& store);

/// Makes the rank record how its program ends, and watches the job until then if its launcher does not. `recorder` may
/// be null.
void record_end_of(RankContext& context, const std::shared_ptr<RankRecorder>& recorder, const JobStore& store);

}  // namespace accel::recorder
