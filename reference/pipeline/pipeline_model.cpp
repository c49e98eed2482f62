#include "reference/pipeline/pipeline_model.hpp"

#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros_like.h>
#include <c10/core/GradMode.h>
#include <fmt/ranges.h>
#include <torch/nn/modules/container/modulelist.h>
#include <torch/nn/modules/container/sequential.h>

#include <algorithm>
#include <map>
#include <set>

#include "reference/comm/tensor_fingerprint.hpp"
#include "reference/core/input/listed.hpp"
#include "reference/core/integers.hpp"
#include "reference/core/splitmix64.hpp"
#include "reference/modules/parameter_cut.hpp"
#include "reference/pipeline/pipeline_executor.hpp"
#include "reference/pipeline/stage_cut.hpp"
#include "reference/state/objects.hpp"
#include "reference/state/seeded_random.hpp"

namespace accel {
namespace {

using Tensors = std::vector<at::Tensor>;

// Modules may not register names with dots, so each part of a name is a module: a list, since nobody calls it.
class NamesImpl : public torch::nn::ModuleListImpl {};

void register_at(torch::nn::Module& root, const std::string& name, const std::shared_ptr<torch::nn::Module>& module) {
  const auto dot = name.find('.');
  const auto first = name.substr(0, dot);
  const auto known = root.named_children();
  if (dot == std::string::npos) {
    if (known.find(first) == nullptr) root.register_module(first, module);
    return;
  }
  const auto* child = known.find(first);
  const auto inner = child != nullptr ? *child : root.register_module(first, std::make_shared<NamesImpl>());
  register_at(*inner, name.substr(dot + 1), module);
}

// While it lives, modules compute as in evaluation, so that zeros change no statistics.
class EvaluationScope {
 public:
  explicit EvaluationScope(torch::nn::Module& module) {
    for (auto& part : module.modules()) {
      if (part->is_training()) training_.push_back(part.get());
    }
    module.eval();
  }
  ~EvaluationScope() {
    for (auto* part : training_) {
      const auto children = part->children();
      std::vector<bool> before;
      for (const auto& child : children) before.push_back(child->is_training());
      part->train();  // with its children
      for (std::size_t index = 0; index < children.size(); ++index) children[index]->train(before[index]);
    }
  }
  EvaluationScope(const EvaluationScope&) = delete;
  EvaluationScope& operator=(const EvaluationScope&) = delete;

