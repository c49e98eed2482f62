#include "reference/sharded/flat_parameter.hpp"

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>

#include <algorithm>

#include "reference/core/errors.hpp"
#include "reference/sharded/file_memory.hpp"

// The executor of FlatPlan. Between steps a parameter's data is a view of `shard_`; while its unit computes, a view of
// `whole_`. Both are switched with set_data, so that the optimizer, the module and autograd keep the same tensor
// object.
// Note [Sizes and order of FSDP1]
// Buffers, paddings, divisors and collectives are those of torch/distributed/fsdp/_flat_param.py and _runtime_utils.py:
// a run gives the same bits as PyTorch's FSDP1 on the same number of ranks. Change none of them for speed alone.
namespace accel::sharded {
namespace {

std::int64_t bytes_of(const at::Tensor& tensor) { return static_cast<std::int64_t>(tensor.nbytes()); }

// Frees or allocates a tensor's memory without replacing its storage object: views of the tensor, and what backward has
// saved of them, refer to that object and see the new memory. Source: torch/distributed/utils.py, _free_storage.
// Uses today's allocator, not the storage's: the first MemoryScope of the process replaces it, perhaps later.
void set_storage_bytes(const at::Tensor& tensor, std::size_t bytes) {
  auto* storage = tensor.storage().unsafeGetStorageImpl();
  if (storage->nbytes() == bytes) return;
  storage->set_data_ptr_noswap(bytes == 0 ? at::DataPtr(nullptr, tensor.device())
                                          : c10::GetAllocator(storage->device_type())->allocate(bytes));
  storage->set_nbytes(bytes);
}

// Elements of a flat tensor, as a tensor that is not a view for autograd: Optimizer::zero_grad calls detach_ on
// gradients, which views do not allow.
at::Tensor elements(const at::Tensor& flat, Range range) {
  return at::empty({0}, flat.options()).set_(flat.storage(), flat.storage_offset() + range.begin, {range.size()}, {1});
}

// Gradients are divided in two steps, before and after the sum, so that neither the terms nor the sum leave float16's
// range. Source: torch/distributed/algorithms/_comm_hooks/default_hooks.py, DefaultState.
double divisor_before_sum(int num_ranks) {
  int factor = 1;
  while (num_ranks % factor == 0 && num_ranks / factor > factor) factor *= 2;
  return factor;
}

void divide(at::Tensor& tensor, double divisor) {
  if (divisor > 1) tensor.div_(divisor);
}

}  // namespace

ShardGroups ShardGroups::groups_of(bool is_of_experts) const {
  auto groups = *this;
  if (!is_of_experts && replicas_except_experts) groups.replicas = replicas_except_experts;
  return groups;
}

FlatParameter::FlatParameter(const FlatParameterPlan& plan, std::vector<at::Tensor> parameters, ShardGroups groups,
                             const FlatParameterOptions& options, MemoryAccount& memory)
    : plan_(plan),
      parameters_(std::move(parameters)),
      groups_(std::move(groups)),
      options_(options),
      memory_(&memory),
      stashed_(parameters_.size()),
      is_counted_(parameters_.size(), false) {
  const c10::NoGradGuard no_grad;
  auto values = flattened();
  if (options_.broadcasts_from_first_rank && values.numel() > 0) {
    if (groups_.replicas) groups_.replicas->broadcast(values).wait();
    groups_.gathers.broadcast(values).wait();
  }
  make_storage(values);
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    const auto part = layout().part_in_shard(i, shard_index()), range = layout().range(i);
    parts_.push_back(shard_.narrow(0, part.begin, part.size()));
    full_views_.push_back(whole_.narrow(0, range.begin, range.size()).view(layout().parameters()[i].sizes));
  }
  // Releases the module's own memory: from here on its parameters only exist as parts.
  show(parts_);
  if (options_.frees_parameters) set_storage_bytes(whole_, 0);
}

at::Tensor FlatParameter::flattened() const {
  const auto options = parameters_.front().options().requires_grad(false).device(options_.device);
  auto values = at::zeros({layout().padded_numel()}, options);
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    const auto range = layout().range(i);
    // Parameters on the meta device get zeros; a checkpoint or a broadcast fills them.
    if (!parameters_[i].is_meta())
      values.narrow(0, range.begin, range.size()).copy_(parameters_[i].detach().reshape({-1}));
  }
  return values;
}

void FlatParameter::make_storage(const at::Tensor& values) {
  const auto dtype = options_.param_dtype.value_or(values.scalar_type());
  const auto own = layout().shard(shard_index());
  if (options_.frees_parameters) {
    whole_ = at::empty({layout().padded_numel()}, values.options().dtype(dtype));
    const MemoryScope scope(options_.shard_memory);
    shard_ = values.narrow(0, own.begin, own.size()).to(options_.shard_device, /*non_blocking=*/false, /*copy=*/true);
    if (!is_file_backed(shard_)) memory_->add(MemoryKind::kParameters, bytes_of(shard_));
    pin_shard();
    return;
  }
  // ZeRO-1 and 2 keep full parameters. Without a dtype change or offload the shard is a view of them: the optimizer's
  // step then updates this rank's part in place, and no second copy exists.
  whole_ = values.to(dtype);
  is_stale_ = false;
  const auto part = (dtype == values.scalar_type() ? whole_ : values).narrow(0, own.begin, own.size());
  shard_ = dtype == values.scalar_type() && options_.shard_device == values.device()
               ? part
               : part.to(options_.shard_device, /*non_blocking=*/false, /*copy=*/true);
  memory_->add(MemoryKind::kParameters, bytes_of(whole_) + (shard_.is_alias_of(whole_) ? 0 : bytes_of(shard_)));
  pin_shard();
}

