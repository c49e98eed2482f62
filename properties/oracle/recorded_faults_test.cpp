// The known faults of Python's Accelerate in its data path, as recorded by faults.py, next to this library's
// behaviour in the same situation. If Accelerate fixes a fault, a new recording fails here and the difference can
// be removed.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>
#include <tuple>

#include "properties/oracle/recorded_faults.hpp"
#include "reference/accelerator/accelerator.hpp"
#include "reference/state/rng_sync.hpp"
#include "reference/tree/value.hpp"
#include "tests/support/run_ranks.hpp"

namespace accel::testing::recorded_faults_test {
namespace {

// Returns what our ranks see on simulated ranks, and requires the same of real Gloo ranks.
template <typename Body>
auto seen_by_ranks(int num_ranks, AcceleratorOptions options, const Body& body) {
  const auto on_rank = [&](RankContext& rank) {
    Accelerator accelerator(options, rank);
    return body(accelerator);
  };
  const auto seen = collect_ranks(Backend::kSim, num_ranks, on_rank);
  EXPECT_EQ(seen, collect_ranks(Backend::kGlooThreads, num_ranks, on_rank));
  return seen;
}

// Resuming in epoch 1, after 2 of 6 batches, in a new process.
// --- resuming in epoch 1, after 2 of 6 batches, with new objects -----------------------------------------------------

struct Saved {
  std::string loader;  // as bytes, as a file would hold it
  at::Tensor random_state;
};

struct ResumedRun {
  std::vector<Batches> uninterrupted;  // by epoch
  Batches resumed, next;
  bool operator==(const ResumedRun&) const = default;
};

// Starts the program again: every object of every rank is new. Calls `body(loader, rank)`.
template <typename Body>
auto start_program(Backend backend, bool use_seedable_sampler, const Body& body) {
  return collect_ranks(backend, 2, [&](RankContext& rank) {
    Accelerator accelerator({.dataloader_config = {.use_seedable_sampler = use_seedable_sampler}}, rank);
    set_seed(7);
    auto loader = accelerator.prepare(DataLoader(numbers(24), {.batch_size = 2, .shuffle = true}));
    return body(loader, rank);
  });
}

std::vector<ResumedRun> resume(Backend backend, bool use_seedable_sampler) {
  auto runs = start_program(backend, use_seedable_sampler, [](auto& loader, RankContext&) {
    ResumedRun run;
    for (int epoch = 0; epoch < 3; ++epoch) run.uninterrupted.push_back(batches_of(loader));
    return run;
  });
  const auto saved = start_program(backend, use_seedable_sampler, [](auto& loader, RankContext& rank) {
    batches_of(loader);
    auto batch = loader.begin();
    ++batch;  // the loop is at its second batch
    return Saved{pack(loader.state_dict()), rank.generator.get_state()};
  });
  const auto rest = start_program(backend, use_seedable_sampler, [&](auto& loader, RankContext& rank) {
    loader.load_state_dict(unpack<Value>(saved[rank.rank].loader));
    rank.generator.set_state(saved[rank.rank].random_state);
    const auto resumed = batches_of(loader);
    return std::pair(resumed, batches_of(loader));
  });
  for (std::size_t rank = 0; rank < runs.size(); ++rank) std::tie(runs[rank].resumed, runs[rank].next) = rest[rank];
  return runs;
}

Batches tail_of(const Batches& epoch) { return {epoch.begin() + 2, epoch.end()}; }

// Returns how many of the 24 samples no rank reads in epoch 1, before or after the interruption.
std::size_t num_never_read(const std::vector<ResumedRun>& runs) {
  std::set<std::int64_t> read;
  for (const auto& run : runs) {
    for (int batch = 0; batch < 2; ++batch)
      read.insert(run.uninterrupted[1][batch].begin(), run.uninterrupted[1][batch].end());
    for (const auto& batch : run.resumed) read.insert(batch.begin(), batch.end());
  }
  return 24 - read.size();
}

std::vector<ResumedRun> recorded_runs(const std::string& fault) {
  std::vector<ResumedRun> runs;
  for (const auto& rank : recorded(fault)) runs.push_back({rank["uninterrupted"], rank["resumed"], rank["next"]});
  return runs;
}

void expect_only_ours_resumes(const std::string& fault, bool use_seedable_sampler, int epoch_that_follows_theirs) {
  const auto theirs = recorded_runs(fault), ours = resume(Backend::kSim, use_seedable_sampler);
  EXPECT_EQ(ours, resume(Backend::kGlooThreads, use_seedable_sampler));
  ASSERT_EQ(theirs.size(), 2U);
  EXPECT_GT(num_never_read(theirs), 0U);
  EXPECT_EQ(num_never_read(ours), 0U);
  for (std::size_t rank = 0; rank < theirs.size(); ++rank) {
    const auto& epochs = theirs[rank].uninterrupted;
    // Accelerate's sampler restarts at epoch 0, so it skips two batches of the wrong epoch.
    EXPECT_EQ(theirs[rank].resumed, tail_of(epochs[0]));
    EXPECT_EQ(theirs[rank].next, epochs[epoch_that_follows_theirs]);
    EXPECT_EQ(ours[rank].uninterrupted, epochs);
    EXPECT_EQ(ours[rank].resumed, tail_of(epochs[1]));
    EXPECT_EQ(ours[rank].next, epochs[2]);
  }
}

TEST(RecordedFaultsTest, R1AccelerateResumesASeedableOrderInEpochZero) {
  expect_only_ours_resumes("R1_resume_with_seedable_sampler", /*use_seedable_sampler=*/true,
                           /*epoch_that_follows_theirs=*/0);
}

TEST(RecordedFaultsTest, R2AccelerateResumesADrawnOrderInEpochZero) {
  expect_only_ours_resumes("R2_resume_with_default_sampler", /*use_seedable_sampler=*/false,
                           /*epoch_that_follows_theirs=*/1);
}

// --- accumulation ---------------------------------------------------------------------------------------------------

// Returns sync_gradients() in each training step, with an evaluation inside the third step.
std::vector<bool> cadence(Accelerator& accelerator, bool leaves) {
  torch::nn::Linear net(1, 1);
  auto [model, train, evaluation] = accelerator.prepare(net, DataLoader(numbers(12)), DataLoader(numbers(8)));
  std::vector<bool> synchronised;
  for ([[maybe_unused]] auto& unused : train) {
    const auto window = accelerator.accumulate(model);
    synchronised.push_back(accelerator.sync_gradients());
    accelerator.backward(model(at::ones({1, 1})).sum());
    if (synchronised.size() != 3) continue;
    for ([[maybe_unused]] auto& ignored : evaluation) {
      if (leaves) break;
    }
  }
  return synchronised;
}

// A break leaves the evaluation loader registered in Accelerate's GradientState, so the end of the training loader
// goes unnoticed and the last window does not synchronize.
TEST(RecordedFaultsTest, R3ABreakInAnEvaluationCostsAccelerateItsLastStep) {
  const std::vector<bool> whole{false, false, false, true, false, true}, cut{false, false, false, true, false, false};
  for (const auto& rank : recorded("R3_cadence_around_an_evaluation")) {
    EXPECT_EQ(rank["read_to_its_end"], whole);
    EXPECT_EQ(rank["left_by_break"], cut);
  }
  for (const bool leaves : {true, false}) {
    const auto ours = seen_by_ranks(2, {.gradient_accumulation_steps = 4},
                                    [&](Accelerator& accelerator) { return cadence(accelerator, leaves); });
    for (const auto& rank : ours) EXPECT_EQ(rank, whole);
  }
}

// This fault is kept for compatibility: the last window holds one micro-batch and is still divided by four.
TEST(RecordedFaultsTest, R4AShortWindowIsDividedByTheConfiguredSteps) {
  const auto ours = seen_by_ranks(2, {.gradient_accumulation_steps = 4}, [](Accelerator& accelerator) {
    torch::nn::Linear net(torch::nn::LinearOptions(1, 1).bias(false));
    torch::optim::SGD sgd(net->parameters(), /*lr=*/0.0);
    auto [model, optimizer, batches] = accelerator.prepare(net, sgd, DataLoader(numbers(10)));
    std::vector<double> gradients;
    for ([[maybe_unused]] auto& unused : batches) {
      const auto window = accelerator.accumulate(model);
      accelerator.backward(model(at::ones({1, 1})).sum());
      if (accelerator.sync_gradients()) gradients.push_back(net->weight.grad().item<double>());
      optimizer.step();
      optimizer.zero_grad();
    }
    return gradients;
  });
  const std::vector<double> short_by_three_quarters{1.0, 0.25};
  for (const auto& rank : recorded("R4_short_window")) EXPECT_EQ(rank["gradients"], short_by_three_quarters);
  for (const auto& rank : ours) EXPECT_EQ(rank, short_by_three_quarters);
}

// --- metrics ---------------------------------------------------------------------------------------------------------

class SevenOfTen : public Sampler {
 public:
  [[nodiscard]] std::int64_t size() const override { return 7; }
  Ids begin_pass() override { return {9, 7, 5, 3, 1, 0, 2}; }
};

template <typename Loader>
Ids gathered_of(Accelerator& accelerator, Loader&& loader) {
  Ids gathered;
  for (auto& batch : loader) {
    for_each_tensor(accelerator.gather_for_metrics(batch), [&](const at::Tensor& tensor) {
      for (const auto id : ids_of(tensor)) gathered.push_back(id);
    });
  }
  return gathered;
}

// Accelerate computes the remainder from the dataset's length (10) and not from the sampler's (7).
TEST(RecordedFaultsTest, R5AccelerateDropsASampleIfTheSamplerIsShorter) {
  for (const auto& rank : recorded("R5_sampler_of_another_length"))
    EXPECT_EQ(rank["gathered"], Ids({9, 7, 5, 3, 1, 0}));
  const auto ours = seen_by_ranks(2, {}, [](Accelerator& accelerator) {
    return gathered_of(accelerator, accelerator.prepare(DataLoader(
                                        numbers(10), {.batch_size = 2, .sampler = std::make_shared<SevenOfTen>()})));
  });
  for (const auto& rank : ours) EXPECT_EQ(rank, Ids({9, 7, 5, 3, 1, 0, 2}));
}

// One sample for four ranks: Accelerate's slices on ranks 2 and 3 are empty, and its gather hangs.
TEST(RecordedFaultsTest, R6AccelerateGivesRanksEmptyBatchesOfOneSample) {
  const auto theirs = recorded("R6_stream_of_one_sample");
  for (const int rank : {0, 1}) EXPECT_EQ(theirs[rank]["batches"], Batches({{0}}));
  for (const int rank : {2, 3}) EXPECT_EQ(theirs[rank]["batches"], Batches({{}}));
  EXPECT_EQ(recorded("R6_gather_of_one_sample"), "no answer");
  const auto ours = seen_by_ranks(4, {}, [](Accelerator& accelerator) {
    auto loader = accelerator.prepare(DataLoader(SizedStream{1}, {.batch_size = 4}));
    return std::pair(batches_of(loader), gathered_of(accelerator, loader));
  });
  for (const auto& rank : ours) EXPECT_EQ(rank, std::pair(Batches({{0}}), Ids({0})));
}

}  // namespace
}  // namespace accel::testing::recorded_faults_test
