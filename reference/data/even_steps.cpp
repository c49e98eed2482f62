#include "reference/data/even_steps.hpp"

#include <ATen/core/Tensor.h>
#include <ATen/ops/full.h>

#include "reference/core/errors.hpp"

namespace accel::detail {

// A failure travels as a negative row count in the same all-gather, so that a rank that fails costs no extra
// collective and leaves no other rank waiting.
std::vector<std::int64_t> RowCountExchange::take(std::int64_t own_rows) const {
  const auto all = group_.all_gather(at::full({1}, own_rows, at::kLong));
  const std::vector<std::int64_t> rows(all.const_data_ptr<std::int64_t>(),
                                       all.const_data_ptr<std::int64_t>() + all.numel());
  for (std::size_t rank = 0; rank < rows.size(); ++rank) {
    check_argument(rows[rank] != kFailed, "rank {} failed to read its part of the stream; see the error of that rank",
                   rank);
  }
  return rows;
}

}  // namespace accel::detail
