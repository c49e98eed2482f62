// Training steps that are captured and replayed. The device graph of these tests repeats its function, with the
// learning rate that a real graph would read; cuda_lane_test.cpp captures real ones.
#include <gmock/gmock.h>

#include "reference/accelerator/accelerator.hpp"
#include "reference/optim/optimizers/optimizers.hpp"
#include "reference/optim/schedules/lambda_lr.hpp"
#include "tests/support/message_of.hpp"
#include "tests/support/run_ranks.hpp"
#include "tests/support/torch.hpp"

namespace accel::testing::captured_step {
namespace {

namespace nn = torch::nn;
using ::testing::AllOf;
using ::testing::HasSubstr;

struct ObservedAdamW : optim::AdamW {
  using MultiTensorOptimizer::lr_tensor;
  using MultiTensorOptimizer::MultiTensorOptimizer;
};

class RepeatedFunction final : public DeviceGraph {
 public:
  RepeatedFunction(std::function<void()> body, ObservedAdamW* adamw, int& num_replays)
      : body_(std::move(body)), adamw_(adamw), num_replays_(num_replays) {
    if (adamw_ != nullptr) lr_ = adamw_->lr_tensor(0);
  }
  void replay() override {
    ++num_replays_;
    if (adamw_ != nullptr) adamw_->read_lr_from({lr_});
    body_();
    if (adamw_ != nullptr) adamw_->read_lr_from({});
  }

