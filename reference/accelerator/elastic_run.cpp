#include "reference/accelerator/elastic_run.hpp"

#include <ATen/ATen.h>

#include <algorithm>
#include <iterator>
#include <map>
#include <torch/version.h>

#include "reference/accelerator/state_transfer.hpp"
#include "reference/core/errors.hpp"
#include "reference/core/input/listed.hpp"
#include "reference/core/splitmix64.hpp"
#include "reference/data/loader.hpp"
#include "reference/data/samplers/sampler.hpp"
#include "reference/diagnosis/collective_call.hpp"
#include "reference/elastic/shard_sum.hpp"
#include "reference/parallel/distributed_data_parallel.hpp"
#include "reference/parallel/sync_batch_norm.hpp"
#include "reference/prepared/parameter_layouts.hpp"
#include "reference/state/objects.hpp"
#include "reference/state/seeded_random.hpp"
#include "reference/state/warnings.hpp"

namespace accel {
namespace {

constexpr int kMaxLogicalRanks = 65'536;
constexpr int kMaxFailures = 3;  // of one step, with the same ranks

bool has_sync_batch_norm(const torch::nn::Module& module) {
  const auto modules = module.modules();
  return std::any_of(modules.begin(), modules.end(),
                     [](const auto& inner) { return dynamic_cast<const SyncBatchNormImpl*>(inner.get()) != nullptr; });
}

std::vector<std::string> problems_of(const ElasticOptions& options, const RankContext& context,
                                     const TrainingState& state) {
  std::vector<std::string> problems;
  if (options.logical_ranks < 1 || options.logical_ranks > kMaxLogicalRanks)
    problems.push_back(fmt::format("logical_ranks: expected 1 to {}, got {}", kMaxLogicalRanks, options.logical_ranks));
  else if (options.logical_ranks < context.world_size)
    problems.push_back(fmt::format("logical_ranks: {} for {} ranks; expected at least one for each rank",
                                   options.logical_ranks, context.world_size));
  const auto any_model = [&](const auto& is_wrong) {
    return std::any_of(state.models.begin(), state.models.end(), is_wrong);
  };
  if (state.models.empty()) problems.emplace_back("no model is prepared; expected one, before accelerator.elastic");
  if (any_model([](const auto& model) {
        return model->is_sharded() || model->layouts().has_divided_layers() || model->layouts().stages() != nullptr;
      }) ||
      state.mesh.dp_replicate_size != state.mesh.total_size())
    problems.emplace_back("a sharded or divided model, or a mesh; expected models that every rank holds, as with DDP");
  if (any_model([](const auto& model) { return has_sync_batch_norm(*model->module()); }))
    problems.emplace_back(
        "SyncBatchNorm, whose statistics are of all ranks; expected batch norm, of each logical rank");
  if (any_model([](const auto& model) { return model->options().masters != nullptr; }))
    problems.emplace_back("master weights; expected parameters that the optimizer steps themselves");
  const bool may_be_more = context.joins_elastic;
  if (options.min_ranks && (*options.min_ranks < 1 || (*options.min_ranks > context.world_size && !may_be_more)))
    problems.push_back(fmt::format("min_ranks: expected 1 to {}, the number of ranks, got {}", context.world_size,
                                   *options.min_ranks));
  if (options.min_ranks && context.backend == "nccl")
    problems.emplace_back("min_ranks: ranks over NCCL cannot be lost yet; use Gloo, or leave it out");
  if (!state.schedulers.empty())
    problems.emplace_back(
        "a prepared schedule, which advances once for each rank; step the schedule itself, once for each logical rank");
  return problems;
}

// Rank 0's draw, so that ranks with other streams, and other numbers of ranks, begin alike.
std::int64_t agreed_seed(RankContext& context) {
  std::vector<std::int64_t> seed{draw_int64(default_generator())};
  return context.world_size == 1 ? seed.front() : broadcast_object_list(context, seed).front();
}

void assign_all(const std::vector<at::Tensor>& tensors, const std::vector<at::Tensor>& values) {
  const c10::NoGradGuard no_grad;
  for (std::size_t index = 0; index < tensors.size(); ++index) tensors[index].copy_(values[index]);
}

}  // namespace

namespace detail {

std::int64_t ElasticOrder::steps_per_epoch() const {
  const auto rows = options_.batch_size * options_.num_shards;
  return options_.drop_last ? options_.num_samples / rows : (options_.num_samples + rows - 1) / rows;
}

std::vector<std::int64_t> ElasticOrder::indices(std::int64_t epoch, std::int64_t step, int shard) {
  if (epoch_ != epoch) {
    epoch_ = epoch;
    order_.clear();
    std::unique_ptr<Sampler> sampler = std::make_unique<SequentialSampler>(options_.num_samples);
    if (options_.shuffle) sampler = std::make_unique<SeedableRandomSampler>(options_.num_samples, options_.seed);
    sampler->set_epoch(options_.first_epoch + epoch);
    for (auto part = sampler->begin_pass(); !part.empty(); part = sampler->continue_pass())
      order_.insert(order_.end(), part.begin(), part.end());
  }
  std::vector<std::int64_t> indices;
  const auto first = (step * options_.num_shards + shard) * options_.batch_size;
  for (auto row = first; row < first + options_.batch_size; ++row)
    indices.push_back(order_[row % options_.num_samples]);
  return indices;
}

}  // namespace detail

// What the models have in this step: the program may freeze parameters and prepare models between steps.
struct ElasticRun::Gradients {
  std::vector<at::Tensor> parameters, buffers;
  std::int64_t size = 0;  // elements of all gradients

