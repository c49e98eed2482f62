// A real model, the gpt of <accel/models.hpp>, dense or with experts, trains under any layout of a mesh as on one rank:
// in float64, losses and weights of 20 steps agree within 1e-12.
//
// The optimizer is SGD, with steps that are small enough for a stable training: the difference is then that of the
// rounding of sums, and stays below 1e-15. A training that diverges amplifies it in every step. Adam divides a gradient
// by its own size: the biases of keys, whose exact gradient is 0, move by rounding errors that are divided by eps,
// which changes no loss.
#include <torch/torch.h>

#include "reference/accelerator/accelerator.hpp"
#include "reference/context_parallel/shard_sequence.hpp"
#include "reference/models/gpt.hpp"
#include "reference/models/sequence_parts.hpp"
#include "reference/optim/optimizers/optimizers.hpp"
#include "tests/support/budget.hpp"
#include "tests/support/property.hpp"
#include "tests/support/run_ranks.hpp"
#include "tests/support/temporary_folder.hpp"

namespace accel::testing::gpt_laws {
namespace {

struct TrainingCase {
  models::GptOptions options = {};
  std::int64_t samples = 1, length = 2;  // of all ranks
  int steps = 20, micro_batches = 1;
  bool fuses_loss = false, clips = false, recomputes = false, adam = false;
  std::uint64_t seed = 0;
};

struct Run {
  std::vector<double> losses;  // means over all ranks
  NamedTensors weights;        // complete, on the main process
};

struct Files {
  std::string load_from = {}, save_to = {};
};

std::shared_ptr<torch::optim::Optimizer> make_optimizer(const TrainingCase& training,
                                                        const std::vector<at::Tensor>& parameters) {
  if (training.adam) return std::make_shared<optim::AdamW>(parameters, optim::AdamWOptions{.lr = 0.01});
  return std::make_shared<optim::SGD>(parameters, optim::SGDOptions{.lr = 0.05, .momentum = 0.5});
}

AcceleratorOptions options_of(const TrainingCase& training, const ParallelismConfig& mesh) {
  AcceleratorOptions options{.gradient_accumulation_steps = training.micro_batches, .parallelism_config = mesh};
  if (mesh.dp_shard_size > 1) {
    options.fsdp_plugin = FullyShardedDataParallelPlugin{.fsdp_version = 2,
                                                         .auto_wrap_policy = "TRANSFORMER_BASED_WRAP",
                                                         .transformer_cls_names_to_wrap = {"Block"},
                                                         .state_dict_type = "FULL_STATE_DICT"};
    options.fsdp_plugin->activation_checkpointing = training.recomputes;
  }
  return options;
}

// Every step reads samples of its own, so training can continue at any of them.
Run trained(RankContext& rank, const TrainingCase& training, const ParallelismConfig& mesh, int first_step = 0,
            const Files& files = {}) {
  Accelerator accelerator(options_of(training, mesh), rank);
  set_seed(static_cast<std::int64_t>(training.seed));
  const auto net = models::gpt(training.options, accelerator.mesh());
  auto [model, optimizer] = accelerator.prepare(net, make_optimizer(training, net->parameters()));
  if (!files.load_from.empty()) accelerator.load_state(files.load_from);
  const models::SequenceParts parts(accelerator.mesh());
  const auto own = [&](const at::Tensor& tokens) {
    const auto rows = tokens.chunk(accelerator.data_parallel_size())[accelerator.data_parallel_rank()];
    return parallel::shard_sequence(rows, 1, parts.plan(rows.size(1) / parts.size()), parts.group().rank());
  };
  Run run;
  for (int step = first_step; step < first_step + training.steps; ++step) {
    const auto tokens = at::randint(training.options.vocab_size, {training.samples, training.length + 1},
                                    make_generator(1000 * training.seed + step), at::kLong);
    const auto inputs = own(tokens.narrow(1, 0, training.length)), targets = own(tokens.narrow(1, 1, training.length));
    auto window = accelerator.accumulate(model);
    const auto loss = training.fuses_loss ? model(inputs, targets)
                                          : at::cross_entropy_loss(model(inputs).flatten(0, 1), targets.flatten());
    accelerator.backward(loss);
    if (training.clips && accelerator.sync_gradients()) accelerator.clip_grad_norm_(model.parameters(), 0.1);
    optimizer.step();
    optimizer.zero_grad();
    run.losses.push_back(accelerator.reduce(loss.detach(), "mean").template item<double>());
  }
  if (!files.save_to.empty()) accelerator.save_state(files.save_to);
  run.weights = accelerator.get_state_dict(model);
  return run;
}

// The mesh, and a model and samples that divide over it.
struct LayoutCase {
  ParallelismConfig mesh = {};
  TrainingCase training = {};

