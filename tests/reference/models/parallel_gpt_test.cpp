// A gpt whose weights are divided over ranks trains as on one rank, in float64 up to rounding, with every shape of
// options, with and without sequence parallelism.
#include <gmock/gmock.h>

#include "reference/core/errors.hpp"
#include "reference/models/gpt.hpp"
#include "reference/modules/call.hpp"
#include "reference/modules/parameter_cut.hpp"
#include "reference/offload/empty_weights.hpp"
#include "reference/offload/layerwise_casting.hpp"
#include "reference/state/device_mesh.hpp"
#include "tests/support/message_of.hpp"
#include "tests/support/property.hpp"
#include "tests/support/run_ranks.hpp"
#include "tests/support/torch.hpp"

namespace accel::models {
namespace {

using ::testing::AllOf;
using testing::Backend, testing::collect_ranks, testing::expect_property, testing::message_of, testing::one_in,
    testing::pick, testing::pick_from, testing::run_ranks;
using ::testing::ElementsAreArray;
using ::testing::HasSubstr;

using Tensors = std::map<std::string, at::Tensor>;

DeviceMesh tensor_parallel(RankContext& rank) { return {rank, {.tp_size = rank.world.size()}}; }

struct TrainingCase {
  int ranks = 1;
  GptOptions options = {};
  std::int64_t batch = 1, length = 1;
  std::uint64_t seed = 0;
  bool fuses_loss = false;
};

// Any of which every rank has a token, whether it divides or not.
std::int64_t any_vocabulary(int ranks) {
  for (;;) {
    const auto vocab = pick<std::int64_t>(2 * ranks, 7 * ranks);
    if (part_of_length(vocab, {.index = ranks - 1, .num_parts = ranks}).size() > 0) return vocab;
  }
}

TrainingCase any_case() {
  const auto ranks = pick(2, 5);
  const auto heads_of_rank = pick<std::int64_t>(1, 4), head_width = 2 * pick<std::int64_t>(1, 4);
  TrainingCase any{.ranks = ranks, .batch = pick<std::int64_t>(1, 4), .length = pick<std::int64_t>(1, 7)};
  auto& options = any.options;
  options = {.vocab_size = any_vocabulary(ranks), .block_size = 24, .layers = pick<std::int64_t>(1, 3)};
  options.heads = ranks * heads_of_rank;
  options.head_width = head_width;
  options.width = pick<std::int64_t>(3, 12);
  options.bias = one_in(2);
  options.positions = pick_from({"learned", "rotary"});
  options.norm = pick_from({"layer_norm", "rms_norm"});
  options.feed_forward = pick_from({"gelu", "swiglu"});
  options.feed_forward_width = ranks * pick<std::int64_t>(1, 6);
  if (one_in(2)) options.key_value_heads = ranks * (heads_of_rank % 2 == 0 ? heads_of_rank / 2 : 1);
  options.tied_output = one_in(2);
  if (one_in(3)) options.padding_token = pick<std::int64_t>(0, options.vocab_size);
  options.norm_eps = 0.01;  // a norm of almost equal numbers would amplify rounding
  options.initial_std = 0.3;
  options.dtype = "float64";
  options.sequence_parallel = one_in(2);
  if (options.sequence_parallel) any.length *= ranks;
  any.seed = pick<std::uint64_t>(0, 1000);
  any.fuses_loss = one_in(2);
  return any;
}

Tensors complete(const torch::nn::Module& network, const std::function<at::Tensor(const at::Tensor&)>& tensor_of) {
  Tensors all;
  const auto cuts = parallel::parameter_cuts(network);
  for (const auto& item : network.named_parameters()) {
    const auto cut = cuts.find(item.key());
    all[item.key()] =
        cut == cuts.end() ? tensor_of(item.value()).clone() : cut->second.whole_of(tensor_of(item.value()));
  }
  return all;
}

// Norms of 1 and biases of 0 would hide mistakes.
void change_vectors(torch::nn::Module& network) {
  const c10::NoGradGuard no_grad;
  const auto cuts = parallel::parameter_cuts(network);
  for (auto& item : network.named_parameters()) {
    if (item.value().dim() != 1) continue;
    const auto cut = cuts.find(item.key());
    const auto sizes = cut == cuts.end() ? item.value().sizes().vec() : cut->second.whole_sizes(item.value());
    const auto whole = 0.3 * at::randn(sizes, item.value().options());
    item.value().add_(cut == cuts.end() ? whole : cut->second.part_of(whole));
  }
}

struct Trained {
  at::Tensor logits;
  std::vector<double> losses;
  Tensors gradients, weights;
};

Trained train(const TrainingCase& training, const DeviceMesh& mesh) {
  const GeneratorScope scope(make_generator(training.seed));
  const auto network = gpt(training.options, mesh);
  change_vectors(*network);
  Trained trained;
  for (int step = 0; step < 3; ++step) {
    const auto shape = {training.batch, training.length};
    const auto tokens = at::randint(training.options.vocab_size, shape, at::kLong);
    const auto targets = at::randint(training.options.vocab_size, shape, at::kLong);
    at::Tensor loss;
    if (training.fuses_loss) {
      loss = network->forward(tokens, targets);
    } else {
      trained.logits = network->forward(tokens);
      loss = at::cross_entropy_loss(trained.logits.flatten(0, 1), targets.flatten());
    }
    network->zero_grad();
    loss.backward();
    trained.losses.push_back(loss.item<double>());
    trained.gradients = complete(*network, [](const at::Tensor& parameter) { return parameter.grad(); });
    const c10::NoGradGuard no_grad;
    for (auto& parameter : network->parameters()) parameter.sub_(0.1 * parameter.grad());
  }
  trained.weights = complete(*network, [](const at::Tensor& parameter) { return parameter.detach(); });
  return trained;
}

// Relative to the largest number of all tensors: the gradient of a key's bias consists of rounding only.
void expect_close(const Tensors& found, const Tensors& expected) {
  double largest = 0;
  for (const auto& [name, tensor] : expected) largest = std::max(largest, tensor.abs().max().item<double>());
  RC_ASSERT(found.size() == expected.size());
  for (const auto& [name, tensor] : expected) {
    RC_LOG(name);
    RC_ASSERT((found.at(name) - tensor).abs().max().item<double>() <= 1e-12 * largest);
  }
}

TEST(ParallelGptTest, TrainingEqualsThatOfOneRank) {
  expect_property(50, [] {
    const auto training = any_case();
    const auto expected = train(training, DeviceMesh());
    for (const auto& found : collect_ranks(Backend::kSim, training.ranks,
                                           [&](RankContext& rank) { return train(training, tensor_parallel(rank)); })) {
      for (std::size_t step = 0; step < expected.losses.size(); ++step)
        RC_ASSERT(std::abs(found.losses[step] - expected.losses[step]) <= 1e-12 * expected.losses[step]);
      if (!training.fuses_loss) expect_close({{"logits", found.logits}}, {{"logits", expected.logits}});
      expect_close(found.gradients, expected.gradients);
      expect_close(found.weights, expected.weights);
    }
  });
}

// Two groups of two ranks read the halves of a batch. "dp_cp" averages the gradients of cut and of complete parameters.
TEST(ParallelGptTest, DataParallelGroupsAverageToOneRank) {
  const auto tokens = at::arange(32).view({4, 8}), targets = tokens + 1;
  for (const bool is_sequence_parallel : {false, true}) {
    const auto gradients = [&](const DeviceMesh& mesh) {
      const GeneratorScope scope(make_generator(6));
      const auto network = gpt({.layers = 2,
                                .heads = 4,
                                .width = 8,
                                .initial_std = 0.3,
                                .dtype = "float64",
                                .sequence_parallel = is_sequence_parallel},
                               mesh);
      const auto& replicas = mesh["dp_cp"];
      const auto own = [&](const at::Tensor& batch) { return batch.chunk(replicas.size())[replicas.rank()]; };
      network->forward(own(tokens), own(targets)).backward();
      return complete(*network, [&](const at::Tensor& parameter) {
        auto mean = parameter.grad().clone();
        replicas.all_reduce(mean, ReduceOp::kMean).wait();
        return mean;
      });
    };
    const auto expected = gradients(DeviceMesh());
    run_ranks(Backend::kSim, 4, [&](RankContext& rank) {
      const auto found = gradients(DeviceMesh(rank, {.dp_replicate_size = 2, .tp_size = 2}));
      for (const auto& [name, gradient] : expected)
        EXPECT_TRUE(at::allclose(found.at(name), gradient, 1e-12, 1e-14)) << name;
    });
  }
}

TEST(ParallelGptTest, GlooComputesTheSameBits) {
  expect_property(6, [] {
    auto training = any_case();
    training.options.dropout = pick_from({0.0, 0.4});
    const auto on = [&](Backend backend) {
      return collect_ranks(backend, training.ranks,
                           [&](RankContext& rank) { return train(training, tensor_parallel(rank)); });
    };
    const auto simulated = on(Backend::kSim), real = on(Backend::kGlooThreads);
    for (int rank = 0; rank < training.ranks; ++rank) {
      RC_ASSERT(simulated[rank].losses == real[rank].losses);
      for (const auto& [name, tensor] : simulated[rank].weights)
        RC_ASSERT(at::equal(tensor, real[rank].weights.at(name)));
    }
  });
}

TEST(ParallelGptTest, InitialWeightsAndNamesAreThoseOfOneRank) {
  expect_property(30, [] {
    auto training = any_case();
    training.options.dtype = pick_from({"float32", "float64"});
    const auto drawn = [&](const DeviceMesh& mesh) {
      const GeneratorScope scope(make_generator(training.seed));
      const auto network = gpt(training.options, mesh);
      const auto next = at::rand({3});
      auto weights = complete(*network, [](const at::Tensor& parameter) { return parameter.detach(); });
      weights["next random numbers"] = next;
      return std::pair(network->named_parameters().keys(), weights);
    };
    const auto expected = drawn(DeviceMesh());
    for (const auto& found : collect_ranks(Backend::kSim, training.ranks,
                                           [&](RankContext& rank) { return drawn(tensor_parallel(rank)); })) {
      RC_ASSERT(found.first == expected.first);
      for (const auto& [name, tensor] : expected.second) RC_ASSERT(at::equal(found.second.at(name), tensor));
    }
  });
}

TEST(ParallelGptTest, BothDtypesStartWithTheSameNumbers) {
  const auto drawn = [](const char* dtype) {
    const GeneratorScope scope(make_generator(3));
    return gpt({.layers = 1, .heads = 2, .width = 8, .dtype = dtype})->parameters();
  };
  const auto single = drawn("float32"), precise = drawn("float64");
  for (std::size_t index = 0; index < single.size(); ++index)
    EXPECT_TRUE(at::equal(single[index].to(at::kDouble), precise[index]));
}

TEST(ParallelGptTest, AnEmptyModelHasThePartsOfARank) {
  run_ranks(Backend::kSim, 2, [](RankContext& rank) {
    const auto mesh = tensor_parallel(rank);
    for (const auto* positions : {"learned", "rotary"}) {
      const GptOptions options{.layers = 1, .heads = 2, .width = 8, .positions = positions, .padding_token = 200};
      const auto empty = init_empty_weights([&] { return gpt(options, mesh); })->named_parameters();
      for (const auto& item : gpt(options, mesh)->named_parameters()) {
        EXPECT_TRUE(empty[item.key()].is_meta());
        EXPECT_EQ(empty[item.key()].sizes(), item.value().sizes()) << item.key();
      }
    }
  });
}

// Accelerate casts layers by the name of their class, Linear.
TEST(ParallelGptTest, LayerwiseCastingIncludesItsLinearLayers) {
  const auto network = gpt({.layers = 1, .heads = 2, .width = 8});
  const auto cast = attach_layerwise_casting_hooks(network, {.storage_dtype = at::kBFloat16});
  for (const auto& item : network->named_parameters()) {
    const bool is_linear =
        item.key().find("attention.") != std::string::npos || item.key().find("feed_forward.") != std::string::npos;
    EXPECT_EQ(item.value().scalar_type(), is_linear ? at::kBFloat16 : at::kFloat) << item.key();
  }
}

// --- random numbers --------------------------------------------------------------------------------------------------

class KeepInput : public ModuleObserver {
 public:
  void before_forward(const std::vector<at::Tensor>& inputs) override { input = inputs.front().detach().clone(); }
  void after_forward(const std::vector<at::Tensor>& /*outputs*/) override {}
  at::Tensor input;
};

struct Masks {
  at::Tensor residual;      // input of the first block, for equal embeddings of all positions
  at::Tensor of_attention;  // gradient of the rank's queries, keys and values, for equal weights on all ranks
};

Masks masks_of(const DeviceMesh& mesh, bool is_sequence_parallel) {
  const GeneratorScope scope(make_generator(7));
  const auto network = gpt({.block_size = 8,
                            .layers = 1,
                            .heads = 2,
                            .width = 16,
                            .dropout = 0.5,
                            .initial_std = 0.3,
                            .sequence_parallel = is_sequence_parallel},
                           mesh);
  auto parameters = network->named_parameters();
  {
    const c10::NoGradGuard no_grad;
    const GeneratorScope equal(make_generator(8));
    for (auto& item : parameters) item.value().normal_();
    parameters["position_embedding.weight"].zero_();
  }
  const auto observer = std::make_shared<KeepInput>();
  const ScopedModuleObserver observed(*network->named_modules()["blocks.0"], observer);
  network->forward(at::zeros({2, 8}, at::kLong)).square().sum().backward();
  return {observer->input, parameters["blocks.0.attention.queries_keys_values.weight"].grad()};
}

TEST(ParallelGptTest, DropoutDiffersBetweenHeadsAndBetweenPositionsOnly) {
  for (const bool is_sequence_parallel : {false, true}) {
    const auto masks = collect_ranks(
        Backend::kSim, 2, [&](RankContext& rank) { return masks_of(tensor_parallel(rank), is_sequence_parallel); });
    EXPECT_EQ(at::equal(masks[0].residual, masks[1].residual), !is_sequence_parallel);
    EXPECT_FALSE(at::equal(masks[0].of_attention, masks[1].of_attention));
  }
}

TEST(ParallelGptTest, WithoutDropoutNoRandomNumbersAreDrawn) {
  run_ranks(Backend::kSim, 2, [](RankContext& rank) {
    for (const auto dropout : {0.0, 0.5}) {
      const auto network = gpt({.layers = 1, .heads = 2, .width = 8, .dropout = dropout, .sequence_parallel = true},
                               tensor_parallel(rank));
      network->train(dropout == 0);
      const auto before = default_generator().get_state();
      network->forward(at::zeros({1, 4}, at::kLong));
      EXPECT_TRUE(at::equal(default_generator().get_state(), before)) << dropout;
    }
  });
}

struct Recompute : ModuleHooks {
  void before_forward() override {}
  void after_forward(std::vector<at::Tensor>& /*outputs*/) override {}
  [[nodiscard]] bool recomputes() const override { return true; }
};

TEST(ParallelGptTest, RecomputedBlocksHaveTheSameGradients) {
  for (const bool is_sequence_parallel : {false, true}) {
    run_ranks(Backend::kSim, 2, [&](RankContext& rank) {
      const auto mesh = tensor_parallel(rank);
      const auto gradients = [&](bool recomputes) {
        const GeneratorScope scope(make_generator(4));
        const auto network =
            gpt({.layers = 2, .heads = 2, .width = 8, .dropout = 0.3, .sequence_parallel = is_sequence_parallel}, mesh);
        std::vector<ScopedModuleHooks> hooks;
        for (const auto* name : {"blocks.0", "blocks.1.feed_forward"}) {
          if (recomputes) hooks.emplace_back(*network->named_modules()[name], std::make_shared<Recompute>());
        }
        network->forward(at::arange(8).unsqueeze(0), at::arange(8).unsqueeze(0)).backward();
        return complete(*network, [](const at::Tensor& parameter) { return parameter.grad(); });
      };
      const auto expected = gradients(false), found = gradients(true);
      for (const auto& [name, tensor] : expected) EXPECT_TRUE(at::equal(found.at(name), tensor)) << name;
    });
  }
}

// --- errors ----------------------------------------------------------------------------------------------------------

TEST(ParallelGptTest, AllSizesThatDoNotDivideAreInOneError) {
  run_ranks(Backend::kSim, 4, [](RankContext& rank) {
    GptOptions options{.vocab_size = 5, .layers = 1, .heads = 6, .width = 12, .key_value_heads = 3};
    options.feed_forward_width = 5;
    options.norm = "batch_norm";
    const auto problem = [](const std::string& name, int size) {
      return HasSubstr(fmt::format("gpt: {}: {} does not divide over 4 tensor-parallel ranks; expected a multiple of 4",
                                   name, size));
    };
    EXPECT_THAT(
        message_of<ConfigError>([&] { gpt(options, tensor_parallel(rank)); }),
        AllOf(problem("heads", 6), problem("key_value_heads", 3), problem("feed_forward_width", 5),
              HasSubstr("gpt: vocab_size: 5 over 4 tensor-parallel ranks leaves the last rank without any token"),
              HasSubstr("gpt: norm: expected 'layer_norm' or 'rms_norm'")));
    const DeviceMesh mesh(rank, {.sp_size = 2, .tp_size = 2});
    EXPECT_THAT(
        message_of<ConfigError>([&] { gpt({.layers = 1, .heads = 2, .width = 8, .dropout = 0.1}, mesh); }),
        AllOf(HasSubstr("gpt: heads: 1 heads and 1 key-value heads per tensor-parallel rank do not divide over 2 "
                        "sequence-parallel ranks"),
              HasSubstr("gpt: dropout: 0.1 is unsupported with cp_size and sp_size above 1")));
  });
}

TEST(ParallelGptTest, ASequenceThatDoesNotDivideIsAnErrorUnderSequenceParallelismOnly) {
  run_ranks(Backend::kSim, 2, [](RankContext& rank) {
    GptOptions options{.layers = 1, .heads = 2, .width = 8};
    const auto tokens = at::zeros({1, 5}, at::kLong);
    EXPECT_EQ(gpt(options, tensor_parallel(rank))->forward(tokens).size(1), 5);
    options.sequence_parallel = true;
    EXPECT_EQ(gpt(options)->forward(tokens).size(1), 5);
    EXPECT_THAT(
        message_of<ArgumentError>([&] { gpt(options, tensor_parallel(rank))->forward(tokens); }),
        HasSubstr("sequence of 5 tokens does not divide over 2 tensor-parallel ranks; expected a multiple of 2"));
  });
}

}  // namespace
}  // namespace accel::models
