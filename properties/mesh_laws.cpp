// Training under any layout of a mesh equals training on one rank. The model has a divided embedding, linear layers,
// experts and positions; values are dyadic, so all sums are exact and losses, gradients and parameters must be equal in
// every bit: a factor that is off by the number of ranks cannot hide behind a tolerance.
#include <torch/torch.h>

#include "reference/accelerator/accelerator.hpp"
#include "reference/context_parallel/shard_sequence.hpp"
#include "reference/experts/experts.hpp"
#include "reference/experts/token_dispatcher.hpp"
#include "reference/optim/optimizers/optimizers.hpp"
#include "reference/tensor_parallel/layers.hpp"
#include "reference/tensor_parallel/operators.hpp"
#include "tests/support/cut_values.hpp"
#include "tests/support/dyadic.hpp"
#include "tests/support/property.hpp"
#include "tests/support/run_ranks.hpp"

namespace accel::testing::mesh_laws {
namespace {

using namespace accel::parallel;
namespace nn = torch::nn;

struct LayoutCase {
  ParallelismConfig mesh = {};
  std::int64_t rows_per_rank = 1, chunk = 1;  // the sequence has cp * sp * 2 chunks, times tp with sequence parallelism
  bool is_sequence_parallel = false;
  std::uint64_t seed = 0;

  [[nodiscard]] int num_ranks() const { return static_cast<int>(mesh.total_size()); }
  [[nodiscard]] std::int64_t rows() const { return rows_per_rank * mesh.data_parallel_size(); }
  [[nodiscard]] std::int64_t length() const {
    return 2 * chunk * mesh.cp_size * mesh.sp_size * (is_sequence_parallel ? mesh.tp_size : 1);
  }
  [[nodiscard]] SequencePlan plan(std::int64_t length) const {
    return SequencePlan({.length = length,
                         .num_ranks = mesh.cp_size * mesh.sp_size,
                         .order = mesh.cp_size > 1 ? SequenceOrder::kZigzag : SequenceOrder::kContiguous});
  }
};

constexpr std::int64_t kVocab = 64, kWidth = 2, kInner = 64, kExperts = 64;

class DividedNet : public nn::Module {
 public:
  DividedNet(const DeviceMesh& mesh, const LayoutCase& sizes)
      : group_(mesh["tp"]), experts_group_(mesh["ep"]), is_sequence_parallel_(sizes.is_sequence_parallel) {
    embedding_ = register_module("embedding", VocabParallelEmbedding(nn::EmbeddingOptions(kVocab, kWidth), group_));
    scale_ = register_parameter("scale", at::ones({kWidth}));
    expansion_ =
        register_module("expansion", ColumnParallelLinear(ParallelLinearOptions{.in = kWidth, .out = kInner}, group_));
    projection_ =
        register_module("projection", RowParallelLinear(ParallelLinearOptions{.in = kInner, .out = kWidth}, group_));
    experts_ = register_module(
        "experts",
        Experts(
            ExpertsOptions{.width = kWidth, .inner = 1, .num_experts = kExperts, .activation = ExpertActivation::kRelu},
            experts_group_));
    to(at::kDouble);
  }

  // (B, T) -> (B, T, width); the expert of a token is its number.
  at::Tensor forward(const at::Tensor& tokens) {
    const auto values = is_sequence_parallel_ ? in_sequence(tokens) : complete(tokens);
    const TokenDispatcher dispatcher(tokens.reshape({-1, 1}), {.num_experts = kExperts, .top_k = 1}, experts_group_);
    const auto results = experts_->forward(dispatcher.dispatch(values.flatten(0, 1)), dispatcher.rows_per_expert());
    const auto gates = at::full({tokens.numel(), 1}, 0.5, at::kDouble);
    return values + dispatcher.combine(results, gates).view(values.sizes());
  }

 private:
  at::Tensor complete(const at::Tensor& tokens) {
    const Replicated scaled{embedding_->forward(tokens).local * scale_};
    return scaled.local + projection_->forward(hidden(copy(scaled, group_))).local;
  }
  at::Tensor in_sequence(const at::Tensor& tokens) {
    const Sharded<1> scaled{embedding_->forward(tokens, ToSequence()).local * shared_parameter(scale_, group_)};
    const auto projected = projection_->forward(hidden(gather_copied(scaled, group_)), ToSequence());
    return gather(Sharded<1>{scaled.local + projected.local}, group_).local;
  }
  Sharded<-1> hidden(const Copied& values) {
    return elementwise(expansion_->forward(values), [](const at::Tensor& part) { return part.relu(); });
  }