  [[nodiscard]] int num_ranks() const { return static_cast<int>(mesh.total_size()); }
};

ParallelismConfig any_mesh(int log_ranks, bool has_experts) {
  ParallelismConfig mesh;
  std::vector<int*> axes{&mesh.dp_replicate_size, &mesh.dp_shard_size, &mesh.tp_size,
                         one_in(2) ? &mesh.cp_size : &mesh.sp_size};
  if (has_experts) axes.push_back(&mesh.ep_size);
  for (; log_ranks > 0; --log_ranks) *pick_from(axes) *= 2;
  return mesh;
}

LayoutCase any_layout(int max_log_ranks) {
  const bool has_experts = one_in(2);
  LayoutCase layout{.mesh = any_mesh(pick(1, max_log_ranks + 1), has_experts)};
  const auto& mesh = layout.mesh;
  auto& training = layout.training;
  auto& options = training.options;
  const std::int64_t heads_of_rank = pick(1, 3), divided = mesh.tp_size * mesh.sp_size;
  options = {
      .vocab_size = mesh.tp_size * pick<std::int64_t>(4, 8), .block_size = 512, .layers = pick<std::int64_t>(1, 3)};
  options.heads = divided * heads_of_rank;
  options.head_width = 2 * pick<std::int64_t>(1, 3);
  options.width = pick<std::int64_t>(4, 13);
  options.bias = one_in(2);
  options.positions = pick_from({"learned", "rotary"});
  options.norm = pick_from({"layer_norm", "rms_norm"});
  options.feed_forward = pick_from({"gelu", "swiglu"});
  options.feed_forward_width = mesh.tp_size * pick<std::int64_t>(2, 9);
  if (one_in(2)) options.key_value_heads = divided;
  options.tied_output = one_in(2);
  options.initial_std = pick_from({0.02, 0.1});
  options.dtype = "float64";
  options.sequence_parallel = one_in(2);
  if (has_experts) {
    options.num_local_experts = mesh.ep_size * pick<std::int64_t>(1, 4);
    options.num_experts_per_tok = pick<std::int64_t>(1, std::min<std::int64_t>(3, *options.num_local_experts) + 1);
    options.router_aux_loss_coef = pick_from({0.0, 0.5});
  }
  training.samples = mesh.data_parallel_size() * pick<std::int64_t>(1, 3);
  training.length = 2 * mesh.cp_size * mesh.sp_size * (options.sequence_parallel ? mesh.tp_size : 1) * pick(1, 3);
  training.micro_batches = pick(1, 3);
  training.fuses_loss = has_experts || one_in(2);
  training.clips = one_in(2);
  training.recomputes = one_in(2);
  training.seed = pick<std::uint64_t>(0, 1000);
  return layout;
}

void expect_close(const std::vector<double>& found, const std::vector<double>& expected) {
  RC_ASSERT(found.size() == expected.size());
  for (std::size_t step = 0; step < expected.size(); ++step) {
    RC_LOG(fmt::format("loss of step {}", step));
    RC_ASSERT(std::abs(found[step] - expected[step]) <= 1e-12 * expected[step]);
  }
}

// Relative to the largest weight: biases of keys consist of rounding errors only.
void expect_close(const NamedTensors& found, const NamedTensors& expected) {
  double largest = 0;
  for (const auto& [name, weight] : expected) largest = std::max(largest, weight.abs().max().item<double>());
  RC_ASSERT(found.size() == expected.size());
  for (std::size_t place = 0; place < expected.size(); ++place) {
    const auto& [name, weight] = expected[place];
    RC_LOG(name);
    RC_ASSERT(found[place].first == name);
    RC_ASSERT((found[place].second - weight).abs().max().item<double>() <= 1e-12 * largest);
  }
}

std::vector<Run> runs_of(const LayoutCase& layout, Backend backend = Backend::kSim) {
  return collect_ranks(backend, layout.num_ranks(),
                       [&](RankContext& rank) { return trained(rank, layout.training, layout.mesh); });
}

Run run_of_one_rank(const TrainingCase& training) { return runs_of({.training = training}).front(); }

int max_log_ranks() { return num_cases(1) > 1 && one_in(20) ? 6 : one_in(10) ? 4 : 3; }

TEST(GptLaws, EveryLayoutTrainsAsOneRankFor20Steps) {
  expect_property(60, [] {
    const auto layout = any_layout(max_log_ranks());
    const auto expected = run_of_one_rank(layout.training);
    const auto found = runs_of(layout);
    for (const auto& run : found) expect_close(run.losses, expected.losses);
    expect_close(found.front().weights, expected.weights);
  });
}

TEST(GptLaws, WithAdamTheLossesAreThoseOfOneRank) {
  expect_property(10, [] {
    auto layout = any_layout(3);
    layout.training.adam = true;
    const auto expected = run_of_one_rank(layout.training);
    for (const auto& run : runs_of(layout)) expect_close(run.losses, expected.losses);
  });
}

TEST(GptLaws, GlooComputesTheSameBits) {
  expect_property(12, [] {
    auto layout = any_layout(3);
    layout.training.steps = 3;
    const auto simulated = runs_of(layout), real = runs_of(layout, Backend::kGlooThreads);
    for (std::size_t rank = 0; rank < real.size(); ++rank) {
      RC_ASSERT(simulated[rank].losses == real[rank].losses);
      RC_ASSERT(simulated[rank].weights.size() == real[rank].weights.size());
      for (std::size_t place = 0; place < real[rank].weights.size(); ++place) {
        RC_LOG(real[rank].weights[place].first);
        RC_ASSERT(at::equal(simulated[rank].weights[place].second, real[rank].weights[place].second));
      }
    }
  });
}

// With Adam, so that the optimizer's state is needed, and without the biases of keys.
TEST(GptLaws, ASavedStateContinuesUnderAnyOtherLayout) {
  expect_property(8, [] {
    TrainingCase training{.samples = 8, .length = 16, .steps = 4, .fuses_loss = true, .adam = true};
    training.options = {.vocab_size = 16, .block_size = 16, .layers = 2, .heads = 8, .width = 16};
    training.options.bias = false;
    training.options.feed_forward = "swiglu";
    training.options.num_local_experts = 8;
    training.options.router_aux_loss_coef = 0.5;
    training.options.dtype = "float64";
    training.seed = pick<std::uint64_t>(0, 1000);
    const auto expected = run_of_one_rank(training);
    training.steps = 2;
    const TemporaryFolder folder;
    const LayoutCase first{.mesh = any_mesh(pick(0, 4), true), .training = training},
        second{.mesh = any_mesh(pick(0, 4), true), .training = training};
    run_ranks(Backend::kSim, first.num_ranks(), [&](RankContext& rank) {
      trained(rank, training, first.mesh, 0, {.save_to = folder.path() + "/state"});
    });
    const auto found = collect_ranks(Backend::kSim, second.num_ranks(), [&](RankContext& rank) {
      return trained(rank, training, second.mesh, 2, {.load_from = folder.path() + "/state"});
    });
    expect_close(found.front().losses, {expected.losses[2], expected.losses[3]});
    expect_close(found.front().weights, expected.weights);
  });
}

}  // namespace
}  // namespace accel::testing::gpt_laws
