#include "reference/pipeline/pipeline_executor.hpp"

#include <ATen/ops/empty.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/zeros_like.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <deque>
#include <map>
#include <mutex>
#include <set>
#include <tuple>
#include <utility>

#include "reference/core/errors.hpp"
#include "reference/core/input/listed.hpp"
#include "reference/pipeline/stage_backward.hpp"
#include "reference/state/objects.hpp"
#include "reference/state/rank_context.hpp"
#include "reference/state/step_observer.hpp"
#include "reference/tree/tree_bytes.hpp"

namespace accel::pipeline {
namespace {

// Sizes and dtype of a tensor that a stage passes on.
struct TensorSizes {
  std::vector<std::int64_t> sizes;
  at::ScalarType dtype = at::kFloat;

  [[nodiscard]] at::Tensor make(at::Device device) const {
    return at::empty(sizes, at::TensorOptions(dtype).device(device));
  }
};
using Sizes = std::vector<TensorSizes>;

Sizes sizes_of(const Tensors& tensors) {
  Sizes sizes;
  for (const auto& tensor : tensors) sizes.push_back({tensor.sizes().vec(), tensor.scalar_type()});
  return sizes;
}

Tensors leaves_of(const Tensors& tensors) {
  Tensors leaves;
  for (const auto& tensor : tensors) {
    leaves.push_back(tensor.detach());
    if (tensor.is_floating_point()) leaves.back().set_requires_grad(true);
  }
  return leaves;
}

struct Message {
  Tensors tensors;
  std::vector<Work> works;

  Tensors& wait() {
    for (auto& work : works) work.wait();
    works.clear();
    return tensors;
  }
};

// The name of a computation in timelines, which keep views of it.
std::string_view phase_of(const Action& action) {
  static std::mutex mutex;
  static auto& names = *new std::set<std::string>;
  const std::lock_guard lock(mutex);
  return *names.insert(to_string(action)).first;
}

// One stage and micro-batch while it is alive.
struct Slot {
  Tensors inputs, outputs;
  std::optional<StageBackward> backward;
  Tensors output_gradients;  // of a stage whose next one is on the same rank
  at::Tensor loss;
};

}  // namespace

class PipelineExecutor::Impl {
 public:
  Impl(Group group, std::vector<PipelineStage> stages, const Schedule& schedule, ExecutorOptions options)
      : group_(std::move(group)),
        options_(options),
        rank_of_(rank_of_stages(schedule)),
        num_stages_(schedule.sizes.stages),
        num_micro_batches_(schedule.sizes.micro_batches) {
    std::vector<std::string> problems;
    for (auto& stage : stages) {
      if (stages_.contains(stage.index))
        problems.push_back(fmt::format("rank {} has two stages {}", group_.rank(), stage.index));
      stages_[stage.index] = std::move(stage);
    }
    check(schedule, std::move(problems));
  }

  Tensors step(const std::vector<Tensors>& micro_batches, const Loss& loss) {
    check_argument(static_cast<int>(micro_batches.size()) == num_micro_batches_,
                   "pipeline: {} micro-batches, and the schedule has {}", micro_batches.size(), num_micro_batches_);
    find_sizes(micro_batches);
    forget_step();  // of one that ended in an error
    micro_batches_ = &micro_batches;
    loss_ = &loss;
    losses_.assign(has_last() ? micro_batches.size() : 0, {});
    for (const auto& action : run_.actions[group_.rank()]) perform(action);
    for (auto& [peer, sends] : sends_) {
      for (auto& message : sends) message.wait();
      sends.clear();
    }
    return std::exchange(losses_, {});
  }

