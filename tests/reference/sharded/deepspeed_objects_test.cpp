// Tests of DummyOptim and DummyScheduler, with which a program takes its optimizer and its schedule from the
// DeepSpeed configuration file. Trainings with them must equal trainings that create the same objects in the
// program.
#include <accel/accel.hpp>
#include <accel/optim.hpp>
#include <accel/testing.hpp>
#include <gmock/gmock.h>

#include "reference/optim/optimizers/optimizers.hpp"
#include "reference/optim/schedules/decay_schedules.hpp"
#include "tests/reference/sharded/sharded_training.hpp"
#include "tests/support/message_of.hpp"
#include "tests/support/temporary_folder.hpp"

namespace accel::testing {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

class DeepSpeedObjectsTest : public ::testing::Test {
 protected:
  AcceleratorOptions options(const std::string& json) {
    AcceleratorOptions options;
    options.deepspeed_plugin = DeepSpeedPlugin{.hf_ds_config = folder_.write("deepspeed.json", json)};
    return options;
  }

  TemporaryFolder folder_;
};

struct DummyRun {
  std::vector<double> rates;  // after each step
  NamedTensors state;
};

DummyRun run_steps(
    Accelerator& accelerator, PreparedModel<NetImpl>& model, AcceleratedOptimizer& optimizer, int num_steps,
    const std::function<void()>& behind_step = [] {}) {
  DummyRun run;
  for (int step = 0; step < num_steps; ++step) {
    accelerator.backward(model(batch_of(accelerator.process_index(), step, 4, false)).square().mean());
    optimizer.step();
    behind_step();
    optimizer.zero_grad();
    run.rates.push_back(optimizer.lr());
  }
  run.state = accelerator.get_state_dict(model);
  return run;
}

// DeepSpeed's "Adam" is AdamW. If it were taken for Adam, the weight decay of the file would have another effect.
TEST_F(DeepSpeedObjectsTest, TheFilesOptimizerTrainsLikeTheProgramsOwn) {
  const auto with_optimizer = options(R"({"zero_optimization": {"stage": 2}, "optimizer": {"type": "Adam", )"
                                      R"("params": {"lr": "auto", "betas": [0.8, 0.99], "weight_decay": "auto"}}})");
  const auto without = [&] {
    TemporaryFolder folder;
    AcceleratorOptions plain;
    plain.deepspeed_plugin = DeepSpeedPlugin{.gradient_clipping = "0", .zero_stage = 2};
    return plain;
  }();
  const auto expected = run_ranks(2, [&] {
                          Accelerator accelerator(without);
                          auto net = make_net();
                          optim::AdamW adam(net->parameters(), {.lr = 0.05, .betas = {0.8, 0.99}, .weight_decay = 0.3});
                          auto [model, optimizer] = accelerator.prepare(net, adam);
                          return run_steps(accelerator, model, optimizer, 3).state;
                        }).front();
  const auto found = run_ranks(2, [&] {
                       Accelerator accelerator(with_optimizer);
                       auto net = make_net();
                       DummyOptim dummy{.params = net->parameters(), .lr = 0.05, .weight_decay = 0.3};
                       auto [model, optimizer] = accelerator.prepare(net, dummy);
                       return run_steps(accelerator, model, optimizer, 3).state;
                     }).front();
  EXPECT_EQ(expected.size(), found.size());
  expect_equal(expected, found);
}

// Its defaults are not those of Lion's authors.
TEST_F(DeepSpeedObjectsTest, TheFilesLionHasDeepSpeedsDefaults) {
  const auto trained = [](const AcceleratorOptions& options, auto&& make) {
    return run_ranks(1,
                     [&] {
                       Accelerator accelerator(options);
                       auto net = make_net();
                       auto lion = make(net->parameters());
                       auto [model, optimizer] = accelerator.prepare(net, lion);
                       return run_steps(accelerator, model, optimizer, 4).state;
                     })
        .front();
  };
  AcceleratorOptions plain;
  plain.deepspeed_plugin = DeepSpeedPlugin{.gradient_clipping = "0", .zero_stage = 1};
  const auto expected = trained(plain, [](auto parameters) {
    return std::make_shared<optim::Lion>(parameters, optim::LionOptions{.lr = 1e-3, .betas = {0.9, 0.999}});
  });
  const auto found =
      trained(options(R"({"zero_optimization": {"stage": 1}, "optimizer": {"type": "lion", "params": {}}})"),
              [](auto parameters) { return DummyOptim{.params = parameters}; });
  EXPECT_EQ(expected.size(), found.size());
  expect_equal(expected, found);
}

// Stage 0 does not divide matrices.
TEST_F(DeepSpeedObjectsTest, TheFilesAdafactorNeedsStageZero) {
  const std::string section =
      R"("optimizer": {"type": "Adafactor", "params": {"lr": 0.01, "d": 1.5, "eps": [1e-4, 1e-3]}}})";
  for (const bool is_divided : {false, true}) {
    const auto stage =
        is_divided ? R"({"zero_optimization": {"stage": 1}, )" : R"({"zero_optimization": {"stage": 0}, )";
    run_ranks(1, [&] {
      Accelerator accelerator(options(stage + section));
      auto net = make_net();
      DummyOptim dummy{.params = net->parameters()};
      auto model = accelerator.prepare(net);
      const auto message = message_of<StateError>([&] { accelerator.prepare(dummy); });
      EXPECT_EQ(message.find("Adafactor does not support sharded models") != std::string::npos, is_divided);
    });
  }
}

// DeepSpeed's engine steps the schedule with the optimizer, whatever the program calls. On two ranks, one step
// counts once, unlike Accelerate's own schedules.
TEST_F(DeepSpeedObjectsTest, TheFilesScheduleStepsWithTheOptimizer) {
  const auto file =
      options(R"({"zero_optimization": {"stage": 1}, "optimizer": {"type": "SGD", "params": {"lr": "auto"}},
    "scheduler": {"type": "WarmupDecayLR", "params": {"warmup_max_lr": "auto", "warmup_num_steps": "auto",
      "warmup_min_lr": "auto", "total_num_steps": "auto", "warmup_type": "linear"}}})");
  run_ranks(2, [&] {
    Accelerator accelerator(file);
    auto net = make_net();
    DummyOptim dummy_optimizer{.params = net->parameters(), .lr = 1};
    DummyScheduler dummy_scheduler(dummy_optimizer,
                                   {.total_num_steps = 12, .warmup_num_steps = 2});  // in batches: 6 steps
    auto [model, optimizer, scheduler] = accelerator.prepare(net, dummy_optimizer, dummy_scheduler);
    EXPECT_EQ(optimizer.lr(), 0);
    const auto run = run_steps(accelerator, model, optimizer, 7, [&, &scheduler = scheduler] { scheduler.step(); });
    EXPECT_THAT(run.rates, ElementsAre(0, 0.5, 1, 0.75, 0.5, 0.25, 0));
    EXPECT_EQ(scheduler.get_last_lr().front(), optimizer.lr());
  });
}

