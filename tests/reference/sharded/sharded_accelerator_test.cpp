#include <accel/accel.hpp>
#include <accel/testing.hpp>
#include <gmock/gmock.h>

#include "reference/optim/optimizers/optimizers.hpp"
#include "reference/prepared/sharded_parallel_model.hpp"
#include "reference/sharded/file_memory.hpp"
#include "tests/reference/sharded/sharded_training.hpp"
#include "tests/support/message_of.hpp"
#include "tests/support/temporary_folder.hpp"

namespace accel::testing {
namespace {

using ::testing::HasSubstr;

FullyShardedDataParallelPlugin wrapping_blocks(const std::string& strategy = "FULL_SHARD") {
  return {.sharding_strategy = strategy,
          .auto_wrap_policy = "TRANSFORMER_BASED_WRAP",
          .transformer_cls_names_to_wrap = {"Block"},
          .wrap_modules = {"tail\\.[02]"}};
}

FullyShardedDataParallelPlugin second_version() {
  auto plugin = wrapping_blocks();
  plugin.fsdp_version = 2;
  plugin.sharding_strategy.reset();
  return plugin;
}

struct Trained {
  std::vector<float> losses, norms;
  NamedTensors state;
};

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
  optim::Adam adam(net->parameters(),
                   {.lr = 0.05});  // without decay: a parameter that nothing uses has a gradient of zeros
  torch::optim::SGD sgd(net->parameters(), 0.05);
  torch::optim::Optimizer& chosen = training.uses_adam ? static_cast<torch::optim::Optimizer&>(adam) : sgd;
  auto [model, optimizer] = accelerator.prepare(net, chosen);
  return train_steps(accelerator, model, optimizer, training);
}

Trained train_on(int num_ranks, const AcceleratorOptions& options, const Training& training = {}) {
  return run_ranks(num_ranks, [&] { return train(options, training); }).front();
}

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

AcceleratorOptions ddp() { return {.ddp_kwargs = {.find_unused_parameters = true}}; }

TEST(ShardedAcceleratorTest, EveryStrategyTrainsAsDdpDoesOnTwoRanks) {
  for (const int accumulation : {1, 3}) {
    const Training training{.accumulation = accumulation, .uses_adam = false};
    const auto expected = train_on(2, ddp(), training);
    for (const auto* strategy : {"FULL_SHARD", "SHARD_GRAD_OP", "HYBRID_SHARD", "HYBRID_SHARD_ZERO2"}) {
      SCOPED_TRACE(fmt::format("{} x {}", strategy, accumulation));
      expect_same(expected, train_on(2, {.fsdp_plugin = wrapping_blocks(strategy)}, training));
    }
    for (int stage = 0; stage <= 3; ++stage) {
      SCOPED_TRACE(fmt::format("stage {} x {}", stage, accumulation));
      // Stages 2 and 3 sum over ranks at each micro-batch: another order.
      const double tolerance = stage >= 2 && accumulation > 1 ? 1e-6 : 0;
      const DeepSpeedPlugin plugin{
          .gradient_accumulation_steps = std::to_string(accumulation), .gradient_clipping = "0", .zero_stage = stage};
      expect_same(expected,
                  train_on(2, {.deepspeed_plugin = plugin, .ddp_kwargs = {.find_unused_parameters = true}}, training),
                  tolerance);
    }
  }
}

TEST(ShardedAcceleratorTest, MomentsAndClippedGradientsAreThoseOfWholeParameters) {
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

// Adagrad's state is there from its construction on, in the shapes of whole parameters.
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
void expect_adagrad_as_of_whole_parameters() {
  const auto train_all = [](const AcceleratorOptions& options, bool model_is_first) {
    return run_ranks(2, [&] { return train_with_adagrad<Optimizer>(options, model_is_first); }).front();
  };
  const auto expected = train_all(ddp(), true);
  for (const bool model_is_first : {true, false}) {
    SCOPED_TRACE(model_is_first ? "the model is prepared first" : "the optimizer is prepared first");
    expect_same(expected, train_all({.fsdp_plugin = wrapping_blocks()}, model_is_first), 1e-6);
  }
}

TEST(ShardedAcceleratorTest, AdagradsStateIsCutWithTheModel) {
  expect_adagrad_as_of_whole_parameters<optim::Adagrad>();
}
TEST(ShardedAcceleratorTest, LibTorchsAdagradsStateIsCutWithTheModel) {
  expect_adagrad_as_of_whole_parameters<torch::optim::Adagrad>();
}

template <typename Optimizer>
void expect_refused_once_it_has_stepped() {
  for (const bool model_is_first : {true, false}) {
    SCOPED_TRACE(model_is_first ? "the model is prepared first" : "the optimizer is prepared first");
    run_ranks(2, [&] {
      Accelerator accelerator({.fsdp_plugin = wrapping_blocks()});
      auto net = make_net();
      Optimizer stepped(net->parameters());
      const auto prepare_optimizer = [&] { accelerator.prepare(static_cast<torch::optim::Optimizer&>(stepped)); };
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

TEST(ShardedAcceleratorTest, AnOptimizerThatHasSteppedIsRefused) {
  expect_refused_once_it_has_stepped<optim::Adam>();
  expect_refused_once_it_has_stepped<optim::Adagrad>();
  expect_refused_once_it_has_stepped<torch::optim::Adam>();
  expect_refused_once_it_has_stepped<torch::optim::Adagrad>();
}

// Of two models one may train before the other is prepared.
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

// One rank's float16 gradient overflows: no rank steps, and the scale falls.
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

TEST(ShardedAcceleratorTest, GatheredParametersAreWholeAndTakeOneRanksChanges) {
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

struct LayerImpl : torch::nn::Module {
  LayerImpl(int width, int hidden)
      : up(register_module("up", torch::nn::Linear(width, hidden))),
        down(register_module("down", torch::nn::Linear(hidden, width))) {}
  at::Tensor forward(const at::Tensor& x) { return down(torch::relu(up(x))); }
  torch::nn::Linear up, down;
};
TORCH_MODULE(Layer);

// Layers of one width; layers are units.
torch::nn::Sequential make_layers(int num_layers, int width, int hidden) {
  torch::manual_seed(7);
  torch::nn::Sequential layers;
  for (int i = 0; i < num_layers; ++i) layers->push_back(Layer(width, hidden));
  return layers;
}

// Parameters, gradients and moments take 16 bytes an element: four times what one rank may have, and with eight ranks
// it trains.
TEST(ShardedAcceleratorTest, AModelFourTimesLargerThanARanksAllowanceTrains) {
  constexpr int kRanks = 8, kLayers = 16, kWidth = 96, kRows = 8;
  std::int64_t elements = 0;
  for (const auto& parameter : make_layers(kLayers, kWidth, kWidth)->parameters()) elements += parameter.numel();
  const auto allowance = 16 * elements / 4;
  const auto held = run_ranks(kRanks, [&] {
    Accelerator accelerator({.fsdp_plugin = FullyShardedDataParallelPlugin{.wrap_modules = {"[0-9]+"}}});
    auto net = make_layers(kLayers, kWidth, kWidth);
    optim::Adam adam(net->parameters(), {.lr = 0.001});
    auto [model, optimizer] = accelerator.prepare(net, adam);
    auto generator = make_generator(accelerator.process_index());
    const auto inputs = torch::randn({kRows, kWidth}, generator);
    float first = 0, last = 0;
    sharded::MemoryAccount account;
    for (int step = 0; step < 6; ++step) {
      at::Tensor loss;
      {
        const auto meter = accelerator.measure_activations(model);
        loss = (model(inputs) - inputs).square().mean();
      }
      accelerator.backward(loss);
      optimizer.step();
      account = accelerator.memory_account(model);
      optimizer.zero_grad();
      (step == 0 ? first : last) = loss.item<float>();
    }
    EXPECT_LT(last, first);
    return account;
  });
  for (const auto& account : held) {
    std::int64_t most = 0;
    for (std::size_t kind = 0; kind < sharded::kMemoryKindNames.size(); ++kind)
      most += account.most(static_cast<sharded::MemoryKind>(kind));
    EXPECT_LT(most, allowance);
    // 16 bytes an element over the ranks, and a count of steps for each parameter.
    const auto state = account.most(sharded::MemoryKind::kParameters) + account.now(sharded::MemoryKind::kGradients) +
                       account.most(sharded::MemoryKind::kOptimizer);
    const double share = 16.0 * static_cast<double>(elements) / kRanks;
    EXPECT_NEAR(static_cast<double>(state), share, 0.05 * share);
    EXPECT_GE(account.most(sharded::MemoryKind::kActivations), 2 * kLayers * kRows * kWidth * 4)
        << "inputs of two linear parts in each layer";
    EXPECT_LT(account.most(sharded::MemoryKind::kActivations), 4 * kLayers * kRows * kWidth * 4);
  }
}

TEST(ShardedAcceleratorTest, AMeasureOfActivationsCountsWhatForwardKeepsAndRecomputationKeepsLess) {
  constexpr int kLayers = 8, kWidth = 16, kHidden = 128, kRows = 512;
  const auto activations_of = [&](bool recomputes) {
    return run_ranks(
               2,
               [&] {
                 Accelerator accelerator({.fsdp_plugin = FullyShardedDataParallelPlugin{
                                              .wrap_modules = {"[0-9]+"}, .activation_checkpointing = recomputes}});
                 auto model = accelerator.prepare(make_layers(kLayers, kWidth, kHidden));
                 const auto inputs = torch::ones({kRows, kWidth});
                 at::Tensor loss;
                 {
                   const auto meter = accelerator.measure_activations(model);
                   loss = model(inputs).square().mean();
                 }
                 accelerator.backward(loss);
                 return accelerator.memory_account(model).most(sharded::MemoryKind::kActivations);
               })
        .front();
  };
  const auto kept = activations_of(false), recomputed = activations_of(true);
  EXPECT_GE(kept, kLayers * (kWidth + kHidden) * kRows * 4);
  EXPECT_GE(recomputed, kLayers * kWidth * kRows * 4);
  EXPECT_LT(recomputed, kept / 2);
}

TEST(ShardedAcceleratorTest, StageThreeGivesWeightsIn16BitsWhereItIsAskedTo) {
  for (const bool asks : {false, true}) {
    run_ranks(2, [&] {
      Accelerator accelerator({.mixed_precision = "bf16",
                               .deepspeed_plugin = DeepSpeedPlugin{.zero_stage = 3, .zero3_save_16bit_model = asks}});
      auto model = accelerator.prepare(make_net());
      const auto is_buffer = [](const std::string& name) {
        return name.ends_with("calls");
      };  // which DeepSpeed casts anyway
      for (const auto& [name, tensor] : accelerator.get_state_dict(model))
        EXPECT_EQ(tensor.scalar_type(), asks || is_buffer(name) ? torch::kBFloat16 : torch::kFloat) << name;
    });
  }
}

// What a pass without synchronisation adds stays beside what an earlier one has reduced.
TEST(ShardedAcceleratorTest, NoGradientIsLostWhoeverZeroesThemAndWhateverIsSynchronised) {
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

TEST(ShardedAcceleratorTest, DeepSpeedTellsTheNormWithoutClipping) {
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

// --- copies of shards ---

AcceleratorOptions on_mesh(ParallelismConfig mesh) {
  auto plugin = second_version();
  plugin.state_dict_type = "SHARDED_STATE_DICT";
  AcceleratorOptions options{.fsdp_plugin = plugin};
  options.parallelism_config = mesh;
  return options;
}

TEST(ShardedAcceleratorTest, CopiesOfAShardAreSavedOnceAndModifiedTogether) {
  for (const auto mesh : {ParallelismConfig{.dp_replicate_size = 2, .dp_shard_size = 2},
                          ParallelismConfig{.dp_shard_size = 2, .tp_size = 2}}) {
    const TemporaryFolder folder;
    const auto states = run_ranks(4, [&] {
      Accelerator accelerator(on_mesh(mesh));
      auto net = make_net();
      optim::Adam adam(net->parameters(), {.lr = 0.1});
      auto [model, optimizer] = accelerator.prepare(net, adam);
      const auto step = [&] {
        accelerator.backward(model(batch_of(accelerator.data_parallel_rank(), 1, 4, false)).square().mean());
        optimizer.step();
        optimizer.zero_grad();
      };
      step();
      {
        const auto whole = accelerator.gathered_parameters(model, /*modifier_rank=*/0);
        if (accelerator.is_main_process()) {
          const torch::NoGradGuard no_grad;
          net->head->weight.fill_(3);
        }
      }
      accelerator.save_state(folder.path("state"));
      step();
      const auto whole_then = [&] {
        const auto whole = accelerator.gathered_parameters(model);
        return net->head->weight.detach().clone();
      }();
      accelerator.load_state(folder.path("state"));
      step();
      const auto whole = accelerator.gathered_parameters(model);
      EXPECT_TRUE(torch::equal(net->head->weight, whole_then));
      return net->head->weight.detach().clone();
    });
    if (mesh.dp_replicate_size == 2) {
      for (const auto& state : states) EXPECT_TRUE(torch::equal(state, states.front()));
    }
  }
}

// Each rank has a part of the sequence: gradients are averaged over all of them.
TEST(ShardedAcceleratorTest, RanksThatShareASequenceAverageTheirGradients) {
  const auto trained = [](const AcceleratorOptions& options) {
    return run_ranks(2, [&] {
      Accelerator accelerator(options);
      auto net = make_net();
      torch::optim::SGD sgd(net->parameters(), 0.1);
      auto [model, optimizer] = accelerator.prepare(net, sgd);
      for (int step = 0; step < 3; ++step) {
        accelerator.backward(model(batch_of(accelerator.process_index(), step, 4, false)).square().mean());
        optimizer.step();
        optimizer.zero_grad();
      }
      const auto whole = accelerator.gathered_parameters(model);
      return net->head->weight.detach().clone();
    });
  };
  const auto expected = trained(on_mesh({.dp_shard_size = 2})), found = trained(on_mesh({.cp_size = 2}));
  for (const auto& weight : found) EXPECT_TRUE(torch::equal(weight, expected.front()));
}

// A parameter of one element, beside which NAdam keeps another number.
TEST(ShardedAcceleratorTest, AnyOptimizersStateComesBack) {
  const auto resumes = [](const char* name, auto make) {
    for (const auto* type : {"FULL_STATE_DICT", "SHARDED_STATE_DICT"}) {
      const TemporaryFolder folder;
      run_ranks(2, [&] {
        Accelerator accelerator({.fsdp_plugin = FullyShardedDataParallelPlugin{.state_dict_type = type}});
        torch::manual_seed(1);
        torch::nn::Linear net(8, 1);
        auto plain = make(net->parameters());
        auto model = accelerator.prepare(net);
        auto optimizer = accelerator.prepare(*plain);
        const auto step = [&] {
          accelerator.backward(model(torch::ones({2, 8})).square().mean());
          optimizer.step();
          optimizer.zero_grad();
          const auto whole = accelerator.gathered_parameters(model);
          return net->weight.detach().clone();
        };
        step();
        accelerator.save_state(folder.path("state"));
        const auto uncut = step();
        accelerator.load_state(folder.path("state"));
        EXPECT_TRUE(torch::equal(step(), uncut)) << name << " " << type;
      });
    }
  };
  resumes("nadam", [](auto parameters) { return std::make_unique<optim::NAdam>(parameters); });
  resumes("asgd", [](auto parameters) { return std::make_unique<optim::ASGD>(parameters); });
  resumes("adagrad", [](auto parameters) { return std::make_unique<optim::Adagrad>(parameters); });
}

TEST(ShardedAcceleratorTest, ModelsWhoseParametersHaveEqualNamesKeepTheirStates) {
  for (const auto* type : {"FULL_STATE_DICT", "SHARDED_STATE_DICT"}) {
    const TemporaryFolder folder;
    run_ranks(2, [&] {
      Accelerator accelerator({.fsdp_plugin = FullyShardedDataParallelPlugin{.state_dict_type = type}});
      torch::manual_seed(1);
      torch::nn::Linear first(4, 3), second(4, 3);
      auto parameters = first->parameters();
      for (const auto& parameter : second->parameters()) parameters.push_back(parameter);
      optim::Adam adam(parameters, {.lr = 0.1});
      auto [a, b, optimizer] = accelerator.prepare(first, second, adam);
      const auto step = [&] {
        accelerator.backward((a(torch::ones({2, 4})).square() + 3 * b(torch::full({2, 4}, 2.0)).square()).mean());
        optimizer.step();
        optimizer.zero_grad();
        const auto whole_a = accelerator.gathered_parameters(a), whole_b = accelerator.gathered_parameters(b);
        return torch::cat({first->weight.detach(), second->weight.detach()});
      };
      step();
      accelerator.save_state(folder.path("state"));
      const auto uncut = step();
      accelerator.load_state(folder.path("state"));
      EXPECT_TRUE(torch::equal(step(), uncut)) << type;
    });
  }
}

TEST(ShardedAcceleratorTest, LbfgsIsRefused) {
  run_ranks(2, [] {
    Accelerator accelerator({.fsdp_plugin = FullyShardedDataParallelPlugin{}});
    auto net = make_net();
    torch::optim::LBFGS lbfgs(net->parameters());
    auto model = accelerator.prepare(net);
    EXPECT_THROW(accelerator.prepare(lbfgs), StateError);
  });
}

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

// --- offload to files ---------------------------------------------------------------------------------------------------

// Tensors that are large enough to go to a file; `look` at them behind each step.
NamedTensors train_wide(
    const DeepSpeedPlugin& plugin,
    const std::function<void(Accelerator&, const PreparedModel<torch::nn::SequentialImpl>&)>& look = [](auto&, auto&) {
    }) {
  Accelerator accelerator({.deepspeed_plugin = plugin});
  torch::manual_seed(7);
  torch::nn::Sequential net;
  for (int i = 0; i < 3; ++i) net->push_back(torch::nn::Linear(512, 512));
  optim::AdamW adam(net->parameters(), {.lr = 0.05});
  auto [model, optimizer] = accelerator.prepare(net, adam);
  for (int step = 0; step < 3; ++step) {
    accelerator.backward(model(batch_of(accelerator.process_index(), step, 512, false)).square().mean());
    look(accelerator, model);
  }
  return accelerator.get_state_dict(model);
}

DeepSpeedPlugin offloading(const std::string& folder) {
  return {.zero_stage = 3,
          .offload_optimizer_device = "nvme",
          .offload_param_device = "nvme",
          .offload_optimizer_nvme_path = folder,
          .offload_param_nvme_path = folder};
}

// Where memory lies does not change what is computed.
TEST(ShardedAcceleratorTest, ShardsAndMomentsInFilesTrainToTheSameBits) {
  const TemporaryFolder folder;
  for (const int num_ranks : {1, 3}) {
    SCOPED_TRACE(num_ranks);
    const auto expected = run_ranks(num_ranks, [] { return train_wide({.zero_stage = 3}); }).front();
    const auto found = run_ranks(num_ranks, [&] { return train_wide(offloading(folder.path("new/nvme"))); }).front();
    for (std::size_t i = 0; i < expected.size(); ++i)
      EXPECT_TRUE(torch::equal(expected[i].second, found[i].second)) << expected[i].first;
    EXPECT_TRUE(std::filesystem::is_empty(folder.path("new/nvme"))) << "files have no names";
  }
}

TEST(ShardedAcceleratorTest, WhatLiesInFilesTakesNoMemory) {
  const TemporaryFolder folder;
  run_ranks(2, [&] {
    train_wide(offloading(folder.path()),
               [&](Accelerator& accelerator, const PreparedModel<torch::nn::SequentialImpl>& model) {
                 accelerator.save_state(folder.path("saved"));
                 accelerator.load_state(folder.path("saved"));
                 const auto account = accelerator.memory_account(model);
                 EXPECT_EQ(account.now(sharded::MemoryKind::kParameters), 0);
                 EXPECT_LT(account.now(sharded::MemoryKind::kOptimizer), 10'000) << "small tensors stay";
                 for (const auto& parameter : model.parameters()) {
                   if (parameter.numel() > 512) {
                     EXPECT_TRUE(sharded::is_in_file(parameter));
                   }
                 }
               });
  });
}

TEST(ShardedAcceleratorTest, AFolderThatCannotBeMadeIsAnErrorBeforeThereIsAModel) {
  const TemporaryFolder folder;
  const auto file = folder.write("file", "");
  run_ranks(2, [&] {
    const DeepSpeedPlugin plugin{
        .zero_stage = 2, .offload_optimizer_device = "nvme", .offload_optimizer_nvme_path = file + "/in"};
    EXPECT_THAT(message_of<ConfigError>([&] { Accelerator accelerator({.deepspeed_plugin = plugin}); }),
                HasSubstr("deepspeed_plugin: offload to nvme: " + file + "/in: cannot be made"));
  });
}

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
