// One Accelerator outlives what it prepares: stages of a training in functions, with objects on the stack whose handles
// end before or after them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <accel/accel.hpp>
#include <cstddef>
#include <cstring>
#include <filesystem>
#include <list>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tests/support/run_ranks.hpp"
#include "tests/support/temporary_folder.hpp"
#include "tests/support/torch.hpp"

namespace accel::testing::lifetimes_test {
namespace {

namespace nn = torch::nn;
using ::testing::Contains;
using ::testing::HasSubstr;

// Creates objects in memory that is overwritten, and not used again, after they have ended: a later use of one fails on
// every run.
class Graveyard {
 public:
  struct Bury {
    std::size_t size = 0;
    template <typename T>
    void operator()(T* object) const {
      object->~T();
      std::memset(static_cast<void*>(object), 0xff, size);
    }
  };
  template <typename T, typename... Args>
  std::unique_ptr<T, Bury> make(Args&&... args) {
    auto& memory = memory_.emplace_back(sizeof(T) + alignof(T));
    void* place = memory.data();
    std::size_t space = memory.size();
    std::align(alignof(T), sizeof(T), place, space);
    return {new (place) T(std::forward<Args>(args)...), Bury{sizeof(T)}};
  }

 private:
  std::list<std::vector<std::byte>> memory_;
};

// A module that no shared_ptr owns.
struct Net : nn::Module {
  Net() : first(register_module("first", nn::Linear(3, 5))), head(register_module("head", nn::Linear(5, 1))) {}
  at::Tensor forward(const at::Tensor& x) { return call(head, torch::tanh(call(first, x))); }
  nn::Linear first, head;
};

constexpr int kStages = 3;

enum class Order { kHandlesFirst, kObjectsFirst };

// Trains a new model; everything that it creates ends with it.
std::vector<at::Tensor> run_stage(Accelerator& accelerator, Graveyard& graveyard, Order order, int stage) {
  accel::set_seed(stage);
  auto net = graveyard.make<Net>();
  auto sgd = graveyard.make<torch::optim::SGD>(net->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
  auto decay = graveyard.make<StepLR>(*sgd, StepLROptions{.step_size = 1, .gamma = 0.5});
  std::vector<at::Tensor> values;
  auto prepared = std::optional(accelerator.prepare(*net, *sgd, *decay));
  auto& [model, optimizer, schedule] = *prepared;
  for (int step = 0; step < 3; ++step) {
    accelerator.backward(model(at::ones({2, 3}) * (stage + step + accelerator.process_index())).square().mean());
    accelerator.clip_grad_norm_(model.parameters(), 1.0);
    optimizer.step();
    schedule.step();
    optimizer.zero_grad();
  }
  {
    const auto full = accelerator.gathered_parameters(model);
    for (const auto& parameter : net->parameters()) values.push_back(parameter.detach().clone());
  }
  if (order == Order::kHandlesFirst) prepared.reset();
  return values;
}

std::map<std::string, AcceleratorOptions> engines() {
  return {{"DDP", {}},
          {"DDP, bf16", {.mixed_precision = "bf16"}},
          {"FSDP", {.fsdp_plugin = FullyShardedDataParallelPlugin()}},
          {"FSDP 2", {.fsdp_plugin = FullyShardedDataParallelPlugin{.fsdp_version = 2}}}};
}

TEST(LifetimesTest, StagesOfOneAcceleratorTrainAsWithOneEach) {
  for (const auto& [engine, options] : engines()) {
    for (const int num_ranks : {1, 2}) {
      for (const auto backend : {Backend::kSim, Backend::kGlooThreads}) {
        for (const auto order : {Order::kHandlesFirst, Order::kObjectsFirst}) {
          SCOPED_TRACE(fmt::format("{} on {} ranks of {}, order {}", engine, num_ranks, name_of(backend),
                                   static_cast<int>(order)));
          const TemporaryFolder folder;
          run_ranks(backend, num_ranks, [&, &options = options](RankContext& rank) {
            Graveyard graveyard;
            std::vector<std::vector<at::Tensor>> expected;
            for (int stage = 0; stage < kStages; ++stage) {
              Accelerator own(options, rank);
              expected.push_back(run_stage(own, graveyard, order, stage));
            }
            Accelerator accelerator(options, rank);
            for (int stage = 0; stage < kStages; ++stage) {
              const auto values = run_stage(accelerator, graveyard, order, stage);
              for (std::size_t place = 0; place < values.size(); ++place)
                EXPECT_TRUE(values[place].equal(expected[stage][place])) << "stage " << stage;
              EXPECT_NO_THROW(accelerator.save_state(folder.path(fmt::format("{}", stage))));
              EXPECT_NO_THROW(accelerator.unscale_gradients());
              EXPECT_FALSE(accelerator.optimizer_step_was_skipped());
            }
          });
        }
      }
    }
  }
}

// An optimizer at the address of an earlier one is another one.
TEST(LifetimesTest, AnOptimizerAtTheAddressOfAnEarlierOneIsPreparedAnew) {
  run_ranks(Backend::kSim, 2, [](RankContext& rank) {
    Accelerator accelerator({}, rank);
    auto net = std::make_shared<nn::LinearImpl>(3, 1);
    auto model = accelerator.prepare(net);
    std::optional<torch::optim::SGD> sgd;
    for (int stage = 0; stage < kStages; ++stage) {
      sgd.emplace(net->parameters(), torch::optim::SGDOptions(0.1));
      auto optimizer = accelerator.prepare(*sgd);
      const auto before = net->weight.detach().clone();
      accelerator.backward(model(at::ones({2, 3})).mean());
      optimizer.step();
      optimizer.zero_grad();
      EXPECT_FALSE(net->weight.equal(before));
    }
  });
}

// What is kept stays prepared without a handle: Python's programs may drop it too.
TEST(LifetimesTest, KeptObjectsStayWithoutAHandle) {
  const TemporaryFolder folder;
  run_ranks(Backend::kSim, 2, [&](RankContext& rank) {
    Accelerator accelerator({}, rank);
    auto net = std::make_shared<nn::LinearImpl>(3, 1);
    auto sgd = std::make_shared<torch::optim::SGD>(net->parameters(), torch::optim::SGDOptions(0.1));
    (void)accelerator.prepare(net, sgd);
    accelerator.save_state(folder.path("state"));
  });
  EXPECT_TRUE(std::filesystem::exists(folder.path("state/model.safetensors")));
  EXPECT_TRUE(std::filesystem::exists(folder.path("state/optimizer.bin")));
}

TEST(LifetimesTest, ABorrowedOptimizerWhoseHandleIsDroppedAtOnceIsNamed) {
  std::vector<std::string> warnings;
  run_ranks(Backend::kSim, 2, [&](RankContext& rank) {
    rank.warn = [&, index = rank.rank](const std::string& text) {
      if (index == 0) warnings.push_back(text);
    };
    Accelerator accelerator({}, rank);
    auto net = std::make_shared<nn::LinearImpl>(3, 1);
    torch::optim::SGD sgd(net->parameters(), torch::optim::SGDOptions(0.1));
    auto model = accelerator.prepare(net);
    (void)accelerator.prepare(sgd);
    accelerator.backward(model(at::ones({2, 3})).mean());
  });
  EXPECT_THAT(warnings, Contains(HasSubstr("the handle of an optimizer has ended before its step() was called")));
}

}  // namespace
}  // namespace accel::testing::lifetimes_test
