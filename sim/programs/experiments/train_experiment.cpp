// The built-in training loop. properties/oracle runs the same loop under Hugging Face Accelerate and compares traces
// bit by bit, so neither the order of operations nor the number of random draws may change on one side alone.
#include "sim/programs/experiments/train_experiment.hpp"

#include <ATen/ops/tensor.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <type_traits>

#include "reference/accelerator/accelerator.hpp"
#include "reference/accelerator/elastic_run.hpp"
#include "reference/checkpoint/checkpoint_folder.hpp"
#include "reference/checkpoint/module_state.hpp"
#include "reference/context_parallel/shard_sequence.hpp"
#include "reference/core/device.hpp"
#include "reference/files/sha256.hpp"
#include "reference/models/gpt.hpp"
#include "reference/models/sequence_parts.hpp"
#include "reference/pipeline/pipeline_model.hpp"
#include "reference/prepared/parameter_layouts.hpp"
#include "reference/rank_local/random.hpp"
#include "reference/state/objects.hpp"
#include "reference/state/rng_sync.hpp"
#include "reference/tracking/progress.hpp"
#include "sim/programs/experiments/text_generation.hpp"

namespace accel::programs {
namespace {

// sim-run's progress bar: accel::ProgressBar with samples per second and the loss, on a descriptor.
//
// Thread rule: one thread (rank 0's).
class Progress {
 public:
  // Draws nothing if `descriptor` is negative.
  Progress(int descriptor, std::int64_t total_steps);

  // Whether the next step will be drawn. Reading the loss synchronizes with the device, so it is read only then.
  [[nodiscard]] bool is_due() const { return bar_ && bar_->is_due(); }
  // Sets what the next step shows. `samples_done` counts all ranks.
  void show(std::int64_t samples_done, double loss);
  void step();

