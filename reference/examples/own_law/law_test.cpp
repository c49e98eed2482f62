// A law about one's own sampler, on generated loaders: simulated ranks and real Gloo ranks read the same batches, and
// together they read every sample. Gloo's ranks are threads here; law.cpp checks the same law on processes.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <accel/accel.hpp>
#include <accel/testing/property.hpp>
#include <accel/testing/run_ranks.hpp>

#include "check_case.hpp"

namespace {

using accel::testing::Backend;
using accel::testing::collect_ranks;

// A failure prints the shrunk case and the seed.
TEST(BucketSampler, ReadsTheSameBatchesOnEveryBackend) {
  accel::testing::expect_property(30, [] {
    const auto one = accel::testing::loader_cases::make_case();
    const auto read = [&](accel::RankContext&) { return check_case(one); };
    const auto simulated = collect_ranks(Backend::kSim, one.ranks, read);
    RC_ASSERT(simulated == collect_ranks(Backend::kGlooThreads, one.ranks, read));
  });
}

}  // namespace