  std::vector<Tensors> forward(const std::vector<Tensors>& micro_batches) {
    const c10::NoGradGuard no_grad;
    find_sizes(micro_batches);
    std::vector<Tensors> results;
    std::deque<Message> sends;
    for (std::size_t micro_batch = 0; micro_batch < micro_batches.size(); ++micro_batch) {
      Tensors passed;
      for (int stage = 0; stage < num_stages_; ++stage) {
        if (rank_of_[stage] != group_.rank()) continue;
        if (stage == 0)
          passed = micro_batches[micro_batch];
        else if (rank_of_[stage - 1] != group_.rank())
          passed = receive(rank_of_[stage - 1], sizes_for(stage - 1, micro_batches[micro_batch])).wait();
        passed = stages_.at(stage).forward(passed, static_cast<int>(micro_batch));
        if (stage + 1 < num_stages_ && rank_of_[stage + 1] != group_.rank())
          sends.push_back(send(rank_of_[stage + 1], passed));
        if (stage + 1 == num_stages_) results.push_back(passed);
      }
    }
    for (auto& message : sends) message.wait();
    return results;
  }

 private:
  void check(const Schedule& schedule, std::vector<std::string> problems) {
    const auto capacity = options_.send_capacity;
    if (capacity && *capacity < 0)
      problems.push_back(fmt::format("a send capacity of {}; expected 0 or more", *capacity));
    const auto checked = check_schedule(schedule, {.send_capacity = capacity, .receives = options_.receives});
    run_ = checked.run;
    problems.insert(problems.end(), checked.problems.begin(), checked.problems.end());
    if (!checked.cycle.empty()) problems.push_back("deadlock: " + checked.text());
    problems.insert(problems.end(), checked.notes.begin(), checked.notes.end());
    if (group_.size() != schedule.sizes.ranks)
      problems.push_back(
          fmt::format("the group has {} ranks, and the schedule {}", group_.size(), schedule.sizes.ranks));
    for (int stage = 0; stage < num_stages_; ++stage) {
      if (rank_of_[stage] == group_.rank() && !stages_.contains(stage))
        problems.push_back(fmt::format("rank {} lacks stage {}", group_.rank(), stage));
    }
    for (const auto& [index, stage] : stages_) {
      if (index < 0 || index >= num_stages_ || rank_of_[index] != group_.rank())
        problems.push_back(
            fmt::format("rank {} has stage {}, which the schedule puts elsewhere", group_.rank(), index));
    }
    check_config(problems.empty(), "pipeline with the schedule {}: {}", schedule.name, listed(problems, "; "));
  }

  [[nodiscard]] bool has_last() const { return rank_of_.back() == group_.rank(); }
  [[nodiscard]] bool is_here(int stage) const {
    return stage >= 0 && stage < num_stages_ && rank_of_[stage] == group_.rank();
  }

  void forget_step() {
    slots_.clear();
    sent_gradients_.clear();
    receives_.clear();
    sends_.clear();
  }

  // --- sizes ---------------------------------------------------------------------------------------------------------

  using Key = std::vector<std::pair<at::ScalarType, std::vector<std::int64_t>>>;  // dtypes and sizes of a micro-batch

  static Key key_of(const Tensors& inputs) {
    Key key;
    for (const auto& input : inputs) key.emplace_back(input.scalar_type(), input.sizes().vec());
    return key;
  }

  [[nodiscard]] const Sizes& sizes_for(int stage, const Tensors& micro_batch) const {
    return sizes_.at(key_of(micro_batch))[stage];
  }

  // Stages compute zeros once for each size of micro-batches, one stage after the other.
  void find_sizes(const std::vector<Tensors>& micro_batches) {
    for (const auto& micro_batch : micro_batches)
      check_argument(!micro_batch.empty(),
                     "pipeline: a micro-batch without tensors; expected the inputs of the first stage");
    if (!micro_batches.empty()) device_ = micro_batches.front().front().device();
    for (const auto& micro_batch : micro_batches) {
      const auto key = key_of(micro_batch);
      if (sizes_.contains(key)) continue;
      const c10::NoGradGuard no_grad;
      std::vector<Sizes> sizes(num_stages_);
      Tensors passed;
      for (const auto& tensor : micro_batch) passed.push_back(at::zeros_like(tensor));
      for (int stage = 0; stage < num_stages_; ++stage) {
        std::string shapes;  // empty on the ranks without the stage
        if (is_here(stage)) {
          if (stage > 0 && !is_here(stage - 1)) passed = zeros_of(sizes[stage - 1]);
          passed = stages_.at(stage).forward(passed, /*micro_batch=*/std::nullopt);
          shapes = pack(passed, TensorBytes::kShapeOnly);
        }
        const auto all = accel::detail::all_gather_bytes(group_, shapes);
        sizes[stage] = sizes_of(unpack<Tensors>(all[rank_of_[stage]], TensorBytes::kShapeOnly));
      }
      sizes_[key] = std::move(sizes);
    }
  }

