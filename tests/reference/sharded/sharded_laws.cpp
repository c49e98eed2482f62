// Laws of sharding that hold for every model, every division into units and any number of ranks: it computes the
// same as an unsharded training, survives crashes, and sends and keeps as many bytes as the formulas say.
#include <accel/testing.hpp>
#include <gmock/gmock.h>

#include <atomic>
#include <mutex>

#include "reference/core/errors.hpp"
#include "reference/modules/described_model.hpp"
#include "reference/sharded/memory_plan.hpp"
#include "sim/collectives/tensors/collectives.hpp"
#include "tests/reference/sharded/sharded_training.hpp"
#include "tests/support/property.hpp"

namespace accel::testing {
namespace {

using sharded::MemoryKind;
using sharded::ShardedModel;

// Counts what rank 0 sends. From `arm` on, makes one rank fail at its n-th collective.
class Observer : public sim::FaultModel {
 public:
  void before_call(sim::World& /*world*/, int rank, const sim::EngineGroup& /*group*/, std::uint64_t /*sequence*/,
                   Call& call) override {
    // Only rank 0 is counted: all ranks send the same number of bytes.
    if (rank == 0) {
      const std::lock_guard lock(mutex_);
      bytes_[std::string(accel::name_of(call.op))] += call.bytes;
    }
    if (rank == failing_rank_ && fails_in_ >= 0 && fails_in_-- == 0) throw std::runtime_error("planted");
  }
  sim::MeetingFaults on_meeting(sim::World&, const sim::EngineGroup&, std::uint64_t, const Call&) override {
    return {};
  }
  void at_point(sim::World&, int, sim::StepPoint, std::int64_t) override {}
  double lost_seconds(int, double) override { return 0; }
  void on_rendezvous(sim::World&, int) override {}
  std::shared_ptr<Files> files(sim::World&, int, std::shared_ptr<Files> disk) override { return disk; }
  bool on_quiescence(sim::World&) override { return false; }
  bool restarts() override { return false; }

  void arm(int rank, int in_calls) {
    failing_rank_ = rank;
    fails_in_ = in_calls;
  }
  // The bytes since the last call, by operation.
  std::map<std::string, std::int64_t> take() {
    const std::lock_guard lock(mutex_);
    return std::exchange(bytes_, {});
  }
  [[nodiscard]] bool has_failed() const { return fails_in_ < 0; }

