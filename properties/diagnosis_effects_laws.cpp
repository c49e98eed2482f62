// Bugs that no mismatched call reveals but that have effects later: uneven batches, replicas that differ, buffers
// that are used while a collective is running. Each is planted at a random place and must be named by rank and
// line.
#include <gtest/gtest.h>

#include <thread>

#include "properties/gen/planted_bugs.hpp"
#include "reference/accelerator/accelerator.hpp"

namespace accel::testing::diagnosis_effects_laws {
namespace {

using namespace planted_bugs;

// The smallest training in which all ranks communicate in backward. Members are in the order of their dependencies.
struct Training {
  explicit Training(RankContext& rank, const Place& place, AcceleratorOptions options = {})
      : accelerator(std::move(options), rank),
        net(place.shape[0], 1),
        sgd(net->parameters(), 0.01),
        model(accelerator.prepare(net)),
        optimizer(accelerator.prepare(sgd)) {}

  Accelerator accelerator;
  torch::nn::Linear net;
  torch::optim::SGD sgd;
  PreparedModel<torch::nn::LinearImpl> model;
  AcceleratedOptimizer optimizer;
};

TEST(DiagnosisLaws, UnevenBatchesHangInBackward) {
  // This many ranks have one batch more than the others.
  const auto batches_of_first = [](const Place& place) { return 1 + place.culprit % (place.num_ranks - 1); };
  expect_diagnosed(
      [&](const Place& place, RankContext& rank, Watch& watch) {
        Training training(rank, place, {.dataloader_config = {.even_batches = false}});
        const std::int64_t steps = 2 + place.position;
        DataLoader plain(TensorDataset(at::ones({steps * place.num_ranks + batches_of_first(place), place.shape[0]})),
                         {.batch_size = 1});
        auto loader = training.accelerator.prepare(plain);
        for (auto& [x] : loader) {
          const auto loss = training.model(x).mean();
          // `watch.at` records the line of the next call, which is where the report must point.
          watch.at(watch.usual), training.accelerator.backward(loss);
          training.optimizer.step();
          training.optimizer.zero_grad();
        }
      },
      [&](const Place& place, const Watch& watch) {
        std::vector<int> missing;
        for (int rank = batches_of_first(place); rank < place.num_ranks; ++rank) missing.push_back(rank);
        return Expected{.kind = Kind::kHang, .ranks = missing, .where = watch.usual};
      });
}

// The replicas are compared by hashes; the majority decides which rank is wrong.
TEST(DiagnosisLaws, ParametersChangedOnOneReplicaAreNamed) {
  expect_diagnosed(
      [](const Place& place, RankContext& rank, Watch& watch) {
        Training training(rank, place);
        for (int step = 0; step < place.length; ++step) {
          const auto loss = training.model(at::ones({2, place.shape[0]})).mean();
          watch.at(watch.usual), training.accelerator.backward(loss);
          const torch::NoGradGuard no_grad;
          // A difference of 1e-3 in one element is far below what a loss curve shows after one step.
          if (is_here(place, rank, step)) training.net->weight[0][0].add_(1e-3);
          training.optimizer.step();
          training.optimizer.zero_grad();
        }
      },
      [](const Place& place, const Watch&) {
        return Expected{.ranks = {place.culprit},
                        .op = "optimizer_step",
                        .sequence = static_cast<std::uint64_t>(place.position),
                        .shapes = std::vector<Shape>{{1, place.shape[0]}}};
      });
}

TEST(DiagnosisLaws, ParametersThatDifferWithoutAMajorityNameAllRanks) {
  // Two ranks give no majority: the report must not blame one of them.
  const auto report = sim::rehearse({.num_ranks = 2}, [](RankContext& rank) {
    Training training(rank, Place{});
    training.accelerator.backward(training.model(at::ones({2, 1})).mean());
    const torch::NoGradGuard no_grad;
    if (rank.rank == 1) training.net->weight[0][0].add_(1e-3);
    training.optimizer.step();
  });
  ASSERT_TRUE(report.diagnosis.has_value());
  EXPECT_EQ(report.diagnosis->ranks, (std::vector<int>{0, 1}));
  EXPECT_NE(
      report.diagnosis->text.find("ranks 0-1 differ from one another, and there is no majority, first in parameter"),
      std::string::npos)
      << report.diagnosis->text;
}

// --- buffers under way -----------------------------------------------------------------------------------------------

// At one step the culprit calls `wrong` between the collective and wait().
void expect_race(const std::function<void(at::Tensor&, RankContext&)>& wrong) {
  expect_diagnosed(
      [&](const Place& place, RankContext& rank, Watch& watch) {
        for (int step = 0; step < place.length; ++step) {
          auto tensor = tensor_of(place);
          auto work = (watch.at(watch.usual), rank.world.all_reduce(tensor));
          if (is_here(place, rank, step)) wrong(tensor, rank);
          work.wait();
        }
      },
      [](const Place& place, const Watch& watch) {
        return Expected{.ranks = {place.culprit},
                        .sequence = static_cast<std::uint64_t>(place.position),
                        .shapes = std::vector<Shape>{place.shape},
                        .where = watch.usual};
      });
}

// The values may be old or new, depending on timing.
TEST(DiagnosisLaws, BufferReadBeforeWaitIsNamed) {
  expect_race([](at::Tensor& tensor, RankContext&) { (void)tensor.sum(); });
}

// A view has its own TensorImpl, so a check that compares tensors and not storage would miss it.
TEST(DiagnosisLaws, BufferReadThroughAViewBeforeWaitIsNamed) {
  expect_race([](at::Tensor& tensor, RankContext&) { (void)tensor.view({-1}).slice(0, 0, 1).clone(); });
}

// The collective may send the new values, depending on timing.
TEST(DiagnosisLaws, BufferWrittenBeforeWaitIsNamed) {
  expect_race([](at::Tensor& tensor, RankContext&) { tensor.zero_(); });
}

TEST(DiagnosisLaws, BufferReusedBeforeTheOthersArriveIsNamed) {
  // The write bypasses all operators, as freed memory that is written again does. Only a checksum of the bytes
  // finds it.
  expect_diagnosed(
      [](const Place& place, RankContext& rank, Watch& watch) {
        for (int step = 0; step < place.length; ++step) {
          std::vector<float> memory(tensor_of(place).numel(), 1.0F);
          auto tensor = at::from_blob(memory.data(), place.shape);
          // The culprit's call must come first, so that its buffer changes before the last rank arrives.
          while (step == place.position && rank.rank != place.culprit && !watch.is_done) std::this_thread::yield();
          auto work = (watch.at(watch.usual), rank.world.all_reduce(tensor));
          if (is_here(place, rank, step)) {
            memory.back() = 7.0F;
            watch.is_done = true;
          }
          work.wait();
        }
      },
      [](const Place& place, const Watch& watch) {
        return Expected{.ranks = {place.culprit},
                        .sequence = static_cast<std::uint64_t>(place.position),
                        .shapes = std::vector<Shape>{place.shape},
                        .where = watch.usual};
      });
}

TEST(DiagnosisLaws, OverlappingCollectivesUnderWayAreNamed) {
  // All ranks make the same mistake, so the report names the rank that arrived first.
  expect_property(25, [] {
    const auto place = any_place();
    Watch watch;
    const auto report = sim::rehearse({.num_ranks = place.num_ranks}, [&](RankContext& rank) {
      for (int step = 0; step < place.length; ++step) {
        auto tensor = tensor_of(place);
        auto first = (watch.at(watch.usual), rank.world.all_reduce(tensor));
        if (step != place.position) {
          first.wait();
          continue;
        }
        auto part = tensor.slice(0, 0, 1);
        auto second = (watch.at(watch.planted), rank.world.all_reduce(part));
        first.wait();
        second.wait();
      }
    });
    RC_ASSERT(report.error != nullptr);
    RC_LOG(message_of(report.error));
    RC_ASSERT(report.diagnosis.has_value());
    RC_ASSERT(report.diagnosis->kind == Kind::kDesync);
    RC_ASSERT(report.diagnosis->where == name_of(watch.usual));
    RC_ASSERT(report.diagnosis->sequence == static_cast<std::uint64_t>(place.position));
    RC_ASSERT(report.diagnosis->ranks.size() == 1u);
    RC_ASSERT(report.diagnosis->text.find("overlaps") != std::string::npos);
  });
}

}  // namespace
}  // namespace accel::testing::diagnosis_effects_laws
