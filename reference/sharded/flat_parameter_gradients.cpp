// The way of gradients from full tensors to shards.
#include <ATen/ATen.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <utility>

#include "reference/sharded/flat_parameter.hpp"
#include "reference/sharded/flat_tensors.hpp"

namespace accel::sharded {
namespace {

// Gradients are divided in two steps, before and after the sum, so that neither the terms nor the sum leave float16's
// range. Source: torch/distributed/algorithms/_comm_hooks/default_hooks.py, DefaultState.
double divisor_before_sum(int num_ranks) {
  int factor = 1;
  while (num_ranks % factor == 0 && num_ranks / factor > factor) factor *= 2;
  return factor;
}

// Whether all values are negative zeros, on their device.
at::Tensor are_negative_zeros(const at::Tensor& values) { return values.eq(0).logical_and_(values.signbit()).all(); }

void divide(at::Tensor& tensor, double divisor) {
  if (divisor > 1) tensor.div_(divisor);
}

}  // namespace

// Autograd adds to an existing gradient, which must have the parameter's shape. Gradients of parts have other shapes,
// so they are set aside for this pass.
void FlatParameter::stash_gradients() {
  num_gradients_ = 0;
  if (!has_part_gradients_) {
    if (!has_any_gradient())
      stashed_.assign(parameters_.size(), at::Tensor());  // zero_grad has discarded the parameters' gradients
    return;
  }
  has_part_gradients_ = false;
  for (std::size_t i = 0; i < parameters_.size(); ++i)
    stashed_[i] = std::exchange(parameters_[i].mutable_grad(), at::Tensor());
}

bool FlatParameter::count_gradient(std::size_t parameter) {
  // A gradient that accumulates without synchronization arrives again in every pass, but takes memory only once.
  if (!is_counted_[parameter]) {
    is_counted_[parameter] = true;
    const auto bytes = bytes_of(parameters_[parameter].grad());
    whole_gradient_bytes_ += bytes;
    memory_->add(MemoryKind::kGradients, bytes);
  }
  marks_.note_arrival(parameter);
  return ++num_gradients_ == num_trained_;
}

void FlatParameter::load_part_gradients(const std::vector<at::Tensor>& gradients) {
  const c10::NoGradGuard no_grad;
  // One tensor, as after a reduction, so that clipping sees the same flat gradient as in an uninterrupted run.
  gradient_shard_ = at::zeros({layout().shard_numel()}, shard_.options());
  memory_->add(MemoryKind::kGradients,
               bytes_of(gradient_shard_) - std::exchange(part_gradient_bytes_, bytes_of(gradient_shard_)));
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    if (!gradients[i].defined()) continue;
    parameters_[i].mutable_grad() = elements(gradient_shard_, layout().part_in_shard(i, shard_index()));
    parameters_[i].mutable_grad().copy_(gradients[i]);
    marks_.note_arrival(i);
  }
  has_part_gradients_ = true;
}

bool FlatParameter::has_any_gradient() const {
  return std::any_of(parameters_.begin(), parameters_.end(),
                     [](const auto& parameter) { return parameter.grad().defined(); });
}

// Full gradients of a pass without reduction stay in the parameters; stashed ones wait for the pass that reduces.
void FlatParameter::restore_gradients() {
  if (has_any_gradient()) return;
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    if (!stashed_[i].defined()) continue;
    parameters_[i].mutable_grad() = std::exchange(stashed_[i], at::Tensor());
    has_part_gradients_ = true;
  }
}

void FlatParameter::drop_full_gradients() {
  reduction_.reset();
  replica_reduction_.reset();
  awaits_gradients_ = false;
  bucket_.reset();
  reduced_.reset();
  // What earlier passes reduced is still valid. A full gradient of an interrupted pass is not: some terms are missing.
  if (has_part_gradients_ || !requires_grad()) return;
  for (const auto& parameter : parameters_) parameter.mutable_grad().reset();
}

// Note [Parameters without gradients]
// A parameter that no rank's loss used gets no gradient, as in DDP, so that optimizers skip it; a gradient of zeros
// would decay weights and move them by earlier momentum. But each rank knows only its own loss. So a parameter without
// a gradient contributes negative zeros: their sum is negative zero only if all ranks contributed them. Only ranks that
// lack a gradient themselves look at the sum, so that a gradient which is negative zero everywhere is kept. They wait
// for the device once per unit, as DDP does for find_unused_parameters.