  [[nodiscard]] Tensors zeros_of(const Sizes& sizes) const {
    Tensors tensors;
    for (const auto& of_tensor : sizes) tensors.push_back(of_tensor.make(device_).zero_());
    return tensors;
  }

  // --- messages ------------------------------------------------------------------------------------------------------

  Message send(int peer, const Tensors& tensors) {
    Message message;
    for (const auto& tensor : tensors) {
      message.tensors.push_back(tensor.detach().contiguous());
      message.works.push_back(group_.send(message.tensors.back(), peer));
    }
    return message;
  }

  Message receive(int peer, const Sizes& sizes) {
    Message message;
    for (const auto& of_tensor : sizes) {
      message.tensors.push_back(of_tensor.make(device_));
      message.works.push_back(group_.recv(message.tensors.back(), peer));
    }
    return message;
  }

  void send_when_possible(int peer, const Tensors& tensors) {
    auto& sends = sends_[peer];
    sends.push_back(send(peer, tensors));
    while (options_.send_capacity && static_cast<int>(sends.size()) > *options_.send_capacity) {
      sends.front().wait();
      sends.pop_front();
    }
  }

  // --- actions -------------------------------------------------------------------------------------------------------

  static Sizes with_gradients(const Sizes& sizes) {
    Sizes floating;
    std::copy_if(sizes.begin(), sizes.end(), std::back_inserter(floating),
                 [](const TensorSizes& of_tensor) { return at::isFloatingType(of_tensor.dtype); });
    return floating;
  }

  Slot& slot(int stage, int micro_batch) { return slots_[{stage, micro_batch}]; }
  [[nodiscard]] const Tensors& micro_batch(const Action& action) const { return (*micro_batches_)[action.micro_batch]; }

  void perform(const Action& action) {
    const auto listener = current_listener();
    std::optional<PhaseScope> phase;
    if (is_compute(action.kind)) phase.emplace(listener.get(), phase_of(action));
    const int stage = action.stage;
    switch (action.kind) {
      case ActionKind::kForward: return compute_forward(action);
      case ActionKind::kBackward:
      case ActionKind::kBackwardInput: return compute_backward(action);
      case ActionKind::kBackwardWeight:
        ensure(slots_.contains({stage, action.micro_batch}), "stage {} has forgotten micro-batch {}", stage,
               action.micro_batch);
        slot(stage, action.micro_batch).backward->of_weights();
        slots_.erase({stage, action.micro_batch});
        return;
      case ActionKind::kSendForward:
        return send_when_possible(rank_of_[stage + 1], slot(stage, action.micro_batch).outputs);
      case ActionKind::kSendBackward: return send_when_possible(rank_of_[stage - 1], take_sent_gradients(action));
      case ActionKind::kReceiveForward:
        receives_[place_of(action)] = receive(rank_of_[stage - 1], sizes_for(stage - 1, micro_batch(action)));
        return;
      case ActionKind::kReceiveBackward:
        receives_[place_of(action)] =
            receive(rank_of_[stage + 1], with_gradients(sizes_for(stage, micro_batch(action))));
        return;
      case ActionKind::kUnshard:
      case ActionKind::kReshard:
      case ActionKind::kReduceGradients: return;  // FSDP does it in the stage's forward and backward
    }
  }

  using Place = std::tuple<ActionKind, int, int>;  // in the table
  static Place place_of(const Action& action) { return {action.kind, action.stage, action.micro_batch}; }

  // What a computation needs of another rank.
  Tensors received(const Action& computation) {
    auto node = receives_.extract(place_of(receive_for(computation)));
    return std::move(node.mapped().wait());
  }

