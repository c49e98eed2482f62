#include "reference/accelerator/metric_rows.hpp"

#include <ATen/ops/full.h>

#include <algorithm>

#include "reference/accelerator/operations.hpp"
#include "reference/core/errors.hpp"

namespace accel {

// `real_rows` is set where duplicates do not all come last in the order of the ranks. Otherwise `remainder` is, as
// in Accelerate, the number of gathered rows before the duplicates.
MetricRows metric_rows(const GradientState& state, const DataParallel& data_parallel) {
  const auto own = state.num_rows().value_or(0);
  MetricRows rows{.per_rank = own};
  if (!state.fills_up()) return rows;
  if (const auto real = state.real_rows(); !real.empty()) {
    for (std::size_t rank = 0; rank < real.size(); ++rank) {
      const auto begin = static_cast<std::int64_t>(rank) * own;
      rows.kept.push_back({.begin = begin, .end = begin + real[rank]});
    }
  } else if (state.end_of_dataloader() && state.remainder() > 0 &&
             (data_parallel.size > 1 || own != state.remainder())) {
    rows.kept = {{.begin = 0, .end = state.remainder()}};
  }
  return rows;
}

// Without even_batches the ranks may have different numbers of rows on the last step, which only a gather can find out.
// The condition depends on values that are equal on all ranks, so all ranks gather or none does.
MetricRows tensor_metric_rows(const GradientState& state, const DataParallel& data_parallel) {
  const bool may_be_padded =
      !state.fills_up() && state.end_of_dataloader() && state.remainder() > 0 && data_parallel.size > 1;
  if (!may_be_padded) return metric_rows(state, data_parallel);
  const auto of_ranks = operations::gather(data_parallel.group, at::full({1}, state.num_rows().value_or(0), at::kLong));
  MetricRows rows{.per_rank = of_ranks.max().item<std::int64_t>(), .are_padded = true};
  for (std::int64_t rank = 0; rank < of_ranks.size(0); ++rank) {
    const auto begin = rank * rows.per_rank;
    rows.kept.push_back({.begin = begin, .end = begin + of_ranks[rank].item<std::int64_t>()});
  }
  return rows;
}

// The part of the kept rows that lies in this rank's slice [begin, begin + own) of the gathered rows.
std::optional<std::int64_t> num_real_rows(const GradientState& state, const DataParallel& data_parallel) {
  const auto own = state.num_rows();
  const auto kept = metric_rows(state, data_parallel).kept;
  if (!own || kept.empty()) return own;
  const auto begin = data_parallel.rank * *own;
  std::int64_t real = 0;
  for (const auto& range : kept)
    real += std::max<std::int64_t>(0, std::min(range.end, begin + *own) - std::max(range.begin, begin));
  return real;
}

at::Tensor MetricRows::cut(const at::Tensor& gathered) const {
  // A value that was not padded has been gathered with fewer rows than ranks * per_rank and stays unchanged.
  const bool is_cut =
      !kept.empty() && (!are_padded || gathered.size(0) == per_rank * static_cast<std::int64_t>(kept.size()));
  if (!is_cut) return gathered;
  std::vector<at::Tensor> rows;
  for (const auto& range : kept) rows.push_back(slice_rows(gathered, range));
  return rows.size() == 1 ? rows.front() : concatenate(rows);
}

void MetricRows::check(bool fits, std::optional<std::int64_t> rows) {
  check_argument(fits,
                 "gather_for_metrics: the last step contains duplicates or padding, and a value with {} rows cannot be "
                 "cut, since it does not have one row per sample of the batch; gather one row per sample and reduce "
                 "afterwards",
                 rows ? fmt::format("{}", *rows) : "no");
}

}  // namespace accel
