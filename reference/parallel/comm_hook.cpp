#include "reference/parallel/comm_hook.hpp"

#include <ATen/ATen.h>
#include <ATen/record_function.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include <optional>

#include "reference/core/errors.hpp"
#include "reference/core/input/listed.hpp"
#include "reference/parallel/power_sgd.hpp"

namespace accel {

// Note [Callbacks of a hook]
// A future's callback runs on the thread that completes the future: a Gloo thread, or the thread of another simulated
// rank. Therefore it only copies between its own tensors, never waits, never calls a collective (a simulated rank is a
// thread), and relies on no thread-local state: it disables gradients with its own guard, and hides the copy from
// observers, which would count it as work of the rank that owns the thread.
c10::intrusive_ptr<c10::ivalue::Future> CommHook::runHook(c10d::GradBucket& bucket) {
  const c10::NoGradGuard no_grad;
  auto reduction = reduce(bucket);
  if (!reduction.work) {
    std::vector<at::Device> devices;  // futures list accelerators only; the CPU would be rejected
    if (!reduction.sent.is_cpu()) devices.push_back(reduction.sent.device());
    auto future = c10::make_intrusive<c10::ivalue::Future>(c10::TensorType::get(), std::move(devices));
    future->markCompleted(reduction.finished());
    return future;
  }
  return reduction.work->getFuture()->then(
      [sent = std::move(reduction.sent), finish = std::move(reduction.finish)](c10::ivalue::Future& done) {
        const c10::NoGradGuard no_grad_there;
        const at::DisableRecordFunctionGuard unwatched;
        done.value();  // rethrows the collective's error
        return c10::IValue(finish ? finish(sent) : sent);
      },
      c10::TensorType::get());
}

// For reductions without work, whose result is available at once.
at::Tensor BucketReduction::finished() const { return finish ? finish(sent) : sent; }

// Calls the process group, not Group::all_reduce: c10d needs the work's future, which accel's Work does not expose.
c10::intrusive_ptr<c10d::Work> sum_over_ranks(const Group& group, const at::Tensor& tensor) {
  std::vector<at::Tensor> tensors{tensor};
  return group.process_group()->allreduce(tensors);
}

BucketReduction reduce_plainly(const Group& group, const at::Tensor& buffer) {
  // Division before the sum keeps float16 sums in range. The order is part of the result's bits: torch's hooks divide
  // first, too.
  auto sent = buffer;
  sent.div_(group.size());
  auto work = sum_over_ranks(group, sent);
  return {.sent = std::move(sent), .work = std::move(work)};
}

namespace {

// fp16_compress_hook and bf16_compress_hook: halve the traffic. The result is copied back into the original buffer,
// which the reducer may have handed out as views (gradient_as_bucket_view).
class CastHook : public CommHook {
 public:
  CastHook(at::ScalarType dtype, Group group) : dtype_(dtype), group_(std::move(group)) {}

  BucketReduction reduce(c10d::GradBucket& bucket) override {
    const auto buffer = bucket.getBuffer();
    auto reduction = reduce_plainly(group_, buffer.to(dtype_));
    reduction.finish = [buffer](const at::Tensor& sent) { return buffer.copy_(sent); };
    return reduction;
  }

 private:
  at::ScalarType dtype_;
  Group group_;
};

// fp16_compress_wrapper and bf16_compress_wrapper. Unlike with CastHook, the inner hook also computes in the reduced
// dtype, as in torch; the reducer casts its result back.
class CastWrapper : public CommHook {
 public:
  CastWrapper(at::ScalarType dtype, std::unique_ptr<CommHook> hook) : dtype_(dtype), hook_(std::move(hook)) {}

  BucketReduction reduce(c10d::GradBucket& bucket) override {
    auto buffer = bucket.getBuffer().to(dtype_);
    bucket.setBuffer(buffer);
    return hook_->reduce(bucket);
  }

 private:
  at::ScalarType dtype_;
  std::unique_ptr<CommHook> hook_;
};

std::optional<at::ScalarType> dtype_of(const std::string& name) {
  if (name == "fp16") return at::kHalf;
  if (name == "bf16") return at::kBFloat16;
  return std::nullopt;
}

}  // namespace

std::unique_ptr<CommHook> make_comm_hook(const DistributedDataParallelKwargs& kwargs, const Group& group) {
  const auto problems = problems_of(kwargs);
  check_config(problems.empty(), "{}", listed(problems, "; "));
  // A wrapper without a hook is one of the problems, so a hook exists wherever the wrapper's dtype does.
  std::unique_ptr<CommHook> hook;
  if (const auto dtype = dtype_of(kwargs.comm_hook)) hook = std::make_unique<CastHook>(*dtype, group);
  if (kwargs.comm_hook == "power_sgd") hook = make_power_sgd_hook(kwargs.comm_state_option, group);
  if (kwargs.comm_hook == "batched_power_sgd") hook = make_batched_power_sgd_hook(kwargs.comm_state_option, group);
  if (const auto dtype = dtype_of(kwargs.comm_wrapper); hook && dtype)
    hook = std::make_unique<CastWrapper>(*dtype, std::move(hook));
  return hook;
}

}  // namespace accel
