// The program that a case describes: epochs over a prepared loader, with operations between batches and, for the law
// of trainings, a model that learns from them. Every backend runs this same code.
#include "sim/programs/equivalence/observe_case.hpp"

#include <ATen/ops/full.h>
#include <fmt/ranges.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/dropout.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>

#include <functional>
#include <memory>
#include <optional>

#include "reference/accelerator/accelerator.hpp"
#include "reference/core/errors.hpp"
#include "reference/data/data_loader.hpp"
#include "reference/state/rng_sync.hpp"
#include "sim/programs/equivalence/case_operations.hpp"
#include "sim/programs/equivalence/number_sources.hpp"

namespace accel::programs {
namespace {

AcceleratorOptions options_of(const EquivalenceCase& one) {
  AcceleratorOptions options{.dataloader_config = one.configuration(), .rng_types = one.rng_types};
  // Ranks that reach their last batch at different steps must not synchronize there.
  options.gradient_accumulation_plugin =
      GradientAccumulationPlugin{.num_steps = one.accumulation_steps, .sync_with_dataloader = one.in_step()};
  return options;
}

DataLoaderOptions loader_options(const EquivalenceCase& one, int rank) {
  DataLoaderOptions options{.num_workers = one.num_workers, .prefetch_factor = one.prefetch_factor};
  if (one.own_generator) options.generator = make_generator(static_cast<std::uint64_t>(one.seed + 1000 * rank));
  if (one.source == "batch_sampler" || one.source == "varying_batches") {
    NumberBatches::Options batches{.drop_last = one.drop_last, .reports_size = false};
    if (one.source == "batch_sampler") batches.batch_size = one.batch_size;
    options.batch_sampler = std::make_shared<NumberBatches>(one.length, batches);
    return options;
  }
  options.batch_size = one.batch_size;
  options.drop_last = one.drop_last;
  options.shuffle = one.shuffle;
  if (one.source == "subset_sampler") {
    std::vector<std::int64_t> every_third;
    for (std::int64_t index = 0; index < one.length; index += 3) every_third.push_back(index);
    options.sampler = std::make_shared<SubsetRandomSampler>(every_third, options.generator);
  } else if (one.source == "weighted_sampler") {
    std::vector<double> weights;
    for (std::int64_t index = 0; index < one.length; ++index) weights.push_back(1.0 + static_cast<double>(index % 3));
    options.sampler = std::make_shared<WeightedRandomSampler>(
        weights, WeightedRandomSampler::Options{.num_samples = one.length, .generator = options.generator});
  }
  return options;
}

// A model with random initial values and dropout, so that its results depend on the rank's stream.
class Learner {
 public:
  Learner(Accelerator& accelerator, const EquivalenceCase& one)
      : Learner(accelerator, one,
                torch::nn::Sequential(torch::nn::Linear(1, 4), torch::nn::Tanh(), torch::nn::Dropout(0.25),
                                      torch::nn::Linear(4, 1))) {}

  std::string learn(const at::Tensor& batch) {
    const auto window = accelerator_.accumulate(model_);
    const auto input = batch.select(1, 0).to(at::kFloat).unsqueeze(1) / 100;
    const auto loss = (model_(input) - input.square()).square().mean();
    accelerator_.backward(loss);
    optimizer_.step();
    optimizer_.zero_grad();
    return fmt::format("loss {} parameters {}", text_of(loss), parameters());
  }
  void join_uneven_inputs(const std::function<void()>& loop) { accelerator_.join_uneven_inputs({model_}, {}, loop); }

 private:
  Learner(Accelerator& accelerator, const EquivalenceCase& one, torch::nn::Sequential net)
      : accelerator_(accelerator),
        model_(accelerator.prepare(net)),
        optimizer_(accelerator.prepare(
            torch::optim::SGD(net->parameters(), torch::optim::SGDOptions(0.1).momentum(one.momentum)))) {}

  std::string parameters() {
    std::string text;
    for (const auto& parameter : model_.parameters()) text += text_of(parameter) + " ";
    return text;
  }

