#include "reference/sources/parquet/arrow_metadata.hpp"

#include <algorithm>
#include <cstring>

namespace accel::sources {
namespace {

// Returns 0 outside of the bytes.
template <typename T>
T number(std::string_view bytes, std::int64_t place) {
  T value{};
  if (place >= 0 && place <= std::ssize(bytes) - static_cast<std::int64_t>(sizeof value))
    std::memcpy(&value, bytes.data() + place, sizeof value);
  return value;
}

// Returns the place of a table's field; -1: the table lacks it.
std::int64_t field(std::string_view bytes, std::int64_t table, int index) {
  const auto offsets = table - number<std::int32_t>(bytes, table);
  const bool is_there = number<std::uint16_t>(bytes, offsets) >= 4 + 2 * (index + 1);
  const auto offset = is_there ? number<std::uint16_t>(bytes, offsets + 4 + 2 * index) : std::uint16_t{};
  return offset == 0 ? -1 : table + offset;
}

}  // namespace

// Field 2 of the message is the batch, whose field 0 is the number.
std::int64_t num_rows_of_batch(std::string_view metadata) {
  const auto batch = field(metadata, number<std::uint32_t>(metadata, 0), 2);
  if (batch < 0) return 0;
  return number<std::int64_t>(metadata, field(metadata, batch + number<std::uint32_t>(metadata, batch), 0));
}

// Fields 2 and 3 of the footer are lists of blocks: offset, size of the metadata, padding, size of the body.
std::optional<std::int64_t> end_of_batches(std::string_view footer) {
  constexpr std::int64_t kBlockBytes = 24;
  std::optional<std::int64_t> end;
  for (const int index : {2, 3}) {
    const auto list = field(footer, number<std::uint32_t>(footer, 0), index);
    if (list < 0) continue;
    const auto begin = list + number<std::uint32_t>(footer, list);
    const auto count = std::min<std::int64_t>(number<std::uint32_t>(footer, begin), std::ssize(footer) / kBlockBytes);
    for (std::int64_t block = begin + 4, last = block + kBlockBytes * count; block < last; block += kBlockBytes) {
      const auto body = later(number<std::int64_t>(footer, block), number<std::int32_t>(footer, block + 8));
      end = std::max(end.value_or(0), later(body, number<std::int64_t>(footer, block + 16)));
    }
  }
  return end;
}

std::int64_t later(std::int64_t a, std::int64_t b) {
  std::int64_t sum = 0;
  return __builtin_add_overflow(a, b, &sum) ? INT64_MAX : sum;
}

}  // namespace accel::sources
