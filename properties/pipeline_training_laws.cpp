// Trainings of pipelines: those of one rank that takes the micro-batches one after the other, however the model is cut,
// whatever the schedule, the order in which ranks run, and the options of the step.
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>
#include <torch/optim/adamw.h>

#include "reference/accelerator/accelerator.hpp"
#include "reference/optim/optimizers/clip.hpp"
#include "reference/pipeline/pipeline_model.hpp"
#include "reference/pipeline/schedules/schedule.hpp"
#include "sim/backend/simulate.hpp"
#include "tests/support/property.hpp"
#include "tests/support/run_ranks.hpp"
#include "tests/support/torch.hpp"

namespace accel::testing::pipeline_training_laws {
namespace {

namespace nn = torch::nn;

struct Training {
  int layers = 1, width = 1, rows = 1, steps = 1, window = 1;
  bool has_norms = false, clips = false;
  std::uint64_t seed = 0;
  PipelineOptions options;
  int ranks = 1, replicas = 1;
};

std::ostream& operator<<(std::ostream& out, const Training& training) {
  return out << fmt::format(
             "{} layers of {} on {} ranks x {} replicas, {} with {} stages per rank, {} micro-batches of {} rows, cut "
             "at "
             "[{}], window of {}, {}{}seed {}",
             training.layers, training.width, training.ranks, training.replicas, training.options.schedule,
             training.options.stages_per_rank, training.options.micro_batches, training.rows,
             fmt::join(training.options.split_points, ", "), training.window, training.has_norms ? "norms, " : "",
             training.clips ? "clipped, " : "", training.seed);
}

Training any_training() {
  Training training{.width = pick(1, 9), .steps = pick(1, 4), .window = pick(1, 3)};
  training.seed = pick(0, 1000);
  training.has_norms = one_in(2);
  training.clips = one_in(2);
  training.ranks = pick(1, 5);
  auto& options = training.options;
  const auto& kind = pipeline::schedule_kinds()[pick<std::size_t>(0, pipeline::schedule_kinds().size())];
  options.schedule = kind.name;
  const bool is_looped = kind.name == "gpipe" || kind.name.starts_with("interleaved");
  options.stages_per_rank = is_looped ? pick(1, 4) : kind.default_stages_per_rank;
  const int stages = training.ranks * options.stages_per_rank;
  options.micro_batches = pick(1, 9);
  if (kind.name.starts_with("interleaved"))
    options.micro_batches -= options.micro_batches % std::max(1, options.micro_batches / training.ranks);
  if (kind.name == "dualpipe_v") options.micro_batches = std::max(options.micro_batches, stages);
  // The last micro-batch may be shorter.
  const int per_micro_batch = pick(1, 4);
  training.rows = options.micro_batches * per_micro_batch - pick(0, per_micro_batch);
  training.layers = stages + pick(0, 5);
  if (one_in(3)) {
    std::set<int> points;
    while (static_cast<int>(points.size()) < stages - 1) points.insert(pick(1, training.layers));
    for (const auto point : points) options.split_points.push_back(std::to_string(point));
  }
  return training;
}

struct LayerImpl : nn::Module {
  LayerImpl(int width, bool has_norm) : linear(register_module("linear", nn::Linear(width, width))) {
    if (has_norm) norm = register_module("norm", nn::LayerNorm(nn::LayerNormOptions({width})));
  }
  at::Tensor forward(const at::Tensor& x) {
    const auto y = x + at::tanh(linear(x)) * linear->bias;
    return norm ? norm(y) : y;
  }
  nn::Linear linear;
  nn::LayerNorm norm{nullptr};
};
TORCH_MODULE(Layer);

nn::Sequential make_net(const Training& training) {
  torch::manual_seed(training.seed);
  nn::Sequential net;
  for (int layer = 0; layer < training.layers; ++layer)
    net->push_back(Layer(training.width, training.has_norms && layer % 2 == 1));
  return net;
}

std::pair<at::Tensor, at::Tensor> batch_of(const Training& training, int step, int replica) {
  auto generator = make_generator(training.seed + 1000 * step + 17 * replica);
  const auto draw = [&] { return at::randn({training.rows, training.width}, generator); };
  const auto x = draw();
  return {x, draw()};
}

struct Result {
  std::vector<at::Tensor> losses;
  std::map<std::string, at::Tensor> parameters;
};

torch::optim::AdamWOptions optimizer_options() { return torch::optim::AdamWOptions(0.05); }

Result train_pipeline(RankContext& rank, const Training& training, int ranks, int replicas, PipelineOptions options) {
  Accelerator accelerator({.gradient_accumulation_steps = training.window,
                           .parallelism_config = ParallelismConfig{.dp_replicate_size = replicas, .pp_size = ranks}},
                          rank);
  auto net = make_net(training);
  auto stages = pipeline_model(pipeline_layers(net), accelerator.mesh(), std::move(options));
  torch::optim::AdamW adamw(stages->parameters(), optimizer_options());
  auto [model, optimizer] = accelerator.prepare(stages, adamw);
  Result result;
  for (int step = 0; step < training.steps * training.window; ++step) {
    auto window = accelerator.accumulate(model);
    const auto [x, y] = batch_of(training, step, accelerator.data_parallel_rank());
    result.losses.push_back(accelerator.train_pipeline(
        model, {.inputs = {x}, .targets = {y}},
        [](const at::Tensor& output, const at::Tensor& target) { return at::mse_loss(output, target); }));
    if (training.clips && accelerator.sync_gradients()) accelerator.clip_grad_norm_(model.parameters(), 0.1);
    optimizer.step();
    optimizer.zero_grad();
  }
  for (const auto& item : stages->named_parameters()) result.parameters[item.key()] = item.value().detach().clone();
  return result;
}

// Knows nothing of pipelines.
Result accumulate(const Training& training) {
  auto net = make_net(training);
  torch::optim::AdamW adamw(net->parameters(), optimizer_options());
  Result result;
  for (int step = 0; step < training.steps; ++step) {
    for (int part = 0; part < training.window; ++part) {
      const auto [x, y] = batch_of(training, step * training.window + part, 0);
      const auto size = (training.rows + training.options.micro_batches - 1) / training.options.micro_batches;
      auto total = at::zeros({});
      for (int begin = 0; begin < training.rows; begin += size) {
        const auto count = std::min(size, training.rows - begin);
        const auto loss = at::mse_loss(net->forward(x.narrow(0, begin, count)), y.narrow(0, begin, count)) *
                          (count / static_cast<double>(training.rows));
        (training.window == 1 ? loss : loss.div(training.window)).backward();
        total = total + loss.detach();
      }
      result.losses.push_back(total);
    }
    if (training.clips) optim::clip_grad_norm(net->parameters(), 0.1);
    adamw.step();
    adamw.zero_grad();
  }
  for (const auto& item : net->named_parameters()) result.parameters[item.key()] = item.value().detach().clone();
  return result;
}

void assert_equal(const Result& expected, const std::vector<Result>& ranks) {
  std::set<std::string> names;
  for (const auto& result : ranks) {
    for (std::size_t step = 0; step < result.losses.size(); ++step)
      RC_ASSERT(result.losses[step].equal(expected.losses.at(step)));
    for (const auto& [name, value] : result.parameters) {
      names.insert(name);
      RC_ASSERT(value.equal(expected.parameters.at(name)));
    }
  }
  RC_ASSERT(names.size() == expected.parameters.size());
}

// On a simulated rank, so that operators use one thread.
Result on_one_rank(const std::function<Result(RankContext&)>& train) {
  return collect_ranks(Backend::kSim, 1, train).front();
}

TEST(PipelineTrainingLaws, APipelineTrainsLikeOneRankThatAccumulates) {
  expect_property(100, [] {
    const auto training = any_training();
    RC_LOG() << training << '\n';
    const auto one = on_one_rank([&](RankContext&) { return accumulate(training); });
    std::vector<Result> results(training.ranks);
    const auto schedule = sim::RankSchedule{.kind = sim::ScheduleKind::kRandom, .seed = training.seed};
    sim::simulate({.num_ranks = training.ranks, .schedule = schedule}, [&](RankContext& rank) {
      results[rank.rank] = train_pipeline(rank, training, training.ranks, 1, training.options);
    });
    assert_equal(one, results);
  });
}

TEST(PipelineTrainingLaws, GlooTrainsTheSamePipeline) {
  expect_property(30, [] {
    const auto training = any_training();
    RC_LOG() << training << '\n';
    const auto one = on_one_rank([&](RankContext&) { return accumulate(training); });
    assert_equal(one, collect_ranks(Backend::kGlooThreads, training.ranks, [&](RankContext& rank) {
                   return train_pipeline(rank, training, training.ranks, 1, training.options);
                 }));
  });
}

// Two replicas add two numbers, whose order does not matter.
TEST(PipelineTrainingLaws, ReplicasOfAPipelineTrainLikeReplicasOfOneStage) {
  expect_property(40, [] {
    const auto training = any_training();
    RC_LOG() << training << '\n';
    const auto whole = collect_ranks(Backend::kSim, 2, [&](RankContext& rank) {
      return train_pipeline(rank, training, 1, 2, {.micro_batches = training.options.micro_batches});
    });
    const auto ranks = collect_ranks(Backend::kSim, 2 * training.ranks, [&](RankContext& rank) {
      return train_pipeline(rank, training, training.ranks, 2, training.options);
    });
    for (int replica = 0; replica < 2; ++replica)
      assert_equal(whole[replica],
                   {ranks.begin() + replica * training.ranks, ranks.begin() + (replica + 1) * training.ranks});
  });
}

}  // namespace
}  // namespace accel::testing::pipeline_training_laws
