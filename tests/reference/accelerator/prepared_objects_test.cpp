// What a port of a LibTorch loop passes to prepare, and how it uses what it gets back: modules on the stack,
// temporaries, structs, and handles in place of the objects.
#include <torch/data/datasets/tensor.h>
#include <torch/serialize.h>

#include "reference/optim/optimizers/fused_adam.hpp"
#include "tests/reference/accelerator/natural_mistakes.hpp"
#include "tests/support/message_of.hpp"
#include "tests/support/temporary_folder.hpp"

namespace accel::testing::natural_mistakes_test {

// A struct of tensors that the library knows nothing about.
struct Outputs {
  at::Tensor reconstruction, mean;
};
// The same with tree_members, as the documentation recommends.
struct KnownOutputs {
  at::Tensor reconstruction, mean;
};

// A second tensor that is not always there.
struct OptionalOutputs {
  at::Tensor reconstruction;
  std::optional<at::Tensor> mean;
};

}  // namespace accel::testing::natural_mistakes_test

template <>
inline constexpr auto accel::tree_members<accel::testing::natural_mistakes_test::OptionalOutputs> =
    std::tuple(&accel::testing::natural_mistakes_test::OptionalOutputs::reconstruction,
               &accel::testing::natural_mistakes_test::OptionalOutputs::mean);
template <>
inline constexpr auto accel::tree_members<accel::testing::natural_mistakes_test::KnownOutputs> =
    std::tuple(&accel::testing::natural_mistakes_test::KnownOutputs::reconstruction,
               &accel::testing::natural_mistakes_test::KnownOutputs::mean);

