#include "reference/sharded/flat_parameter.hpp"

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>
#include <fmt/ranges.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>

#include "reference/core/errors.hpp"
#include "reference/sharded/file_memory.hpp"
#include "reference/sharded/flat_tensors.hpp"

// The executor of FlatPlan. Between steps a parameter's data is a view of `shard_`; while its unit computes, a view of
// `whole_`. Both are switched with set_data, so that the optimizer, the module and autograd keep the same tensor
// object.
// Note [Sizes and order of FSDP1]
// Buffers, paddings, divisors and collectives are those of torch/distributed/fsdp/_flat_param.py and _runtime_utils.py:
// a run gives the same bits as PyTorch's FSDP1 on the same number of ranks. Change none of them for speed alone.
namespace accel::sharded {
namespace {

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

// Pointers to nodes are shared_ptr, and from LibTorch 2.13 on intrusive_ptr, which have no common constructor.
template <typename Weak>
void reset_accumulator(const at::Tensor& parameter, void (*set)(const at::Tensor&, Weak)) {
  set(parameter, Weak(decltype(torch::autograd::impl::try_get_grad_accumulator(parameter))()));
}

// A graph that the program keeps, such as that of a parameter's clone, keeps the accumulator too, and that checks
// gradients by the sizes which the parameter had when it was made.
void forget_accumulator_of_other_sizes(const at::Tensor& parameter) {
  const auto accumulator = torch::autograd::impl::try_get_grad_accumulator(parameter);
  if (accumulator && !accumulator->input_metadata(0).is_same_shape(parameter))
    reset_accumulator(parameter, &torch::autograd::impl::set_grad_accumulator);
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
      marks_(parameters_),
      groups_(std::move(groups)),
      options_(options),
      memory_(&memory),
      stashed_(parameters_.size()),
      is_counted_(parameters_.size(), false) {
  const c10::NoGradGuard no_grad;
  follow_parameters();
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
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    parameters_[i].set_data(views[i]);
    forget_accumulator_of_other_sizes(parameters_[i]);
  }
}

void FlatParameter::follow_parameters() {
  is_trained_.clear();
  for (const auto& parameter : parameters_) is_trained_.push_back(parameter.requires_grad());
  num_trained_ = static_cast<std::size_t>(std::ranges::count(is_trained_, true));
}

void FlatParameter::adopt_edits() {
  const auto& shown = is_gathered_ ? full_views_ : parts_;
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    const auto& parameter = parameters_[i];
    if (parameter.const_data_ptr() == shown[i].const_data_ptr() && parameter.numel() == shown[i].numel() &&
        parameter.scalar_type() == shown[i].scalar_type())
      continue;
    adopt(i, shown[i]);
  }
}

void FlatParameter::adopt(std::size_t place, const at::Tensor& shown) {
  const c10::NoGradGuard no_grad;
  const auto& [name, sizes] = layout().parameters()[place];
  const auto values = parameters_[place].detach();
  const bool is_complete = values.sizes() == at::IntArrayRef(sizes);
  check_state(
      values.scalar_type() == shown.scalar_type() && (is_complete || values.sizes() == shown.sizes()),
      "'{}' now has dtype {} and sizes [{}], but the model was prepared with dtype {} and sizes [{}]; convert a "
      "module before prepare",
      name, c10::toString(values.scalar_type()), fmt::join(values.sizes(), ", "), c10::toString(shown.scalar_type()),
      fmt::join(sizes, ", "));
  if (is_complete)
    write_shard(place, values);
  else
    parts_[place].copy_(values);
  if (is_gathered_) full_views_[place].copy_(values);
  is_stale_ = true;
  parameters_[place].set_data(shown);
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

}  // namespace accel::sharded