 private:
  std::vector<torch::nn::Module*> training_;
};

std::vector<pipeline::LayerSize> sizes_of(const std::vector<PipelineLayer>& layers) {
  std::vector<pipeline::LayerSize> sizes;
  for (const auto& layer : layers) {
    pipeline::LayerSize size{.name = layer.name};
    for (const auto& [name, module] : layer.modules) {
      for (const auto& parameter : module->parameters()) size.size += parameter.numel();
    }
    sizes.push_back(std::move(size));
  }
  return sizes;
}

// The parameters and buffers of the layers, each with the ranks whose stages have it.
std::vector<ModelStages::Entry> entries_of(const std::vector<PipelineLayer>& layers,
                                           const std::vector<int>& rank_of_layers) {
  std::vector<ModelStages::Entry> entries;
  std::map<std::string, std::size_t> place_of;
  std::map<const c10::TensorImpl*, std::string> first_names;
  for (std::size_t layer = 0; layer < layers.size(); ++layer) {
    const auto add = [&](const std::string& name, const at::Tensor& tensor, bool is_parameter) {
      const auto& first = first_names.try_emplace(tensor.unsafeGetTensorImpl(), name).first->second;
      const auto [place, is_new] = place_of.try_emplace(name, entries.size());
      if (is_new) entries.push_back({.name = name, .first_name = first, .is_parameter = is_parameter});
      auto& ranks = entries[place_of.at(first)].ranks;
      if (std::ranges::find(ranks, rank_of_layers[layer]) == ranks.end()) ranks.push_back(rank_of_layers[layer]);
    };
    for (const auto& [name, module] : layers[layer].modules) {
      for (const auto& item : module->named_parameters()) add(name + "." + item.key(), item.value(), true);
      for (const auto& item : module->named_buffers()) add(name + "." + item.key(), item.value(), false);
    }
  }
  for (auto& entry : entries) entry.ranks = entries[place_of.at(entry.first_name)].ranks;
  return entries;
}

}  // namespace

std::vector<PipelineLayer> pipeline_layers(const torch::nn::Sequential& model) {
  std::vector<PipelineLayer> layers;
  const auto names = model->named_children();
  std::size_t index = 0;
  for (auto part = model->begin(); part != model->end(); ++part) {
    const auto name = names[index++].key();
    layers.push_back({.name = name,
                      .modules = {{name, part->ptr()}},
                      .forward = [part = *part, name](const Tensors& inputs) mutable {
                        check_argument(inputs.size() == 1,
                                       "pipeline: element {} of a Sequential got {} tensors; expected 1", name,
                                       inputs.size());
                        return Tensors{call(part, inputs[0])};
                      }});
  }
  return layers;
}

std::vector<std::vector<at::Tensor>> cut_into_micro_batches(const std::vector<at::Tensor>& batch, int count,
                                                            const char* what) {
  std::vector<std::string> rows;
  for (const auto& tensor : batch)
    rows.push_back(tensor.dim() == 0 ? std::string("none") : std::to_string(tensor.size(0)));
  check_argument(
      !batch.empty() && std::ranges::adjacent_find(rows, std::not_equal_to()) == rows.end() && rows[0] != "none",
      "{}: the tensors of a batch have {} rows; expected the same number of rows in each", what,
      batch.empty() ? "no" : fmt::format("{}", fmt::join(rows, ", ")));
  const auto num_rows = batch.front().size(0);
  const auto size = std::max<std::int64_t>(1, divide_up(num_rows, count));
  std::vector<std::vector<at::Tensor>> parts;
  for (std::int64_t begin = 0; begin < num_rows; begin += size) {
    auto& part = parts.emplace_back();
    for (const auto& tensor : batch) part.push_back(tensor.narrow(0, begin, std::min(size, num_rows - begin)));
  }
  return parts;
}

struct PipelineModel::State {
  State(torch::nn::Module& module, std::vector<PipelineLayer> layers, Group group, PipelineOptions options)
      : module(module), options(std::move(options)), stages{.group = std::move(group)} {
    const auto schedule = plan(layers);
    const auto rank_of_stages = pipeline::rank_of_stages(schedule);
    std::vector<int> rank_of_layers;
    for (int stage = 0; stage < schedule.sizes.stages; ++stage)
      rank_of_layers.resize(end_of(stage, layers.size()), rank_of_stages[stage]);
    stages.entries = entries_of(layers, rank_of_layers);
    for (const auto& layer : layers) {
      for (const auto& [name, part] : layer.modules) {
        for (const auto& [parameter, cut] : parallel::parameter_cuts(*part)) stages.divided_axes.insert(cut.axis);
      }
    }
    last_rank = rank_of_layers.back();
    add_stages(layers, rank_of_layers, schedule);
  }

  static void check_names(const std::vector<PipelineLayer>& layers, std::vector<std::string>& problems) {
    std::set<std::string> names;
    std::map<std::string, const torch::nn::Module*> modules;
    for (const auto& layer : layers) {
      if (!names.insert(layer.name).second)
        problems.push_back(fmt::format("two layers have the name '{}'", layer.name));
      for (const auto& [name, part] : layer.modules) {
        if (modules.try_emplace(name, part.get()).first->second != part.get())
          problems.push_back(fmt::format("two modules have the name '{}'", name));
      }
    }
  }

  // All problems are one error.
  pipeline::Schedule plan(const std::vector<PipelineLayer>& layers) {
    std::vector<std::string> problems;
    pipeline::Schedule schedule;
    const int ranks = stages.group.size();
    if (options.micro_batches == 0) options.micro_batches = ranks;
    try {
      const auto& kind = pipeline::schedule_kind(options.schedule);
      if (options.stages_per_rank == 0) options.stages_per_rank = kind.default_stages_per_rank;
      schedule = pipeline::make_schedule(
          options.schedule,
          {.stages = ranks * options.stages_per_rank, .ranks = ranks, .micro_batches = options.micro_batches});
    } catch (const Error& error) {
      problems.emplace_back(error.what());
    }
    const int num_stages = ranks * options.stages_per_rank;
    check_names(layers, problems);
    if (num_stages > 0 && static_cast<int>(layers.size()) < num_stages)
      problems.push_back(
          fmt::format("{} layers for {} stages; expected at least one layer per stage", layers.size(), num_stages));
    else if (num_stages > 0 && !options.split_points.empty())
      begins = pipeline::cut_at_names(sizes_of(layers), num_stages, options.split_points, problems);
    else if (num_stages > 0)
      begins = pipeline::cut_by_size(sizes_of(layers), num_stages);
    check_config(problems.empty(), "pipeline_model: {}", listed(problems, "; "));
    return schedule;
  }

  [[nodiscard]] std::size_t end_of(int stage, std::size_t num_layers) const {
    const auto next = static_cast<std::size_t>(stage) + 1;
    return next < begins.size() ? begins[next] : num_layers;
  }