 private:
  std::unique_ptr<terminal::Terminal> own_;
  std::optional<ProgressBar> bar_;
  std::chrono::steady_clock::time_point started_ = std::chrono::steady_clock::now();
};

Progress::Progress(int descriptor, std::int64_t total_steps) {
  if (descriptor < 0) return;
  if (descriptor != STDERR_FILENO) own_ = std::make_unique<terminal::Terminal>(descriptor);
  bar_.emplace(own_ ? *own_ : terminal::Terminal::standard_error(), total_steps,
               ProgressOptions{.desc = "train", .unit = "step"});
}

void Progress::show(std::int64_t samples_done, double loss) {
  if (!bar_) return;
  const auto seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - started_).count();
  bar_->set_postfix(
      fmt::format("{:.0f} samples/s, loss {:.4f}", static_cast<double>(samples_done) / std::max(seconds, 1e-9), loss));
}

void Progress::step() {
  if (bar_) bar_->update();
}

// Traces hold losses as hexadecimal floats, which print every bit; NaN and infinity have no such form.
std::string hex_float(double value) {
  return std::isfinite(value) ? fmt::format("{:a}", value) : fmt::format("{}", value);
}

// Hashes the bytes of all parameters in order: equal hashes mean equal bits, at a fraction of the size.
std::string parameters_sha256(const std::vector<at::Tensor>& parameters) {
  Sha256 hash;
  for (const auto& parameter : parameters) {
    const auto bytes = parameter.detach().to(at::kCPU).contiguous();
    hash.update(bytes.const_data_ptr(), bytes.nbytes());
  }
  return hash.hex();
}

std::string sha256_of(const std::string& text) {
  Sha256 hash;
  hash.update(text.data(), text.size());
  return hash.hex();
}

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

// The progress of the training across restarts. Registered for checkpointing, so that a resumed run continues the
// numbering of epochs and steps.
struct TrainingProgress {
  int epoch = 0;
  std::int64_t steps = 0;
  [[nodiscard]] Value state_dict() const { return Value::Dict{{"epoch", epoch}, {"steps", steps}}; }
  void load_state_dict(const Value& state) {
    epoch = static_cast<int>(state.at("epoch").as<std::int64_t>());
    steps = state.at("steps").as<std::int64_t>();
  }
};

// Automatic naming numbers the checkpoints, so that the newest one can be found by its number.
AcceleratorOptions with_checkpoints(AcceleratorOptions options, const TrainOptions& train) {
  if (train.save_every)
    options.project_config = {.project_dir = train.project_dir, .automatic_checkpoint_naming = true};
  return options;
}

// Returns whether restarted ranks can resume from a checkpoint of this run. Checkpoints below
// num_existing_checkpoints belong to
// other runs. Rank 0 decides for all: ranks may see a shared folder in different states.
bool has_own_checkpoint(RankContext& context, const TrainOptions& options) {
  if (context.restart_count == 0 || !options.save_every) return false;
  const auto numbers = project_checkpoints(*context.files, options.project_dir);
  std::vector<int> has_own{!numbers.empty() && numbers.back() >= options.num_existing_checkpoints ? 1 : 0};
  return broadcast_object_list(context, has_own).front() != 0;
}

// Context-parallel ranks read the same samples, and each computes its part of the positions.
TaskDataset::Batch part_of_sequences(const TaskDataset::Batch& batch, const models::SequenceParts& parts) {
  const auto& [inputs, targets] = batch;
  const auto plan = parts.plan(inputs.size(1) / parts.size());
  const auto part = [&](const at::Tensor& tokens) {
    return parallel::shard_sequence(tokens, 1, plan, parts.group().rank());
  };
  return {part(inputs), part(targets)};
}

// The model of a task, complete or as the stages of this rank of a pipeline.
std::shared_ptr<models::Model> make_net(const Experiment&, const Task& task, const DeviceMesh& mesh,
                                        std::type_identity<models::Model>) {
  return task.make_model(mesh);
}
std::shared_ptr<PipelineModel> make_net(const Experiment& experiment, const Task& task, const DeviceMesh& mesh,
                                        std::type_identity<PipelineModel>) {
  const auto model = std::dynamic_pointer_cast<models::LanguageModel>(task.make_model(mesh));
  check_config(model != nullptr,
               "parallelism_config: pp_size {}: only the model gpt can be cut into stages; expected 1",
               mesh.config().pp_size);
  auto options = experiment.pipeline;
  options.gather_output = true;  // every rank counts the predictions
  return pipeline_model(model->pipeline_layers(), mesh, std::move(options));
}

at::Tensor logits_of(PreparedModel<models::Model>& model, const at::Tensor& inputs) { return model(inputs); }
at::Tensor logits_of(PreparedModel<PipelineModel>& model, const at::Tensor& inputs) { return model(inputs).front(); }

std::shared_ptr<models::Model> complete_copy(const Task& task, const NamedTensors& state) {
  auto copy = task.make_model(DeviceMesh());
  Value::Dict values;
  for (const auto& [name, tensor] : state) values.emplace(name, tensor);
  checkpoint::load_value(*copy, values);
  return copy;
}

}  // namespace

std::vector<std::int64_t> project_checkpoints(Files& files, const std::string& project_dir) {
  return checkpoint::checkpoint_numbers(files, project_dir + "/checkpoints");
}

