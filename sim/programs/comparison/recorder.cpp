// Records what a rank computes.
// A StepObserver that writes what it sees and passes every call on to the listener that the backend has set, which is
// the simulator's or none. Observing must not change what is computed: it draws no random numbers, adds no operators
// to the autograd graph, and hides its own operators from the simulator's clock and buffer checks.
#include "sim/programs/comparison/recorder.hpp"

#include <ATen/record_function.h>
#include <c10/core/GradMode.h>
#include <c10/util/StringUtil.h>
#include <fmt/ranges.h>
#include <torch/csrc/autograd/function.h>
#include <torch/nn/module.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/dropout.h>

#include <algorithm>
#include <cmath>
#include <exception>
#include <filesystem>
#include <fstream>
#include <mutex>

#include "reference/comm/fingerprint.hpp"
#include "reference/comm/tensor_fingerprint.hpp"
#include "reference/core/borrowed.hpp"
#include "reference/core/errors.hpp"
#include "reference/core/named_tensors.hpp"
#include "reference/modules/call.hpp"
#include "reference/modules/parameter_cut.hpp"
#include "reference/rank_local/random.hpp"
#include "sim/programs/comparison/program_audit.hpp"
#include "sim/programs/comparison/recording.hpp"
#include "sim/programs/comparison/tensor_text.hpp"

namespace accel::programs {
namespace {

// The type, shape and norm of a tensor, for people: the norm shows whether a difference is one of rounding.
std::string tensor_detail(const at::Tensor& tensor) {
  auto text = fmt::format("{} {}", c10::toString(tensor.scalar_type()), c10::str(tensor.sizes()));
  if (const auto norm = norm_of(tensor)) text += fmt::format(", norm {:.9g}", *norm);
  return text;
}

// Ranks of a mesh drop other elements than one rank does, so that nothing could be compared.
void stop_dropout(const torch::nn::Module& model) {
  for (const auto& module : model.modules()) {
    if (auto* dropout = module->as<torch::nn::DropoutImpl>()) dropout->options.p(0);
    if (auto* dropout = module->as<torch::nn::Dropout2dImpl>()) dropout->options.p(0);
    if (auto* dropout = module->as<torch::nn::Dropout3dImpl>()) dropout->options.p(0);
    if (auto* dropout = module->as<torch::nn::AlphaDropoutImpl>()) dropout->options.p(0);
    if (auto* dropout = module->as<torch::nn::FeatureAlphaDropoutImpl>()) dropout->options.p(0);
  }
}

constexpr std::int64_t kDisturbedStep = 1;  // the second micro-batch
constexpr std::uint64_t kSampleSeed = 20'000;

class Recorder : public StepObserver, public std::enable_shared_from_this<Recorder> {
 public:
  Recorder(const RankContext& context, const RecordOptions& options)
      : context_(context),
        inner_(context.listener),
        tensors_(options.tensors || options.values),
        values_(options.values),
        stops_dropout_(options.values || options.same_work),
        max_steps_(options.max_steps),
        out_(recording_file(options.folder, context.rank), std::ios::app) {
    if (values_) values_out_.open(values_file(options.folder, context.rank), std::ios::app | std::ios::binary);
    if ((values_ || options.audit) && inner_) static_cast<void>(inner_->take_collectives());  // those from here on
    if (context.rank == context.world_size - 1) disturb_ = options.disturb;
    if (options.audit)
      audit_ = std::make_shared<ProgramAudit>(
          [this](auto observation) {
            if (inner_) audit_->add_collectives(inner_->take_collectives());
            observation.step = step();
            add(std::move(observation));
          },
          std::filesystem::absolute(options.folder).lexically_normal().string());
    check_config(out_.good(), "{}: cannot be written; expected an existing folder",
                 recording_file(options.folder, context.rank));
  }

  ~Recorder() override {
    try {
      if (audit_) audit_->finish();
    } catch (const std::exception&) {  // the record then has no end
    }
  }
  /// Null unless the program is audited.
  [[nodiscard]] const std::shared_ptr<ProgramAudit>& audit() const { return audit_; }

  std::string_view enter_phase(std::string_view phase) override;
  void begin_backward(const at::Tensor& loss) override;
  void add_replicas(const std::shared_ptr<const Replicas>& replicas) override {
    if (inner_) inner_->add_replicas(replicas);
  }
  void add_model(const std::shared_ptr<torch::nn::Module>& model) override;
  [[nodiscard]] bool observes_tensors() const override { return tensors_; }
  void before_forward(const torch::nn::Module& model, const std::vector<at::Tensor>& inputs) override;
  void after_forward(const torch::nn::Module& model, const std::vector<at::Tensor>& outputs) override;
  void before_update() override;
  void after_update() override;
  void end_join() override {
    if (inner_) inner_->end_join();
  }

