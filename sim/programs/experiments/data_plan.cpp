// Answers `sim-run plan`. Small plans run the real loaders, so that the answer is what a program would see; large ones
// compute it from the shard plan, because thousands of loaders would take minutes. Property tests hold the two equal.
#include "sim/programs/experiments/data_plan.hpp"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>

#include "reference/core/errors.hpp"

namespace accel::programs {
namespace {

// Order of issue: step by step, and within a step by rank. Ranks run at the same time, so no finer order exists.
std::vector<std::int64_t> duplicates_in_read_order(const std::vector<PlanBatches>& ranks) {
  std::vector<std::int64_t> duplicates;
  std::set<std::int64_t> seen;
  std::size_t num_steps = 0;
  for (const auto& batches : ranks) num_steps = std::max(num_steps, batches.size());
  for (std::size_t step = 0; step < num_steps; ++step) {
    for (const auto& batches : ranks) {
      if (step >= batches.size()) continue;
      for (const auto sample : batches[step]) {
        if (!seen.insert(sample).second) duplicates.push_back(sample);
      }
    }
  }
  return duplicates;
}

void mark_read(const PlanEpoch& epoch, std::vector<bool>& read) {
  for (const auto& batches : epoch.ranks) {
    for (const auto& batch : batches) {
      for (const auto sample : batch) read[sample] = true;
    }
  }
}

// Samples of skipped batches do not count as dropped: a resumed run has read them before. `unskipped` is the same epoch
// without skipping, and separates them from samples that no rank ever reads.
void count_dropped(PlanEpoch& epoch, const PlanEpoch& unskipped, std::int64_t length) {
  std::vector<bool> read(length, false);
  mark_read(epoch, read);
  mark_read(unskipped, read);
  for (std::int64_t sample = 0; sample < length; ++sample) {
    if (!read[sample]) epoch.dropped.push_back(sample);
  }
}

// Adds duplicates and dropped samples.
std::vector<PlanEpoch> completed(std::vector<PlanEpoch> epochs, const PlanRequest& request) {
  for (std::size_t index = 0; index < epochs.size(); ++index) {
    auto& epoch = epochs[index];
    epoch.duplicated = duplicates_in_read_order(epoch.ranks);
    // Only the first epoch skips batches; its complete version is planned again, without skipping.
    if (index > 0 || request.skip_batches == 0) {
      count_dropped(epoch, epoch, request.length);
    } else {
      auto whole = request;
      whole.skip_batches = 0;
      whole.epochs = 1;
      count_dropped(epoch, plan_by_shards(whole).front(), request.length);
    }
  }
  return epochs;
}

nlohmann::ordered_json error_answer(const char* type, const std::exception& error) {
  return {{"error", type}, {"message", error.what()}};
}

}  // namespace

std::vector<PlanEpoch> answer_plan(const PlanRequest& request) {
  return completed(request.ranks <= kMaxPlanLoaders ? plan_by_loaders(request) : plan_by_shards(request), request);
}

std::vector<PlanEpoch> answer_plan(RankContext& rank, const PlanRequest& request) {
  return completed(plan_by_loaders(rank, request), request);
}

// The oracle compares the class of the error with the one that Accelerate raises. One bad line must not end a stream.
nlohmann::ordered_json answer_plan_line(const std::string& line,
                                        const std::function<std::vector<PlanEpoch>(const PlanRequest&)>& plan) {
  try {
    return to_json(plan(read_plan_request(line)));
  } catch (const ConfigError& error) {
    return error_answer("ConfigError", error);
  } catch (const ArgumentError& error) {
    return error_answer("ValueError", error);
  } catch (const std::exception& error) {
    return error_answer("RuntimeError", error);
  }
}

}  // namespace accel::programs
