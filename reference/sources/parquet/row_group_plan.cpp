#include "reference/sources/parquet/row_group_plan.hpp"

#include <algorithm>
#include <iterator>
#include <map>

#include "reference/core/errors.hpp"

namespace accel::sources {

void RowGroupPlan::add(const RowGroup& group) {
  groups_.push_back(group);
  begins_.push_back(begins_.back() + group.num_rows);
}

// upper_bound returns the last group that starts at or before the index, so that empty groups are skipped.
std::vector<RowGroupRead> RowGroupPlan::reads_of(const std::vector<std::int64_t>& indices) const {
  std::map<std::size_t, RowGroupRead> reads;
  for (std::int64_t place = 0; place < std::ssize(indices); ++place) {
    const auto index = indices[place];
    check_argument(index >= 0 && index < num_rows(),
                   "parquet: row {} is out of range for {} rows; expected 0 or more and less than {}", index,
                   num_rows(), num_rows());
    const auto group =
        static_cast<std::size_t>(std::upper_bound(begins_.begin(), begins_.end(), index) - begins_.begin() - 1);
    auto& read = reads[group];
    read.group = group;
    read.rows.push_back(index - begins_[group]);
    read.places.push_back(place);
  }
  std::vector<RowGroupRead> sorted;
  for (auto& [group, read] : reads) sorted.push_back(std::move(read));
  return sorted;
}

}  // namespace accel::sources
