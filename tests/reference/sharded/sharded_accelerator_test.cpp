// Tests of sharded training through the Accelerator. The reference is the same training with DDP, mostly on two
// ranks, where a sum does not depend on its order and the bits must be equal.
#include <accel/accel.hpp>
#include <accel/testing.hpp>
#include <gmock/gmock.h>

#include "reference/optim/optimizers/optimizers.hpp"
#include "reference/prepared/sharded_parallel_model.hpp"
#include "reference/sharded/file_memory.hpp"
#include "tests/reference/sharded/sharded_training.hpp"
#include "tests/reference/sharded/sharding_options.hpp"

namespace accel::testing {
namespace {

using ::testing::HasSubstr;

// What a training leaves: its losses, its norms and the full parameters.
struct Trained {
  std::vector<float> losses, norms;
  NamedTensors state;
};

// How long to train, and how.
struct Training {
  int num_steps = 4, accumulation = 1;
  std::optional<double> max_norm;
  bool uses_adam = true;
};

template <typename Model>
Trained train_steps(Accelerator& accelerator, Model& model, AcceleratedOptimizer& optimizer, const Training& training) {
  Trained trained;
  for (int step = 0; step < training.num_steps * training.accumulation; ++step) {
    auto window = accelerator.accumulate(model);
    auto loss = model(batch_of(accelerator.process_index(), step, 4, false)).square().mean();
    accelerator.backward(loss);
    if (training.max_norm)
      trained.norms.push_back(
          accelerator.clip_grad_norm_(model.parameters(), *training.max_norm).template item<float>());
    optimizer.step();
    optimizer.zero_grad();
    trained.losses.push_back(loss.template item<float>());
  }
  trained.state = accelerator.get_state_dict(model);
  return trained;
}

Trained train(AcceleratorOptions options, const Training& training = {}) {
  options.gradient_accumulation_steps = training.accumulation;
  Accelerator accelerator(options);
  auto net = make_net();
  optim::Adam adam(net->parameters(), {.lr = 0.05, .weight_decay = 0.1});  // must not decay the unused parameter
  torch::optim::SGD sgd(net->parameters(), 0.05);
  torch::optim::Optimizer& chosen = training.uses_adam ? static_cast<torch::optim::Optimizer&>(adam) : sgd;
  auto [model, optimizer] = accelerator.prepare(net, chosen);
  return train_steps(accelerator, model, optimizer, training);
}

// The result of rank 0; all ranks have the same.
Trained train_on(int num_ranks, const AcceleratorOptions& options, const Training& training = {}) {
  return run_ranks(num_ranks, [&] { return train(options, training); }).front();
}

// Equal bits, unless a tolerance is given.
void expect_same(const Trained& expected, const Trained& found, double tolerance = 0) {
  ASSERT_EQ(expected.losses.size(), found.losses.size());
  for (std::size_t i = 0; i < expected.losses.size(); ++i)
    EXPECT_NEAR(expected.losses[i], found.losses[i], tolerance) << "loss " << i;
  std::map<std::string, at::Tensor> by_name(found.state.begin(), found.state.end());
  for (const auto& [name, tensor] : expected.state) {
    ASSERT_TRUE(by_name.contains(name)) << name;
    EXPECT_TRUE(tolerance == 0 ? torch::equal(tensor, by_name.at(name))
                               : torch::allclose(tensor, by_name.at(name), tolerance, tolerance))
        << name;
  }
}

// With and without accumulation, since strategies reduce gradients at different times.
TEST(ShardedAcceleratorTest, EveryStrategyTrainsLikeDdpOnTwoRanks) {
  for (const int accumulation : {1, 3}) {
    const Training training{.accumulation = accumulation, .uses_adam = false};
    const auto expected = train_on(2, ddp(), training);
    for (const auto* strategy : {"FULL_SHARD", "SHARD_GRAD_OP", "HYBRID_SHARD", "HYBRID_SHARD_ZERO2"}) {
      SCOPED_TRACE(fmt::format("{} x {}", strategy, accumulation));
      expect_same(expected, train_on(2, {.fsdp_plugin = wrapping_blocks(strategy)}, training));
    }
    for (int stage = 0; stage <= 3; ++stage) {
      SCOPED_TRACE(fmt::format("stage {} x {}", stage, accumulation));
      // Stages 2 and 3 sum over ranks at each micro-batch, which is another order of the sum.
      const double tolerance = stage >= 2 && accumulation > 1 ? 1e-6 : 0;
      const DeepSpeedPlugin plugin{
          .gradient_accumulation_steps = std::to_string(accumulation), .gradient_clipping = "0", .zero_stage = stage};
      expect_same(expected,
                  train_on(2, {.deepspeed_plugin = plugin, .ddp_kwargs = {.find_unused_parameters = true}}, training),
                  tolerance);
    }
  }
}

// The norm is computed over all shards. On more than two ranks sums are rounded differently, hence a tolerance.
TEST(ShardedAcceleratorTest, MomentsAndClippedGradientsEqualThoseOfFullParameters) {
  const Training training{.max_norm = 0.05};
  for (const int num_ranks : {2, 3, 4, 8}) {
    SCOPED_TRACE(num_ranks);
    const auto expected = train_on(num_ranks, ddp(), training);
    const auto found = train_on(num_ranks, {.fsdp_plugin = wrapping_blocks()}, training);
    expect_same(expected, found, 1e-4);
    for (std::size_t i = 0; i < expected.norms.size(); ++i)
      EXPECT_NEAR(expected.norms[i], found.norms[i], 1e-5 * expected.norms[i]);
  }
}

// Adagrad creates its state in its constructor, with the shapes of the full parameters.
template <typename Optimizer>
Trained train_with_adagrad(AcceleratorOptions options, bool model_is_first) {
  Accelerator accelerator(options);
  auto net = make_net();
  Optimizer adagrad(net->parameters(), torch::optim::AdagradOptions(0.05).initial_accumulator_value(0.1));
  const auto optimizer = model_is_first
                             ? std::nullopt
                             : std::optional(accelerator.prepare(static_cast<torch::optim::Optimizer&>(adagrad)));
  auto model = accelerator.prepare(net);
  auto stepping = optimizer ? *optimizer : accelerator.prepare(static_cast<torch::optim::Optimizer&>(adagrad));
  return train_steps(accelerator, model, stepping, {.num_steps = 3});
}

template <typename Optimizer>
void expect_adagrad_like_unsharded() {
  const auto train_all = [](const AcceleratorOptions& options, bool model_is_first) {
    return run_ranks(2, [&] { return train_with_adagrad<Optimizer>(options, model_is_first); }).front();
  };
  const auto expected = train_all(ddp(), true);
  for (const bool model_is_first : {true, false}) {
    SCOPED_TRACE(model_is_first ? "the model is prepared first" : "the optimizer is prepared first");
    expect_same(expected, train_all({.fsdp_plugin = wrapping_blocks()}, model_is_first), 1e-6);
  }
}

TEST(ShardedAcceleratorTest, AdagradsStateIsShardedWithTheModel) { expect_adagrad_like_unsharded<optim::Adagrad>(); }
TEST(ShardedAcceleratorTest, LibTorchsAdagradsStateIsShardedWithTheModel) {
  expect_adagrad_like_unsharded<torch::optim::Adagrad>();
}

template <typename Optimizer>
void expect_error_after_a_step() {
  for (const bool model_is_first : {true, false}) {
    SCOPED_TRACE(model_is_first ? "the model is prepared first" : "the optimizer is prepared first");
    run_ranks(2, [&] {
      Accelerator accelerator({.fsdp_plugin = wrapping_blocks()});
      auto net = make_net();
      Optimizer stepped(net->parameters());
      std::optional<AcceleratedOptimizer> handle;
      const auto prepare_optimizer = [&] {
        handle.emplace(accelerator.prepare(static_cast<torch::optim::Optimizer&>(stepped)));
      };
      if (!model_is_first) prepare_optimizer();
      for (auto& parameter : net->parameters()) parameter.mutable_grad() = torch::ones_like(parameter);
      stepped.step();
      if (model_is_first) {
        accelerator.prepare(net);
        EXPECT_THROW(prepare_optimizer(), StateError);
      } else {
        EXPECT_THROW(accelerator.prepare(net), StateError);
      }
    });
  }
}

// Its state has the shapes of the full parameters and cannot be divided any more.
TEST(ShardedAcceleratorTest, AnOptimizerThatHasSteppedIsAnError) {
  expect_error_after_a_step<optim::Adam>();
  expect_error_after_a_step<optim::Adagrad>();
  expect_error_after_a_step<torch::optim::Adam>();
  expect_error_after_a_step<torch::optim::Adagrad>();
}

// With two models, one may train before the other is prepared. Its optimizer has steps by then, which is no error.
TEST(ShardedAcceleratorTest, ASecondModelIsPreparedAfterTheFirstOnesSteps) {
  run_ranks(2, [] {
    Accelerator accelerator({.fsdp_plugin = wrapping_blocks()});
    auto first = make_net(), second = make_net();
    optim::Adam of_first(first->parameters()), of_second(second->parameters());
    auto [first_model, first_optimizer] = accelerator.prepare(first, of_first);
    train_steps(accelerator, first_model, first_optimizer, {});
    auto [second_model, second_optimizer] = accelerator.prepare(second, of_second);
    train_steps(accelerator, second_model, second_optimizer, {});
  });
}

// The float16 gradient of one rank overflows. No rank may step, and the scale falls on all of them.
TEST(ShardedAcceleratorTest, AnInfinityInOneShardSkipsTheStepOnEveryRank) {
  const auto skipped = run_ranks(3, [] {
    Accelerator accelerator({.mixed_precision = "fp16", .fsdp_plugin = wrapping_blocks()});
    auto net = make_net();
    torch::optim::SGD sgd(net->parameters(), 0.05);
    auto [model, optimizer] = accelerator.prepare(net, sgd);
    auto values = batch_of(0, 0, 4, false);
    accelerator.backward(model(values).square().mean());
    if (accelerator.process_index() == 1) {
      for (auto& parameter : net->parameters()) {
        if (parameter.grad().defined() && parameter.grad().numel() > 0) parameter.mutable_grad().fill_(INFINITY);
      }
    }
    optimizer.step();
    return std::pair(optimizer.step_was_skipped(), accelerator.scaler()->get_scale());
  });
  EXPECT_THAT(skipped, ::testing::Each(::testing::Pair(true, 32768.0)));
}

// Outside of the scope a parameter is a flat shard; inside it has its shape.
TEST(ShardedAcceleratorTest, GatheredParametersAreCompleteAndTakeOneRanksChanges) {
  run_ranks(3, [] {
    Accelerator accelerator({.fsdp_plugin = wrapping_blocks()});
    auto net = make_net();
    auto model = accelerator.prepare(net);
    EXPECT_EQ(net->head->weight.dim(), 1);
    {
      auto whole = accelerator.gathered_parameters(model, /*modifier_rank=*/1);
      EXPECT_EQ(net->head->weight.sizes(), (std::vector<std::int64_t>{4, 4}));
      const torch::NoGradGuard no_grad;
      if (accelerator.process_index() == 1) net->head->weight.fill_(3);
    }
    auto whole = accelerator.gathered_parameters(model);
    EXPECT_TRUE(torch::equal(net->head->weight, torch::full({4, 4}, 3.0)));
  });
}

// Its weights are not gathered at that time.
TEST(ShardedAcceleratorTest, AUnitThatIsCalledWithoutTheAdapterIsAStateErrorWithItsName) {
  try {
    run_ranks(2, [] {
      Accelerator accelerator({.fsdp_plugin = FullyShardedDataParallelPlugin{.wrap_modules = {"head"}}});
      auto model = accelerator.prepare(make_net());
      model(torch::ones({2, 4}));
    });
    FAIL() << "the forward was carried out";
  } catch (const std::exception& error) {
    EXPECT_THAT(error.what(), HasSubstr("'head'"));
    EXPECT_THAT(error.what(), HasSubstr("accel::call"));
  }
}

// DeepSpeed's option of the same name.
TEST(ShardedAcceleratorTest, StageThreeSaves16BitWeightsIfConfigured) {
  for (const bool asks : {false, true}) {
    run_ranks(2, [&] {
      Accelerator accelerator({.mixed_precision = "bf16",
                               .deepspeed_plugin = DeepSpeedPlugin{.zero_stage = 3, .zero3_save_16bit_model = asks}});
      auto model = accelerator.prepare(make_net());
      const auto is_buffer = [](const std::string& name) {
        return name.ends_with("calls");
      };  // DeepSpeed casts these in any case
      for (const auto& [name, tensor] : accelerator.get_state_dict(model))
        EXPECT_EQ(tensor.scalar_type(), asks || is_buffer(name) ? torch::kBFloat16 : torch::kFloat) << name;
    });
  }
}

// A pass without synchronisation adds to gradients that an earlier pass has already reduced. Both parts must count.
TEST(ShardedAcceleratorTest, NoGradientIsLostForAnyWayOfZeroingAndSynchronising) {
  for (const bool in_place : {false, true}) {
    for (const bool by_hand : {false, true}) {
      const auto trained = [&](const AcceleratorOptions& plain) {
        auto options = plain;
        options.gradient_accumulation_steps = by_hand ? 1 : 3;
        return run_ranks(
                   2,
                   [&] {
                     Accelerator accelerator(options);
                     auto net = make_net();
                     torch::optim::SGD sgd(net->parameters(), 0.1);
                     auto [model, optimizer] = accelerator.prepare(net, sgd);
                     const auto backward = [&](int batch) {
                       accelerator.backward(
                           model(batch_of(accelerator.process_index(), batch, 4, /*integer=*/false)).square().mean());
                     };
                     for (int step = 0; step < 6; ++step) {
                       if (by_hand) {
                         backward(3 * step);
                         {
                           const auto local = accelerator.no_sync(model);
                           backward(3 * step + 1);
                         }
                         backward(3 * step + 2);
                         optimizer.step();
                         optimizer.zero_grad(!in_place);
                         continue;
                       }
                       auto window = accelerator.accumulate(model);
                       backward(step);
                       optimizer.step();
                       optimizer.zero_grad(!in_place);
                     }
                     std::map<std::string, at::Tensor> state;
                     for (const auto& [name, tensor] : accelerator.get_state_dict(model)) {
                       if (!name.ends_with("calls")) state.emplace(name, tensor);  // a buffer
                     }
                     return state;
                   })
            .front();
      };
      const auto expected = trained(ddp());
      for (const int version : {1, 2}) {
        const auto plugin = version == 1 ? wrapping_blocks() : second_version();
        const auto found = trained({.fsdp_plugin = plugin});
        ASSERT_EQ(found.size(), expected.size());
        for (const auto& [name, tensor] : expected) {
          EXPECT_TRUE(torch::allclose(found.at(name), tensor, 1e-5, 1e-6))
              << name << ", version " << version << (in_place ? ", in place" : "") << (by_hand ? ", by hand" : "");
        }
      }
    }
  }
}

// A rate of 1e-5 is below the precision of bfloat16: without a float32 copy nothing would change.
TEST(ShardedAcceleratorTest, LowPrecisionParametersAreKeptInFloat32) {
  run_ranks(2, [] {
    Accelerator accelerator({.mixed_precision = "bf16", .fsdp_plugin = FullyShardedDataParallelPlugin{}});
    auto net = make_net();
    net->to(torch::kBFloat16);
    optim::AdamW adamw(net->parameters(), {.lr = 1e-5});
    auto [model, optimizer] = accelerator.prepare(net, adamw);
    accelerator.backward(model(torch::ones({2, 4})).square().mean());
    optimizer.step();
    for (const auto& parameter : model.parameters())
      EXPECT_EQ(parameter.scalar_type(), parameter.requires_grad() ? torch::kFloat : torch::kBFloat16);
    const auto state = adamw.state_dict().at("state").as<Value::Dict>();
    for (const auto& [index, entries] : state)
      EXPECT_EQ(entries.at("exp_avg").as<at::Tensor>().scalar_type(), torch::kFloat);
  });
}

// Programs log the norm, also if clipping is off.
TEST(ShardedAcceleratorTest, DeepSpeedReportsTheNormWithoutClipping) {
  run_ranks(2, [] {
    Accelerator accelerator({.deepspeed_plugin = DeepSpeedPlugin{.gradient_clipping = "0", .zero_stage = 2}});
    auto net = make_net();
    torch::optim::SGD sgd(net->parameters(), 0.1);
    auto [model, optimizer] = accelerator.prepare(net, sgd);
    EXPECT_EQ(accelerator.clip_grad_norm_(model.parameters(), 1.0).item<double>(), 0);
    accelerator.backward(model(torch::ones({2, 4})).square().mean());
    EXPECT_GT(accelerator.clip_grad_norm_(model.parameters(), 1.0).item<double>(), 0);
  });
}

// As in Accelerate, for trainings with a teacher and a student.
TEST(ShardedAcceleratorTest, OneOfSeveralDeepSpeedPluginsIsSelected) {
  run_ranks(2, [] {
    AcceleratorOptions options;
    options.deepspeed_plugins = {{"student", DeepSpeedPlugin{.gradient_accumulation_steps = "2", .zero_stage = 2}},
                                 {"teacher", DeepSpeedPlugin{.zero_stage = 3}}};
    Accelerator accelerator(options);
    EXPECT_EQ(accelerator.gradient_accumulation_steps(), 2);
    auto student = make_net(), teacher = make_net();
    auto trained = accelerator.prepare(student);
    EXPECT_EQ(student->head->weight.dim(), 1) << "its parts are what the optimizer steps";
    EXPECT_THROW(accelerator.prepare(make_net()), StateError);
    accelerator.select_deepspeed_plugin("teacher");
    auto watched = accelerator.prepare(teacher);
    const auto shards_parameters = [](const auto& model) {
      return dynamic_cast<const ShardedParallelModel&>(*model.parallel_model()).model().options().parameters;
    };
    EXPECT_TRUE(shards_parameters(watched));
    EXPECT_FALSE(shards_parameters(trained));
    const torch::NoGradGuard no_grad;
    EXPECT_TRUE(torch::equal(trained(torch::ones({2, 4})), watched(torch::ones({2, 4}))));
    EXPECT_EQ(accelerator.get_deepspeed_plugin("student").zero_stage, 2);
    EXPECT_THROW(accelerator.select_deepspeed_plugin("nobody"), ArgumentError);
  });
  AcceleratorOptions wrong;
  wrong.deepspeed_plugins = {{"a", DeepSpeedPlugin{}}, {"b", DeepSpeedPlugin{.zero_stage = 7}}};
  run_ranks(2, [&] {
    try {
      Accelerator accelerator(wrong);
      ADD_FAILURE() << "a plugin that is selected later is checked now";
    } catch (const ConfigError& error) {
      EXPECT_THAT(error.what(), HasSubstr("deepspeed_plugins 'b': "));
    }
  });
}

// As in Accelerate with FSDP.
TEST(ShardedAcceleratorTest, ClippingByValueIsAnError) {
  run_ranks(2, [] {
    Accelerator accelerator({.fsdp_plugin = wrapping_blocks()});
    auto net = make_net();
    auto model = accelerator.prepare(net);
    EXPECT_THROW(accelerator.clip_grad_value_(net->parameters(), 1.0), StateError);
  });
}

}  // namespace
}  // namespace accel::testing