// Copies the full gradients into one bucket and frees them at once, so that the bucket is the only copy. Only the gaps
// are zeroed, not the entire bucket, to write memory once. A parameter without a gradient on this rank contributes
// zeros: the collective's shape must not depend on which parameters a rank's loss used.
void FlatParameter::begin_reduce() {
  const c10::NoGradGuard no_grad;
  memory_->add(MemoryKind::kGradients, -std::exchange(whole_gradient_bytes_, 0));
  is_counted_.assign(parameters_.size(), false);
  const auto dtype = options_.reduce_dtype.value_or(whole_.scalar_type());
  memory_->add(MemoryKind::kBuckets, layout().padded_numel() * static_cast<std::int64_t>(c10::elementSize(dtype)));
  bucket_ = at::empty({layout().padded_numel()}, whole_.options().dtype(dtype));
  lacked_gradient_.assign(parameters_.size(), false);
  std::int64_t filled = 0;
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    const auto range = layout().range(i);
    auto& gradient = parameters_[i].mutable_grad();
    bucket_.narrow(0, filled, range.begin - filled).zero_();
    auto place = bucket_.narrow(0, range.begin, range.size());
    gradient.defined() ? place.copy_(gradient.detach().reshape({-1})) : place.fill_(-0.0);
    lacked_gradient_[i] = !gradient.defined();
    filled = range.end;
    gradient.reset();
  }
  bucket_.narrow(0, filled, layout().padded_numel() - filled).zero_();
  // In hybrid sharding all ranks count, since the replicas' all-reduce follows.
  divide(bucket_, divisor_before_sum(groups_.num_ranks()));
  reduced_ = at::empty({layout().shard_numel()}, bucket_.options());
  reduction_ = groups_.reductions.reduce_scatter(reduced_, bucket_);
}

// Shards first, then replicas: this sends only a shard between replicas, and is the order of FSDP1's HYBRID_SHARD.
bool FlatParameter::begin_replica_reduce() {
  const c10::NoGradGuard no_grad;
  auto work = std::move(*reduction_);
  reduction_.reset();
  work.wait();
  memory_->add(MemoryKind::kBuckets, -bytes_of(bucket_));
  bucket_.reset();
  if (groups_.replicas) replica_reduction_ = groups_.replicas->all_reduce(reduced_);
  return groups_.replicas.has_value();
}

void FlatParameter::finish_reduce() {
  const c10::NoGradGuard no_grad;
  if (replica_reduction_) {
    auto work = std::move(*replica_reduction_);
    replica_reduction_.reset();
    work.wait();
  }
  divide(reduced_, groups_.num_ranks() / divisor_before_sum(groups_.num_ranks()));
  awaits_gradients_ = is_pinned_;
  gradient_shard_ = reduced_.to(shard_.scalar_type()).to(shard_.device(), /*non_blocking=*/awaits_gradients_);
  reduced_.reset();
  memory_->add(MemoryKind::kGradients,
               bytes_of(gradient_shard_) - std::exchange(part_gradient_bytes_, bytes_of(gradient_shard_)));
  if (!awaits_gradients_) accept_gradients();
}

void FlatParameter::finish_copies() {
  is_copied_ = false;
  if (std::exchange(awaits_gradients_, false)) accept_gradients();
}

// See Note [Parameters without gradients].
std::vector<bool> FlatParameter::parameters_without_gradient() const {
  std::vector<std::size_t> candidates;
  std::vector<at::Tensor> are_zeros;
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    if (!is_trained_[i] || !lacked_gradient_[i] || stashed_[i].defined()) continue;
    candidates.push_back(i);
    are_zeros.push_back(are_negative_zeros(elements(gradient_shard_, layout().part_in_shard(i, shard_index()))));
  }
  std::vector<bool> without(parameters_.size(), false);
  if (candidates.empty()) return without;
  const auto on_host = at::stack(are_zeros).cpu();
  for (std::size_t place = 0; place < candidates.size(); ++place)
    without[candidates[place]] = on_host.const_data_ptr<bool>()[place];
  return without;
}

void FlatParameter::accept_gradients() {
  const c10::NoGradGuard no_grad;
  const auto without = parameters_without_gradient();
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    if (!is_trained_[i]) {  // frozen after gradients had arrived
      if (stashed_[i].defined()) parameters_[i].mutable_grad() = std::exchange(stashed_[i], at::Tensor());
      continue;
    }
    if (without[i]) continue;
    auto gradient = elements(gradient_shard_, layout().part_in_shard(i, shard_index()));
    // Accumulation happens on parts and in the stored dtype, so it adds no traffic and no rounding in the reduce dtype.
    if (const auto before = std::exchange(stashed_[i], at::Tensor()); before.defined()) gradient.add_(before);
    parameters_[i].mutable_grad() = gradient;
    marks_.note_arrival(i);
  }
  has_part_gradients_ = true;
}

}  // namespace accel::sharded