namespace accel::testing::natural_mistakes_test {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

template <typename Out>
struct EncoderImpl : nn::Module {
  EncoderImpl()
      : encode(register_module("encode", nn::Linear(4, 4))), decode(register_module("decode", nn::Linear(4, 4))) {}
  Out forward(const at::Tensor& x) {
    const auto mean = encode(x);
    return {decode(mean), mean};
  }
  nn::Linear encode, decode;
};

// Its input is optional too.
struct OptionalEncoderImpl : nn::Module {
  OptionalEncoderImpl()
      : encode(register_module("encode", nn::Linear(4, 4))), decode(register_module("decode", nn::Linear(4, 4))) {}
  OptionalOutputs forward(const at::Tensor& x, const std::optional<at::Tensor>& mask) {
    const auto mean = encode(mask ? x * *mask : x);
    return {decode(mean), mask ? std::optional(mean) : std::nullopt};
  }
  nn::Linear encode, decode;
};

// Every wrapper finds the tensors of optional members and inputs, converts them, and counts their gradients.
TEST_P(MistakesTest, OptionalTensorsAreTreesInEveryWrapper) {
  AcceleratorOptions search;
  search.ddp_kwargs.find_unused_parameters = true;
  for (const auto& options : {AcceleratorOptions(), AcceleratorOptions{.fsdp_plugin = FullyShardedDataParallelPlugin{}},
                              AcceleratorOptions{.deepspeed_plugin = DeepSpeedPlugin{.zero_stage = 3}},
                              AcceleratorOptions{.mixed_precision = "bf16"}, search}) {
    on_ranks(
        [&](Accelerator& accelerator, RankContext& rank) {
          auto net = std::make_shared<OptionalEncoderImpl>();
          torch::optim::SGD sgd(net->parameters(), 0.1);
          auto [model, optimizer] = accelerator.prepare(net, sgd);
          for (const bool has_mask : {true, false}) {
            const auto out = model(batch_of(rank), has_mask ? std::optional(at::ones({5, 4})) : std::nullopt);
            EXPECT_EQ(out.mean.has_value(), has_mask);
            EXPECT_EQ(out.reconstruction.scalar_type(), at::kFloat);
            auto loss = out.reconstruction.square().mean();
            if (out.mean) {
              EXPECT_EQ(out.mean->scalar_type(), at::kFloat);
              loss = loss + out.mean->square().mean();
            }
            accelerator.backward(loss);
            optimizer.step();
            optimizer.zero_grad();
          }
          const auto all = accelerator.gather(OptionalOutputs{.reconstruction = at::ones({1}), .mean = at::ones({2})});
          EXPECT_EQ(all.mean->size(0), 2 * kRanks);
          EXPECT_FALSE(accelerator.gather(OptionalOutputs{.reconstruction = at::ones({1}), .mean = {}}).mean);
        },
        options);
  }
}

// LibTorch's own examples put modules on the stack, where no shared_ptr owns them.
TEST_P(MistakesTest, AModuleOnTheStackTrainsLikeOneInAHolder) {
  const auto train = [&](auto make) {
    std::vector<at::Tensor> weights(kRanks);
    on_ranks([&](Accelerator& accelerator, RankContext& rank) {
      auto&& [net, parameters] = make();
      torch::optim::SGD sgd(parameters, 0.1);
      auto [model, optimizer] = accelerator.prepare(*net, sgd);
      for (int step = 0; step < 3; ++step) {
        accelerator.backward(model(batch_of(rank)).square().mean());
        optimizer.step();
        optimizer.zero_grad();
      }
      model->eval();
      weights[rank.rank] = torch::cat({accelerator.unwrap_model(model)->first->weight.detach().flatten(),
                                       model(batch_of(rank)).detach().flatten() * 0});
      EXPECT_EQ(model->modules().size(), 4U) << "LibTorch's own functions ask a module for its shared_ptr";
      expect_equal_on_all_ranks(accelerator, model.parameters());
    });
    return weights;
  };
  const auto stacked = train([] {
    auto net = std::make_unique<PlainNet>();  // without a shared_ptr, like an object on the stack
    auto parameters = net->parameters();
    return std::pair(std::move(net), parameters);
  });
  const auto shared = train([] {
    auto net = std::make_shared<PlainNet>();
    auto parameters = net->parameters();
    return std::pair(std::move(net), parameters);
  });
  // Both ways of holding the module must train the same weights.
  for (int rank = 0; rank < kRanks; ++rank) EXPECT_TRUE(stacked[rank].equal(shared[0]));
}

// LibTorch expects modules in shared pointers; examples of LibTorch have them on the stack nevertheless.
TEST_P(MistakesTest, AModuleOnTheStackIsShardedAndSaved) {
  on_ranks(
      [&](Accelerator& accelerator, RankContext& rank) {
        PlainNet net;
        torch::optim::Adam adam(net.parameters(), 0.1);
        auto [model, optimizer] = accelerator.prepare(net, adam);
        accelerator.backward(model(batch_of(rank)).square().mean());
        optimizer.step();
        // The full state is gathered on rank 0 only.
        EXPECT_EQ(accelerator.get_state_dict(model).empty(), rank.rank != 0);
      },
      {.fsdp_plugin = FullyShardedDataParallelPlugin{}});
}

// Trains a model whose forward returns the struct.
template <typename Out>
void train_encoder(Accelerator& accelerator, const at::Tensor& x) {
  auto net = std::make_shared<EncoderImpl<Out>>();
  torch::optim::SGD sgd(net->parameters(), 0.1);
  auto [model, optimizer] = accelerator.prepare(net, sgd);
  const auto out = model(x);
  EXPECT_EQ(out.mean.scalar_type(), at::kFloat);
  accelerator.backward(out.reconstruction.square().mean() + out.mean.square().mean());
  optimizer.step();
}

// These wrappers must find the tensors in the output. A struct that they cannot see into would lose gradients.
TEST_P(MistakesTest, AStructThatIsNoTreeIsRejectedByEveryWrapperThatNeedsIt) {
  AcceleratorOptions search;
  search.ddp_kwargs.find_unused_parameters = true;
  const std::pair<AcceleratorOptions, const char*> wrappers[] = {
      {{.fsdp_plugin = FullyShardedDataParallelPlugin{}}, "a sharded model requires them"},
      {{.deepspeed_plugin = DeepSpeedPlugin{.zero_stage = 2}}, "a sharded model requires them"},
      {{.mixed_precision = "bf16"}, "mixed precision requires them"},
      {search, "find_unused_parameters or static_graph requires them"},
  };
  for (const auto& [options, why] : wrappers) {
    on_ranks(
        [&, why = why](Accelerator& accelerator, RankContext& rank) {
          EXPECT_THAT(
              message_of<ArgumentError>([&] { train_encoder<Outputs>(accelerator, batch_of(rank)); }),
              AllOf(HasSubstr(why), HasSubstr("natural_mistakes_test::Outputs"),
                    HasSubstr("template <> inline constexpr auto accel::tree_members<"), HasSubstr("= std::tuple(&")));
          // The same with tree_members must work, after the failed attempt is cleared away.
          accelerator.free_memory();
          train_encoder<KnownOutputs>(accelerator, batch_of(rank));
        },
        options);
  }
  on_ranks([&](Accelerator& accelerator, RankContext& rank) {
    // Without a wrapper that looks into the output, the struct is no problem.
    EXPECT_NO_THROW(train_encoder<Outputs>(accelerator, batch_of(rank))) << "plain DDP looks at no output";
  });
}

// A temporary would be destroyed at the end of the statement, while the handle still uses it.
TEST_P(MistakesTest, ATemporaryOptimizerIsKept) {
  on_ranks([&](Accelerator& accelerator, RankContext& rank) {
    nn::Linear net(4, 1), other(4, 1);
    auto [model, optimizer] =
        accelerator.prepare(net, torch::optim::SGD(net->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9)));
    auto fused = accelerator.prepare(accel::optim::AdamW(other->parameters(), torch::optim::AdamWOptions(0.1)));
    auto shared = accelerator.prepare(std::make_shared<torch::optim::SGD>(other->parameters(), 0.1));
    std::unique_ptr<torch::optim::Optimizer> owned = std::make_unique<torch::optim::Adam>(other->parameters(), 0.1);
    auto borrowed = accelerator.prepare(owned);
    const auto before = net->weight.detach().clone();
    for (int step = 0; step < 2; ++step) {
      accelerator.backward(model(batch_of(rank)).square().mean());
      for (auto& each : {optimizer, fused, shared, borrowed}) AcceleratedOptimizer(each).step();
      optimizer.zero_grad();
    }
    EXPECT_FALSE(net->weight.equal(before));
    // A unique pointer stays the owner.
    EXPECT_EQ(&borrowed.optimizer(), owned.get());
    expect_equal_on_all_ranks(accelerator, net->parameters());
  });
}