  Group group_, experts_group_;
  bool is_sequence_parallel_;
  VocabParallelEmbedding embedding_{nullptr};
  at::Tensor scale_;
  ColumnParallelLinear expansion_{nullptr};
  RowParallelLinear projection_{nullptr};
  Experts experts_{nullptr};
};

void fill(DividedNet& net, std::uint64_t seed) {
  auto generator = make_generator(seed);
  fill_with_parts(
      net, [&](const std::string&, const std::vector<std::int64_t>& sizes) { return dyadic(sizes, generator, 2); });
}

struct Run {
  NamedTensors state;  // on the main process
  double loss = 0;     // the mean over all ranks
  double norm = 0;
};

Run trained(RankContext& rank, const LayoutCase& layout, const LayoutCase& sizes) {
  AcceleratorOptions options{.parallelism_config = layout.mesh};
  if (layout.mesh.dp_shard_size > 1)
    options.fsdp_plugin = FullyShardedDataParallelPlugin{.fsdp_version = 2, .state_dict_type = "FULL_STATE_DICT"};
  Accelerator accelerator(options, rank);
  auto net = std::make_shared<DividedNet>(accelerator.mesh(), layout);
  fill(*net, sizes.seed);
  optim::SGD sgd(net->parameters(), {.lr = 1.0 / 8});
  auto [model, optimizer] = accelerator.prepare(net, sgd);
  auto generator = make_generator(sizes.seed + 1);
  const auto all = at::randint(0, kVocab, {sizes.rows(), sizes.length()}, generator, at::kLong);
  const auto rows = all.chunk(accelerator.data_parallel_size())[accelerator.data_parallel_rank()];
  const auto place = std::max(accelerator.mesh()["cp"].rank(), accelerator.mesh()["sp"].rank());
  const auto tokens = shard_sequence(rows, 1, layout.plan(sizes.length()), place);
  const auto output = model(tokens);
  const auto loss = (output * output).sum() / tokens.numel();
  accelerator.backward(loss);
  Run run;
  run.norm = accelerator.clip_grad_norm_(model.parameters(), 1e9).item<double>();
  optimizer.step();
  run.loss = accelerator.reduce(loss.detach(), "mean").item<double>();
  run.state = accelerator.get_state_dict(model);
  return run;
}

// Sizes are powers of two: means over the ranks are exact.
LayoutCase any_layout(int max_log_ranks) {
  LayoutCase layout{.rows_per_rank = pick<std::int64_t>(1, 3), .chunk = pick<std::int64_t>(1, 3)};
  int left = pick(1, max_log_ranks + 1);
  const auto size = [&] {
    const int log = pick(0, std::min(left, 3) + 1);
    left -= log;
    return 1 << log;
  };
  auto& mesh = layout.mesh;
  mesh.tp_size = size();
  (one_in(2) ? mesh.cp_size : mesh.sp_size) = size();
  mesh.dp_shard_size = size();
  mesh.ep_size = size();
  mesh.dp_replicate_size = 1 << left;
  layout.is_sequence_parallel = one_in(2);
  layout.seed = pick<std::uint64_t>(0, 1000);
  return layout;
}

void expect_equals_one_rank(const LayoutCase& layout, Backend backend) {
  auto one = layout;
  one.mesh = {};
  Run expected;
  run_ranks(Backend::kSim, 1, [&](RankContext& rank) { expected = trained(rank, one, layout); });
  const auto found =
      collect_ranks(backend, layout.num_ranks(), [&](RankContext& rank) { return trained(rank, layout, layout); });
  const auto& state = found.front().state;
  RC_ASSERT(state.size() == expected.state.size());
  for (const auto& run : found) {
    RC_ASSERT(run.loss == expected.loss);
    RC_ASSERT(std::abs(run.norm - expected.norm) <= 1e-12 * expected.norm);
  }
  for (std::size_t place = 0; place < state.size(); ++place) {
    RC_LOG(state[place].first);
    RC_ASSERT(state[place].first == expected.state[place].first);
    RC_ASSERT(at::equal(state[place].second, expected.state[place].second));
  }
}

TEST(MeshLaws, EveryLayoutUpTo64RanksEqualsOneRank) {
  expect_property(2000, [] { expect_equals_one_rank(any_layout(one_in(20) ? 6 : 3), Backend::kSim); });
}

TEST(MeshLaws, GlooProcessesComputeTheSame) {
  expect_property(20, [] { expect_equals_one_rank(any_layout(3), Backend::kGlooThreads); });
}

}  // namespace
}  // namespace accel::testing::mesh_laws
