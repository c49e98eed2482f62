#include "backends/process/process_work.hpp"

#include <ATen/core/ivalue.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/sparse_coo_tensor.h>
#include <ATen/record_function.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/engine.h>

#include <algorithm>
#include <array>

#include "backends/process/pending_works.hpp"
#include "reference/comm/tensor_fingerprint.hpp"
#include "reference/core/errors.hpp"

namespace accel::process {

PlacedTensor take_place(RankLink& link, const at::Tensor& tensor) {
  const auto range = has_memory(tensor) ? memory_range(tensor) : MemoryRange{};
  PlacedTensor placed{.bytes = static_cast<std::uint64_t>(range.end - range.begin),
                      .dtype = static_cast<int>(tensor.scalar_type()),
                      .sizes = tensor.sizes().vec(),
                      .strides = tensor.strides().vec()};
  placed.offset = link.take(placed.bytes);
  return placed;
}

ProcessWork::ProcessWork(std::shared_ptr<RankLink> link, std::shared_ptr<const ProgramHooks> hooks,
                         std::uint64_t number, c10d::OpType type, std::vector<Buffer> buffers, Results results)
    : c10d::Work(link->rank(), type),
      link_(std::move(link)),
      hooks_(std::move(hooks)),
      number_(number),
      buffers_(std::move(buffers)),
      results_(std::move(results)) {}

ProcessWork::~ProcessWork() {
  if (is_over_) return;
  std::vector<std::uint64_t> offsets;
  for (const auto& buffer : buffers_) offsets.push_back(buffer.offset);
  link_->abandon({.number = number_, .offsets = std::move(offsets)});
}

void free_abandoned(RankLink& link, const ProgramHooks& hooks) {
  for (auto& work : link.take_abandoned()) {
    if (link.ask(begin_request(Request::kPoll, hooks).put(work.number)) == 0) {
      link.abandon(std::move(work));
      continue;
    }
    pending_works::forget(work.number);
    link.post_before_next(begin_request(Request::kForget, hooks).put(work.number));
    for (const auto offset : work.offsets) link.give(offset);
  }
}

// The request is made before the lock is taken: it may need the lock of the program's interpreter.
void ProcessWork::finish() {
  if (is_over_) return;
  const auto request = begin_request(Request::kWait, *hooks_).put(number_);
  const std::lock_guard lock(mutex_);
  if (is_over_) return;
  if (has_changed()) {
    link_->post_before_next(begin_request(Request::kTouch, {}).put(number_).put(std::string_view("changed")));
  }
  try {
    const auto answer = link_->ask(request);
    if (opType_ == c10d::OpType::_ALLREDUCE_SPARSE)
      take_sparse_sum(answer);
    else
      source_ = static_cast<int>(answer);
    take_results();
  } catch (const std::exception&) {
    error_ = std::current_exception();
  }
  is_over_ = true;
  pending_works::forget(number_);
  if (future_ && !future_->completed()) complete(*future_);
}

bool ProcessWork::has_changed() const {
  return std::any_of(buffers_.begin(), buffers_.end(), [](const Buffer& buffer) {
    return buffer.sample != 0 && sample_fingerprint(buffer.tensor) != buffer.sample;
  });
}

// After a good answer nobody uses the payload any more. After an error another rank may still write to it, so this
// memory is not used again.
void ProcessWork::take_results() {
  const c10::NoGradGuard no_grad;
  for (const auto& buffer : buffers_) {
    if (!buffer.is_written) continue;
    if (buffer.tensor.is_non_overlapping_and_dense()) {
      std::memcpy(buffer.tensor.data_ptr(), link_->at(buffer.offset), buffer.bytes);
    } else {
      buffer.tensor.copy_(at::from_blob(link_->at(buffer.offset), buffer.tensor.sizes(), buffer.tensor.strides(),
                                        buffer.tensor.options()));
    }
  }
  for (const auto& buffer : buffers_) {
    const at::DisableRecordFunctionGuard unwatched;
    if (buffer.divisor > 1) buffer.tensor.detach().div_(buffer.divisor);
    link_->give(buffer.offset);
  }
}

// The sum has the entries of all ranks, so its memory is taken only now. Its operators are not the program's, and the
// request has no line: the caller holds the lock, see finish().
void ProcessWork::take_sparse_sum(std::int64_t num_entries) {
  const c10::NoGradGuard no_grad;
  const at::DisableRecordFunctionGuard unwatched;
  auto& sum = results_.front().front();
  auto sizes_of_values = sum.sizes().slice(sum.sparse_dim()).vec();
  sizes_of_values.insert(sizes_of_values.begin(), num_entries);
  const std::array parts{at::empty({sum.sparse_dim(), num_entries}, at::kLong),
                         at::empty(sizes_of_values, sum.options().layout(at::kStrided))};
  auto request = begin_request(Request::kSum, {}).put(number_);
  for (const auto& part : parts) {
    const auto placed = take_place(*link_, part);
    buffers_.push_back({.tensor = part, .offset = placed.offset, .bytes = placed.bytes});
    request << placed;
  }
  link_->ask(request);
  for (std::size_t part = 0; part < parts.size(); ++part) {
    const auto& buffer = buffers_[buffers_.size() - parts.size() + part];
    std::memcpy(parts[part].data_ptr(), link_->at(buffer.offset), buffer.bytes);
  }
  sum.copy_(at::sparse_coo_tensor(parts[0], parts[1], sum.sizes(), sum.options(), /*is_coalesced=*/true));
}

void ProcessWork::complete(c10::ivalue::Future& future) const {
  if (error_) return future.setError(error_);
  if (results_.size() > 1) return future.markCompleted(c10::IValue(results_));
  future.markCompleted(c10::IValue(results_.empty() ? std::vector<at::Tensor>{} : results_.front()));
}

bool ProcessWork::wait(std::chrono::milliseconds /*timeout*/) {
  finish();
  if (error_) std::rethrow_exception(error_);
  return true;
}

bool ProcessWork::isCompleted() {
  if (is_over_) return true;
  if (link_->ask(begin_request(Request::kPoll, *hooks_).put(number_)) == 0) return false;
  finish();
  return true;
}

std::vector<at::Tensor> ProcessWork::result() {
  check_state(
      results_.size() <= 1,
      "Work.result: this collective has {} lists of results; expected at most one; read its output lists instead",
      results_.size());
  return results_.empty() ? std::vector<at::Tensor>{} : results_.front();
}

// Future::wait is final, so nobody can see a rank that blocks there. Inside a backward pass (DDP) a callback at its end
// waits first, so that all buckets are in flight until then; elsewhere the future is complete when it is handed out.
c10::intrusive_ptr<c10::ivalue::Future> ProcessWork::getFuture() {
  if (future_) return future_;
  const auto list_of_tensors = c10::ListType::create(c10::TensorType::get());
  const bool nested = results_.size() > 1;
  future_ = c10::make_intrusive<c10::ivalue::Future>(nested ? c10::ListType::create(list_of_tensors) : list_of_tensors);
  if (is_over_) {
    complete(*future_);
    return future_;
  }
  auto self = c10::intrusive_ptr<ProcessWork>::unsafe_reclaim_from_nonowning(this);
  if (torch::autograd::get_current_graph_task_id() != -1) {
    torch::autograd::Engine::get_default_engine().queue_callback([self] { self->wait(kNoTimeout); });
  } else {
    finish();
  }
  return future_;
}

}  // namespace accel::process