  // Called around the forward of a module inside a model, too.
  using Placements = std::vector<TensorPlacement>;
  void see_inputs(const std::string& name, const std::vector<at::Tensor>& inputs, const Placements& placements = {});
  void see_outputs(const std::string& name, const std::vector<at::Tensor>& outputs, const Placements& placements = {});

 private:
  struct Model {
    const torch::nn::Module* module = nullptr;  // not used after the program may have destroyed it
    NamedTensors parameters;
    std::map<std::string, ParameterLayout::Division> divisions;
    std::string prefix;  // of the names of its modules and parameters: "", or "model 1: " for the second
  };

  // The micro-batch to which a tensor belongs: recomputation runs forward again inside backward.
  [[nodiscard]] std::int64_t step() const {
    return phase_ == "backward" || phase_ == "optimizer" ? std::max<std::int64_t>(num_steps_ - 1, 0) : num_steps_;
  }
  [[nodiscard]] std::string name_of(const torch::nn::Module& model) const;
  void observe_modules(const std::shared_ptr<torch::nn::Module>& module, const std::string& prefix);
  void add(Observation observation);
  void add_tensors(const std::string& kind, const std::string& name, const std::vector<at::Tensor>& tensors,
                   const Placements& placements = {}, std::optional<ParameterLayout::Division> division = {});
  [[nodiscard]] RecordedTensor store(const at::Tensor& tensor, TensorPlacement placement);
  void add_parameters(const std::string& kind, const Model& model);
  void disturb(const at::Tensor& loss) const;

  const RankContext& context_;           // outlives its listener
  std::shared_ptr<StepObserver> inner_;  // may be null
  bool tensors_, values_, stops_dropout_;
  std::shared_ptr<ProgramAudit> audit_;
  std::string disturb_;  // see RecordOptions
  std::optional<std::int64_t> max_steps_;
  std::string_view phase_ = "other", outside_backward_ = {};
  bool is_in_backward_ = false;
  std::int64_t num_steps_ = 0;    // backward passes that have begun
  std::int64_t num_updates_ = 0;  // of optimizers
  bool is_training_ = true;       // the mode of the prepared model that is running
  std::vector<Model> models_;
  std::mutex mutex_;  // guards out_: gradients on a GPU arrive on a thread of autograd
  std::ofstream out_, values_out_;
  std::int64_t values_size_ = 0;                          // bytes of values_out_
  std::vector<std::shared_ptr<torch::nn::Module>> kept_;  // the observed modules: their addresses are not reused
  std::vector<ScopedModuleObserver> observers_;
  std::vector<ScopedSequentialHooks> elements_;
};

// The observers live as long as the recorder, see `observers_`.
class RecordedModule : public ModuleObserver {
 public:
  RecordedModule(Recorder& recorder, std::string name) : recorder_(recorder), name_(std::move(name)) {}
  void before_forward(const std::vector<at::Tensor>& inputs) override { recorder_.see_inputs(name_, inputs); }
  void after_forward(const std::vector<at::Tensor>& outputs) override { recorder_.see_outputs(name_, outputs); }
  void before_forward(const std::vector<at::Tensor>& inputs, const std::vector<TensorPlacement>& placements) override {
    recorder_.see_inputs(name_, inputs, placements);
  }
  void after_forward(const std::vector<at::Tensor>& outputs, const std::vector<TensorPlacement>& placements) override {
    recorder_.see_outputs(name_, outputs, placements);
  }

