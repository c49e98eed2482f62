// Dispatching: rank 0 reads and broadcasts a complete step, and every rank slices its rows. Broadcasting the
// complete step and not one part per rank copies Accelerate, whose slice function may look at the complete batch.
#include "reference/data/dispatched_batches.hpp"

#include <ATen/core/Tensor.h>
#include <ATen/ops/tensor.h>

#include "reference/core/errors.hpp"
#include "reference/state/objects.hpp"

namespace accel {

DispatchPlan plan_dispatch(DispatchStep step) {
  check_argument(step.num_rows >= 1, "dispatch_batches: a step has no rows; expected at least one");
  check_argument(
      step.is_last || step.num_rows % step.num_ranks == 0,
      "dispatch_batches: a step of {} rows is not divisible by {} ranks and is not the last step; keep batches "
      "equally long, or set dispatch_batches: false",
      step.num_rows, step.num_ranks);
  const auto rows_per_rank = (std::max(step.num_rows, step.full_rows) + step.num_ranks - 1) / step.num_ranks;
  return {.rows_per_rank = rows_per_rank, .num_padding = rows_per_rank * step.num_ranks - step.num_rows};
}

}  // namespace accel

namespace accel::detail {

// Two broadcasts at most: a header of fixed size, and the text only if it changed. In a normal epoch the shapes
// and dtypes of all steps are equal, so every step but the first needs the header alone.
Announcement DispatchChannel::exchange(Announcement announcement) {
  const bool is_sender = context_.rank == 0;
  const bool is_new = is_sender && announcement.text != last_text_;
  auto header = at::tensor(std::vector<std::int64_t>{announcement.kind, announcement.is_last, announcement.num_rows,
                                                     announcement.rows_per_rank, is_new},
                           at::kLong);
  context_.world.broadcast(header, /*root=*/0).wait();
  const auto* field = header.const_data_ptr<std::int64_t>();
  if (field[4] != 0) last_text_ = broadcast_bytes(context_, std::move(announcement.text), /*root=*/0);
  return {.kind = static_cast<Announcement::Kind>(field[0]),
          .is_last = field[1] != 0,
          .num_rows = field[2],
          .rows_per_rank = field[3],
          .text = last_text_};
}

void DispatchChannel::broadcast(at::Tensor& tensor) const {
  if (tensor.numel() == 0) return;
  tensor = tensor.detach().contiguous();
  // As bytes, because Gloo does not support every dtype.
  auto bytes = tensor.view({-1}).view(at::kByte);
  context_.world.broadcast(bytes, /*root=*/0).wait();
}

at::Tensor DispatchChannel::on_device(const at::Tensor& tensor) const {
  // The conjugate and negative bits are not part of the bytes, so they are resolved before the broadcast.
  return tensor.to(context_.device).resolve_conj().resolve_neg();
}

}  // namespace accel::detail
