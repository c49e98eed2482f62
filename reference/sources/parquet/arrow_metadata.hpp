#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

/// Parts of the metadata of Arrow files and streams that Arrow's readers do not return. The metadata are flatbuffers;
/// damaged ones give wrong numbers, but no access outside of them.
///
///     const auto num_rows = accel::sources::num_rows_of_batch(metadata);
///
/// Thread rule: pure functions. Source: arrow/format/Message.fbs and File.fbs.
namespace accel::sources {

/// Returns the number of rows of a record batch from the metadata of its message.
std::int64_t num_rows_of_batch(std::string_view metadata);

/// Returns the offset after the last record batch or dictionary from the footer of a file; nullopt if it has none.
std::optional<std::int64_t> end_of_batches(std::string_view footer);

/// a + b, or the greatest number if that does not fit.
std::int64_t later(std::int64_t a, std::int64_t b);

}  // namespace accel::sources
