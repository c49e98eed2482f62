#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "reference/files/mapped_file.hpp"

/// Checks that a file is text whose bytes below 128 are ASCII, such as UTF-8 or Latin-1. The bytes of other files would
/// become lines and fields.
///
///     accel::sources::check_is_text(file);
///     auto begin = accel::sources::byte_order_mark_bytes(file.read(0, 3));
///
/// Thread rule: pure functions.
namespace accel::sources {

/// Throws ConfigError, which names the file and its format, for text in UTF-16 or UTF-32, for compressed files, and for
/// Parquet and Arrow files. Without a byte order mark, UTF-16 and UTF-32 are recognised by their zero bytes and line
/// ends, in the first 64 KiB.
void check_is_text(const MappedFile& file);
/// The same for a text in memory.
void check_is_text(const std::string& path, std::string_view text);

/// The length of the UTF-8 byte order mark at the start of a text: 3 or 0.
std::size_t byte_order_mark_bytes(std::string_view begin);

/// Names the format of a compressed file, such as "a gzip file", by its first bytes. Empty: it is not compressed.
std::string_view compression_of(std::string_view begin);

}  // namespace accel::sources