  Accelerator& accelerator_;
  PreparedModel<torch::nn::SequentialImpl> model_;
  AcceleratedOptimizer optimizer_;
};

class CaseProgram {
 public:
  CaseProgram(RankContext& rank, const EquivalenceCase& one) : one_(one), accelerator_(options_of(one), rank) {
    set_seed(static_cast<std::uint64_t>(one.seed), {.device_specific = one.device_specific});
    if (one.law == "training") learner_ = std::make_unique<Learner>(accelerator_, one);
  }

  template <typename Dataset>
  void run(const Dataset& dataset, Observations& seen) {
    auto loader = prepare(dataset);
    for (int epoch = 0; epoch < one_.epochs; ++epoch) {
      const bool is_first = epoch == 0;
      const auto limit = is_first && one_.interruption != "none" ? std::optional(one_.interrupted_after) : std::nullopt;
      auto rest = skip_first_batches(loader, is_first ? one_.skip_batches : 0);
      read(rest, limit, seen);
      if (!limit) continue;
      seen.push_back("interrupted: " + one_.interruption);
      if (one_.interruption == "resume") {
        const auto state = rest.state_dict();
        loader = prepare(dataset);
        loader.load_state_dict(state);
      }
      read(loader, std::nullopt, seen);
    }
  }

 private:
  template <typename Dataset>
  DataLoaderShard<Dataset> prepare(const Dataset& dataset) {
    const auto options = loader_options(one_, accelerator_.process_index());
    loader_generator_ = options.generator;
    DataLoader plain(dataset, options);
    return accelerator_.prepare(plain);
  }

  // One pass, ended after `limit` batches.
  template <typename Loader>
  void read(Loader& loader, std::optional<std::int64_t> limit, Observations& seen) {
    const auto loop = [&] {
      std::int64_t step = 0;
      if (limit == 0) return;
      for (auto& batch : loader) {
        seen.push_back(describe_batch(step, batch));
        if (learner_) seen.push_back(learner_->learn(batch));
        if (one_.in_step() && !one_.operations.empty()) operate(batch, seen);
        seen.push_back(generators());
        if (++step == limit) break;
      }
    };
    if (learner_ && !one_.in_step()) {
      learner_->join_uneven_inputs(loop);
    } else {
      loop();
    }
    // Outside of a loop, where metrics have no duplicates to drop.
    for (std::size_t left = one_.operations.size(); left > 0; --left)
      operate(at::full({2, 2}, static_cast<double>(accelerator_.process_index()), at::kDouble), seen);
    seen.push_back(generators());
  }

  std::string describe_batch(std::int64_t step, const at::Tensor& batch) const {
    const auto& state = accelerator_.gradient_state();
    return fmt::format("step {}: {} end {} remainder {}", step, text_of(batch), state.end_of_dataloader(),
                       state.remainder());
  }

  void operate(const at::Tensor& batch, Observations& seen) {
    const auto& name = one_.operations[static_cast<std::size_t>(num_calls_) % one_.operations.size()];
    seen.push_back(name + ": " + find_operation(name)->run({accelerator_, batch, num_calls_++, loader_generator_}));
  }

  std::string generators() const {
    return fmt::format("generators {} {}", state_of(default_generator()),
                       loader_generator_ ? state_of(*loader_generator_) : "none");
  }

  const EquivalenceCase& one_;
  Accelerator accelerator_;
  std::unique_ptr<Learner> learner_;
  std::optional<at::Generator> loader_generator_;
  std::int64_t num_calls_ = 0;
};

}  // namespace

Observations observe_case(RankContext& rank, const EquivalenceCase& one) {
  Observations seen;
  try {
    CaseProgram program(rank, one);
    const NumberSample sample{.draws = one.draws_in_samples};
    if (one.source == "parts")
      program.run(NumberParts(one.length, sample), seen);
    else if (one.iterable)
      program.run(NumberStream{one.length, sample}, seen);
    else
      program.run(NumberDataset{one.length, sample}, seen);
  } catch (const CommError&) {
    throw;
  } catch (const Error& error) {
    seen.push_back(std::string("error: ") + error.what());
  }
  return seen;
}

}  // namespace accel::programs
