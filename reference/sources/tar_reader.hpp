#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <optional>
#include <string>

#include "reference/sources/sequential_file.hpp"

/// The members of a tar archive, plain or .tar.gz, one after the other: ustar, with GNU's long names and pax's paths.
///
/// What is damaged is a ConfigError that names file, member and byte offset: a header whose checksum differs, a member
/// that goes on after the file's end, a file without the two empty blocks that end an archive (it was cut short).
/// Thread rule: one thread at a time.
namespace accel {

struct TarMember {
  std::string name = {};
  std::int64_t size = 0;    ///< bytes
  std::int64_t number = 0;  ///< in the archive, from 1
  std::int64_t offset = 0;  ///< of its header
  bool is_file = false;     ///< else a folder or a link
};

class TarReader {
 public:
  explicit TarReader(const std::string& path) : file_(path) {}

  /// The next member; nothing at the archive's end. What was not read of the one before is passed over.
  std::optional<TarMember> next();
  /// The content of the member that `next` gave last; once.
  std::string data();
  /// "a.tar: member 3 'cat.jpg' (byte 2048)".
  [[nodiscard]] std::string where() const;

 private:
  struct Header;
  std::optional<Header> read_header();
  void read_end_mark();
  void read_extension(const Header& header);
  void read_pax_records(const std::string& records);
  void pass_over_data();
  std::string read_bytes(std::int64_t num_bytes);
  template <typename F>
  auto located(F&& read) const;
  template <typename... Args>
  void check(bool condition, fmt::format_string<Args...> message, Args&&... args) const;

  SequentialFile file_;
  TarMember member_;
  std::int64_t unread_ = 0;          // bytes of the last member's data and padding
  std::optional<std::string> name_;  // what an extension says of the member that follows it
  std::optional<std::int64_t> size_;
};

}  // namespace accel
