// Cases of the equivalence suite that failed once.
#include <gtest/gtest.h>

#include "sim/programs/equivalence/checked_group.hpp"
#include "sim/programs/equivalence/simulated_case.hpp"
#include "tests/support/run_ranks.hpp"

namespace accel::testing::equivalence_regressions {
namespace {

using programs::has_failed;

void expect_no_difference(const std::string& json) {
  const auto one = programs::read_case(json);
  const auto simulated = programs::observe_on_simulated_ranks(one);
  ASSERT_FALSE(has_failed(simulated)) << json << "\n" << simulated.front().back();
  const auto over_gloo =
      programs::observe_stages(one, [](int ranks, const std::function<void(RankContext&)>& body) -> std::string {
        try {
          run_ranks(Backend::kGlooThreads, ranks, body);
          return "";
        } catch (const std::exception& error) {
          return programs::message_without_frames(error);
        }
      });
  EXPECT_EQ(programs::first_difference("simulated", simulated, "Gloo", over_gloo), "") << json;
}

class EquivalenceRegressions : public ::testing::TestWithParam<const char*> {};

TEST_P(EquivalenceRegressions, NoDifference) { expect_no_difference(GetParam()); }

// A rank that delivered its last batch and then left the loop remained inside the pass, while ranks with one batch
// fewer had ended it: the next calls of the ranks differed.
INSTANTIATE_TEST_SUITE_P(
    TheLastBatchOfOneRank, EquivalenceRegressions,
    ::testing::Values(
        R"({"length":18,"batch_size":2,"seed":227,"even_batches":false,"ranks":4,"skip_batches":1,"law":"sharding",
            "source":"weighted_sampler","interruption":"resume","interrupted_after":2})",
        R"({"length":9,"batch_size":2,"seed":227,"even_batches":false,"dispatch_batches":false,"ranks":2,
            "skip_batches":1,"law":"sharding","source":"weighted_sampler","interruption":"resume",
            "interrupted_after":2})",
        R"({"length":13,"batch_size":2,"seed":227,"even_batches":false,"dispatch_batches":false,"ranks":3,
            "skip_batches":1,"law":"sharding","source":"weighted_sampler","interruption":"resume",
            "interrupted_after":2})",
        R"({"length":53,"batch_size":24,"split_batches":true,"even_batches":false,"ranks":4,"skip_batches":1,
            "law":"sharding","source":"weighted_sampler","interruption":"resume","interrupted_after":2})",
        R"({"length":53,"batch_size":24,"shuffle":true,"split_batches":true,"even_batches":false,"ranks":8,
            "law":"rng_synchronization","rng_types":["torch","generator"],"interruption":"resume",
            "interrupted_after":3})",
        R"({"length":9,"batch_size":2,"even_batches":false,"ranks":2,"law":"sharding","source":"batch_sampler",
            "rng_types":["torch"],"interruption":"resume","interrupted_after":3})",
        R"({"length":5,"batch_size":1,"even_batches":false,"ranks":3,"law":"sharding","source":"varying_batches",
            "rng_types":["torch"],"epochs":2,"interruption":"resume","interrupted_after":2})",
        R"({"length":5,"batch_size":1,"shuffle":true,"use_seedable_sampler":true,"even_batches":false,"ranks":2,
            "law":"sharding","interruption":"iterate_again","interrupted_after":3})"));

// Ranks that read parts of their own have different numbers of batches, which only they know.
INSTANTIATE_TEST_SUITE_P(
    PartsOfTheirOwn, EquivalenceRegressions,
    ::testing::Values(
        R"({"length":10,"batch_size":1,"iterable":true,"dispatch_batches":false,"even_batches":false,"ranks":2,
            "law":"sharding","source":"parts","rng_types":["torch"],"interruption":"resume","interrupted_after":5})",
        R"({"length":10,"batch_size":1,"iterable":true,"dispatch_batches":false,"even_batches":false,"ranks":3,
            "law":"sharding","source":"parts","rng_types":["torch"],"epochs":2,"interruption":"iterate_again",
            "interrupted_after":3,"epoch_in_samples":true})"));

// Reads that were queued when the loop was left were done or not, as the thread happened to be: the stream's generator
// was somewhere else in each run.
INSTANTIATE_TEST_SUITE_P(
    AStreamWithAGenerator, EquivalenceRegressions,
    ::testing::Values(
        R"({"length":3,"batch_size":1,"iterable":true,"ranks":1,"epochs":2,"skip_batches":1,"law":"rng_synchronization",
            "source":"drawing_stream","num_workers":1,"prefetch_factor":1,"rng_types":["torch","generator"],
            "operations":["draw"],"interruption":"iterate_again","interrupted_epoch":1})",
        R"({"length":9,"batch_size":1,"iterable":true,"ranks":2,"epochs":2,"law":"rng_synchronization",
            "source":"drawing_stream","num_workers":1,"prefetch_factor":3,"interruption":"exception",
            "interrupted_after":1})"));

// join_uneven_inputs with even_batches = true joined no model, although a stream that is read by parts stays uneven.
INSTANTIATE_TEST_SUITE_P(JoinOverAStream, EquivalenceRegressions,
                         ::testing::Values(R"({"length":16,"batch_size":4,"iterable":true,"even_batches":false,
                             "dispatch_batches":false,"ranks":2,"law":"training","source":"parts",
                             "operations":["reduce_sum"],"join_even_batches":true})"));

}  // namespace
}  // namespace accel::testing::equivalence_regressions
