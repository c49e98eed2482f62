#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "reference/core/files.hpp"
#include "reference/tracking/message.hpp"

namespace accel::tracking {

/// CRC-32C (Castagnoli), of RFC 3720. Thread rule: any thread.
std::uint32_t crc32c(std::string_view bytes);

/// The form in which TFRecord files keep it, so that a checksum of bytes that hold checksums is a good one.
std::uint32_t masked_crc32c(std::string_view bytes);

/// A record as TFRecord files hold it: its length, the length's checksum, the bytes, theirs. Numbers are little-endian.
/// Source: tensorflow/core/lib/io/record_writer.cc.
std::string framed_record(std::string_view bytes);

using Clock = std::function<double()>;  ///< seconds since 1970
double system_seconds();

/// A file of events, which TensorBoard reads while it grows.
///
///     EventFile file(files, "runs/mnist", {});
///     file.add(scalar_summary("loss", 0.3), /*step=*/7);
///     file.flush();
///
/// Events are whole records, appended together by `flush`: who reads after a crash finds all but, at worst, the last
/// flush's. Failures are FileErrors. Thread rule: one thread.
class EventFile {
 public:
  struct Options {
    std::string filename_suffix = {};
    std::optional<std::int64_t> purge_step =
        {};  ///< TensorBoard hides what earlier runs in this folder logged at and after it
    Clock clock = system_seconds;
  };

  /// Makes the folder, and in it a file that is not there yet.
  EventFile(Files& files, const std::string& folder, Options options);
  void add(const Message& summary, std::optional<std::int64_t> step);
  void flush();
  void close();
  [[nodiscard]] const std::string& path() const { return path_; }

 private:
  Message timed_event(std::optional<std::int64_t> step) const;
  void write_purge();

  Options options_;
  std::string path_, pending_;
  std::unique_ptr<WritableFile> file_;
};

}  // namespace accel::tracking