// From pinned memory a copy to the device does not make the host wait.
void FlatParameter::pin_shard() {
  is_pinned_ = shard_.is_cpu() && !options_.device.is_cpu() && !is_file_backed(shard_);
  if (is_pinned_) shard_ = shard_.pin_memory();
}

void FlatParameter::show(const std::vector<at::Tensor>& views) {
  for (std::size_t i = 0; i < parameters_.size(); ++i) parameters_[i].set_data(views[i]);
}

// Does nothing if full values are present or on their way, so that prefetching and the actual use can both call it.
// Whether it communicates depends on flags that are equal on all ranks.
void FlatParameter::begin_gather() {
  if (is_gathered_ || gather_ || (!options_.frees_parameters && !is_stale_)) return;
  const c10::NoGradGuard no_grad;
  if (options_.frees_parameters) {
    const auto bytes = layout().padded_numel() * static_cast<std::int64_t>(whole_.element_size());
    memory_->add(MemoryKind::kGathered, bytes);
    set_storage_bytes(whole_, static_cast<std::size_t>(bytes));
  }
  // Kept until the work is done: the collective reads it asynchronously, and it may be a temporary copy. The cast comes
  // after the copy, since a cast on the host would produce memory that is not pinned.
  gather_input_ = shard_.to(whole_.device(), /*non_blocking=*/is_pinned_).to(whole_.scalar_type());
  is_copied_ = is_pinned_;
  gather_ = groups_.gathers.all_gather_into(whole_, gather_input_);
}

void FlatParameter::finish_gather() {
  if (is_gathered_) return;
  begin_gather();
  if (gather_) {
    auto work = std::move(*gather_);
    gather_.reset();
    work.wait();
    gather_input_.reset();
  }
  show(full_views_);
  is_gathered_ = true;
  is_stale_ = false;
}

// Full values in a lower compute dtype are not what a checkpoint should hold, so they are gathered separately.
void FlatParameter::gather_stored() {
  if (whole_.scalar_type() == shard_.scalar_type()) {
    finish_gather();
    return;
  }
  const c10::NoGradGuard no_grad;
  release();
  stored_full_ = at::empty({layout().padded_numel()}, whole_.options().dtype(shard_.scalar_type()));
  const auto own = shard_.to(whole_.device());
  groups_.gathers.all_gather_into(stored_full_, own).wait();
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    parameters_[i].set_data(elements(stored_full_, layout().range(i)).view(layout().parameters()[i].sizes));
  }
}

// Safe in every state, since an exception may have interrupted the step anywhere. On return the parameters show parts.
void FlatParameter::release() {
  if (stored_full_.defined()) {
    show(parts_);
    stored_full_.reset();
  }
  if (gather_) {  // prefetched, but never used; the collective must still complete
    auto work = std::move(*gather_);
    gather_.reset();
    work.wait();
    is_gathered_ = true;
  }
  if (!is_gathered_) return;
  show(parts_);
  is_gathered_ = false;
  if (!options_.frees_parameters) return;
  memory_->add(MemoryKind::kGathered, -static_cast<std::int64_t>(whole_.storage().nbytes()));
  set_storage_bytes(whole_, 0);
}

void FlatParameter::write_shard(std::size_t parameter, const at::Tensor& whole) {
  const c10::NoGradGuard no_grad;
  // `parts_` shares memory with the shard even while the parameters show full values.
  const auto part = layout().part(parameter, shard_index());
  parts_[parameter].copy_(whole.detach().reshape({-1}).narrow(0, part.begin, part.size()));
  is_stale_ = true;
}

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
  return ++num_gradients_ == parameters_.size();
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
  std::int64_t filled = 0;
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    const auto range = layout().range(i);
    auto& gradient = parameters_[i].mutable_grad();
    bucket_.narrow(0, filled, range.begin - filled).zero_();
    auto place = bucket_.narrow(0, range.begin, range.size());
    gradient.defined() ? place.copy_(gradient.detach().reshape({-1})) : place.zero_();
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

void FlatParameter::accept_gradients() {
  const c10::NoGradGuard no_grad;
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    auto gradient = elements(gradient_shard_, layout().part_in_shard(i, shard_index()));
    // Accumulation happens on parts and in the stored dtype, so it adds no traffic and no rounding in the reduce dtype.
    if (const auto before = std::exchange(stashed_[i], at::Tensor()); before.defined()) gradient.add_(before);
    parameters_[i].mutable_grad() = gradient;
  }
  has_part_gradients_ = true;
}

}  // namespace accel::sharded