  void compute_forward(const Action& action) {
    auto& own = slot(action.stage, action.micro_batch);
    if (action.stage == 0)
      for (const auto& input : micro_batch(action)) own.inputs.push_back(input.detach());
    else
      own.inputs =
          leaves_of(is_here(action.stage - 1) ? slot(action.stage - 1, action.micro_batch).outputs : received(action));
    own.outputs = stages_.at(action.stage).forward(own.inputs, action.micro_batch);
    if (action.stage + 1 < num_stages_) {
      own.backward.emplace(own.outputs, own.inputs);
      return;
    }
    own.loss = (*loss_)(action.micro_batch, own.outputs);
    losses_[action.micro_batch] = own.loss.detach();
    own.backward.emplace(Tensors{own.loss}, own.inputs);
  }

  // Gradients of the outputs, undefined for those without.
  Tensors output_gradients(const Action& action) {
    auto& own = slot(action.stage, action.micro_batch);
    if (action.stage + 1 == num_stages_) return {at::ones_like(own.loss)};
    if (is_here(action.stage + 1)) return std::move(own.output_gradients);
    const auto gradients = received(action);
    Tensors result;
    auto next = gradients.begin();
    for (const auto& output : own.outputs) result.push_back(output.is_floating_point() ? *next++ : at::Tensor());
    return result;
  }

  void compute_backward(const Action& action) {
    auto& own = slot(action.stage, action.micro_batch);
    const auto gradients = output_gradients(action);
    own.outputs.clear();
    own.loss.reset();
    const bool is_complete = action.kind == ActionKind::kBackward;
    auto of_inputs = is_complete ? own.backward->complete(gradients) : own.backward->of_inputs(gradients);
    if (is_here(action.stage - 1))
      slot(action.stage - 1, action.micro_batch).output_gradients = of_inputs;
    else if (action.stage > 0)
      sent_gradients_[{action.stage, action.micro_batch}] = complete_gradients(own.inputs, of_inputs);
    if (is_complete) slots_.erase({action.stage, action.micro_batch});
  }

  // Of the floating-point inputs; the other rank expects one for each.
  static Tensors complete_gradients(const Tensors& inputs, const Tensors& gradients) {
    Tensors complete;
    for (std::size_t index = 0; index < inputs.size(); ++index) {
      if (inputs[index].is_floating_point())
        complete.push_back(gradients[index].defined() ? gradients[index] : at::zeros_like(inputs[index]));
    }
    return complete;
  }

  Tensors take_sent_gradients(const Action& action) {
    return std::move(sent_gradients_.extract({action.stage, action.micro_batch}).mapped());
  }

  Group group_;
  ExecutorOptions options_;
  std::vector<int> rank_of_;
  int num_stages_, num_micro_batches_;
  std::map<int, PipelineStage> stages_;
  Schedule run_;
  at::Device device_ = at::kCPU;             // of the micro-batches, and so of what stages exchange
  std::map<Key, std::vector<Sizes>> sizes_;  // of the outputs of all stages, by those of a micro-batch
  // While a step runs.
  const std::vector<Tensors>* micro_batches_ = nullptr;
  const Loss* loss_ = nullptr;
  std::map<std::pair<int, int>, Slot> slots_;
  std::map<std::pair<int, int>, Tensors> sent_gradients_;
  std::map<Place, Message> receives_;
  std::map<int, std::deque<Message>> sends_;  // by the other rank, in their order
  Tensors losses_;
};

PipelineExecutor::PipelineExecutor(Group group, std::vector<PipelineStage> stages, const Schedule& schedule,
                                   ExecutorOptions options)
    : impl_(std::make_unique<Impl>(std::move(group), std::move(stages), schedule, options)) {}
PipelineExecutor::~PipelineExecutor() = default;
Tensors PipelineExecutor::step(const std::vector<Tensors>& micro_batches, const Loss& loss) {
  return impl_->step(micro_batches, loss);
}
std::vector<Tensors> PipelineExecutor::forward(const std::vector<Tensors>& micro_batches) {
  return impl_->forward(micro_batches);
}

}  // namespace accel::pipeline
