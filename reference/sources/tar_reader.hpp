#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <optional>
#include <string>

#include "reference/sources/sequential_file.hpp"

/// Reads the members of a tar archive, plain or .tar.gz, in order. Supports ustar, GNU long names and pax paths.
///
/// Damage throws a ConfigError, which names file, member and byte offset: a wrong header checksum, a member that
/// extends beyond the end of the file, a missing end mark of two empty blocks (the file was truncated), or data after
/// it (archives were concatenated). Sparse files, files that began in another volume, unknown types of members, and
/// global pax records of names and sizes are unsupported and throw as well. Thread rule: one thread at a time.
namespace accel {

struct TarMember {
  std::string name = {};
  std::int64_t size = 0;    ///< bytes
  std::int64_t number = 0;  ///< position in the archive, from 1
  std::int64_t offset = 0;  ///< byte offset of its header
  enum class Type {
    kFile,
    kHardLink,
    kSymbolicLink,
    kFolder,
    kOther
  };  // folder: or a label; other: a pipe or a device
  Type type = Type::kOther;
  std::string link = {};  ///< the target of a link
};

class TarReader {
 public:
  explicit TarReader(const std::string& path);

  /// Returns the next member, or nullopt at the end of the archive. Skips unread data of the previous member.
  std::optional<TarMember> next();
  /// Returns the content of the member that `next` returned last, at most 4 GiB. May be called once per member.
  std::string data();
  /// Returns the location of the current member for messages, such as "a.tar: member 3 'cat.jpg' (byte 2048)".
  [[nodiscard]] std::string where() const;

 private:
  struct Header;
  std::optional<Header> read_header();
  void read_end_mark();
  void read_extension(const Header& header);
  void read_pax_records(const std::string& records, bool is_global);
  void skip_data();
  std::string read_bytes(std::int64_t num_bytes);
  template <typename F>
  auto located(F&& read) const;
  template <typename... Args>
  void check(bool condition, fmt::format_string<Args...> message, Args&&... args) const;
  template <typename... Args>
  void check_intact(bool condition, fmt::format_string<Args...> message, Args&&... args) const;

  SequentialFile file_;
  TarMember member_;
  std::int64_t unread_ = 0;                 // unread bytes of the last member's data and padding
  std::optional<std::string> name_, link_;  // from an extension, for the member that follows
  std::optional<std::int64_t> size_;
};

}  // namespace accel