// The prepared loader must own what it was made of, as the temporary is gone.
TEST_P(MistakesTest, ATemporaryLoaderAndALibTorchDatasetAreAccepted) {
  on_ranks([&](Accelerator& accelerator, RankContext&) {
    const auto table = at::arange(12).to(at::kFloat).view({12, 1});
    auto batches = accelerator.prepare(DataLoader(torch::data::datasets::TensorDataset(table), {.batch_size = 2}));
    std::vector<double> seen;
    for (auto& rows : batches) {
      const auto all = accelerator.gather_for_metrics(rows);
      for (std::int64_t row = 0; row < all.size(0); ++row) seen.push_back(all[row].item().toDouble());
    }
    EXPECT_THAT(seen, ElementsAre(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11));
    std::size_t count = 0;
    // LibTorch's loaders are dereferenced in loops, so a port may keep the star.
    for ([[maybe_unused]] auto& rows : *batches) ++count;
    EXPECT_EQ(count, 2U);
  });
}

// A port replaces objects by handles, so code that uses the objects' members must still compile.
TEST_P(MistakesTest, HandlesHaveTheMembersOfTheirObjects) {
  on_ranks([&](Accelerator& accelerator, RankContext& rank) {
    nn::Linear net(4, 1);
    torch::optim::SGD sgd(net->parameters(), 0.1);
    StepLR step_lr(sgd, 1, 0.5);
    DataLoader loader(TensorDataset(at::zeros({6, 1})), {.batch_size = 2});
    auto [model, optimizer, batches, scheduler] = accelerator.prepare(net, sgd, loader, step_lr);
    model.eval();
    EXPECT_FALSE(net->is_training());
    model.train();
    EXPECT_TRUE(model.is_training());
    EXPECT_EQ(model.named_parameters().size(), 2U);
    EXPECT_EQ(optimizer.param_groups().size(), 1U);
    // The arrow of a module holder or pointer works on handles too.
    optimizer->set_lr(0.25);
    EXPECT_EQ(optimizer->lr(), 0.25);
    // There is one group, number 0.
    EXPECT_THROW(optimizer.set_lr(1, 1), ArgumentError);
    EXPECT_EQ(batches->size(), 1);
    accelerator.backward(model.forward(batch_of(rank)).mean());
    optimizer->step();
    optimizer->zero_grad();
    scheduler->step();
    expect_equal_on_all_ranks(accelerator, net->parameters());
  });
}

// A sharded model has only parts of its parameters, so torch::save must reject it instead of writing a part.
TEST_P(MistakesTest, APreparedModelIsSavedAndLoadedByLibTorchUnlessItIsSharded) {
  TemporaryFolder folder;
  on_ranks([&](Accelerator& accelerator, RankContext& rank) {
    nn::Linear net(4, 1), plain(4, 1);
    auto model = accelerator.prepare(net);
    const auto path = folder.path("model" + std::to_string(rank.rank) + ".pt");
    torch::save(model, path);
    torch::load(plain, path);
    EXPECT_TRUE(plain->weight.equal(net->weight));
    torch::NoGradGuard no_grad;
    // Loading into the prepared model has to reach the original module.
    net->weight.zero_();
    torch::load(model, path);
    EXPECT_TRUE(plain->weight.equal(net->weight));
  });
  on_ranks(
      [&](Accelerator& accelerator, RankContext&) {
        nn::Linear net(4, 1);
        auto model = accelerator.prepare(net);
        EXPECT_THAT(message_of<StateError>([&] { torch::save(model, folder.path("sharded.pt")); }),
                    HasSubstr("use accelerator.save_model"));
      },
      {.fsdp_plugin = FullyShardedDataParallelPlugin{}});
}

// print() accepts what std::ostream accepts, as in plain LibTorch programs.
TEST_P(MistakesTest, TensorsArePrinted) {
  on_ranks([&](Accelerator& accelerator, RankContext& rank) {
    std::string text;
    rank.print = [&](const std::string& line) { text += line; };
    const auto values = at::ones({2});
    accelerator.print("loss", values, values.sizes(), 3);
    EXPECT_EQ(text, rank.rank == 0 ? "loss  1\n 1\n[ CPUFloatType{2} ] [2] 3\n" : "");
  });
}

}  // namespace
}  // namespace accel::testing::natural_mistakes_test
