#pragma once

#include <cstdint>
#include <optional>

#include "reference/diagnosis/diagnosis.hpp"
#include "reference/recorder/job_record.hpp"

namespace accel::recorder {

/// Compares one end of a message, which `rank` has posted as its call at `position`, with the other end: why the job
/// has to end if dtype or number of elements differ. Nothing if the other end is not among its rank's last calls, is on
/// another host, or is not certain: ranks that use tags, or receive from anybody, may match messages in another order.
std::optional<Diagnosis> message_difference(const JobRecord& record, int rank, std::uint64_t position);

}  // namespace accel::recorder
