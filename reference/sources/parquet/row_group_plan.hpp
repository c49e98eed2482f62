#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

/// Which row group holds which row, over several files: a pure plan.
///
///     RowGroupPlan plan;
///     plan.add({.file = 0, .number = 0, .num_rows = 100});
///     plan.add({.file = 1, .number = 0, .num_rows = 50});
///     for (const auto& read : plan.reads_of({120, 3, 101})) { ... }   // rows 3; then rows 20 and 1
///
/// Thread rule: any number of readers.
namespace accel::sources {

struct RowGroup {
  std::size_t file = 0;
  int number = 0;  // in its file
  std::int64_t num_rows = 0;
};

/// What a batch needs of one row group: row `rows[i]` of the group is row `places[i]` of the batch.
struct RowGroupRead {
  std::size_t group = 0;  // counted over all files
  std::vector<std::int64_t> rows = {};
  std::vector<std::int64_t> places = {};
};

class RowGroupPlan {
 public:
  void add(const RowGroup& group);

  [[nodiscard]] std::int64_t num_rows() const { return begins_.back(); }
  [[nodiscard]] const std::vector<RowGroup>& groups() const { return groups_; }
  /// Returns one read per row group that holds any of the rows, in the order of the groups. Throws ArgumentError for an
  /// index that does not exist.
  [[nodiscard]] std::vector<RowGroupRead> reads_of(const std::vector<std::int64_t>& indices) const;

 private:
  std::vector<RowGroup> groups_;
  std::vector<std::int64_t> begins_{0};  // index of the first row of each group, then the number of all rows
};

}  // namespace accel::sources
