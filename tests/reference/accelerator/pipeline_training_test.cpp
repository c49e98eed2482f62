// Training the stages of a pipeline gives the bits of one rank that accumulates the gradients of the same
// micro-batches.
#include <accel/accel.hpp>
#include <accel/models.hpp>
#include <accel/pipeline.hpp>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "reference/optim/optimizers/clip.hpp"
#include "tests/support/message_of.hpp"
#include "tests/support/run_ranks.hpp"
#include "tests/support/temporary_folder.hpp"

namespace accel::testing::pipeline_training_test {
namespace {

namespace nn = torch::nn;
using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr int kLayers = 8, kBatch = 10, kMicroBatches = 4, kSteps = 3;

nn::Sequential make_net(double dropout = 0) {
  torch::manual_seed(5);
  nn::Sequential net;
  for (int layer = 0; layer < kLayers; ++layer) {
    net->push_back(nn::Linear(6, 6));
    net->push_back(nn::Tanh());
    if (dropout > 0) net->push_back(nn::Dropout(dropout));
  }
  net->push_back(nn::Linear(6, 3));
  return net;
}

struct Batch {
  at::Tensor x, y;
};

Batch batch_of(int step, int replica = 0) {
  auto generator = make_generator(100 * replica + step);
  return {at::randn({kBatch, 6}, generator), at::randint(0, 3, {kBatch}, generator, at::kLong)};
}

std::map<std::string, at::Tensor> values_of(const nn::Module& module) {
  std::map<std::string, at::Tensor> values;
  for (const auto& item : module.named_parameters()) values[item.key()] = item.value().detach().clone();
  return values;
}

struct Trained {
  std::vector<at::Tensor> losses, norms;
  std::map<std::string, at::Tensor> parameters;
};

at::Tensor cross_entropy(const at::Tensor& logits, const at::Tensor& y) {
  return nn::functional::cross_entropy(logits, y);
}

Trained train_pipeline_on(RankContext& rank, ParallelismConfig mesh, const PipelineOptions& options, double dropout = 0,
                          double max_norm = 0.1) {
  Accelerator accelerator({.parallelism_config = mesh}, rank);
  const auto net = make_net(dropout);
  auto stages = pipeline_model(pipeline_layers(net), accelerator.mesh(), options);
  torch::optim::SGD sgd(stages->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
  auto [model, optimizer] = accelerator.prepare(stages, sgd);
  torch::manual_seed(17);
  Trained trained;
  for (int step = 0; step < kSteps; ++step) {
    const auto [x, y] = batch_of(step, accelerator.data_parallel_rank());
    trained.losses.push_back(accelerator.train_pipeline(model, {.inputs = {x}, .targets = {y}}, cross_entropy));
    trained.norms.push_back(accelerator.clip_grad_norm_(model.parameters(), max_norm));
    optimizer.step();
    optimizer.zero_grad();
  }
  trained.parameters = values_of(*stages);
  return trained;
}

// Without anything of pipelines.
Trained accumulate() {
  auto net = make_net();
  torch::optim::SGD sgd(net->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
  Trained trained;
  for (int step = 0; step < kSteps; ++step) {
    const auto [x, y] = batch_of(step);
    auto total = torch::zeros({});
    for (const auto& part : cut_into_micro_batches({x, y}, kMicroBatches, "test")) {
      const auto loss = cross_entropy(net->forward(part[0]), part[1]) * (part[0].size(0) / double{kBatch});
      loss.backward();
      total = total + loss.detach();
    }
    trained.losses.push_back(total);
    trained.norms.push_back(optim::clip_grad_norm(net->parameters(), 0.1));
    sgd.step();
    sgd.zero_grad();
  }
  trained.parameters = values_of(*net);
  return trained;
}

void expect_equal(const Trained& one, const std::vector<Trained>& ranks) {
  std::map<std::string, int> seen;
  for (const auto& trained : ranks) {
    for (int step = 0; step < kSteps; ++step) {
      EXPECT_TRUE(trained.losses[step].equal(one.losses[step])) << "loss of step " << step;
      EXPECT_TRUE(trained.norms[step].equal(one.norms[step]))
          << "norm of step " << step << ": " << trained.norms[step].item<double>() << " and "
          << one.norms[step].item<double>();
    }
    for (const auto& [name, value] : trained.parameters) {
      ++seen[name];
      EXPECT_TRUE(value.equal(one.parameters.at(name))) << name;
    }
  }
  EXPECT_EQ(seen.size(), one.parameters.size());
}

struct Case {
  std::string schedule;
  int ranks, stages_per_rank;
};

class PipelineTrainingTest : public ::testing::TestWithParam<std::tuple<Backend, Case>> {};

INSTANTIATE_TEST_SUITE_P(Schedules, PipelineTrainingTest,
                         ::testing::Combine(::testing::Values(Backend::kSim, Backend::kGlooThreads),
                                            ::testing::Values(Case{"gpipe", 4, 1}, Case{"1f1b", 2, 1},
                                                              Case{"1f1b", 4, 1}, Case{"interleaved_1f1b", 2, 4},
                                                              Case{"zb_h1", 4, 1},
                                                              Case{"interleaved_zero_bubble", 2, 2}, Case{"zbv", 2, 2},
                                                              Case{"dualpipe_v", 2, 2})),
                         [](const auto& info) {
                           const auto& config = std::get<1>(info.param);
                           return fmt::format("{}_{}_{}x{}", name_of(std::get<0>(info.param)), config.schedule,
                                              config.ranks, config.stages_per_rank);
                         });

TEST_P(PipelineTrainingTest, LossesNormsAndParametersAreThoseOfOneRank) {
  const auto& [backend, config] = GetParam();
  const auto one = collect_ranks(Backend::kSim, 1, [](RankContext&) { return accumulate(); }).front();
  expect_equal(
      one, collect_ranks(backend, config.ranks, [&](RankContext& rank) {
        return train_pipeline_on(
            rank, {.pp_size = config.ranks},
            {.schedule = config.schedule, .micro_batches = kMicroBatches, .stages_per_rank = config.stages_per_rank});
      }));
}

TEST(PipelineStreamsTest, DropoutDoesNotDependOnTheCut) {
  const auto train = [](int ranks, const std::string& schedule, int stages_per_rank) {
    return collect_ranks(Backend::kSim, ranks, [&](RankContext& rank) {
      return train_pipeline_on(
          rank, {.pp_size = ranks},
          {.schedule = schedule, .micro_batches = kMicroBatches, .stages_per_rank = stages_per_rank}, /*dropout=*/0.3);
    });
  };
  const auto one = train(1, "1f1b", 1).front();
  EXPECT_FALSE(
      one.losses[0].equal(collect_ranks(Backend::kSim, 1, [](RankContext&) { return accumulate(); })[0].losses[0]));
  expect_equal(one, train(4, "1f1b", 1));
  expect_equal(one, train(2, "zbv", 2));
}

// Recomputed layers draw the same dropout again, and a backward in two halves computes nothing twice.
TEST_P(PipelineTrainingTest, RecomputedLayersGiveTheSameBits) {
  const auto& [backend, config] = GetParam();
  const auto train = [&](bool recompute) {
    return collect_ranks(backend, config.ranks, [&](RankContext& rank) {
      return train_pipeline_on(rank, {.pp_size = config.ranks},
                               {.schedule = config.schedule,
                                .micro_batches = kMicroBatches,
                                .stages_per_rank = config.stages_per_rank,
                                .recompute = recompute},
                               /*dropout=*/0.3);
    });
  };
  const auto kept = train(false), recomputed = train(true);
  for (int rank = 0; rank < config.ranks; ++rank) {
    for (int step = 0; step < kSteps; ++step) {
      EXPECT_TRUE(recomputed[rank].losses[step].equal(kept[rank].losses[step]));
      EXPECT_TRUE(recomputed[rank].norms[step].equal(kept[rank].norms[step]));
    }
    for (const auto& [name, value] : kept[rank].parameters)
      EXPECT_TRUE(recomputed[rank].parameters.at(name).equal(value)) << name;
  }
}

// Counts its calls, and those that record a graph, for which activations are kept.
class CountsCallsImpl : public nn::Module {
 public:
  CountsCallsImpl(int* calls, int* with_gradients) : calls_(calls), with_gradients_(with_gradients) {}
  at::Tensor forward(const at::Tensor& x) {
    ++*calls_;
    *with_gradients_ += c10::GradMode::is_enabled() ? 1 : 0;
    return x * 1.5;
  }

 private:
  int *calls_, *with_gradients_;
};

TEST(PipelineTrainingTest, RecomputedLayersRecordNoGraphInTheForwardPass) {
  run_ranks(Backend::kSim, 2, [](RankContext& rank) {
    Accelerator accelerator({.parallelism_config = ParallelismConfig{.pp_size = 2}}, rank);
    auto net = make_net();
    int calls = 0, with_gradients = 0;
    net->push_back(std::make_shared<CountsCallsImpl>(&calls, &with_gradients));
    auto stages = pipeline_model(pipeline_layers(net), accelerator.mesh(), {.micro_batches = 4, .recompute = true});
    auto model = accelerator.prepare(stages);
    const auto [x, y] = batch_of(0);
    accelerator.train_pipeline(model, {.inputs = {x}, .targets = {y}}, cross_entropy);
    calls = with_gradients = 0;  // the first call also finds the sizes
    accelerator.train_pipeline(model, {.inputs = {x}, .targets = {y}}, cross_entropy);
    const bool is_last = rank.rank == 1;
    EXPECT_EQ(calls, is_last ? 8 : 0);
    EXPECT_EQ(with_gradients, is_last ? 4 : 0);
  });
}

TEST(PipelineTrainingTest, ReplicasOfStagesAverageTheirGradients) {
  const auto train = [](Backend backend, int stages, const std::string& schedule) {
    return collect_ranks(backend, 2 * stages, [&](RankContext& rank) {
      return train_pipeline_on(rank, {.dp_replicate_size = 2, .pp_size = stages},
                               {.schedule = schedule, .micro_batches = kMicroBatches});
    });
  };
  const auto whole = train(Backend::kSim, 1, "1f1b");
  EXPECT_FALSE(whole[0].losses[0].equal(whole[1].losses[0]));
  for (const auto backend : {Backend::kSim, Backend::kGlooThreads}) {
    for (const auto* schedule : {"1f1b", "zb_h1"}) {
      const auto divided = train(backend, 2, schedule);
      expect_equal(whole[0], {divided[0], divided[1]});
      expect_equal(whole[1], {divided[2], divided[3]});
    }
  }
}

struct FixedScaleImpl : nn::Module {
  at::Tensor forward(const at::Tensor& x) { return x * scale; }
  at::Tensor scale = register_parameter("scale", at::full({6}, 2.0), /*requires_grad=*/false);
};
TORCH_MODULE(FixedScale);

TEST(PipelineTrainingTest, ReplicasOfStagesLeaveFrozenParametersAlone) {
  for (const auto backend : {Backend::kSim, Backend::kGlooThreads}) {
    collect_ranks(backend, 4, [](RankContext& rank) {
      Accelerator accelerator({.parallelism_config = ParallelismConfig{.dp_replicate_size = 2, .pp_size = 2}}, rank);
      const nn::Sequential net(nn::Linear(6, 6), FixedScale(), nn::Linear(6, 3));
      net->named_parameters()["0.bias"].requires_grad_(false);
      const auto stages = pipeline_model(pipeline_layers(net), accelerator.mesh(), {.micro_batches = kMicroBatches});
      auto model = accelerator.prepare(stages);
      const auto [x, y] = batch_of(0, accelerator.data_parallel_rank());
      accelerator.train_pipeline(model, {.inputs = {x}, .targets = {y}}, cross_entropy);
      for (const auto& item : stages->named_parameters())
        EXPECT_EQ(item.value().grad().defined(), item.value().requires_grad()) << item.key();
      return true;
    });
  }
}

// The first and the last layer share a weight.
struct TiedOutputImpl : nn::Module {
  explicit TiedOutputImpl(const at::Tensor& weight) : weight(register_parameter("weight", weight)) {}
  at::Tensor forward(const at::Tensor& x) { return torch::linear(x, weight); }
  at::Tensor weight;
};
TORCH_MODULE(TiedOutput);

std::vector<at::Tensor> train_tied(RankContext& rank, int ranks) {
  Accelerator accelerator({.parallelism_config = ParallelismConfig{.pp_size = ranks}}, rank);
  torch::manual_seed(5);
  const nn::Embedding embedding(10, 4);
  const nn::Linear middle(4, 4);
  const TiedOutput output(embedding->weight);
  auto stages = pipeline_model(
      {pipeline_layer("embedding", embedding), pipeline_layer("middle", middle), pipeline_layer("output", output)},
      accelerator.mesh(), {.micro_batches = 4});
  torch::optim::SGD sgd(stages->parameters(), torch::optim::SGDOptions(0.5));
  auto [model, optimizer] = accelerator.prepare(stages, sgd);
  std::vector<at::Tensor> results;
  for (int step = 0; step < 3; ++step) {
    const auto tokens = torch::randint(0, 10, {8}, make_generator(step), torch::kLong);
    results.push_back(accelerator.train_pipeline(model, {.inputs = {tokens}, .targets = {tokens}}, cross_entropy));
    results.push_back(accelerator.clip_grad_norm_(model.parameters(), 1.0));
    optimizer.step();
    optimizer.zero_grad();
  }
  return results;
}

TEST(PipelineTrainingTest, AWeightOfTwoStagesIsOne) {
  const auto one = collect_ranks(Backend::kSim, 1, [](RankContext& rank) { return train_tied(rank, 1); }).front();
  for (const auto backend : {Backend::kSim, Backend::kGlooThreads}) {
    for (const auto& divided : collect_ranks(backend, 3, [](RankContext& rank) { return train_tied(rank, 3); })) {
      for (std::size_t place = 0; place < one.size(); ++place)
        EXPECT_TRUE(torch::allclose(divided[place], one[place], 1e-5, 1e-6)) << place << divided[place] << one[place];
    }
  }
}

// Losses and parameters after a checkpoint that was saved after two of four steps.
Trained resume(RankContext& rank, int ranks, const PipelineOptions& options, const std::string& folder, bool saves) {
  Accelerator accelerator({.parallelism_config = ParallelismConfig{.pp_size = ranks}}, rank);
  auto net = make_net();
  auto stages = pipeline_model(pipeline_layers(net), accelerator.mesh(), options);
  torch::optim::AdamW adam(stages->parameters(), torch::optim::AdamWOptions(0.05));
  auto [model, optimizer] = accelerator.prepare(stages, adam);
  Trained trained;
  for (int step = 0; step < 4; ++step) {
    if (step == 2 && saves) accelerator.save_state(folder);
    if (step < 2 && !saves) continue;
    if (step == 2 && !saves) accelerator.load_state(folder);
    const auto [x, y] = batch_of(step);
    trained.losses.push_back(accelerator.train_pipeline(model, {.inputs = {x}, .targets = {y}}, cross_entropy));
    optimizer.step();
    optimizer.zero_grad();
  }
  trained.parameters = values_of(*stages);
  return trained;
}

// The same without a pipeline.
Trained resume_alone(RankContext& rank, const std::string& folder, bool saves) {
  Accelerator accelerator({}, rank);
  auto net = make_net();
  torch::optim::AdamW adam(net->parameters(), torch::optim::AdamWOptions(0.05));
  auto [model, optimizer] = accelerator.prepare(net, adam);
  Trained trained;
  for (int step = 0; step < 4; ++step) {
    if (step == 2 && saves) accelerator.save_state(folder);
    if (step < 2 && !saves) continue;
    if (step == 2 && !saves) accelerator.load_state(folder);
    const auto [x, y] = batch_of(step);
    auto total = torch::zeros({});
    for (const auto& part : cut_into_micro_batches({x, y}, kMicroBatches, "test")) {
      const auto loss = cross_entropy(model(part[0]), part[1]) * (part[0].size(0) / double{kBatch});
      accelerator.backward(loss);
      total = total + loss.detach();
    }
    trained.losses.push_back(total);
    optimizer.step();
    optimizer.zero_grad();
  }
  trained.parameters = values_of(*net);
  return trained;
}

void expect_resumed(const Trained& saved, const std::vector<Trained>& ranks, const std::string& what) {
  for (const auto& trained : ranks) {
    for (std::size_t step = 0; step < trained.losses.size(); ++step)
      EXPECT_TRUE(trained.losses[step].equal(saved.losses[step + 2])) << what << ": loss of step " << step + 2;
    for (const auto& [name, value] : trained.parameters)
      EXPECT_TRUE(value.equal(saved.parameters.at(name))) << what << ": " << name;
  }
}

TEST(PipelineCheckpointTest, ACheckpointLoadsUnderAnotherNumberOfStagesAndWithoutAPipeline) {
  const PipelineOptions one_stage{.micro_batches = kMicroBatches};
  const TemporaryFolder of_pipeline, alone;
  const auto save = [&](RankContext& rank) {
    return resume(rank, 4, one_stage, of_pipeline.path("state"), /*saves=*/true);
  };
  Trained saved;
  for (const auto& trained : collect_ranks(Backend::kSim, 4, save)) {
    saved.losses = trained.losses;
    saved.parameters.insert(trained.parameters.begin(), trained.parameters.end());
  }
  const auto saved_alone = collect_ranks(Backend::kSim, 1, [&](RankContext& rank) {
                             return resume_alone(rank, alone.path("state"), /*saves=*/true);
                           }).front();
  expect_resumed(saved_alone,
                 {{.losses = {saved.losses.begin() + 2, saved.losses.end()}, .parameters = saved.parameters}},
                 "without a pipeline");
  for (const auto& folder : {of_pipeline.path("state"), alone.path("state")}) {
    expect_resumed(saved,
                   collect_ranks(Backend::kSim, 2,
                                 [&](RankContext& rank) {
                                   return resume(rank, 2, {.schedule = "zbv", .micro_batches = kMicroBatches}, folder,
                                                 false);
                                 }),
                   folder + " on 2 ranks");
    expect_resumed(saved,
                   collect_ranks(Backend::kGlooThreads, 3,
                                 [&](RankContext& rank) { return resume(rank, 3, one_stage, folder, false); }),
                   folder + " on 3 ranks");
    expect_resumed(
        saved, collect_ranks(Backend::kSim, 1, [&](RankContext& rank) { return resume_alone(rank, folder, false); }),
        folder + " alone");
  }
}

// --- options of training -----------------------------------------------------------------------------------------

// Losses are means over unmasked targets, of which micro-batches have different numbers, and some none.
struct Masked {
  at::Tensor x, y;
};
Masked masked_batch(int step) {
  auto [x, y] = batch_of(step);
  y.narrow(0, 0, 4).fill_(-100);  // the first micro-batch and a part of the second
  return {x, y};
}
double num_unmasked(const std::vector<at::Tensor>& targets) { return targets[0].ne(-100).sum().item<double>(); }
at::Tensor masked_loss(const at::Tensor& logits, const at::Tensor& y) {
  const auto sum =
      nn::functional::cross_entropy(logits, y, nn::functional::CrossEntropyFuncOptions().reduction(torch::kSum));
  return sum / y.ne(-100).sum().clamp_min(1);
}

// The parameters after a window of two batches.
Trained train_window(RankContext& rank, int ranks, const std::string& precision, const std::string& weighting) {
  Accelerator accelerator({.mixed_precision = precision,
                           .gradient_accumulation_steps = 2,
                           .loss_weighting = weighting,
                           .parallelism_config = ParallelismConfig{.pp_size = ranks}},
                          rank);
  auto net = make_net();
  auto stages = pipeline_model(pipeline_layers(net), accelerator.mesh(), {.micro_batches = kMicroBatches});
  torch::optim::SGD sgd(stages->parameters(), torch::optim::SGDOptions(0.1));
  auto [model, optimizer] = accelerator.prepare(stages, sgd);
  Trained trained;
  for (int step = 0; step < 4; ++step) {
    auto window = accelerator.accumulate(model);
    const auto [x, y] = masked_batch(step);
    trained.losses.push_back(
        accelerator.train_pipeline(model, {.inputs = {x}, .targets = {y}, .num_items = num_unmasked}, masked_loss));
    optimizer.step();
    optimizer.zero_grad();
  }
  trained.parameters = values_of(*stages);
  return trained;
}

Trained train_window_alone(RankContext& rank, const std::string& precision, const std::string& weighting) {
  Accelerator accelerator({.mixed_precision = precision, .gradient_accumulation_steps = 2, .loss_weighting = weighting},
                          rank);
  auto net = make_net();
  torch::optim::SGD sgd(net->parameters(), torch::optim::SGDOptions(0.1));
  auto [model, optimizer] = accelerator.prepare(net, sgd);
  Trained trained;
  for (int step = 0; step < 4; ++step) {
    auto window = accelerator.accumulate(model);
    const auto [x, y] = masked_batch(step);
    // One loss of the complete batch.
    const auto loss = masked_loss(model(x), y);
    accelerator.backward(loss, {.num_items = weighting == "exact" ? std::optional(num_unmasked({y})) : std::nullopt});
    trained.losses.push_back(loss.detach());
    optimizer.step();
    optimizer.zero_grad();
  }
  trained.parameters = values_of(*net);
  return trained;
}

TEST(PipelineOptionsTest, WindowsWeightsAndPrecisionsAreThoseOfABatchOnOneRank) {
  for (const auto* precision : {"no", "bf16", "fp16"}) {
    for (const auto* weighting : {"accelerate", "exact"}) {
      const double tolerance = std::string(precision) == "no" ? 1e-6 : 3e-3;
      const auto one = collect_ranks(Backend::kSim, 1, [&](RankContext& rank) {
                         return train_window_alone(rank, precision, weighting);
                       }).front();
      for (const auto& trained : collect_ranks(
               Backend::kSim, 3, [&](RankContext& rank) { return train_window(rank, 3, precision, weighting); })) {
        for (std::size_t step = 0; step < one.losses.size(); ++step)
          EXPECT_TRUE(torch::allclose(trained.losses[step], one.losses[step], tolerance, tolerance))
              << precision << " " << weighting << " " << step << trained.losses[step] << one.losses[step];
        for (const auto& [name, value] : trained.parameters)
          EXPECT_TRUE(torch::allclose(value, one.parameters.at(name), tolerance, tolerance))
              << precision << " " << weighting << " " << name;
      }
    }
  }
}

// Norms of a batch keep statistics: the pass that finds the sizes must not change them.
TEST(PipelineOptionsTest, RunningStatisticsAreThoseOfTheMicroBatches) {
  const auto statistics_on = [](int ranks) {
    return collect_ranks(Backend::kSim, ranks, [&](RankContext& rank) {
      Accelerator accelerator({.parallelism_config = ParallelismConfig{.pp_size = ranks}}, rank);
      torch::manual_seed(1);
      nn::Sequential net(nn::Linear(6, 6), nn::BatchNorm1d(6), nn::Linear(6, 3));
      auto stages = pipeline_model(pipeline_layers(net), accelerator.mesh(), {.micro_batches = 2});
      auto model = accelerator.prepare(stages);
      for (int step = 0; step < 2; ++step) {
        const auto [x, y] = batch_of(step);
        accelerator.train_pipeline(model, {.inputs = {x}, .targets = {y}}, cross_entropy);
        stages->zero_grad();
      }
      std::map<std::string, at::Tensor> buffers;
      for (const auto& item : stages->named_buffers()) buffers[item.key()] = item.value().clone();
      return buffers;
    });
  };
  const auto one = statistics_on(1).front();
  EXPECT_EQ(one.at("1.num_batches_tracked").item<int>(), 4);
  for (const auto& buffers : statistics_on(3)) {
    for (const auto& [name, value] : buffers) EXPECT_TRUE(value.equal(one.at(name))) << name;
  }
}

TEST(PipelineInferenceTest, OutputsAreThoseOfTheModelForAnyNumberOfRows) {
  for (const auto backend : {Backend::kSim, Backend::kGlooThreads}) {
    for (const bool gathers : {false, true}) {
      run_ranks(backend, 3, [&](RankContext& rank) {
        Accelerator accelerator({.parallelism_config = ParallelismConfig{.pp_size = 3}}, rank);
        auto net = make_net();
        const auto complete = make_net();
        auto model = accelerator.prepare_pipeline(pipeline_layers(net), {.micro_batches = 4, .gather_output = gathers});
        const torch::NoGradGuard no_grad;
        for (const int rows : {8, 7, 3, 1}) {
          const auto x = torch::randn({rows, 6}, make_generator(rows));
          const auto outputs = model(x);
          ASSERT_EQ(outputs.size(), gathers || rank.rank == 2 ? 1U : 0U);
          if (!outputs.empty()) EXPECT_TRUE(torch::allclose(outputs[0], complete.ptr()->forward(x), 1e-6, 1e-6));
        }
      });
    }
  }
}

TEST(PipelineMistakesTest, AllProblemsOfAPipelineAreOneError) {
  run_ranks(Backend::kSim, 2, [](RankContext& rank) {
    const Accelerator accelerator({.parallelism_config = ParallelismConfig{.pp_size = 2}}, rank);
    nn::Sequential two(nn::Linear(2, 2), nn::Linear(2, 2));
    EXPECT_EQ(message_of<ConfigError>([&] {
                pipeline_model(pipeline_layers(two), accelerator.mesh(),
                               {.schedule = "dualpipe_v", .micro_batches = 2});
              }),
              "pipeline_model: schedule dualpipe_v: 2 micro-batches for 4 stages; expected at least as many as stages; "
              "2 layers for 4 stages; expected at least one layer per stage");
    EXPECT_EQ(message_of<ConfigError>([&] {
                pipeline_model({pipeline_layer("a", nn::Linear(2, 2)), pipeline_layer("a", nn::Linear(2, 2))},
                               accelerator.mesh(), {.schedule = "2f3b"});
              }),
              "pipeline_model: no schedule has the name '2f3b'; expected gpipe, 1f1b, interleaved_1f1b, zb_h1, "
              "interleaved_zero_bubble, zbv, dualpipe_v; two layers have the name 'a'; two modules have the name 'a'");
  });
}

TEST(PipelineMistakesTest, SplitPointsAreLayersInTheirOrder) {
  run_ranks(Backend::kSim, 2, [](RankContext& rank) {
    const Accelerator accelerator({.parallelism_config = ParallelismConfig{.pp_size = 2}}, rank);
    nn::Sequential net(nn::Linear(2, 2), nn::Linear(2, 2), nn::Linear(2, 2));
    const auto problems_of = [&](std::vector<std::string> points) {
      return message_of<ConfigError>(
          [&] { pipeline_model(pipeline_layers(net), accelerator.mesh(), {.split_points = std::move(points)}); });
    };
    EXPECT_EQ(problems_of({"9"}),
              "pipeline_model: split_points: the model has no layer '9'; expected some of: 0, 1, 2");
    EXPECT_EQ(
        problems_of({"2", "1"}),
        "pipeline_model: split_points: '2', '1' are not in the order of the layers, each once, without the first; "
        "split_points: 2 names for 2 stages; expected 1");
    EXPECT_EQ(problems_of({"0"}),
              "pipeline_model: split_points: '0' are not in the order of the layers, each once, without the first");
    auto stages = pipeline_model(pipeline_layers(net), accelerator.mesh(), {.split_points = {"1"}});
    EXPECT_EQ(stages->named_parameters().size(), rank.rank == 0 ? 2U : 4U);
  });
}

TEST(PipelineMistakesTest, BatchesThatDoNotFitAreErrorsOnEveryRank) {
  run_ranks(Backend::kSim, 2, [](RankContext& rank) {
    Accelerator accelerator({.parallelism_config = ParallelismConfig{.pp_size = 2}}, rank);
    auto net = make_net();
    auto model = accelerator.prepare(pipeline_model(pipeline_layers(net), accelerator.mesh(), {.micro_batches = 4}));
    const auto [x, y] = batch_of(0);
    EXPECT_EQ(message_of<ArgumentError>([&] {
                accelerator.train_pipeline(model, {.inputs = {x.narrow(0, 0, 9)}, .targets = {y.narrow(0, 0, 9)}},
                                           cross_entropy);
              }),
              "train_pipeline: a batch of 9 rows gives 3 micro-batches of 3 rows; expected 4, so use a multiple of 4 "
              "rows, or fewer micro-batches");
    EXPECT_EQ(message_of<ArgumentError>([&] {
                accelerator.train_pipeline(model, {.inputs = {x}, .targets = {y.narrow(0, 0, 9)}}, cross_entropy);
              }),
              "train_pipeline: the tensors of a batch have 10, 9 rows; expected the same number of rows in each");
    EXPECT_THAT(message_of<ArgumentError>([&] {
                  accelerator.train_pipeline(model, {.inputs = {x + rank.rank}, .targets = {y}}, cross_entropy);
                }),
                HasSubstr("train_pipeline: the ranks of a pipeline got different batches"));
  });
}

TEST(PipelineMistakesTest, AModelWithoutStagesOnAMeshWithAPipelineIsAnError) {
  run_ranks(Backend::kSim, 2, [](RankContext& rank) {
    Accelerator accelerator({.parallelism_config = ParallelismConfig{.pp_size = 2}}, rank);
    auto net = make_net();
    EXPECT_THAT(message_of<ConfigError>([&] { accelerator.prepare(net); }),
                HasSubstr("prepare: parallelism_config has pp_size 2, and the model has no stages"));
  });
}

// --- stages that differ -------------------------------------------------------------------------------------------

// Parameters after steps of a net whose first layers are frozen, so that the first stage has nothing to train.
std::map<std::string, at::Tensor> fine_tune(RankContext& rank, int ranks, const std::string& precision,
                                            const std::string& folder) {
  Accelerator accelerator({.mixed_precision = precision, .parallelism_config = ParallelismConfig{.pp_size = ranks}},
                          rank);
  auto net = make_net();
  for (const auto* frozen : {"0.weight", "0.bias", "2.weight", "2.bias"})
    net->named_parameters()[frozen].requires_grad_(false);
  auto stages = pipeline_model(pipeline_layers(net), accelerator.mesh(),
                               {.micro_batches = 2, .split_points = [&] {
                                  return ranks == 1 ? std::vector<std::string>() : std::vector<std::string>{"4", "16"};
                                }()});
  std::vector<at::Tensor> trained;
  for (const auto& parameter : stages->parameters()) {
    if (parameter.requires_grad()) trained.push_back(parameter);
  }
  torch::optim::AdamW adamw(trained, torch::optim::AdamWOptions(0.05));
  auto [model, optimizer] = accelerator.prepare(stages, adamw);
  for (int step = 0; step < 4; ++step) {
    const auto [x, y] = batch_of(step);
    accelerator.train_pipeline(model, {.inputs = {x}, .targets = {y}}, cross_entropy);
    accelerator.clip_grad_norm_(model.parameters(), 0.1);
    optimizer.step();
    optimizer.zero_grad();
    if (step == 1) accelerator.save_state(folder);
  }
  accelerator.load_state(folder);
  std::map<std::string, at::Tensor> parameters;
  for (const auto& item : stages->named_parameters()) parameters[item.key()] = item.value().detach().clone();
  return parameters;
}

TEST(PipelineStagesTest, AStageWithoutTrainedParametersTakesPart) {
  for (const auto* precision : {"no", "fp16"}) {
    const TemporaryFolder folder;
    const auto one = collect_ranks(Backend::kSim, 1, [&](RankContext& rank) {
                       return fine_tune(rank, 1, precision, folder.path("one"));
                     }).front();
    for (const auto backend : {Backend::kSim, Backend::kGlooThreads}) {
      const auto ranks = collect_ranks(
          backend, 3, [&](RankContext& rank) { return fine_tune(rank, 3, precision, folder.path(name_of(backend))); });
      for (const auto& parameters : ranks) {
        for (const auto& [name, value] : parameters)
          EXPECT_TRUE(torch::allclose(value, one.at(name), 1e-3, 1e-3)) << precision << " " << name;
      }
    }
  }
}

// Two batches without zero_grad between them: the second adds to gradients that the ranks have summed already.
TEST(PipelineStagesTest, TiedGradientsAddUpOverCalls) {
  const auto gradient_on = [](int ranks) {
    return collect_ranks(
               Backend::kSim, ranks,
               [&](RankContext& rank) {
                 Accelerator accelerator({.parallelism_config = ParallelismConfig{.pp_size = ranks}}, rank);
                 torch::manual_seed(5);
                 const nn::Embedding embedding(10, 4);
                 const nn::Linear middle(4, 4);
                 const TiedOutput output(embedding->weight);
                 auto stages = pipeline_model({pipeline_layer("embedding", embedding), pipeline_layer("middle", middle),
                                               pipeline_layer("output", output)},
                                              accelerator.mesh(), {.micro_batches = 2});
                 auto model = accelerator.prepare(stages);
                 for (int step = 0; step < 2; ++step) {
                   const auto tokens = torch::randint(0, 10, {4}, make_generator(step), torch::kLong);
                   accelerator.train_pipeline(model, {.inputs = {tokens}, .targets = {tokens}}, cross_entropy);
                 }
                 return rank.rank == 0 ? embedding->weight.grad().clone() : at::Tensor();
               })
        .front();
  };
  EXPECT_TRUE(torch::allclose(gradient_on(3), gradient_on(1), 1e-5, 1e-6));
}

TEST(PipelineStagesTest, AFrozenTiedWeightStaysWithoutGradient) {
  run_ranks(Backend::kSim, 3, [](RankContext& rank) {
    Accelerator accelerator({.parallelism_config = ParallelismConfig{.pp_size = 3}}, rank);
    torch::manual_seed(5);
    nn::Embedding embedding(10, 4);
    const nn::Linear middle(4, 4);
    const TiedOutput output(embedding->weight);
    embedding->weight.requires_grad_(false);
    auto stages = pipeline_model(
        {pipeline_layer("embedding", embedding), pipeline_layer("middle", middle), pipeline_layer("output", output)},
        accelerator.mesh(), {.micro_batches = 2});
    auto model = accelerator.prepare(stages);
    const auto tokens = torch::randint(0, 10, {4}, make_generator(0), torch::kLong);
    accelerator.train_pipeline(model, {.inputs = {tokens}, .targets = {tokens}}, cross_entropy);
    EXPECT_FALSE(embedding->weight.grad().defined());
  });
}

TEST(PipelineStagesTest, HooksOfParametersSeeEachMicroBatchOnce) {
  run_ranks(Backend::kSim, 2, [](RankContext& rank) {
    Accelerator accelerator({.parallelism_config = ParallelismConfig{.pp_size = 2}}, rank);
    auto net = make_net();
    auto stages = pipeline_model(pipeline_layers(net), accelerator.mesh(), {.micro_batches = 4});
    auto model = accelerator.prepare(stages);
    int calls = 0;
    auto parameter = stages->parameters().back();
    parameter.register_hook([&](const at::Tensor&) { ++calls; });
    const auto [x, y] = batch_of(0);
    for (int step = 1; step <= 2; ++step) {
      accelerator.train_pipeline(model, {.inputs = {x}, .targets = {y}}, cross_entropy);
      EXPECT_EQ(calls, 4 * step);
    }
  });
}

// A micro-batch whose targets are all masked has a mean of no items.
TEST(PipelineStagesTest, AMicroBatchWithoutItemsCountsNothing) {
  run_ranks(Backend::kSim, 2, [](RankContext& rank) {
    Accelerator accelerator({.parallelism_config = ParallelismConfig{.pp_size = 2}}, rank);
    auto net = make_net();
    auto stages = pipeline_model(pipeline_layers(net), accelerator.mesh(), {.micro_batches = 4});
    auto model = accelerator.prepare(stages);
    const auto [x, y] = masked_batch(0);
    const auto loss = accelerator.train_pipeline(model, {.inputs = {x}, .targets = {y}, .num_items = num_unmasked},
                                                 cross_entropy);  // NaN without items
    EXPECT_TRUE(loss.isfinite().item<bool>());
    for (const auto& parameter : stages->parameters()) EXPECT_TRUE(parameter.grad().isfinite().all().item<bool>());
  });
}

TEST(PipelineStagesTest, ReplicasHaveTheFirstOnesBuffersInEachStep) {
  const auto buffers = collect_ranks(Backend::kSim, 4, [](RankContext& rank) {
    Accelerator accelerator({.parallelism_config = ParallelismConfig{.dp_replicate_size = 2, .pp_size = 2}}, rank);
    torch::manual_seed(1);
    nn::Sequential net(nn::Linear(6, 6), nn::BatchNorm1d(6), nn::Linear(6, 3));
    auto stages = pipeline_model(pipeline_layers(net), accelerator.mesh(), {.micro_batches = 2, .split_points = {"2"}});
    auto model = accelerator.prepare(stages);
    for (int step = 0; step < 3; ++step) {
      const auto [x, y] = batch_of(step, accelerator.data_parallel_rank());
      accelerator.train_pipeline(model, {.inputs = {x}, .targets = {y}}, cross_entropy);
      stages->zero_grad();
    }
    const torch::NoGradGuard no_grad;
    model(batch_of(9).x);  // begins with the first replica's buffers
    return stages->buffers().empty() ? at::Tensor() : stages->named_buffers()["1.running_mean"].clone();
  });
  EXPECT_TRUE(buffers[0].defined());
  EXPECT_TRUE(buffers[0].equal(buffers[2]));
}

TEST(PipelineMistakesTest, APredictionWithGradientsIsAnError) {
  run_ranks(Backend::kSim, 2, [](RankContext& rank) {
    Accelerator accelerator({.parallelism_config = ParallelismConfig{.pp_size = 2}}, rank);
    auto net = make_net();
    auto model = accelerator.prepare(pipeline_model(pipeline_layers(net), accelerator.mesh(), {.micro_batches = 4}));
    EXPECT_THAT(message_of<StateError>([&] { model(batch_of(0).x); }),
                HasSubstr("a pipeline predicts without gradients; call it under a torch::NoGradGuard"));
  });
}

// --- FSDP under a pipeline -----------------------------------------------------------------------------------------

Trained train_sharded(RankContext& rank, ParallelismConfig mesh, const PipelineOptions& options, bool shards,
                      const std::string& folder, bool saves) {
  AcceleratorOptions accelerator_options{.gradient_accumulation_steps = 2, .parallelism_config = mesh};
  if (shards)
    accelerator_options.fsdp_plugin =
        FullyShardedDataParallelPlugin{.fsdp_version = 2, .state_dict_type = "FULL_STATE_DICT"};
  Accelerator accelerator(accelerator_options, rank);
  auto net = make_net();
  auto stages = pipeline_model(pipeline_layers(net), accelerator.mesh(), options);
  torch::optim::AdamW adam(stages->parameters(), torch::optim::AdamWOptions(0.05));
  auto [model, optimizer] = accelerator.prepare(stages, adam);
  Trained trained;
  for (int step = 0; step < 6; ++step) {
    if (step == 2 && saves) accelerator.save_state(folder);
    if (step < 2 && !saves) continue;
    if (step == 2 && !saves) accelerator.load_state(folder);
    auto window = accelerator.accumulate(model);
    const auto [x, y] = batch_of(step, accelerator.data_parallel_rank());
    trained.losses.push_back(accelerator.train_pipeline(model, {.inputs = {x}, .targets = {y}}, cross_entropy));
    if (accelerator.sync_gradients()) trained.norms.push_back(accelerator.clip_grad_norm_(model.parameters(), 0.3));
    optimizer.step();
    optimizer.zero_grad();
  }
  const auto full = accelerator.gathered_parameters(model);
  trained.parameters = values_of(*stages);
  return trained;
}

void expect_close(const Trained& expected, const Trained& trained, const std::string& what) {
  const auto skipped = expected.losses.size() - trained.losses.size();
  for (std::size_t step = 0; step < trained.losses.size(); ++step)
    EXPECT_TRUE(torch::allclose(trained.losses[step], expected.losses[step + skipped], 1e-5, 1e-6))
        << what << ": loss of step " << step;
  const auto skipped_norms = expected.norms.size() - trained.norms.size();
  for (std::size_t step = 0; step < trained.norms.size(); ++step)
    EXPECT_TRUE(torch::allclose(trained.norms[step], expected.norms[step + skipped_norms], 1e-5, 1e-6))
        << what << ": norm of step " << step;
  for (const auto& [name, value] : trained.parameters)
    EXPECT_TRUE(torch::allclose(value, expected.parameters.at(name), 1e-4, 1e-6)) << what << ": " << name;
}

TEST(PipelineShardingTest, ShardedStagesTrainAsReplicasAndLoadUnderOtherLayouts) {
  const TemporaryFolder folder;
  const auto train = [&](Backend backend, ParallelismConfig mesh, const std::string& schedule, bool shards,
                         bool saves) {
    return collect_ranks(backend, static_cast<int>(mesh.total_size()), [&](RankContext& rank) {
      return train_sharded(rank, mesh, {.schedule = schedule, .micro_batches = kMicroBatches}, shards,
                           folder.path(saves && shards ? "sharded"
                                       : saves         ? "replicas"
                                                       : "sharded"),
                           saves);
    });
  };
  const auto replicas = train(Backend::kSim, {.dp_replicate_size = 2}, "1f1b", /*shards=*/false, /*saves=*/true);
  for (const auto* schedule : {"zbv", "1f1b"}) {
    for (const auto backend : {Backend::kSim, Backend::kGlooThreads}) {
      const auto ranks = train(backend, {.dp_shard_size = 2, .pp_size = 2}, schedule, true, true);
      for (std::size_t rank = 0; rank < ranks.size(); ++rank)
        expect_close(replicas[rank / 2], ranks[rank], fmt::format("{} rank {}", schedule, rank));
    }
  }
  // Hybrid shards of pipelines save too.
  (void)train(Backend::kSim, {.dp_replicate_size = 2, .dp_shard_size = 2, .pp_size = 2}, "1f1b", true, true);
  (void)train(Backend::kSim, {.dp_shard_size = 2, .pp_size = 2}, "1f1b", true, true);
  const auto resumed = train(Backend::kSim, {.dp_shard_size = 2, .pp_size = 3}, "1f1b", true, false);
  for (std::size_t rank = 0; rank < resumed.size(); ++rank)
    expect_close(replicas[rank / 3], resumed[rank], fmt::format("resumed rank {}", rank));
  const auto unsharded = train(Backend::kSim, {.dp_replicate_size = 2, .pp_size = 2}, "zb_h1", false, false);
  for (std::size_t rank = 0; rank < unsharded.size(); ++rank)
    expect_close(replicas[rank / 2], unsharded[rank], fmt::format("unsharded rank {}", rank));
}

// --- gpt ---------------------------------------------------------------------------------------------------------

struct TrainedGpt {
  std::vector<at::Tensor> losses;
  std::map<std::string, at::Tensor> parameters;
};

models::GptOptions gpt_options(const std::string& positions, bool tied) {
  models::GptOptions options{.vocab_size = 12, .block_size = 8, .layers = 4, .heads = 2, .width = 8};
  options.positions = positions;
  if (positions == "rotary") options.norm = "rms_norm";
  options.tied_output = tied;
  options.dropout = 0.1;
  return options;
}

TrainedGpt train_gpt(RankContext& rank, const ParallelismConfig& mesh, const models::GptOptions& options,
                     const std::string& schedule = "1f1b") {
  Accelerator accelerator({.parallelism_config = mesh}, rank);
  torch::manual_seed(3);
  auto net = models::gpt(options, accelerator.mesh());
  auto stages = pipeline_model(net->pipeline_layers(), accelerator.mesh(), {.schedule = schedule, .micro_batches = 4});
  net.reset();
  torch::optim::SGD sgd(stages->parameters(), torch::optim::SGDOptions(0.5));
  auto [model, optimizer] = accelerator.prepare(stages, sgd);
  TrainedGpt trained;
  for (int step = 0; step < 3; ++step) {
    const auto tokens =
        torch::randint(0, 12, {8, 9}, make_generator(10 * accelerator.data_parallel_rank() + step), torch::kLong);
    trained.losses.push_back(
        accelerator.train_pipeline(model, {.inputs = {tokens.narrow(1, 0, 8)}, .targets = {tokens.narrow(1, 1, 8)}},
                                   [](const at::Tensor& logits, const at::Tensor& targets) {
                                     return nn::functional::cross_entropy(logits.flatten(0, 1), targets.flatten());
                                   }));
    optimizer.step();
    optimizer.zero_grad();
  }
  trained.parameters = values_of(*stages);
  return trained;
}

// Tensor-parallel ranks and replicas keep their places: `one` has a rank for each of those of a pipeline's stage.
void expect_gpt(const std::vector<TrainedGpt>& one, const std::vector<TrainedGpt>& ranks, int stages,
                double tolerance) {
  std::set<std::string> names;
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
    const auto& expected = one.at(rank / stages);
    for (std::size_t step = 0; step < expected.losses.size(); ++step)
      EXPECT_TRUE(torch::allclose(ranks[rank].losses[step], expected.losses[step], tolerance, tolerance))
          << "rank " << rank << ", step " << step;
    for (const auto& [name, value] : ranks[rank].parameters) {
      names.insert(name);
      EXPECT_TRUE(torch::allclose(value, expected.parameters.at(name), tolerance, tolerance))
          << "rank " << rank << ", " << name;
    }
  }
  EXPECT_EQ(names.size(), one.front().parameters.size());
}

TEST(PipelineGptTest, StagesOverTensorParallelRanksAndReplicasTrainTheSameModel) {
  for (const auto* positions : {"learned", "rotary"}) {
    for (const bool tied : {false, true}) {
      const auto options = gpt_options(positions, tied);
      const auto train = [&](Backend backend, ParallelismConfig mesh, const std::string& schedule) {
        return collect_ranks(backend, static_cast<int>(mesh.total_size()),
                             [&](RankContext& rank) { return train_gpt(rank, mesh, options, schedule); });
      };
      const double tolerance = tied ? 1e-5 : 0;
      expect_gpt(train(Backend::kSim, {.tp_size = 2}, "1f1b"),
                 train(Backend::kGlooThreads, {.tp_size = 2, .pp_size = 3}, "1f1b"), 3, tolerance);
      expect_gpt(train(Backend::kSim, {.dp_replicate_size = 2, .tp_size = 2}, "1f1b"),
                 train(Backend::kSim, {.dp_replicate_size = 2, .tp_size = 2, .pp_size = 2}, "zbv"), 2, tolerance);
    }
  }
}

// A stage all of whose parameters are divided, beside stages that compare complete ones over tensor-parallel ranks.
TEST(PipelineGptTest, AStageOfDividedParametersAloneTrains) {
  auto options = gpt_options("rotary", /*tied=*/false);
  const auto train = [&](int stages) {
    return collect_ranks(Backend::kSim, 2 * stages, [&](RankContext& rank) {
      Accelerator accelerator({.parallelism_config = ParallelismConfig{.tp_size = 2, .pp_size = stages}}, rank);
      torch::manual_seed(3);
      auto net = models::gpt(options, accelerator.mesh());
      auto pipeline = pipeline_model(
          net->pipeline_layers(), accelerator.mesh(),
          {.micro_batches = 2,
           .split_points = stages == 1 ? std::vector<std::string>() : std::vector<std::string>{"model.layers.0"}});
      torch::optim::SGD sgd(pipeline->parameters(), torch::optim::SGDOptions(0.1));
      auto [model, optimizer] = accelerator.prepare(pipeline, sgd);
      at::Tensor loss;
      for (int step = 0; step < 3; ++step) {
        const auto tokens = torch::randint(0, 12, {4, 9}, make_generator(step), torch::kLong);
        loss =
            accelerator.train_pipeline(model, {.inputs = {tokens.narrow(1, 0, 8)}, .targets = {tokens.narrow(1, 1, 8)}},
                                       [](const at::Tensor& logits, const at::Tensor& targets) {
                                         return nn::functional::cross_entropy(logits.flatten(0, 1), targets.flatten());
                                       });
        optimizer.step();
        optimizer.zero_grad();
      }
      return loss;
    });
  };
  EXPECT_TRUE(train(2).front().equal(train(1).front()));
}

}  // namespace
}  // namespace accel::testing::pipeline_training_test