// Neither the optimizer nor the schedule advances in a step whose gradients overflow.
TEST_F(DeepSpeedObjectsTest, ASkippedStepHoldsTheScheduleBack) {
  auto file = options(R"({"zero_optimization": {"stage": 1}, "optimizer": {"type": "SGD", "params": {"lr": 0.5}},
    "scheduler": {"type": "WarmupLR", "params": {"warmup_num_steps": 4, "warmup_type": "linear"}}})");
  file.mixed_precision = "fp16";
  file.grad_scaler_kwargs.init_scale = 2;  // the first step does not overflow
  run_ranks(2, [&] {
    Accelerator accelerator(file);
    auto net = make_net();
    DummyOptim dummy_optimizer{.params = net->parameters()};
    DummyScheduler dummy_scheduler(dummy_optimizer);
    auto [model, optimizer, scheduler] = accelerator.prepare(net, dummy_optimizer, dummy_scheduler);
    accelerator.backward(model(batch_of(0, 0, 4, false)).square().mean());
    EXPECT_EQ(scheduler.scheduler().last_epoch(), 1);
    accelerator.backward((model(batch_of(0, 0, 4, false)) * INFINITY).sum());
    EXPECT_TRUE(accelerator.optimizer_step_was_skipped());
    EXPECT_EQ(scheduler.scheduler().last_epoch(), 1);
  });
}