  void add_stages(std::vector<PipelineLayer>& layers, const std::vector<int>& rank_of_layers,
                  const pipeline::Schedule& schedule) {
    std::vector<pipeline::PipelineStage> own;
    for (std::size_t layer = 0; layer < layers.size(); ++layer) {
      if (rank_of_layers[layer] != stages.group.rank()) continue;
      for (const auto& [name, part] : layers[layer].modules) register_at(module, name, part);
      forwards[layer] = std::move(layers[layer].forward);
    }
    for (int stage = 0; stage < schedule.sizes.stages; ++stage) {
      if (rank_of_layers[begins[stage]] != stages.group.rank()) continue;
      const auto end = end_of(stage, layers.size());
      own.push_back(
          {.index = stage,
           .forward = [this, begin = begins[stage], end](const Tensors& inputs, std::optional<int> micro_batch) {
             return micro_batch ? call_stage(begin, end, inputs, *micro_batch) : find_sizes(begin, end, inputs);
           }});
    }
    executor.emplace(stages.group, std::move(own), schedule,
                     pipeline::ExecutorOptions{.send_capacity = options.send_capacity});
  }

  using SeedOf = std::function<std::uint64_t(std::size_t layer)>;

  // Each layer computes zeros, so that nothing depends on the cut.
  Tensors find_sizes(std::size_t begin, std::size_t end, const Tensors& inputs) {
    const EvaluationScope evaluation(module);
    return call_layers(begin, end, inputs, /*zeros=*/true, [](std::size_t layer) { return layer; });
  }

  Tensors call_stage(std::size_t begin, std::size_t end, const Tensors& inputs, int micro_batch) {
    const auto of_micro_batch = splitmix64(seed + static_cast<std::uint64_t>(micro_batch));
    return call_layers(begin, end, inputs, /*zeros=*/false,
                       [&](std::size_t layer) { return splitmix64(of_micro_batch + layer); });
  }

  Tensors call_layers(std::size_t begin, std::size_t end, const Tensors& inputs, bool zeros, const SeedOf& seed_of) {
    const auto run = [&](const Tensors& given) {
      auto values = given;
      for (auto layer = begin; layer < end; ++layer) {
        const SeededRandom random(seed_of(layer));
        if (zeros)
          std::ranges::transform(values, values.begin(), [](const auto& value) { return at::zeros_like(value); });
        const auto& forward = forwards.at(layer);
        values = options.recompute ? detail::checkpoint(forward, std::move(values)) : forward(values);
      }
      return values;
    };
    return surround ? surround(run, inputs) : run(inputs);
  }

  // One draw on every rank; the number is that of the first stage's rank.
  void draw_seed() {
    auto drawn = at::full({1}, draw_int64(default_generator()), at::TensorOptions(at::kLong)).to(current_rank().device);
    stages.group.broadcast(drawn).wait();
    seed = static_cast<std::uint64_t>(drawn.item<std::int64_t>());
  }

  // Outputs of the last rank, on every rank.
  Tensors gathered(const Tensors& outputs) const {
    const auto all = detail::all_gather_bytes(stages.group, pack(outputs, TensorBytes::kShapeOnly));
    Tensors results;
    std::size_t index = 0;
    for (const auto& shape : unpack<Tensors>(all[last_rank], TensorBytes::kShapeOnly)) {
      auto values = stages.group.rank() == last_rank
                        ? outputs[index++].contiguous()
                        : at::empty(shape.sizes(), shape.options().device(current_rank().device));
      stages.group.broadcast(values, last_rank).wait();
      results.push_back(std::move(values));
    }
    return results;
  }

  // A weight that stages on several ranks have.
  struct Tied {
    at::Tensor parameter;
    std::vector<int> ranks;
  };
  [[nodiscard]] std::vector<Tied> tied() const;