 private:
  std::mutex mutex_;
  std::map<std::string, std::int64_t> bytes_;
  std::atomic<int> failing_rank_ = -1, fails_in_ = -1;
};

// The modules that may become units: those that the model calls through the adapter or in a Sequential.
const std::vector<std::string> kUnits = {"blocks\\.0",         "blocks\\.1",         "blocks\\.2", "blocks\\.0\\.inner",
                                         "blocks\\.1\\.outer", "blocks\\.2\\.inner", "tail\\.0",   "tail\\.2"};

// Any division into units and any stage.
ShardingOptions pick_options() {
  ShardingOptions options;
  for (const auto& unit : kUnits) {
    if (*rc::gen::arbitrary<bool>()) options.wrap.modules.push_back(unit);
  }
  options.parameters = *rc::gen::arbitrary<bool>();
  options.reshard_after_forward = options.parameters && *rc::gen::arbitrary<bool>();
  options.gradients = options.parameters || *rc::gen::arbitrary<bool>();
  options.prefetch = testing::pick_from({Prefetch::kNone, Prefetch::kBackwardPre, Prefetch::kBackwardPost});
  options.forward_prefetch = *rc::gen::arbitrary<bool>();
  options.activation_checkpointing = *rc::gen::arbitrary<bool>();
  options.aligned = *rc::gen::arbitrary<bool>();
  options.sync_module_states = *rc::gen::arbitrary<bool>();
  return options;
}

// Copies of all parameters and buffers.
std::map<std::string, at::Tensor> named(const torch::nn::Module& net) {
  std::map<std::string, at::Tensor> tensors;
  for (const auto& item : net.named_parameters()) tensors.emplace(item.key(), item.value().detach().clone());
  for (const auto& item : net.named_buffers()) tensors.emplace(item.key(), item.value().detach().clone());
  return tensors;
}

// Bit for bit.
void assert_equal(const std::map<std::string, at::Tensor>& expected, const NamedTensors& found) {
  RC_ASSERT(expected.size() == found.size());
  for (const auto& [name, tensor] : found) RC_ASSERT(torch::equal(expected.at(name), tensor));
}

// Small integers make every sum exact, so the result does not depend on the order and must be equal bit for bit.
TEST(ShardedLaws, AStepUsesTheSumOfAllRanksGradients) {
  expect_property(40, [] {
    const auto options = pick_options();
    const auto num_ranks = pick(1, 17), width = pick(1, 6);
    auto expected = make_net(width, 3, /*integer=*/true);
    torch::optim::SGD sgd(expected->parameters(), 1.0);
    // The reference adds all gradients on one rank.
    for (int rank = 0; rank < num_ranks; ++rank) expected->forward(batch_of(rank, 0, width, true)).sum().backward();
    sgd.step();
    const auto found = run_ranks(num_ranks, [&](RankContext& rank) {
      auto net = make_net(width, 3, /*integer=*/true);
      ShardedModel sharded(net.ptr(), groups_of(rank), options);
      torch::optim::SGD own(net->parameters(), 1.0);
      // Sharding averages over the ranks. The factor turns the mean into the sum, so that integers stay integers.
      (call_sharded(sharded, net, batch_of(rank.rank, 0, width, true)).sum() * num_ranks).backward();
      own.step();
      sharded.mark_stepped();
      return sharded.full_state();
    });
    assert_equal(named(*expected), found.front());
  });
}

// One thread does the work of all ranks: it computes each rank's gradients in turn and sums them in Gloo's order.
NamedTensors train_serially(int num_ranks, const ShardingOptions& options, int num_steps) {
  auto net = make_net();
  const auto model = describe(net.ptr());
  const auto plan = sharded::plan_units(model.description, options, num_ranks);
  torch::optim::SGD sgd(net->parameters(), 0.1);
  for (int step = 0; step < num_steps; ++step) {
    std::vector<std::vector<at::Tensor>> gradients;  // by rank, then by parameter
    for (int rank = 0; rank < num_ranks; ++rank) {
      sgd.zero_grad();
      net->forward(batch_of(rank, step, 4, false)).square().mean().backward();
      auto& of_rank = gradients.emplace_back();
      for (const auto& parameter : model.parameters)
        of_rank.push_back(parameter.grad().defined() ? parameter.grad().clone() : torch::zeros_like(parameter));
    }
    // Each flat parameter is reduced as one bucket, with its padding.
    for (const auto& unit : plan.units) {
      for (const auto& flat : unit.flats) {
        if (!flat.requires_grad) continue;
        std::vector<sim::BuffersOf<at::Tensor>> buffers(num_ranks);
        std::vector<sim::BuffersOf<at::Tensor>*> all;
        for (int rank = 0; rank < num_ranks; ++rank) {
          auto bucket = torch::zeros({flat.layout.padded_numel()});
          for (std::size_t i = 0; i < flat.parameters.size(); ++i) {
            const auto range = flat.layout.range(i);
            bucket.narrow(0, range.begin, range.size()).copy_(gradients[rank][flat.parameters[i]].reshape({-1}));
          }
          buffers[rank].inputs = {bucket.div_(8)};  // the first of the two divisions by 8
          all.push_back(&buffers[rank]);
        }
        // The simulator's sum, which properties/collectives_laws.cpp compares with Gloo's.
        sim::compute<at::Tensor>({.op = Collective::kAllReduce}, all, [](std::int64_t count, const auto& body) {
          for (std::int64_t i = 0; i < count; ++i) body(i);
        });
        const auto mean = buffers.front().inputs.front().div_(8);
        for (std::size_t i = 0; i < flat.parameters.size(); ++i) {
          const auto range = flat.layout.range(i);
          model.parameters[flat.parameters[i]].mutable_grad() =
              mean.narrow(0, range.begin, range.size()).view(flat.layout.parameters()[i].sizes).clone();
        }
      }
    }
    sgd.step();
  }
  NamedTensors state;
  for (const auto& [name, tensor] : model.names) state.emplace_back(name, tensor.detach());
  for (const auto& [name, buffer] : model.buffers) state.emplace_back(name, buffer);
  return state;
}

// Many ranks find errors in the padding of shards, as most shards are then empty or short.
TEST(ShardedLaws, SixtyFourRanksComputeTheSameAsOneThread) {
  ShardingOptions options;
  options.wrap.modules = {"blocks\\.[0-9]", "tail\\.0"};
  options.prefetch = Prefetch::kBackwardPre;
  const auto found = run_ranks(64, [&](RankContext& rank) {
    auto net = make_net();
    ShardedModel sharded(net.ptr(), groups_of(rank), options);
    torch::optim::SGD sgd(net->parameters(), 0.1);
    for (int step = 0; step < 3; ++step) {
      call_sharded(sharded, net, batch_of(rank.rank, step, 4, false)).square().mean().backward();
      sgd.step();
      sgd.zero_grad();
    }
    return sharded.full_state();
  });
  const auto expected = train_serially(64, options, 3);
  const std::map<std::string, at::Tensor> by_name(expected.begin(), expected.end());
  ASSERT_EQ(by_name.size(), found.front().size());
  for (const auto& [name, tensor] : found.front()) EXPECT_TRUE(torch::equal(by_name.at(name), tensor)) << name;
}

// With other units too: the pieces are cut in other places.
TEST(ShardedLaws, StateSavedOnAnyNumberOfRanksLoadsOnAnyOther) {
  expect_property(30, [] {
    const auto options = pick_options(), other_options = pick_options();
    const auto num_ranks = pick(1, 9), others = pick(1, 9);
    const auto saved = run_ranks(num_ranks, [&](RankContext& rank) {
      auto net = make_net();
      return ShardedModel(net.ptr(), groups_of(rank), options).sharded_state();
    });
    std::vector<TensorPart> pieces;
    for (const auto& of_rank : saved) pieces.insert(pieces.end(), of_rank.begin(), of_rank.end());
    const auto loaded = run_ranks(others, [&](RankContext& rank) {
      // Other values than the saved ones, so that a piece that is not loaded shows.
      auto net = make_net(4, 3, /*integer=*/true);
      ShardedModel sharded(net.ptr(), groups_of(rank), other_options);
      sharded.load_sharded_state(pieces);
      return sharded.full_state();
    });
    assert_equal(named(*make_net()), loaded.front());
  });
}

// Pieces that are missing, left over, and of another size.
TEST(ShardedLaws, AStateOfAnotherModelIsACheckpointErrorWithAllProblems) {
  run_ranks(2, [](RankContext& rank) {
    auto net = make_net();
    ShardedModel sharded(net.ptr(), groups_of(rank), {});
    auto pieces = sharded.sharded_state();  // the pieces of one rank only
    pieces.push_back({"surplus", {1}, {0, 1}, torch::ones({1})});
    pieces.push_back({"head.bias", {9}, {0, 9}, torch::ones({9})});
    try {
      sharded.load_sharded_state(pieces);
      ADD_FAILURE() << "was loaded";
    } catch (const CheckpointError& error) {
      for (const auto* part : {"'surplus'", "'head.bias' has sizes [9]", "lacks"})
        EXPECT_THAT(error.what(), ::testing::HasSubstr(part));
    }
  });
}

// If a rank fails at any point of a step, all ranks must end with an error, and every rank's shard must still be
// that of the last complete step. The test lets the failure happen at each collective in turn.
TEST(ShardedLaws, ACrashAtAnyCollectiveLeavesNoParameterHalfUpdated) {
  ShardingOptions options;
  options.wrap.modules = {"blocks\\.[0-9]", "blocks\\.1\\.inner"};
  options.prefetch = Prefetch::kBackwardPre;
  int num_crashes = 0;
  for (bool reached = true; reached; ++num_crashes) {
    const auto observer = std::make_shared<Observer>();
    std::atomic<int> num_changed = 0, num_errors = 0;
    try {
      run_ranks(3, {.faults = observer}, [&](RankContext& rank) {
        auto net = make_net();
        ShardedModel sharded(net.ptr(), groups_of(rank), options);
        torch::optim::SGD sgd(net->parameters(), 0.1);
        const auto step = [&](int number) {
          call_sharded(sharded, net, batch_of(rank.rank, number, 4, false)).square().mean().backward();
          sgd.step();
          sgd.zero_grad();
        };
        // A complete step first, so that "as before" is not the initial state.
        step(0);
        rank.world.barrier();
        // From here on, the collective with this number fails on rank 1.
        if (rank.rank == 1) observer->arm(1, num_crashes);
        std::vector<at::Tensor> before;
        for (const auto& parameter : net->parameters()) before.push_back(parameter.detach().clone());
        try {
          step(1);
        } catch (...) {
          ++num_errors;
          // The failure may leave a unit gathered, so switch back to the shards before comparing.
          sharded.show_shards();
          const auto after = net->parameters();
          for (std::size_t i = 0; i < before.size(); ++i) num_changed += torch::equal(before[i], after[i]) ? 0 : 1;
          throw;
        }
      });
      reached = false;
    } catch (const std::exception&) {
      EXPECT_EQ(num_errors, 3);
      EXPECT_EQ(num_changed, 0);
    }
  }
  // The loop ends when a step has no more collectives. There must have been some.
  EXPECT_GT(num_crashes, 10);
}

// The bytes of a unit's parameters, or of those that are trained.
std::int64_t bytes_of(const sharded::UnitPlan& unit, bool trained) {
  std::int64_t bytes = 0;
  for (const auto& flat : unit.flats) bytes += !trained || flat.requires_grad ? 4 * flat.layout.padded_numel() : 0;
  return bytes;
}

// From the ZeRO paper: stages 1 and 2 send the parameters twice, stage 3 three times. The exception is the model's
// outermost unit, which stays gathered between forward and backward, as in PyTorch.
TEST(ShardedLaws, BytesSentFollowTheFormulas) {
  for (const int num_ranks : {2, 3, 8}) {
    for (const bool frees : {false, true}) {
      SCOPED_TRACE(fmt::format("{} ranks, {}", num_ranks, frees));
      const auto observer = std::make_shared<Observer>();
      std::map<std::string, std::int64_t> sent;
      sharded::ModelPlan plan;
      run_ranks(num_ranks, {.faults = observer}, [&](RankContext& rank) {
        auto net = make_net();
        ShardingOptions options;
        options.wrap.modules = {"blocks\\.[0-9]", "tail\\.0"};
        options.parameters = options.reshard_after_forward = frees;
        ShardedModel sharded(net.ptr(), groups_of(rank), options);
        torch::optim::SGD sgd(net->parameters(), 0.1);
        for (int step = 0; step < 2; ++step) {
          // The first step also creates state, so the second one is measured.
          if (rank.rank == 0) observer->take();
          call_sharded(sharded, net, batch_of(rank.rank, step, 4, false)).square().mean().backward();
          sgd.step();
          sgd.zero_grad();
          sharded.mark_stepped();
          if (rank.rank == 0) sent = observer->take();
          rank.world.barrier();
        }
        if (rank.rank == 0) plan = sharded.plan();
      });
      std::int64_t gathers = 0, reductions = 0;
      for (std::size_t i = 0; i < plan.units.size(); ++i) {
        // Unit 0 is the outermost one.
        gathers += (frees && i > 0 ? 2 : 1) * bytes_of(plan.units[i], /*trained=*/false);
        reductions += bytes_of(plan.units[i], /*trained=*/true);
      }
      std::map<std::string, std::int64_t> expected = {{"all_gather_into_tensor", gathers / num_ranks},
                                                      {"reduce_scatter_tensor", reductions}};
      EXPECT_EQ(sent, expected);
    }
  }
}

// Users choose the number of ranks by the plan. If it were wrong, the training would fail on a real machine.
TEST(ShardedLaws, MemoryIsAsPlanned) {
  for (const int num_ranks : {1, 2, 8, 64}) {
    for (const auto& [frees, freezes] : {std::pair(false, false), std::pair(true, false), std::pair(true, true)}) {
      SCOPED_TRACE(fmt::format("{} ranks, {} {}", num_ranks, frees, freezes));
      run_ranks(num_ranks, [&, frees = frees, freezes = freezes](RankContext& rank) {
        torch::nn::Sequential net;
        for (int layer = 0; layer < 5; ++layer) net->push_back(torch::nn::Linear(32, 32));
        // A frozen weight has no gradient, and is gathered less.
        net->ptr(1)->parameters()[0].requires_grad_(!freezes);
        const auto description = describe(net.ptr()).description;
        ShardingOptions options;
        options.wrap.modules = {"[0-3]"};
        options.parameters = options.reshard_after_forward = frees;
        ShardedModel sharded(net.ptr(), groups_of(rank), options);
        sharded.before_forward();
        std::vector<at::Tensor> outputs{net->forward(batch_of(rank.rank, 0, 32, false))};
        sharded.after_forward(outputs);
        outputs.front().square().mean().backward();
        const auto predicted = sharded::plan_memory(sharded.plan(), description, options, 8);
        EXPECT_EQ(sharded.memory().now(MemoryKind::kParameters), predicted.parameters);
        EXPECT_EQ(sharded.memory().now(MemoryKind::kGradients), predicted.gradients);
        // With a frozen weight the plan is an upper bound only.
        EXPECT_LE(sharded.memory().most(MemoryKind::kGathered), predicted.gathered);
        if (!freezes) {
          EXPECT_EQ(sharded.memory().most(MemoryKind::kGathered), predicted.gathered);
        }
        EXPECT_EQ(sharded.memory().now(MemoryKind::kGathered), 0);
        EXPECT_EQ(sharded.memory().now(MemoryKind::kBuckets), 0);
      });
    }
  }
}

}  // namespace
}  // namespace accel::testing