  explicit Gradients(const TrainingState& state) {
    for (const auto& model : state.models) {
      for (const auto& parameter : model->module()->parameters()) {
        if (!parameter.requires_grad()) continue;
        parameters.push_back(parameter);
        size += parameter.numel();
      }
      for (const auto& buffer : model->module()->buffers()) buffers.push_back(buffer);
    }
    check_argument(!parameters.empty(), "elastic: no parameter requires a gradient");
    const auto& first = parameters.front();
    for (const auto& parameter : parameters) {
      check_argument(parameter.scalar_type() == first.scalar_type() && parameter.device() == first.device(),
                     "elastic: parameters of {} on {} and of {} on {}; expected one dtype and one device",
                     c10::toString(first.scalar_type()), first.device().str(), c10::toString(parameter.scalar_type()),
                     parameter.device().str());
      check_state(!parameter.grad().defined(),
                  "elastic: a parameter has a gradient already, which would count once for each rank; clear gradients "
                  "in each apply(), as by optimizer.zero_grad(), without keeping zeros");
    }
  }
  void clear() {
    for (auto& parameter : parameters) parameter.mutable_grad().reset();
  }

  [[nodiscard]] at::Tensor empty() const {
    return at::zeros({size + static_cast<std::int64_t>(parameters.size())},
                     parameters.front().options().requires_grad(false));
  }
  // The gradients of a logical rank, then 1 for each parameter that has one. Clears them.
  [[nodiscard]] at::Tensor take() {
    auto flat = empty();
    std::int64_t begin = 0;
    for (std::size_t index = 0; index < parameters.size(); ++index) {
      auto& parameter = parameters[index];
      auto& gradient = parameter.mutable_grad();
      if (gradient.defined()) {
        check_argument(!gradient.is_sparse(), "elastic: a sparse gradient; expected dense ones (sparse = false)");
        flat.narrow(0, begin, parameter.numel()).view(parameter.sizes()).copy_(gradient);
        flat[size + static_cast<std::int64_t>(index)].fill_(1);
      }
      gradient.reset();
      begin += parameter.numel();
    }
    return flat;
  }
  void give(const at::Tensor& flat) {
    std::int64_t begin = 0;
    const auto counts = flat.narrow(0, size, static_cast<std::int64_t>(parameters.size())).to(at::kCPU, at::kFloat);
    for (std::size_t index = 0; index < parameters.size(); ++index) {
      auto& parameter = parameters[index];
      if (counts[static_cast<std::int64_t>(index)].item<float>() > 0)
        parameter.mutable_grad() = flat.narrow(0, begin, parameter.numel()).view(parameter.sizes()).clone();
      begin += parameter.numel();
    }
  }
};

void TrainingStep::elastic(const ElasticOptions& options, const std::function<void(ElasticRun& run)>& body) {
  std::vector<std::string> problems;
  if (gradient_accumulation_steps() != 1)
    problems.push_back(fmt::format("gradient_accumulation_steps: expected 1, got {}; use more logical ranks",
                                   gradient_accumulation_steps()));
  if (settings().loss_weighting == "exact")
    problems.emplace_back("loss_weighting: expected accelerate, since every logical rank has equal weight");
  if (options.min_ranks && split_batches())
    problems.emplace_back("split_batches: with min_ranks expected false: fewer ranks may not divide a batch");
  ElasticRun run(
      *this, *context_, training(), options, [this] { follow_world(); }, problems);
  body(run);
  run.finish();
}

ElasticRun::ElasticRun(TrainingStep& accelerator, RankContext& context, TrainingState& state, ElasticOptions options,
                       std::function<void()> follow_world, const std::vector<std::string>& more_problems)
    : accelerator_(accelerator),
      context_(context),
      state_(state),
      options_(options),
      follow_world_(std::move(follow_world)),
      seed_(0),
      world_size_(context.world_size) {
  auto problems = problems_of(options, context, state);
  problems.insert(problems.end(), more_problems.begin(), more_problems.end());
  check_config(problems.empty(), "elastic: {}", listed(problems, "; "));
  shards_ = elastic::shards_of(context.rank, context.world_size, options.logical_ranks);
  seed_ = agreed_seed(context);
  if (!options.min_ranks) return;
  if (!context.join_elastic) {
    if (context.world_size > 1)
      warn_once(context, "elastic: min_ranks has no effect, since these ranks cannot be lost");
    return;
  }
  has_state_ = !context.joins_elastic;
  ranks_ = context.join_elastic(context, *options.min_ranks);
  if (!recover({})) throw CommError("elastic: the training has ended before this rank could join it");
}

ElasticRun::~ElasticRun() = default;

detail::ElasticOrder ElasticRun::order_of(const DataLoaderOptions& options, bool is_prepared, std::int64_t num_samples,
                                          std::int64_t num_epochs) {
  const auto first_epoch = std::exchange(num_epochs_, num_epochs_ + num_epochs);
  std::vector<std::string> problems;
  if (is_prepared) problems.emplace_back("the loader is prepared; expected the one that was not");
  if (options.sampler || options.batch_sampler) problems.emplace_back("sampler and batch_sampler: expected none");
  if (options.generator) problems.emplace_back("generator: expected none, since the order follows from the seed");
  if (options.num_workers != 0) problems.push_back(fmt::format("num_workers: expected 0, got {}", options.num_workers));
  if (num_samples < 1) problems.emplace_back("the dataset is empty");
  check_argument(problems.empty(), "elastic: {}", listed(problems, "; "));
  return detail::ElasticOrder({.num_samples = num_samples,
                               .batch_size = options.batch_size,
                               .num_shards = options_.logical_ranks,
                               .shuffle = options.shuffle,
                               .drop_last = options.drop_last,
                               .seed = seed_ & 0xffff'ffff,
                               .first_epoch = first_epoch});
}

// The forward passes of all logical ranks begin with the buffers of rank 0, and those of the first logical rank are the
// next step's. The module keeps those with which the step began.
class ElasticRun::StepBuffers {
 public:
  StepBuffers(std::vector<at::Tensor> buffers, const Group& world) : buffers_(std::move(buffers)), world_(world) {
    before_ = agreed(copies());
  }
  ~StepBuffers() { assign_all(buffers_, before_); }
  StepBuffers(const StepBuffers&) = delete;
  StepBuffers& operator=(const StepBuffers&) = delete;