 private:
  std::function<void()> body_;
  ObservedAdamW* adamw_;
  int& num_replays_;
  at::Tensor lr_;
};

void offer_graphs(RankContext& rank, ObservedAdamW* adamw, int& num_replays) {
  rank.capture_graph = [adamw, &num_replays](const std::function<void()>& body) {
    return std::make_unique<RepeatedFunction>(body, adamw, num_replays);
  };
}

// Learning rates are powers of two, which float32 represents.
struct Trained {
  std::vector<float> losses;
  at::Tensor weight;
  int num_replays = 0;
};

Trained trained(bool has_graphs) {
  return collect_ranks(
             Backend::kSim, 2,
             [&](RankContext& rank) {
               torch::manual_seed(4);
               Trained result;
               Accelerator accelerator({.mixed_precision = "bf16"}, rank);
               nn::Linear net(3, 2);
               ObservedAdamW adamw(net->parameters(), optim::AdamWOptions{.lr = 0.5});
               LambdaLR schedule(adamw, [](std::int64_t step) { return std::pow(0.5, step); });
               if (has_graphs) offer_graphs(rank, &adamw, result.num_replays);
               auto [model, optimizer, scheduler] = accelerator.prepare(net, adamw, schedule);
               auto step = accelerator.capture_step(
                   [&, model = model, optimizer = optimizer](const std::pair<at::Tensor, at::Tensor>& batch) mutable {
                     auto loss = (model(batch.first) - batch.second).square().mean();
                     accelerator.backward(loss);
                     optimizer.step();
                     optimizer.zero_grad();
                     return loss;
                   },
                   {.warm_up_steps = 3});
               for (int i = 0; i < 7; ++i) {
                 const auto inputs = torch::full({4, 3}, 0.1 * i + rank.rank);
                 result.losses.push_back(step(std::pair(inputs, inputs.narrow(1, 0, 2).clone())).item<float>());
                 scheduler.step();
               }
               result.weight = net->weight.detach().clone();
               return result;
             })
      .front();
}

TEST(CapturedStepTest, ReplaysHaveTheBitsOfTheFunction) {
  const auto eager = trained(/*has_graphs=*/false), replayed = trained(/*has_graphs=*/true);
  EXPECT_EQ(eager.num_replays, 0);
  EXPECT_EQ(replayed.num_replays, 4);
  EXPECT_EQ(replayed.losses, eager.losses);
  EXPECT_TRUE(replayed.weight.equal(eager.weight));
}

template <typename Body>
void on_rank_with_graphs(const Body& body) {
  run_ranks(Backend::kSim, 1, [&](RankContext& rank) {
    int num_replays = 0;
    offer_graphs(rank, nullptr, num_replays);
    body(rank);
  });
}

TEST(CapturedStepTest, InputsOfAnotherShapeAreRefused) {
  on_rank_with_graphs([](RankContext& rank) {
    Accelerator accelerator({}, rank);
    auto step = accelerator.capture_step([](const at::Tensor& x) { return x * 2; }, {.warm_up_steps = 1});
    step(torch::ones({4, 3}));
    EXPECT_TRUE(step(torch::ones({4, 3})).equal(torch::full({4, 3}, 2.0)));
    EXPECT_TRUE(step(torch::zeros({4, 3})).equal(torch::zeros({4, 3})));
    EXPECT_THAT(message_of<ArgumentError>([&] {
                  step(torch::ones({2, 3}));
                }),
                HasSubstr("input tensor 0 has shape [2, 3] and dtype Float; expected [4, 3] and Float, as in the "
                          "capture; set drop_last to leave out a short batch"));
    EXPECT_THAT(message_of<ArgumentError>([&] { step(torch::ones({4, 3}, torch::kLong)); }), HasSubstr("dtype Long"));
    auto of_lists = accelerator.capture_step([](const std::vector<at::Tensor>& list) { return list.front() + 1; },
                                             {.warm_up_steps = 1});
    of_lists(std::vector{torch::ones({1})});
    of_lists(std::vector{torch::ones({1})});
    EXPECT_THAT(message_of<ArgumentError>([&] {
                  of_lists(std::vector{torch::ones({1}), torch::ones({1})});
                }),
                HasSubstr("got 2 input tensors; expected 1"));
  });
}

// load_state replaces the tensors of the optimizer's state.
TEST(CapturedStepTest, TheWarmUpRestartsWhenMemoryIsReplaced) {
  run_ranks(Backend::kSim, 1, [](RankContext& rank) {
    Accelerator accelerator({}, rank);
    nn::Linear net(2, 2);
    ObservedAdamW adamw(net->parameters(), optim::AdamWOptions{.lr = 0.5});
    int num_replays = 0;
    offer_graphs(rank, &adamw, num_replays);
    auto [model, optimizer] = accelerator.prepare(net, adamw);
    auto step = accelerator.capture_step(
        [&, model = model, optimizer = optimizer](const at::Tensor& x) mutable {
          auto loss = model(x).square().mean();
          accelerator.backward(loss);
          optimizer.step();
          optimizer.zero_grad();
          return loss;
        },
        {.warm_up_steps = 2});
    const auto call = [&](int count) {
      for (int i = 0; i < count; ++i) step(torch::ones({3, 2}));
      return num_replays;
    };
    EXPECT_EQ(call(4), 2);
    adamw.load_state_dict(adamw.state_dict());
    EXPECT_EQ(call(2), 2);
    EXPECT_EQ(call(1), 3);
  });
}

TEST(CapturedStepTest, AllReasonsAgainstACaptureAreReported) {
  on_rank_with_graphs([](RankContext& rank) {
    Accelerator accelerator({.mixed_precision = "fp16",
                             .gradient_accumulation_steps = 2,
                             .ddp_kwargs = {.find_unused_parameters = true},
                             .gradient_guard = {.skip_non_finite = true},
                             .loss_weighting = "exact"},
                            rank);
    nn::Linear net(2, 2);
    torch::optim::SGD sgd(net->parameters(), 0.1);
    const auto prepared = accelerator.prepare(net, sgd);
    auto step = accelerator.capture_step([](const at::Tensor& x) { return x; });
    EXPECT_THAT(message_of<StateError>([&] { step(torch::ones({1})); }),
                AllOf(HasSubstr("capture_step: the step cannot be captured: mixed_precision: fp16"),
                      HasSubstr("gradient_accumulation_steps above 1"), HasSubstr("gradient_guard"),
                      HasSubstr("loss_weighting: exact"), HasSubstr("find_unused_parameters"),
                      HasSubstr("an optimizer is not a fused SGD, Adam or AdamW of accel::optim")));
  });
  on_rank_with_graphs([](RankContext& rank) {
    Accelerator accelerator({.fsdp_plugin = FullyShardedDataParallelPlugin{}}, rank);
    nn::Linear net(2, 2);
    auto model = accelerator.prepare(net);
    auto step = accelerator.capture_step([](const at::Tensor& x) { return x; });
    EXPECT_THAT(message_of<StateError>([&] { step(torch::ones({1})); }), HasSubstr("sharded models"));
  });
}

TEST(CapturedStepTest, ASchedulesStepInsideTheFunctionIsRefused) {
  run_ranks(Backend::kSim, 1, [](RankContext& rank) {
    Accelerator accelerator({}, rank);
    nn::Linear net(2, 2);
    optim::SGD sgd(net->parameters(), {.lr = 0.1});
    LambdaLR schedule(sgd, [](std::int64_t) { return 1.0; });
    auto [model, optimizer, scheduler] = accelerator.prepare(net, sgd, schedule);
    rank.capture_graph = [](const std::function<void()>& body) {
      body();
      return std::unique_ptr<DeviceGraph>();
    };
    auto step = accelerator.capture_step(
        [&, scheduler = scheduler](const at::Tensor& x) mutable {
          scheduler.step();
          return x;
        },
        {.warm_up_steps = 1});
    step(torch::ones({1}));
    EXPECT_THAT(message_of<StateError>([&] { step(torch::ones({1})); }), HasSubstr("the function steps a schedule"));
  });
}

}  // namespace
}  // namespace accel::testing::captured_step
