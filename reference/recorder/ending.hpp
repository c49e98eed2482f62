#pragma once

#include <optional>

#include "reference/diagnosis/diagnosis.hpp"
#include "reference/recorder/job_record.hpp"

/// How whoever watches a job tells its ranks why it has to end.
///
/// Thread rule: any thread of any process.
namespace accel::recorder {

/// Of a rank that has been diagnosed, and of a launcher whose ranks have been.
inline constexpr int kExitCodeOfDiagnosis = 3;

/// Publishes why the job has to end, unless it has been published. There is an ending afterwards.
void publish_ending(const JobRecord& record, Diagnosis diagnosis);
/// Absent while the job may continue.
std::optional<Diagnosis> ending_of(const JobRecord& record);
/// True for one caller: the rank that prints the ending for all of the host.
bool claim_to_print_ending(const JobRecord& record);

}  // namespace accel::recorder