 private:
  Recorder& recorder_;
  std::string name_;
};

void Recorder::add(Observation observation) {
  if (values_ && inner_) observation.collectives = inner_->take_collectives();
  const auto line = to_line(observation);
  const std::lock_guard lock(mutex_);
  out_ << line << '\n';
}

void Recorder::add_tensors(const std::string& kind, const std::string& name, const std::vector<at::Tensor>& tensors,
                           const Placements& placements, std::optional<ParameterLayout::Division> division) {
  const at::DisableRecordFunctionGuard no_clock;
  const c10::NoGradGuard no_grad;
  Observation observation{.step = step(), .kind = kind, .name = name, .division = std::move(division)};
  std::vector<std::string> hashes, details;
  for (std::size_t place = 0; place < tensors.size(); ++place) {
    const auto& tensor = tensors[place];
    if (!has_bits(tensor)) continue;
    hashes.push_back(hex(fingerprint(tensor)));
    details.push_back(tensor_detail(tensor));
    if (values_)
      observation.tensors.push_back(store(tensor, place < placements.size() ? placements[place] : TensorPlacement{}));
  }
  observation.value = fmt::format("{}", fmt::join(hashes, " "));
  observation.detail = fmt::format("{}", fmt::join(details, "; "));
  add(std::move(observation));
}

RecordedTensor Recorder::store(const at::Tensor& tensor, TensorPlacement placement) {
  const auto elements = contiguous_on_cpu(tensor);
  const auto bytes = bytes_of(elements);
  const std::lock_guard lock(mutex_);
  RecordedTensor stored{.offset = values_size_,
                        .dtype = c10::toString(tensor.scalar_type()),
                        .sizes = tensor.sizes().vec(),
                        .placement = std::string(placement.name),
                        .dim = placement.dim};
  values_out_.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  values_size_ += static_cast<std::int64_t>(bytes.size());
  return stored;
}

// One observation per parameter, or one hash of all.
void Recorder::add_parameters(const std::string& kind, const Model& model) {
  if (tensors_) {
    for (const auto& [name, parameter] : model.parameters) {
      const auto division = model.divisions.find(name);
      const auto& seen = kind.ends_with("gradient") ? parameter.grad() : parameter;
      if (seen.defined())
        add_tensors(kind, model.prefix + name, {seen}, {},
                    division == model.divisions.end() ? std::nullopt : std::optional(division->second));
    }
    return;
  }
  const at::DisableRecordFunctionGuard no_clock;
  std::vector<at::Tensor> parameters;
  for (const auto& [name, parameter] : model.parameters) parameters.push_back(parameter);
  add({.step = step(), .kind = kind + "s", .name = model.prefix, .value = hash_of(parameters)});
}

// Gradients are those of the end of a backward pass, before the program clips them: a wrong one would change all
// others with the norm. Other phases inside backward, such as "batch_norm", return to it.
std::string_view Recorder::enter_phase(std::string_view phase) {
  if (is_in_backward_ && phase_ == "backward" && phase == outside_backward_) {
    is_in_backward_ = false;
    if (values_ && context_.gradient_state.sync_gradients && std::uncaught_exceptions() == 0) {
      for (const auto& model : models_) add_parameters("gradient", model);
    }
  }
  const auto before = std::exchange(phase_, phase);
  const auto outside = inner_ ? inner_->enter_phase(phase) : before;
  if (phase == "backward" && !std::exchange(is_in_backward_, true)) outside_backward_ = outside;
  return outside;
}

// Lines are flushed in every step: a process that dies leaves what it computed. A window of several micro-batches is
// recorded until its update.
void Recorder::begin_backward(const at::Tensor& loss) {
  if (!disturb_.empty() && num_steps_ == kDisturbedStep) disturb(loss);
  if (max_steps_ && num_steps_ >= *max_steps_ && num_updates_ > 0) throw EnoughRecorded();
  {
    const at::DisableRecordFunctionGuard no_clock;
    ++num_steps_;
    // backward divides the losses of an accumulation that it knows of.
    if (audit_ && loss.grad_fn() && context_.gradient_state.plugin.num_steps.value_or(1) == 1)
      add({.step = step(), .kind = "loss graph", .value = loss.grad_fn()->name()});
    if (loss.numel() == 1 || audit_) {  // an audit compares the mean of the losses of samples
      const auto value = loss.detach().to(at::kDouble).mean().item<double>();
      add({.step = step(),
           .kind = "loss",
           .value = std::isfinite(value) ? fmt::format("{:a}", value) : fmt::format("{}", value),
           .detail = fmt::format("{:.9g}", value)});
    } else {
      add_tensors("loss", "", {loss});
    }
    out_.flush();
  }
  if (inner_) inner_->begin_backward(loss);
}

// The program reads the value that the loss has from here on.
void Recorder::disturb(const at::Tensor& loss) const {
  const at::DisableRecordFunctionGuard no_clock;
  const c10::NoGradGuard no_grad;
  loss.detach().fill_(disturb_ == "nan" ? std::nan("") : 0.0);
}

void Recorder::before_update() {
  if (values_) {
    for (const auto& model : models_) add_parameters("stepped gradient", model);
  }
  if (inner_) inner_->before_update();
}

// Records first: the simulator ends the run there if the replicas differ.
void Recorder::after_update() {
  ++num_updates_;
  for (const auto& model : models_) add_parameters("parameter", model);
  add({.step = step(), .kind = "generator state", .value = hex(fingerprint(default_generator()))});
  out_.flush();
  if (inner_) inner_->after_update();
}

// A model may be prepared again, for example first for evaluation. A model on the stack may have the address of an
// earlier one, but not its parameters.
void Recorder::add_model(const std::shared_ptr<torch::nn::Module>& module) {
  if (inner_) inner_->add_model(module);
  NamedTensors parameters;
  for (const auto& item : module->named_parameters()) parameters.emplace_back(item.key(), item.value());
  parameters = unique_tensors(std::move(parameters));
  const auto is_same = [](const auto& own, const auto& other) { return own.second.is_same(other.second); };
  for (const auto& model : models_) {
    if (model.module == module.get() &&
        std::equal(model.parameters.begin(), model.parameters.end(), parameters.begin(), parameters.end(), is_same))
      return;
  }
  const auto prefix = models_.empty() ? "" : fmt::format("model {}: ", models_.size());
  models_.push_back({.module = module.get(), .parameters = std::move(parameters), .divisions = {}, .prefix = prefix});
  for (const auto& [name, cut] : parallel::parameter_cuts(*module)) models_.back().divisions[name] = cut.division();
  add_parameters("prepared parameter", models_.back());
  out_.flush();  // shows that prepare returned, even if the run ends before its first step
  if (stops_dropout_) stop_dropout(*module);
  if (audit_) audit_->add_model(*module);
  if (tensors_) observe_modules(module, prefix);
}

// Holds the modules inside the model, which are never on the stack. The model itself may be, and is observed by its
// handle instead; elements of such a Sequential are not observed, because it may be gone when they are put back.
void Recorder::observe_modules(const std::shared_ptr<torch::nn::Module>& module, const std::string& prefix) {
  const auto parts = module->named_modules("", /*include_self=*/false);
  for (const auto& item : parts) {
    if (detail::surroundings_of(*item.value()).observer) continue;  // registered under two names
    observers_.emplace_back(*item.value(), std::make_shared<RecordedModule>(*this, prefix + item.key()));
  }
  // After the observers: a Sequential calls only observed elements through accel::call.
  for (const auto& item : parts) elements_.emplace_back(item.value());
  for (const auto& item : parts) kept_.push_back(item.value());
  if (std::get_deleter<detail::OwnsNothing>(module) == nullptr) elements_.emplace_back(module);
}

std::string Recorder::name_of(const torch::nn::Module& model) const {
  const auto found =
      std::find_if(models_.rbegin(), models_.rend(), [&](const auto& own) { return own.module == &model; });
  return found == models_.rend() ? "" : found->prefix;
}

void Recorder::before_forward(const torch::nn::Module& model, const std::vector<at::Tensor>& inputs) {
  is_training_ = model.is_training() && c10::GradMode::is_enabled();
  add_tensors(is_training_ ? "input" : "evaluation input", name_of(model), inputs);
  see_inputs(name_of(model), inputs);
}

void Recorder::after_forward(const torch::nn::Module& model, const std::vector<at::Tensor>& outputs) {
  see_outputs(name_of(model), outputs);
}

// The gradient of an input arrives in backward. Inputs that are leaves are left out: their hooks would stay for the
// next steps. The hook of a graph that outlives the run finds no recorder.
void Recorder::see_inputs(const std::string& name, const std::vector<at::Tensor>& inputs,
                          const Placements& placements) {
  for (std::size_t place = 0; place < inputs.size(); ++place) {
    const auto& input = inputs[place];
    if (!input.defined() || !input.requires_grad() || input.is_leaf()) continue;
    const auto placement = place < placements.size() ? placements[place] : TensorPlacement{};
    input.register_hook([weak = weak_from_this(), name, placement](const at::Tensor& gradient) {
      if (const auto recorder = weak.lock()) recorder->add_tensors("input gradient", name, {gradient}, {placement});
    });
  }
}

void Recorder::see_outputs(const std::string& name, const std::vector<at::Tensor>& outputs,
                           const Placements& placements) {
  add_tensors(is_training_ ? "output" : "evaluation output", name, outputs, placements);
}

}  // namespace

void record_rank(RankContext& context, const RecordOptions& options) {
  if (options.same_work) context.sample_seed = kSampleSeed;
  if (options.folder.empty()) return;
  const auto recorder = std::make_shared<Recorder>(context, options);
  context.listener = recorder;
  context.program_observer = recorder->audit();
  if (options.audit) observe_output();
}

}  // namespace accel::programs