  torch::nn::Module& module;
  PipelineOptions options;
  ModelStages stages;
  std::vector<std::size_t> begins;          // the first layer of each stage
  std::map<std::size_t, Forward> forwards;  // of this rank's layers
  std::optional<pipeline::PipelineExecutor> executor;
  int last_rank = 0;
  bool has_compared_batch = false;
  bool has_tied_sums = false;  // the gradients of tied weights are those of all ranks
  bool predicts_only = false;
  // Of the current call.
  Surround surround;
  std::uint64_t seed = 0;
};

PipelineModel::PipelineModel(std::vector<PipelineLayer> layers, Group group, PipelineOptions options)
    : torch::nn::Module("PipelineModel"),
      state_(std::make_unique<State>(*this, std::move(layers), std::move(group), std::move(options))) {}
PipelineModel::~PipelineModel() = default;

Tensors PipelineModel::forward(const Tensors& inputs) {
  check_state(state_->predicts_only || !c10::GradMode::is_enabled(),
              "model(...): a pipeline predicts without gradients; call it under a torch::NoGradGuard, or train with "
              "accelerator.train_pipeline");
  const c10::NoGradGuard no_grad;
  state_->surround = nullptr;
  if (is_training()) state_->draw_seed();
  auto parts = state_->executor->forward(cut_into_micro_batches(inputs, state_->options.micro_batches, "model(...)"));
  Tensors outputs;
  for (std::size_t place = 0; !parts.empty() && place < parts.front().size(); ++place) {
    Tensors of_parts;
    for (const auto& part : parts) of_parts.push_back(part[place]);
    outputs.push_back(at::cat(of_parts));
  }
  return state_->options.gather_output ? state_->gathered(outputs) : outputs;
}

Tensors PipelineModel::step(const std::vector<Tensors>& micro_batches, const MicroBatchLoss& loss, Surround surround) {
  state_->surround = std::move(surround);
  // Gradients that the program has not zeroed are sums over ranks, and would be added once per rank.
  if (std::exchange(state_->has_tied_sums, false)) {
    for (auto& [parameter, ranks] : state_->tied()) {
      if (ranks.front() != state_->stages.group.rank()) parameter.mutable_grad().reset();
    }
  }
  state_->draw_seed();
  return state_->executor->step(micro_batches, loss);
}

void PipelineModel::check_same_batch(const Tensors& batch) {
  if (std::exchange(state_->has_compared_batch, true) || state_->stages.group.size() == 1) return;
  std::uint64_t hash = 0;
  for (const auto& tensor : batch) hash = splitmix64(hash ^ fingerprint(tensor));
  check_argument(
      detail::is_equal_on_all(state_->stages.group, hash),
      "train_pipeline: the ranks of a pipeline got different batches. They share out the layers of one model, "
      "so they must read the same samples; use a prepared loader, or choose samples by data_parallel_rank() "
      "of data_parallel_size() and not by process_index()");
}

at::Tensor PipelineModel::shared_loss(const at::Tensor& loss) const {
  const auto device = current_rank().device;
  auto shared = at::full({2}, static_cast<double>(loss.scalar_type()), at::TensorOptions(at::kDouble).device(device));
  shared[0].copy_(loss);
  state_->stages.group.broadcast(shared, state_->last_rank).wait();
  return shared[0].to(static_cast<at::ScalarType>(shared[1].item<double>()));
}

// Those of which this rank has one, and which are trained, in the order of the complete model.
std::vector<PipelineModel::State::Tied> PipelineModel::State::tied() const {
  std::vector<Tied> found;
  for (const auto& entry : stages.entries) {
    if (!entry.is_parameter || entry.name != entry.first_name || entry.ranks.size() < 2) continue;
    for (const auto& item : module.named_parameters()) {
      const auto* own = stages.find(item.key());
      if (own == nullptr || own->first_name != entry.name) continue;
      if (item.value().requires_grad()) found.push_back({item.value(), entry.ranks});
      break;
    }
  }
  return found;
}

// The first rank adds up the gradients of all ranks, and sends the sum. One more element counts the ranks that have a
// gradient: without any, the weight was not used.
void PipelineModel::add_tied_gradients() {
  const auto& group = state_->stages.group;
  for (auto& [parameter, ranks] : state_->tied()) {
    const c10::NoGradGuard no_grad;
    const bool has_gradient = parameter.grad().defined();
    auto sum = at::cat({(has_gradient ? parameter.grad() : at::zeros_like(parameter)).detach().flatten(),
                        at::full({1}, has_gradient ? 1 : 0, parameter.options().requires_grad(false))});
    const int first = ranks.front();
    if (group.rank() != first) {
      group.send(sum, first).wait();
      group.recv(sum, first).wait();
    } else {
      auto received = at::empty_like(sum);
      for (const auto rank : ranks) {
        if (rank == first) continue;
        group.recv(received, rank).wait();
        sum += received;
      }
      for (const auto rank : ranks) {
        if (rank != first) group.send(sum, rank).wait();
      }
    }
    if (sum[-1].item<double>() > 0)
      parameter.mutable_grad() = sum.narrow(0, 0, parameter.numel()).view(parameter.sizes()).clone();
  }
  state_->has_tied_sums = true;
}

const ModelStages& PipelineModel::stages() const { return state_->stages; }
void PipelineModel::predict_only() { state_->predicts_only = true; }
int PipelineModel::num_micro_batches() const { return state_->options.micro_batches; }

}  // namespace accel
