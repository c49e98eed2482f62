#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "reference/files/files.hpp"

namespace accel::tracking {

/// CRC-32C (Castagnoli) as in RFC 3720. Thread rule: any thread.
std::uint32_t crc32c(std::string_view bytes);

/// The masked form that TFRecord files store, because a CRC of data that contains CRCs is weak.
std::uint32_t masked_crc32c(std::string_view bytes);

/// Frames a TFRecord: length, checksum of the length, data, checksum of the data. Numbers are little-endian.
/// Source: tensorflow/core/lib/io/record_writer.cc.
std::string framed_record(std::string_view bytes);

using Clock = std::function<double()>;  ///< seconds since 1970
double system_seconds();

/// The step of an event, and its time in seconds since 1970 if it is not the present.
struct EventTime {
  std::optional<std::int64_t> step = {};
  std::optional<double> walltime = {};
};

/// An event file, which TensorBoard can read while it grows.
///
///     EventFile file(files, "runs/mnist", {});
///     file.add(scalar_summary("loss", 0.3), {.step = 7});
///     file.flush();
///
/// `flush` appends complete records in one write: after a crash, at most the events of the last flush are missing.
/// Failures throw FileError. Thread rule: one thread.
class EventFile {
 public:
  struct Options {
    std::string filename_suffix = {};
    /// TensorBoard hides events of earlier runs in this folder with this step or a later one.
    std::optional<std::int64_t> purge_step = {};
    Clock clock = system_seconds;
  };

  /// Creates the folder if necessary and a new file in it.
  EventFile(Files& files, const std::string& folder, Options options);
  /// Adds an event with an encoded summary: see summary.hpp.
  void add(const std::string& summary, const EventTime& time);
  void flush();
  void close();
  [[nodiscard]] const std::string& path() const { return path_; }

 private:
  void write_purge();

  Options options_;
  std::string path_, pending_;
  std::unique_ptr<WritableFile> file_;
};

}  // namespace accel::tracking