namespace {

// As AcceleratedScheduler::has_ended.
bool has_ended(const LRScheduler& schedule) {
  const auto total = schedule.total_steps();
  return total && schedule.step_count() > *total;
}

// Net: models::Model, or PipelineModel.
template <typename Net>
void train_net(Accelerator& accelerator, const Experiment& experiment, const Task& task, const TrainOptions& options,
               RankResult& result) {
  constexpr bool kIsPipeline = std::is_same_v<Net, PipelineModel>;
  auto& context = current_rank();
  auto net = make_net(experiment, task, accelerator.mesh(), std::type_identity<Net>());
  auto plain_optimizer = build_optimizer(experiment.optimizer, net->parameters());
  auto plain_scheduler = build_scheduler(experiment.scheduler, *plain_optimizer);
  DataLoader train_loader(
      task.train,
      {.batch_size = experiment.batch_size, .shuffle = experiment.shuffle, .drop_last = experiment.drop_last});
  DataLoader eval_loader(task.eval, {.batch_size = experiment.eval_batch_size});
  auto [model, optimizer, train_batches, eval_batches] =
      accelerator.prepare(net, *plain_optimizer, train_loader, eval_loader);
  std::optional<AcceleratedScheduler> scheduler;
  if (plain_scheduler && !experiment.elastic) scheduler = accelerator.prepare(*plain_scheduler);
  const auto parameters = model.parameters();
  const models::SequenceParts parts(accelerator.mesh());
  const auto own_positions = [&](const TaskDataset::Batch& batch) {
    return experiment.task == "char_gpt" && parts.size() > 1 ? part_of_sequences(batch, parts) : batch;
  };

  // A restarted rank prefers the checkpoints of this run to the one that the user asked to resume from: it is newer.
  TrainingProgress course;
  accelerator.register_for_checkpointing(course);
  if (plain_scheduler && experiment.elastic) accelerator.register_for_checkpointing(*plain_scheduler);
  const bool goes_on = has_own_checkpoint(context, options);
  if (goes_on) {
    accelerator.load_state();
  } else if (!options.resume.empty()) {
    accelerator.load_state(options.resume);
  }

  const auto rows_of_step = experiment.batch_size * (experiment.elastic ? experiment.elastic->logical_ranks : 1);
  const auto num_samples = static_cast<std::int64_t>(task.train.size());
  const auto steps_per_epoch = !experiment.elastic
                                   ? train_batches.size()
                                   : (num_samples + (experiment.drop_last ? 0 : rows_of_step - 1)) / rows_of_step;
  const auto total_steps =
      std::min(experiment.max_steps.value_or(experiment.epochs * steps_per_epoch), experiment.epochs * steps_per_epoch);
  const auto initial_steps = course.steps;
  Progress progress(accelerator.is_main_process() ? options.progress_descriptor : -1, total_steps - initial_steps);
  const auto done = [&] { return experiment.max_steps && course.steps >= *experiment.max_steps; };
  // Memory is measured in the second step, since optimizer state does not exist in the first; in the only one if there
  // is just one.
  const auto measured_step = initial_steps + std::min<std::int64_t>(1, total_steps - initial_steps - 1);
  // Activations are measured in one step only, because measuring takes time.
  // The logits of a mixture of experts lack its auxiliary losses.
  std::optional<PreparedModel<models::LanguageModel>> mixture;
  if constexpr (!kIsPipeline) {
    if (experiment.model.gpt.num_local_experts)
      mixture.emplace(std::dynamic_pointer_cast<models::LanguageModel>(net), model.parallel_model());
  }
  const auto loss_of = [&](const at::Tensor& inputs, const at::Tensor& targets) {
    return mixture ? (*mixture)(inputs, targets) : task_loss(logits_of(model, inputs), targets);
  };
  const auto forward = [&](const at::Tensor& inputs, const at::Tensor& targets) {
    if (course.steps != measured_step) return loss_of(inputs, targets);
    const auto meter = accelerator.measure_activations(model);
    return loss_of(inputs, targets);
  };

  // Order as in the oracle: accumulate, forward, backward, clip by norm, clip by value, optimizer, scheduler,
  // zero_grad. Optimizer and scheduler are called in every micro-batch; their wrappers skip those that only accumulate.
  const auto compute = [&](const at::Tensor& inputs, const at::Tensor& targets) {
    if constexpr (kIsPipeline) {
      return accelerator.train_pipeline(model, {.inputs = {inputs}, .targets = {targets}}, task_loss);
    } else {
      auto loss = forward(inputs, targets);
      accelerator.backward(loss);
      return loss;
    }
  };
  const auto update = [&](const at::Tensor& inputs, const at::Tensor& targets) {
    auto window = accelerator.accumulate(model);
    auto loss = compute(inputs, targets);
    if (accelerator.sync_gradients() && experiment.clip_grad_norm)
      accelerator.clip_grad_norm_(parameters, *experiment.clip_grad_norm);
    if (accelerator.sync_gradients() && experiment.clip_grad_value)
      accelerator.clip_grad_value_(parameters, *experiment.clip_grad_value);
    optimizer.step();
    return loss;
  };
  const auto step_schedule = [&](const at::Tensor& loss) {
    if (scheduler && experiment.scheduler->follows_metric()) {
      scheduler->step(accelerator.gather(loss.detach()).mean().item<double>());
    } else if (scheduler) {
      scheduler->step();
    }
  };
  auto captured_step = accelerator.capture_step(
      [&](const at::Tensor& inputs, const at::Tensor& targets) {
        auto loss = update(inputs, targets);
        optimizer.zero_grad();
        return loss;
      },
      {.warm_up_steps = options.capture_after.value_or(1)});
  const auto take_step = [&](const at::Tensor& inputs, const at::Tensor& targets) {
    auto loss = options.capture_after ? captured_step(inputs, targets) : update(inputs, targets);
    step_schedule(loss);
    if (course.steps == measured_step) result.memory = accelerator.memory_account(model);
    optimizer.zero_grad();
    return loss;
  };
  const auto note_step = [&](const at::Tensor& loss, std::int64_t samples, bool is_replayed = false) {
    if (options.trace && !is_replayed) {
      result.trace.push_back(
          fmt::format(R"({{"rank":{},"epoch":{},"step":{},"loss":"{}","samples":{},"sync_gradients":{},"lr":{}}})",
                      context.rank, course.epoch, course.steps, hex_float(loss.item<double>()), samples,
                      accelerator.sync_gradients(), optimizer.lr()));
    }
    if (options.keeps_losses) result.losses.push_back(loss.item<double>());
    ++course.steps;
    ++result.steps;
    result.samples += samples;
  };
  // Steps of logical ranks. A schedule counts the batches of all of them.
  std::optional<ElasticRun::Steps<TaskDataset, DefaultCollate>> elastic_steps;
  const auto train_elastic_epoch = [&](ElasticRun& run) {
    if (!elastic_steps) elastic_steps.emplace(run.steps(train_loader, experiment.epochs));
    const auto started = std::chrono::steady_clock::now();
    at::Tensor loss;
    for (auto& step : *elastic_steps) {
      if (step.epoch() != course.epoch) break;
      const auto loss_of_batch = [&](const TaskDataset::Batch& batch) {
        const auto& [inputs, targets] = batch;
        return loss_of(inputs, targets);
      };
      const bool is_replayed = run.is_replaying();
      loss = step.update(loss_of_batch, [&] {
        if (experiment.clip_grad_norm) accelerator.clip_grad_norm_(parameters, *experiment.clip_grad_norm);
        if (experiment.clip_grad_value) accelerator.clip_grad_value_(parameters, *experiment.clip_grad_value);
        optimizer.step();
        // As a prepared schedule on as many ranks.
        const bool advances = plain_scheduler && !accelerator.optimizer_step_was_skipped();
        for (int count = 0; advances && count < run.logical_ranks() && !has_ended(*plain_scheduler); ++count)
          plain_scheduler->step();
        optimizer.zero_grad();
      });
      note_step(loss, run.shards().size() * experiment.batch_size, is_replayed);
      if (progress.is_due())
        progress.show(result.steps * run.logical_ranks() * experiment.batch_size, loss.item<double>());
      progress.step();
      if (done()) break;
    }
    if (loss.defined()) result.loss = loss.item<double>();
    result.seconds += seconds_since(started);
  };
  const auto train_epoch = [&] {
    at::Tensor loss;
    auto started = std::chrono::steady_clock::now();
    for (auto& batch : train_batches) {
      const auto [inputs, targets] = own_positions(batch);
      loss = take_step(inputs, targets);
      note_step(loss, targets.size(0));
      // Benchmarks do not time the first steps, which allocate memory and open connections.
      if (result.steps == options.warm_up_steps) {
        wait_for(context.device);
        result.seconds = 0;
        started = std::chrono::steady_clock::now();
      }
      if (progress.is_due()) progress.show(result.steps * train_batches.total_batch_size(), loss.item<double>());
      progress.step();
      if (options.save_every && course.steps % *options.save_every == 0) {
        result.seconds += seconds_since(started);  // the time of saving does not count
        accelerator.save_state();
        started = std::chrono::steady_clock::now();
      }
      if (done()) break;
    }
    if (loss.defined()) result.loss = loss.item<double>();
    result.seconds += seconds_since(started);
  };

  // Checkpoints are saved during the training part of an epoch, so a resumed run still has to evaluate that epoch, even
  // if max_steps has been reached.
  bool is_resumed = goes_on || !options.resume.empty();
  // Only the last evaluation counts. gather_for_metrics drops the padding of the last batch, so every sample counts
  // once.
  const auto evaluate = [&] {
    result.eval_correct = result.eval_samples = 0;
    for (auto& batch : eval_batches) {
      const auto [inputs, targets] = own_positions(batch);
      const auto [predictions, expected] =
          accelerator.gather_for_metrics(std::tuple(logits_of(model, inputs).argmax(-1), targets));
      result.eval_correct += (predictions == expected).sum().template item<std::int64_t>();
      result.eval_samples += expected.numel();
    }
    if (parts.size() > 1) {
      auto counts = at::tensor(std::vector<std::int64_t>{result.eval_correct, result.eval_samples});
      parts.group().all_reduce(counts).wait();
      result.eval_correct = counts[0].item<std::int64_t>();
      result.eval_samples = counts[1].item<std::int64_t>();
    }
  };
  const auto run_epochs = [&](ElasticRun* elastic) {
    for (; course.epoch < experiment.epochs && (!done() || is_resumed); ++course.epoch) {
      is_resumed = false;
      model->train();
      if (!done() && elastic != nullptr)
        train_elastic_epoch(*elastic);
      else if (!done())
        train_epoch();
      model->eval();
      const c10::NoGradGuard no_grad;
      const bool is_replayed = elastic != nullptr && elastic->is_replaying();
      if (elastic != nullptr)
        elastic->repeatable(evaluate);
      else
        evaluate();
      if (options.trace && !is_replayed) {
        result.trace.push_back(fmt::format(R"({{"rank":{},"epoch":{},"eval_correct":{},"eval_samples":{}}})",
                                           context.rank, course.epoch, result.eval_correct, result.eval_samples));
      }
    }
  };
  if constexpr (!kIsPipeline) {
    if (experiment.elastic)
      accelerator.elastic(*experiment.elastic, [&](ElasticRun& run) { run_epochs(&run); });
    else
      run_epochs(nullptr);
  } else {
    run_epochs(nullptr);
  }
  result.is_sharded = model.parallel_model()->is_sharded();
  // A model that is divided over ranks writes with a complete copy: text has contexts of any length.
  std::shared_ptr<models::Model> complete;
  const auto& layouts = model.parallel_model()->layouts();
  if (experiment.sample && (kIsPipeline || parts.size() > 1 || layouts.has_divided_layers())) {
    const auto state = accelerator.get_state_dict(model);  // collective
    const GeneratorScope unused(make_generator(0));
    if (accelerator.is_main_process()) complete = complete_copy(task, state);
  }
  // A sharded model has complete parameters only while this guard lives. Collective, so all ranks take part, although
  // only rank 0 writes text.
  const auto whole = accelerator.gathered_parameters(model);
  std::string of_sample;
  if (experiment.sample && accelerator.is_main_process()) {
    // Weights in bfloat16 meet float32 vectors, which only autocast combines.
    const auto autocast = accelerator.has_master_weights() ? accelerator.autocast() : nullptr;
    if constexpr (!kIsPipeline) {
      if (!complete) complete = model.module();
    }
    const auto text = write_text(*complete, experiment.model.gpt.block_size, *experiment.sample);
    result.sample = printable(text);
    of_sample = fmt::format(R"(,"sample_sha256":"{}")", sha256_of(text));
  }
  if (options.trace) {
    result.trace.push_back(fmt::format(R"({{"rank":{},"parameters_sha256":"{}"{}}})", context.rank,
                                       parameters_sha256(accelerator.unwrap_model(model)->parameters()), of_sample));
  }
}

}  // namespace

void train_experiment(RankContext& context, const Experiment& experiment, const Task& task, const TrainOptions& options,
                      RankResult& result) {
  check_config(!experiment.elastic || (!options.save_every && options.resume.empty() && !options.capture_after),
               "elastic: expected no --save-every, --resume or captured step: the place in the data is not saved yet");
  result = {};  // a rank that is restarted in the same process must not add to its first attempt
  Accelerator accelerator(with_checkpoints(experiment.accelerator, options), context);
  set_seed(experiment.seed);
  if (accelerator.mesh().config().pp_size > 1)
    train_net<PipelineModel>(accelerator, experiment, task, options, result);
  else
    train_net<models::Model>(accelerator, experiment, task, options, result);
}

}  // namespace accel::programs