  void begin_shard() { assign_all(buffers_, before_); }
  void end_first_shard() { of_first_ = copies(); }
  [[nodiscard]] std::vector<at::Tensor> next() const { return agreed(of_first_.empty() ? before_ : of_first_); }

 private:
  using Tensors = std::vector<at::Tensor>;

  [[nodiscard]] Tensors copies() const {
    Tensors copies;
    for (const auto& buffer : buffers_) copies.push_back(buffer.clone());
    return copies;
  }
  // Those of rank 0, by one broadcast for each dtype.
  [[nodiscard]] Tensors agreed(Tensors values) const {
    if (world_.size() == 1) return values;
    std::map<at::ScalarType, std::vector<std::size_t>> by_dtype;
    for (std::size_t index = 0; index < values.size(); ++index) by_dtype[values[index].scalar_type()].push_back(index);
    for (const auto& [dtype, indices] : by_dtype) {
      Tensors flat;
      for (const auto index : indices) flat.push_back(values[index].flatten());
      auto all = at::cat(flat);
      world_.broadcast(all, 0).wait();
      std::int64_t begin = 0;
      for (const auto index : indices) {
        values[index] = all.narrow(0, begin, values[index].numel()).view(values[index].sizes()).clone();
        begin += values[index].numel();
      }
    }
    return values;
  }

