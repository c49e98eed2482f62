#include "reference/sources/record_index.hpp"

#include <algorithm>

#include "reference/core/errors.hpp"

namespace accel::sources {

RecordIndex::Record RecordIndex::record(std::int64_t index) const {
  check_argument(index >= 0 && index < size(), "record {} of {}", index, size());
  const auto file = std::upper_bound(first_records_.begin(), first_records_.end(), index) - first_records_.begin() - 1;
  const auto& mapped = *files_[file];
  const auto begin = begins_[index];
  const auto end =
      index + 1 < first_records_[file + 1] ? begins_[index + 1] : static_cast<std::int64_t>(mapped.bytes().size());
  const auto bytes = mapped.bytes().substr(static_cast<std::size_t>(begin), static_cast<std::size_t>(end - begin));
  return {.file = &mapped, .bytes = bytes, .number = index - first_records_[file], .offset = begin};
}

}  // namespace accel::sources
