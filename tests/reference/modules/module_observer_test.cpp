// Observers of modules: they see the tensors of each call, beside hooks, and change nothing.
#include <gmock/gmock.h>
#include <torch/nn/modules/activation.h>

#include "reference/core/errors.hpp"
#include "reference/modules/call.hpp"
#include "tests/support/torch.hpp"

namespace accel::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

using Calls = std::vector<std::string>;

class Noting : public ModuleObserver {
 public:
  explicit Noting(Calls& calls) : calls_(calls) {}
  void before_forward(const std::vector<at::Tensor>& inputs) override { note("in", inputs); }
  void after_forward(const std::vector<at::Tensor>& outputs) override { note("out", outputs); }

 private:
  void note(const std::string& what, const std::vector<at::Tensor>& tensors) {
    calls_.push_back(what);
    for (const auto& tensor : tensors) calls_.back() += " " + c10::str(tensor.sum().item<double>());
  }
  Calls& calls_;
};

class Doubling : public ModuleHooks {
 public:
  void before_forward() override {}
  void after_forward(std::vector<at::Tensor>& outputs) override {
    for (auto& output : outputs) output = output * 2;
  }
};

// Several inputs and outputs, one of which is no tensor.
struct PartImpl : torch::nn::Module {
  std::pair<at::Tensor, at::Tensor> forward(const at::Tensor& x, int factor, const at::Tensor& y) {
    return {x * factor, y};
  }
};
TORCH_MODULE(Part);

TEST(ModuleObserverTest, SeesAllTensorsOfACallUntilItsScopeEnds) {
  Calls calls;
  Part part;
  {
    const ScopedModuleObserver observer(*part, std::make_shared<Noting>(calls));
    const auto [x, y] = call(part, torch::full({}, 3), 2, torch::full({}, 5));
    EXPECT_EQ(x.item<int>(), 6);
    EXPECT_THAT(calls, ElementsAre("in 3 5", "out 6 5"));
  }
  call(part, torch::full({}, 3), 2, torch::full({}, 5));
  EXPECT_THAT(calls, ElementsAre("in 3 5", "out 6 5"));
}

// Sharding replaces a module's outputs; the observer has to see what the program gets.
TEST(ModuleObserverTest, SeesTheOutputsOfHooksInAnyOrderOfRegistration) {
  for (const bool is_observed_first : {false, true}) {
    Calls calls;
    Part part;
    std::optional<ScopedModuleObserver> observer;
    if (is_observed_first) observer.emplace(*part, std::make_shared<Noting>(calls));
    std::optional<ScopedModuleHooks> hooks(std::in_place, *part, std::make_shared<Doubling>());
    if (!is_observed_first) observer.emplace(*part, std::make_shared<Noting>(calls));
    EXPECT_EQ(call(part, torch::full({}, 3), 2, torch::full({}, 5)).first.item<int>(), 12);
    EXPECT_THAT(calls, ElementsAre("in 3 5", "out 12 10"));
    hooks.reset();
    EXPECT_EQ(call(part, torch::full({}, 3), 2, torch::full({}, 5)).first.item<int>(), 6);
    EXPECT_THAT(calls, ElementsAre("in 3 5", "out 12 10", "in 3 5", "out 6 5"));
  }
}

TEST(ModuleObserverTest, ElementsOfASequentialAreObserved) {
  Calls calls;
  torch::nn::Sequential net{torch::nn::ReLU(), torch::nn::ReLU()};
  const ScopedModuleObserver observer(*net->ptr(1), std::make_shared<Noting>(calls));
  const ScopedSequentialHooks elements(net.ptr());
  net->forward(torch::tensor({-1.0, 4.0}));
  EXPECT_THAT(calls, ElementsAre("in 4", "out 4"));
}

TEST(ModuleObserverTest, ASecondObserverIsRefused) {
  Calls calls;
  Part part;
  const ScopedModuleObserver observer(*part, std::make_shared<Noting>(calls));
  EXPECT_THROW(ScopedModuleObserver(*part, std::make_shared<Noting>(calls)), StateError);
  EXPECT_THAT(calls, IsEmpty());
}

}  // namespace
}  // namespace accel::testing