  Tensors buffers_;
  const Group& world_;
  Tensors before_, of_first_;
};

// While it lives, backward passes reduce nothing and forward passes exchange no buffers.
class ElasticRun::LocalPasses {
 public:
  explicit LocalPasses(const std::vector<std::shared_ptr<ParallelModel>>& models) {
    for (const auto& model : models) {
      (void)model->take_unaveraged();  // throws if a backward pass has not ended
      if (auto undo = model->override_sync(GradientSync::Override::kSuspended)) restore_.push_back(std::move(undo));
      if (auto* ddp = model->joinable()) {
        ddp->suspend_reduction();
        restore_.emplace_back([ddp] { ddp->sync_flags.forward = true; });
      }
    }
  }
  ~LocalPasses() {
    for (auto& undo : restore_) undo();
  }
  LocalPasses(const LocalPasses&) = delete;
  LocalPasses& operator=(const LocalPasses&) = delete;

 private:
  std::vector<GradientSync::Restore> restore_;
};

// The sums over all logical ranks, without a change of the models.
ElasticRun::Reduced ElasticRun::reduce(const std::function<at::Tensor(int shard)>& loss_of) {
  const LocalPasses local(state_.models);
  Gradients gradients(state_);
  StepBuffers buffers(gradients.buffers, context_.world);
  elastic::ShardSum gradient_sum(context_.world, options_.logical_ranks),
      losses(context_.world, options_.logical_ranks);
  const auto seed_of_step = splitmix64(static_cast<std::uint64_t>(seed_ + num_steps_));
  try {
    for (int shard = shards_.first; shard < shards_.last; ++shard) {
      buffers.begin_shard();
      const SeededRandom random(splitmix64(seed_of_step + static_cast<std::uint64_t>(shard)));
      const auto loss = loss_of(shard);
      accelerator_.backward(loss);
      if (shard == 0) buffers.end_first_shard();
      gradient_sum.add(shard, gradients.take());
      losses.add(shard, loss.detach().to(at::kDouble).mean().view({1}));
    }
  } catch (...) {
    gradients.clear();
    throw;
  }
  auto sum = gradient_sum.finish(gradients.empty());
  const auto loss = losses.finish(at::zeros({1}, sum.options().dtype(at::kDouble))) / options_.logical_ranks;
  sum.narrow(0, 0, gradients.size).div_(options_.logical_ranks);
  return {.gradients = std::move(sum), .loss = loss[0], .buffers = buffers.next()};
}

at::Tensor ElasticRun::update(const std::function<at::Tensor(int shard)>& loss_of, const std::function<void()>& apply) {
  if (is_replaying()) {
    ++replayed_;
    return at::scalar_tensor(losses_.at(num_steps_++), at::kDouble).to(context_.device);
  }
  Reduced step;
  const auto change = [&] {
    Gradients gradients(state_);
    assign_all(gradients.buffers, step.buffers);
    gradients.give(step.gradients);
    for (const auto& model : state_.models) model->accept_gradients();
    apply();
  };
  advance([&] { step = reduce(loss_of); }, change, [&](Reduced received) { step = std::move(received); });
  ++num_steps_;
  if (!ranks_) return step.loss;
  last_ = step;
  losses_.push_back(step.loss.item<double>());
  return step.loss;
}

// The barrier: a rank that has completed the body knows that all have a result, which they need not compute again.
void ElasticRun::repeatable(const std::function<void()>& body) {
  if (is_replaying()) {
    ++replayed_;
    return;
  }
  // A rank may have ended its pass over a loader, and so its epoch, before another one fails.
  std::vector<std::pair<std::shared_ptr<detail::Loader>, std::int64_t>> epochs;
  for (const auto& weak : state_.loaders) {
    if (const auto loader = weak.lock(); loader && ranks_) epochs.emplace_back(loader, loader->iteration());
  }
  const auto compute = [&, is_first = true]() mutable {
    for (const auto& [loader, epoch] : epochs) {
      if (!is_first) loader->set_epoch(epoch);
    }
    is_first = false;
    // A forward pass that was given up has changed it on some ranks, and not on one that has joined since.
    for (const auto& model : state_.models) {
      if (auto* ddp = model->joinable(); ddp != nullptr && ranks_) ddp->sync_flags.forward = true;
    }
    body();
    if (ranks_) context_.world.barrier();
  };
  advance(compute, [] {}, {});
  last_.reset();
}

// Runs `compute`, which communicates and leaves the state of the training alone, until it succeeds on all ranks of a
// view. Then runs `change`, once. `receive`: gets what another rank has computed, if this one has missed its end; null:
// it has its own result.
void ElasticRun::advance(const std::function<void()>& compute, const std::function<void()>& change,
                         const Receive& receive) {
  if (!ranks_) {
    compute();
    change();
    return;
  }
  if (taken_) take_over(*std::exchange(taken_, std::nullopt));
  num_failures_ = 0;
  for (bool is_computed = false;;) {
    if (!is_computed) is_computed = succeeds(compute);
    if (is_computed && ranks_->complete(view_, position_ + 1, change)) break;
    const auto is_behind = recover(receive);
    if (!is_behind) {
      check_state(!receive,
                  "elastic: other ranks have taken fewer steps and ended the training; expected as many on all");
      return;
    }
    is_computed = *is_behind;
  }
  replayed_ = ++position_;
}

// Whether `body` has ended without the loss of a rank. An error that comes again and again although the ranks stay the
// same is none.
bool ElasticRun::succeeds(const std::function<void()>& body) {
  try {
    body();
    return true;
  } catch (const std::exception& error) {
    if (!ranks_->is_loss(error) || ++num_failures_ > kMaxFailures) throw;
    return false;
  }
}

// Joins the ranks of the next view. Returns whether others have completed the body that this rank is in; nothing if
// they have completed the training.
std::optional<bool> ElasticRun::recover(const Receive& receive) {
  while (true) {
    const auto view = ranks_->next_world();
    if (!view) return std::nullopt;
    enter(*view);
    const bool is_behind = has_state_ && position_ < view_.steps;
    ensure(!has_state_ || position_ + 1 >= view_.steps, "elastic: a rank has missed several steps");
    const auto lack = !has_state_ ? Lack::kState : is_behind && receive ? Lack::kLastStep : Lack::kNothing;
    if (!succeeds([&] { exchange(lack, receive); })) continue;
    if (!has_state_ && !ranks_->complete(view_, view_.steps, [] {})) continue;
    if (!std::exchange(has_state_, true)) position_ = view_.steps;
    return is_behind;
  }
}

void ElasticRun::enter(const elastic::View& view) {
  const auto names = [&](const std::vector<elastic::MemberId>& members, const elastic::View& other) {
    std::vector<int> ranks;
    for (const auto member : members) {
      if (!other.contains(member)) ranks.push_back(ranks_->rank_of(member));
    }
    return ranks;
  };
  const auto before = std::exchange(view_, view);
  const auto lost = names(before.members, view), joined = names(view.joined, before);
  shards_ = elastic::shards_of(context_.rank, context_.world_size, options_.logical_ranks);
  if (before.members == view.members || (before.members.empty() && context_.world_size == world_size_)) return;
  world_size_ = context_.world_size;
  num_failures_ = 0;
  ++num_changes_;
  follow_world_();
  if (context_.rank != 0) return;
  std::vector<std::string> changes;
  if (!lost.empty())
    changes.push_back(fmt::format("{} of the job {} lost", describe_ranks(lost), lost.size() > 1 ? "are" : "is"));
  if (!joined.empty())
    changes.push_back(
        fmt::format("{} of the job {} joined again", describe_ranks(joined), joined.size() > 1 ? "have" : "has"));
  context_.warn(fmt::format("elastic: {}; {} rank{} with {} logical ranks continue",
                            changes.empty() ? "a rank is lost" : fmt::format("{}", fmt::join(changes, ", ")),
                            context_.world_size, context_.world_size > 1 ? "s" : "", options_.logical_ranks));
}

std::vector<at::Tensor> ElasticRun::Reduced::tensors() const {
  std::vector<at::Tensor> tensors{gradients, loss};
  tensors.insert(tensors.end(), buffers.begin(), buffers.end());
  return tensors;
}

ElasticRun::Reduced ElasticRun::Reduced::of_tensors(const std::vector<at::Tensor>& tensors, c10::Device device) {
  Reduced step{.gradients = tensors.at(0).to(device), .loss = tensors.at(1).to(device)};
  for (auto buffer = tensors.begin() + 2; buffer != tensors.end(); ++buffer) step.buffers.push_back(buffer->to(device));
  return step;
}

// Gives ranks what they lack. A rank may have missed one step at most: the next one needs its part.
void ElasticRun::exchange(Lack own, const Receive& receive) {
  const auto of_all = context_.world.all_gather(at::full({1}, static_cast<std::int64_t>(own), at::kLong));
  const auto any_lacks = [&](Lack lack) { return of_all.eq(static_cast<std::int64_t>(lack)).any().item<bool>(); };
  const auto place = std::find(view_.members.begin(), view_.members.end(), view_.source) - view_.members.begin();
  const auto source = static_cast<int>(place);
  if (any_lacks(Lack::kLastStep)) send_last_step(source, own == Lack::kLastStep, receive);
  if (any_lacks(Lack::kState)) send_state(source, own == Lack::kState);
}

void ElasticRun::send_last_step(int source, bool is_behind, const Receive& receive) {
  std::vector<at::Tensor> tensors;
  if (context_.rank == source) tensors = last_->tensors();
  broadcast_object_list(context_, tensors, source);
  if (is_behind) receive(Reduced::of_tensors(tensors, context_.device));
}

// To all, since only collectives are given up when a rank is lost.
void ElasticRun::send_state(int source, bool lacks_state) {
  std::vector<Value> states;
  if (context_.rank == source) states = {state()};
  broadcast_object_list(context_, states, source);
  if (!lacks_state) return;
  const auto& received = states.at(0);
  const auto check = [&](const char* what, const Value& own) {
    check_config(received.at(what) == own,
                 "elastic: the rank that joins has another {} than the others; start it with the same program", what);
  };
  check("LibTorch", TORCH_VERSION);
  check("logical_ranks", options_.logical_ranks);
  seed_ = received.at("seed").as<std::int64_t>();
  const auto losses = received.at("losses").as<at::Tensor>();
  losses_.assign(losses.const_data_ptr<double>(), losses.const_data_ptr<double>() + losses.numel());
  taken_ = received;
}

Value ElasticRun::state() const {
  Value::List last;
  if (last_) {
    const auto tensors = last_->tensors();
    last.assign(tensors.begin(), tensors.end());
  }
  return Value::Dict{{"LibTorch", TORCH_VERSION},
                     {"logical_ranks", options_.logical_ranks},
                     {"seed", seed_},
                     {"losses", at::tensor(losses_, at::kDouble)},
                     {"last", std::move(last)},
                     {"training", transferred_state(state_, context_)}};
}

void ElasticRun::take_over(const Value& state) {
  accel::take_over(state_, context_, state.at("training"));
  const auto& last = state.at("last").as<Value::List>();
  if (last.empty()) return;
  std::vector<at::Tensor> tensors;
  for (const auto& tensor : last) tensors.push_back(tensor.as<at::Tensor>());
  last_ = Reduced::of_tensors(tensors, context_.device);
}

void ElasticRun::finish() {
  if (!ranks_) return;
  repeatable([] {});
  ranks_->finish();
  ranks_.reset();
  for (const auto& model : state_.models) {
    if (auto* ddp = model->joinable()) ddp->follow_group();
  }
}

}  // namespace accel
