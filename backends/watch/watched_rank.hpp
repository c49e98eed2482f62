#pragma once

#include <exception>
#include <functional>
#include <memory>
#include <string>

#include "backends/watch/job_store.hpp"
#include "reference/config/environment.hpp"
#include "reference/recorder/rank_recorder.hpp"

namespace accel::recorder {

/// Processes of one name see each other below /proc.
std::string host_name();

/// Returns the launch with its local rank and size. They are found by the hosts of all ranks if no variable has them: a
/// user may set RANK and WORLD_SIZE alone, on one host or on several. Collective then.
LaunchEnvironment with_local_place(LaunchEnvironment launch, JobStore& store);

/// Returns the recorder of this rank: in its launcher's record, or, under torchrun, mpirun or srun, in one that the
/// first rank of the host creates and the others open. Null for a job of one rank, and where the kernel refuses the
/// memory. Collective over the ranks of a host.
std::shared_ptr<RankRecorder> make_recorder(const LaunchEnvironment& launch, JobStore& store);

/// The same for the process of a rank that was lost: in its launcher's record only. Not collective.
std::shared_ptr<RankRecorder> recorder_of_launcher(const LaunchEnvironment& launch);

/// Records how a rank's program has ended: by `error`, or well. Returns whether the error is on record already, so that
/// the rank prints nothing. Throws DiagnosedError if the job has to end although this rank's program was right.
using RecordEnd = std::function<bool(const std::exception* error)>;

RecordEnd record_end(std::shared_ptr<RankRecorder> recorder);
/// The same, and watches the job until the program ends, if its launcher does not.
RecordEnd watch_until_end(std::shared_ptr<RankRecorder> recorder, const JobStore& store);

}  // namespace accel::recorder
