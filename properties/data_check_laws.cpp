// `accel data-check` predicts from sizes alone what loaders do. These properties compare its counts with real
// loaders and with the plan, and verify that its advice removes the findings that it is given for.
#include <fmt/format.h>

#include <algorithm>

#include "properties/gen/plan_cases.hpp"
#include "reference/core/errors.hpp"
#include "sim/programs/experiments/data_check.hpp"
#include "sim/programs/experiments/data_plan.hpp"
#include "tests/support/property.hpp"

namespace accel::testing::data_check_laws {
namespace {

using programs::PlanRequest;

// One complete epoch: data-check counts neither skipped batches nor several epochs.
PlanRequest loader_request(int max_ranks) {
  auto request = *plan_request(max_ranks);
  request.epochs = 1;
  request.skip_batches = 0;
  return request;
}

// Counts the same numbers from every rank's list of samples, which is slow but obvious.
void expect_counts_of(const programs::PlanEpoch& epoch, const PlanRequest& request) {
  std::vector<std::int64_t> steps;
  for (const auto& batches : epoch.ranks) steps.push_back(static_cast<std::int64_t>(batches.size()));
  const auto [least, most] = std::minmax_element(steps.begin(), steps.end());
  const auto counts = programs::count_epoch(request);
  RC_ASSERT(counts.steps_min == *least);
  RC_ASSERT(counts.steps_max == *most);
  RC_ASSERT(counts.ranks_with_most_steps == std::count(steps.begin(), steps.end(), *most));
  RC_ASSERT(counts.ranks_without_batch == std::count(steps.begin(), steps.end(), 0));
  RC_ASSERT(counts.duplicated == static_cast<std::int64_t>(epoch.duplicated.size()));
  RC_ASSERT(counts.dropped == static_cast<std::int64_t>(epoch.dropped.size()));
  std::vector<std::int64_t> last_batches;
  std::int64_t first_step = 0;
  for (const auto& batches : epoch.ranks) {
    if (!batches.empty()) first_step += static_cast<std::int64_t>(batches.front().size());
    if (*most > 0 && static_cast<std::int64_t>(batches.size()) == *most)
      last_batches.push_back(static_cast<std::int64_t>(batches.back().size()));
  }
  // Only an epoch with a second step has a first step that is known to be full.
  if (*least > 1) RC_ASSERT(counts.samples_per_step == first_step);
  if (last_batches.empty()) return;
  RC_ASSERT(counts.shortest_batch == *std::min_element(last_batches.begin(), last_batches.end()));
  RC_ASSERT(counts.longest_batch == *std::max_element(last_batches.begin(), last_batches.end()));
}

// data-check computes the numbers without reading data; real loaders must give the same.
TEST(DataCheckLaws, CountsAreThoseOfTheLoaders) {
  expect_property(150, [] {
    const auto request = loader_request(5);
    RC_LOG(describe(request));
    expect_counts_of(programs::answer_plan(request).front(), request);
  });
}

TEST(DataCheckLaws, CountsAreThoseOfThePlanOnMoreRanksThanTheLoadersRun) {
  expect_property(100, [] {
    auto request = loader_request(12);
    const auto of_rank = request.split_batches ? request.batch_size / request.ranks : request.batch_size;
    // Above kMaxPlanLoaders ranks, answer_plan uses the plan and runs no loaders; both must agree with the counts.
    request.ranks += programs::kMaxPlanLoaders;
    request.batch_size = request.split_batches ? of_rank * request.ranks : of_rank;
    request.length = pick<std::int64_t>(0, 3 * request.batch_size * (request.split_batches ? 1 : request.ranks) + 2);
    RC_LOG(describe(request));
    expect_counts_of(programs::answer_plan(request).front(), request);
  });
}

bool has_findings_with(PlanRequest request, std::int64_t batch_size) {
  request.batch_size = batch_size;
  return programs::has_findings({programs::check_loader("loader", request, {request.ranks})});
}

// Advice that does not help is worse than none, so both directions are tested.
TEST(DataCheckLaws, TheBatchSizeThatItAdvisesLeavesNothingToFindAndIsMissedNowhere) {
  expect_property(1000, [] {
    const auto request = loader_request(8);
    RC_PRE(request.length > 0);
    RC_LOG(describe(request));
    const auto advised = programs::even_batch_size(request);
    if (advised) RC_ASSERT(!has_findings_with(request, *advised));
    const auto unit = request.split_batches ? request.ranks : 1;
    // Every size from half to twice the requested one is tried: if one of them divides the length, advice must
    // exist.
    for (auto size = (request.batch_size / unit + 1) / 2; size <= 2 * (request.batch_size / unit); ++size) {
      const auto step = size * request.ranks;
      if (request.length % step == 0) RC_ASSERT(advised.has_value());
    }
  });
}

// The options are the ones named in the advice: even_batches and others.
TEST(DataCheckLaws, AdvisedOptionsRemoveTheFindings) {
  expect_property(1000, [] {
    const auto request = loader_request(8);
    RC_LOG(describe(request));
    const auto counts = programs::count_epoch(request);
    auto changed = request;
    changed.even_batches = true;
    const auto even = programs::count_epoch(changed);
    RC_ASSERT(!even.has_uneven_steps() && even.shortest_batch == even.longest_batch);
    changed = request;
    changed.drop_last = !request.drop_last;
    if (counts.duplicated > 0) RC_ASSERT(programs::count_epoch(changed).duplicated == 0);
    if (counts.dropped > 0) RC_ASSERT(programs::count_epoch(changed).dropped == 0);
  });
}

}  // namespace
}  // namespace accel::testing::data_check_laws