// The program may mix: its own schedule with the file's optimizer.
TEST_F(DeepSpeedObjectsTest, TheProgramsOwnScheduleStepsWithTheEngineToo) {
  const auto file =
      options(R"({"zero_optimization": {"stage": 1}, "optimizer": {"type": "SGD", "params": {"lr": 8}}})");
  run_ranks(2, [&] {
    Accelerator accelerator(file);
    auto net = make_net();
    DummyOptim dummy_optimizer{.params = net->parameters()};
    DummyScheduler dummy_scheduler(dummy_optimizer, {.lr_scheduler_callable = schedule<StepLR>(1, 0.5)});
    auto [model, optimizer, scheduler] = accelerator.prepare(net, dummy_optimizer, dummy_scheduler);
    EXPECT_THAT(run_steps(accelerator, model, optimizer, 3, [&, &scheduler = scheduler] { scheduler.step(); }).rates,
                ElementsAre(4, 2, 1));
  });
}

// The message when `prepare` is called on one rank.
std::string config_error_of(const AcceleratorOptions& options, const std::function<void(Accelerator&, Net&)>& prepare) {
  std::string message;
  run_ranks(1, [&] {
    Accelerator accelerator(options);
    auto net = make_net();
    message = message_of<ConfigError>([&] { prepare(accelerator, net); });
  });
  return message;
}

// If both the file and the program give an optimizer, one of them would be ignored without notice; if neither does,
// there is none.
TEST_F(DeepSpeedObjectsTest, SettingsGivenTwiceOrNotAtAllAreErrors) {
  const std::string staged = R"({"zero_optimization": {"stage": 1})";
  const auto prepare_dummy = [](Accelerator& accelerator, Net& net) {
    accelerator.prepare(DummyOptim{.params = net->parameters()});
  };
  const auto prepare_sgd = [](Accelerator& accelerator, Net& net) {
    torch::optim::SGD sgd(net->parameters(), 0.1);
    accelerator.prepare(sgd);
  };
  EXPECT_THAT(config_error_of(options(staged + "}"), prepare_dummy),
              HasSubstr("DummyOptim: no DeepSpeed file defines an optimizer"));
  EXPECT_THAT(config_error_of(AcceleratorOptions(), prepare_dummy),
              HasSubstr("DummyOptim: no DeepSpeed file defines an optimizer"));
  EXPECT_THAT(config_error_of(options(staged + R"(, "optimizer": {"type": "AdamW"}})"), prepare_sgd),
              HasSubstr("the file defines an optimizer, and the program prepares one too"));
  EXPECT_THAT(config_error_of(options(staged + R"(, "optimizer": {"type": "OneBitAdam"}})"), prepare_dummy),
              HasSubstr("optimizer.type: 'OneBitAdam' is unsupported; expected Adam, "));
  EXPECT_THAT(
      config_error_of(
          options(staged +
                  R"(, "optimizer": {"type": "AdamW", "params": {"eps": "auto", "betas": 3, "lr": -1, "amount": 2}}})"),
          prepare_dummy),
      AllOf(HasSubstr("optimizer.params.eps: \"auto\" cannot be resolved: the program does not set a value"),
            HasSubstr("optimizer.params.betas: expected a list of two numbers, got 3"),
            HasSubstr("optimizer.params.lr: "),
            HasSubstr("optimizer.params.amount: unknown parameter of AdamW; expected one of ")));
  const auto prepare_schedule = [](Accelerator& accelerator, Net& net) {
    torch::optim::SGD sgd(net->parameters(), 0.1);
    DummyScheduler dummy(sgd);
    accelerator.prepare(dummy);
  };
  EXPECT_THAT(config_error_of(options(staged + "}"), prepare_schedule),
              HasSubstr("DummyScheduler: no DeepSpeed file defines a scheduler"));
  EXPECT_THAT(config_error_of(
                  options(staged + R"(, "scheduler": {"type": "WarmupDecayLR", "params": {"warmup_num_steps": 0}}})"),
                  prepare_schedule),
              AllOf(HasSubstr("scheduler.params.total_num_steps: is missing"), Not(HasSubstr("warmup_num_steps"))));
  EXPECT_THAT(
      config_error_of(
          options(staged + R"(, "scheduler": {"type": "WarmupDecayLR", "params": {"total_num_steps": "auto"}}})"),
          prepare_schedule),
      HasSubstr("scheduler.params.total_num_steps: \"auto\" cannot be resolved: the program does not set a value"));
}

}  // namespace
}  // namespace accel::testing
