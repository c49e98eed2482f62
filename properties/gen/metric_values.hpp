#pragma once

#include <nlohmann/json.hpp>

namespace accel::testing {

/// Computes a metric of random samples, whose batches this rank shares with the others: the n-th batch belongs to the
/// n-th rank, and so on in turn. NaN is null. properties/oracle/metric_values.py does the same in Python and documents
/// the format of requests and answers. Collective over the world of the current rank.
nlohmann::json metric_value(const nlohmann::json& request);

}  // namespace accel::testing
