#include "reference/data/dispatched_batches.hpp"

#include <ATen/core/Tensor.h>
#include <ATen/ops/tensor.h>

#include "reference/core/errors.hpp"
#include "reference/state/objects.hpp"

namespace accel {

DispatchPlan plan_dispatch(DispatchStep step) {
  check_argument(step.num_rows >= 1, "dispatch_batches: a step without rows; expected at least one");
  check_argument(step.is_last || step.num_rows % step.num_ranks == 0,
                 "dispatch_batches: a step of {} rows does not divide by {} ranks, and is not the last; keep batches "
                 "equally long, or set "
                 "dispatch_batches: false",
                 step.num_rows, step.num_ranks);
  const auto rows_per_rank = (std::max(step.num_rows, step.full_rows) + step.num_ranks - 1) / step.num_ranks;
  return {.rows_per_rank = rows_per_rank, .num_padding = rows_per_rank * step.num_ranks - step.num_rows};
}

}  // namespace accel

namespace accel::detail {

Announcement DispatchChannel::exchange(Announcement announcement) {
  const bool is_sender = context_.rank == 0;
  const bool is_new = is_sender && announcement.text != last_text_;
  auto header = at::tensor(std::vector<std::int64_t>{announcement.kind, announcement.is_last, announcement.num_rows,
                                                     announcement.rows_per_rank, is_new},
                           at::kLong)
                    .to(context_.device);
  context_.world.broadcast(header, /*root=*/0).wait();
  const auto received = header.to(at::kCPU);
  const auto* field = received.const_data_ptr<std::int64_t>();
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
  auto bytes = tensor.view({-1}).view(at::kByte);  // every dtype travels, those that Gloo does not know included
  context_.world.broadcast(bytes, /*root=*/0).wait();
}

at::Tensor DispatchChannel::on_device(const at::Tensor& tensor) const {
  return tensor.to(context_.device).resolve_conj().resolve_neg();  // bytes know of neither
}

}  // namespace accel::detail
