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
#include "reference/core/error_text.hpp"
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
  DataLoaderOptions options{.num_workers = one.num_workers,
                            .prefetch_factor = one.prefetch_factor,
                            .persistent_workers = one.persistent_workers};
  if (one.worker_init) options.worker_init_fn = [](int worker) { at::rand({worker + 1}, at::kDouble); };
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
  } else if (one.source == "replacement_sampler" || one.source == "repeated_sampler") {
    options.sampler = std::make_shared<RandomSampler>(
        one.length, RandomSamplerOptions{.replacement = one.source == "replacement_sampler",
                                         .num_samples = one.num_ordered(),
                                         .generator = options.generator});
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
  void join_uneven_inputs(std::optional<bool> even_batches, const std::function<void()>& loop) {
    accelerator_.join_uneven_inputs({model_}, {.even_batches = even_batches}, loop);
  }

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

// Leaves a loop as a failure of the program would.
struct LoopFailed {};

/// How one pass is interrupted.
struct Interruption {
  std::string kind = "none";
  std::int64_t after = 0;
  [[nodiscard]] bool leaves() const { return kind == "iterate_again" || kind == "exception" || kind == "resume"; }
};

class CaseProgram {
 public:
  CaseProgram(RankContext& rank, const EquivalenceCase& one, Observations& seen)
      : one_(one), seen_(seen), accelerator_(options_of(one), rank), second_(prepare_second()) {
    set_seed(static_cast<std::uint64_t>(one.seed), {.device_specific = one.device_specific});
    if (one.law == "training") learner_ = std::make_unique<Learner>(accelerator_, one);
  }

  /// Returns the state with which the next stage continues; "" if the case has ended.
  template <typename Dataset>
  std::string run(const Dataset& dataset, int stage, const std::string& state) {
    auto loader = prepare(dataset);
    if (stage > 0) resume(loader, state);
    for (int epoch = stage == 0 ? 0 : one_.interrupted_epoch; epoch < one_.epochs; ++epoch) {
      begin_epoch(loader, epoch, /*is_resumed=*/stage > 0 && epoch == one_.interrupted_epoch);
      int left = one_.interruption != "none" && epoch == one_.interrupted_epoch ? one_.interruptions - stage : 0;
      auto rest = skip_first_batches(loader, epoch == 0 && stage == 0 ? one_.skip_batches : 0);
      if (stage > 0 && epoch == one_.interrupted_epoch) rest = skip_first_batches(loader, one_.resumed_skip_batches);
      for (; left > 0; --left) {
        const auto saved = interrupt(rest);
        if (one_.resumes()) {
          if (stage == 0 && one_.num_stages() > 1) return saved;
          loader = prepare(dataset);
          resume(loader, saved);
        }
        begin_epoch(loader, epoch, /*is_resumed=*/true);
        rest = skip_first_batches(loader, one_.resumes() ? one_.resumed_skip_batches : 0);
      }
      read(rest, {});
      if (one_.second_loader == "in_turn") read_second();
    }
    return "";
  }

 private:
  template <typename Dataset>
  DataLoaderShard<Dataset> prepare(const Dataset& dataset) {
    const auto options = loader_options(one_, accelerator_.process_index());
    loader_generator_ = options.generator;
    DataLoader plain(dataset, options);
    return accelerator_.prepare(plain);
  }

  std::optional<DataLoaderShard<NumberDataset>> prepare_second() {
    if (one_.second_loader == "none") return std::nullopt;
    DataLoader plain(NumberDataset{.length = 5}, {.batch_size = one_.splits() ? one_.batch_size : 2, .shuffle = true});
    return accelerator_.prepare(plain);
  }

  template <typename Loader>
  void resume(Loader& loader, const std::string& state) {
    loader.load_state_dict(unpack<Value>(state));
    seen_.push_back(fmt::format("resumed: epoch {}", loader.iteration()));
  }

  template <typename Loader>
  void begin_epoch(Loader& loader, int epoch, bool is_resumed) {
    if (one_.before_epochs == "set_epoch") loader.set_epoch(epoch);
    if (one_.before_epochs == "jump_epoch") loader.set_epoch(3 * epoch + 1);
    if (one_.before_epochs == "set_seed" && epoch > 0 && !is_resumed)
      set_seed(static_cast<std::uint64_t>(one_.seed + epoch), {.device_specific = one_.device_specific});
  }

  // Returns the state that a new loader would load, if the case resumes.
  template <typename Loader>
  std::string interrupt(Loader& loader) {
    std::optional<std::string> inside;
    read(loader, {.kind = one_.interruption, .after = one_.interrupted_after}, &inside);
    seen_.push_back("interrupted: " + one_.interruption);
    return inside ? *inside : pack(loader.state_dict());
  }

  // One pass, or as much of it as the interruption leaves. `inside`: the state inside the loop.
  template <typename Loader>
  void read(Loader& loader, const Interruption& interruption, std::optional<std::string>* inside = nullptr) {
    const auto loop = [&] {
      std::int64_t step = 0;
      if (interruption.leaves() && interruption.after == 0) return;
      for (auto& batch : loader) {
        seen_.push_back(describe_batch(step, batch));
        if (learner_) seen_.push_back(learner_->learn(batch));
        if (one_.in_step() && !one_.operations.empty()) operate(batch);
        seen_.push_back(generators());
        ++step;
        if (interruption.kind == "resume_inside" && step <= interruption.after) *inside = pack(loader.state_dict());
        if (one_.second_loader == "inside" && step % 2 == 1) read_second();
        if (!interruption.leaves() || step != interruption.after) continue;
        if (interruption.kind == "exception") throw LoopFailed();
        break;
      }
    };
    try {
      if (learner_ && (!one_.in_step() || one_.join_even_batches)) {
        learner_->join_uneven_inputs(one_.join_even_batches, loop);
      } else {
        loop();
      }
    } catch (const LoopFailed&) {
    }
    seen_.push_back(fmt::format("{}{}", kNextEpoch, loader.iteration()));
    // Outside of a loop, where metrics have no duplicates to drop.
    for (std::size_t left = one_.operations.size(); left > 0; --left)
      operate(at::full({2, 2}, static_cast<double>(accelerator_.process_index()), at::kDouble));
    seen_.push_back(generators());
  }

  void read_second() {
    for (auto& batch : *second_) {
      seen_.push_back("second " + describe_batch(0, batch));
      if (one_.leaves_second) break;
    }
    seen_.push_back(
        fmt::format("second epoch {} end {}", second_->iteration(), accelerator_.gradient_state().end_of_dataloader()));
  }

  std::string describe_batch(std::int64_t step, const at::Tensor& batch) const {
    const auto& state = accelerator_.gradient_state();
    return fmt::format("step {}: {} end {} remainder {}", step, text_of(batch), state.end_of_dataloader(),
                       state.remainder());
  }

  void operate(const at::Tensor& batch) {
    const auto& name = one_.operations[static_cast<std::size_t>(num_calls_) % one_.operations.size()];
    seen_.push_back(name + ": " + find_operation(name)->run({accelerator_, batch, num_calls_++, loader_generator_}));
  }

  std::string generators() const {
    return fmt::format("generators {} {}", state_of(default_generator()),
                       loader_generator_ ? state_of(*loader_generator_) : "none");
  }

  const EquivalenceCase& one_;
  Observations& seen_;
  Accelerator accelerator_;
  std::optional<DataLoaderShard<NumberDataset>> second_;
  std::unique_ptr<Learner> learner_;
  std::optional<at::Generator> loader_generator_;
  std::int64_t num_calls_ = 0;
};

template <typename Dataset>
std::string run_program(RankContext& rank, const EquivalenceCase& one, int stage, const std::string& state,
                        const Dataset& dataset, Observations& seen) {
  return CaseProgram(rank, one, seen).run(dataset, stage, state);
}

}  // namespace

StageResult observe_stage(RankContext& rank, const EquivalenceCase& whole, int stage, const std::string& state) {
  StageResult result;
  auto one = whole;
  one.ranks = whole.ranks_of(stage);
  if (stage > 0) one.resumed_ranks = one.ranks;
  const NumberSample sample{.draws = one.draws_in_samples, .has_epoch = one.epoch_in_samples};
  try {
    if (one.source == "parts")
      result.state = run_program(rank, one, stage, state, NumberParts(one.length, sample), result.seen);
    else if (one.source == "drawing_stream")
      result.state = run_program(
          rank, one, stage, state,
          NumberDraws{one.length, sample, make_generator(static_cast<std::uint64_t>(one.seed + 1000 * rank.rank))},
          result.seen);
    else if (one.iterable)
      result.state = run_program(rank, one, stage, state, NumberStream{one.length, sample}, result.seen);
    else
      result.state = run_program(rank, one, stage, state, NumberDataset{one.length, sample}, result.seen);
  } catch (const CommError&) {
    throw;
  } catch (const Error& error) {
    result.seen.push_back("error: " + text_of(error));
  }
  return result;
}

}  // namespace accel::programs
