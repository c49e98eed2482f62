// Tar reader for ustar, GNU and pax archives. Source: POSIX pax, "ustar Interchange Format"; GNU tar manual,
// "Basic Tar Format". Offsets of the header fields: name 0, size 124, checksum 148, type 156, link 157, magic 257,
// prefix 345.
#include "reference/sources/tar_reader.hpp"

#include <algorithm>
#include <array>
#include <charconv>
#include <string_view>
#include <utility>

#include "reference/core/errors.hpp"
#include "reference/sources/text_file.hpp"

namespace accel {
namespace {

constexpr std::int64_t kBlock = 512;
constexpr std::int64_t kExtensionBytesMax = 1 << 20;  // extensions store names; a larger one is damaged
constexpr std::int64_t kMemberBytesMax = std::int64_t{4} << 30;
constexpr std::int64_t kPiece = 16 << 20;

std::int64_t padded(std::int64_t num_bytes) { return (num_bytes + kBlock - 1) / kBlock * kBlock; }

std::string_view until_zero(std::string_view field) { return field.substr(0, field.find('\0')); }

// A number field has octal digits padded with spaces or zeros, or, for large values, the byte 0x80 followed by a
// big-endian number (a GNU extension).
std::optional<std::int64_t> number_of(std::string_view field) {
  std::int64_t value = 0;
  if (static_cast<unsigned char>(field.front()) == 0x80) {
    for (const char byte : field.substr(1)) {
      if (value >> 55 != 0) return std::nullopt;
      value = value << 8 | static_cast<unsigned char>(byte);
    }
    return value;
  }
  field = until_zero(field);
  while (field.starts_with(' ')) field.remove_prefix(1);
  while (field.ends_with(' ')) field.remove_suffix(1);
  const auto [end, error] = std::from_chars(field.data(), field.data() + field.size(), value, 8);
  const bool is_number = field.empty() || (error == std::errc() && end == field.data() + field.size() && value >= 0);
  return is_number ? std::optional(value) : std::nullopt;
}

// V (a volume's label) and D (a list of a folder's files) are GNU's.
std::optional<TarMember::Type> type_of(char code, std::string_view name) {
  using enum TarMember::Type;
  switch (code) {
    case '\0':  // old programs write folders as files
    case '0':
    case '7': return name.ends_with('/') ? kFolder : kFile;
    case '1': return kHardLink;
    case '2': return kSymbolicLink;
    case '5':
    case 'D':
    case 'V': return kFolder;
    case '3':
    case '4':
    case '6': return kOther;
    default: return std::nullopt;
  }
}

// Source: POSIX pax. Links may state the size of their target, and folders that of their disk space.
bool has_data(char code) { return code < '1' || code > '6'; }

}  // namespace

TarReader::TarReader(const std::string& path) : file_(path) {
  if (is_gzip(path)) return;
  std::array<char, 16> begin{};
  const auto num_bytes = SequentialFile(path).read(begin.data(), std::ssize(begin));
  const auto compression = sources::compression_of({begin.data(), static_cast<std::size_t>(num_bytes)});
  check_config(compression.empty(),
               "{}: {}; expected a tar archive, plain or compressed by gzip; compress it again, or decompress it", path,
               compression);
}

struct TarReader::Header {
  std::array<char, kBlock> block;

  [[nodiscard]] std::string_view field(std::size_t begin, std::size_t size) const {
    return {block.data() + begin, size};
  }
  [[nodiscard]] char type() const { return block[156]; }
  [[nodiscard]] std::optional<std::int64_t> size() const { return number_of(field(124, 12)); }
  [[nodiscard]] bool is_empty() const {
    return std::all_of(block.begin(), block.end(), [](char byte) { return byte == 0; });
  }

  // The checksum is the sum of all bytes, with spaces in place of the checksum field. Some old programs summed signed
  // bytes, so both sums are accepted.
  [[nodiscard]] bool checksum_fits() const {
    std::int64_t sum = 8 * ' ', signed_sum = 8 * ' ';
    for (std::size_t place = 0; place < block.size(); ++place) {
      if (place >= 148 && place < 156) continue;
      sum += static_cast<unsigned char>(block[place]);
      signed_sum += static_cast<signed char>(block[place]);
    }
    const auto stated = number_of(field(148, 8));
    return stated == sum || stated == signed_sum;
  }

  // Only POSIX headers have a prefix; GNU headers store other data there. The magic number distinguishes them.
  [[nodiscard]] std::string name() const {
    const bool is_posix = field(257, 6) == std::string_view("ustar\0", 6);
    const std::string name(until_zero(field(0, 100))), prefix(is_posix ? until_zero(field(345, 155)) : "");
    return prefix.empty() ? name : prefix + "/" + name;
  }
};

// Adds the member to errors of SequentialFile, which knows only the file.
template <typename F>
auto TarReader::located(F&& read) const {
  try {
    return read();
  } catch (const ConfigError& error) {
    throw ConfigError(fmt::format("{}; {}", error.what(), where()));
  }
}

std::string TarReader::where() const {
  return fmt::format("{}: member {} '{}' (byte {})", file_.path(), member_.number, member_.name, member_.offset);
}

template <typename... Args>
void TarReader::check(bool condition, fmt::format_string<Args...> message, Args&&... args) const {
  if (!condition) throw ConfigError(where() + ": " + fmt::format(message, std::forward<Args>(args)...));
}

// For damage, which no option of the caller can repair.
template <typename... Args>
void TarReader::check_intact(bool condition, fmt::format_string<Args...> message, Args&&... args) const {
  if (!condition)
    check(false, "{}; copy or download the archive again", fmt::format(message, std::forward<Args>(args)...));
}

// L and K (GNU) and x (pax, X of old Solaris) are extension members that describe the following member; g is a global
// pax header.
std::optional<TarMember> TarReader::next() {
  for (;;) {
    skip_data();
    const auto header = read_header();
    if (!header) return std::nullopt;
    if (std::string_view("LKxXg").find(header->type()) != std::string_view::npos) {
      read_extension(*header);
      continue;
    }
    member_.name = name_ ? *std::exchange(name_, std::nullopt) : header->name();
    member_.link = link_ ? *std::exchange(link_, std::nullopt) : std::string(until_zero(header->field(157, 100)));
    if (size_) member_.size = *std::exchange(size_, std::nullopt);
    check(header->type() != 'S', "sparse files are unsupported; create the archive without --sparse");
    check(header->type() != 'M', "a part of a file that began in another volume; create the archive as one volume");
    const auto type = type_of(header->type(), member_.name);
    check(type.has_value(), "a member of the unknown type '{}'; expected files, folders and links", header->type());
    member_.type = *type;
    if (!has_data(header->type())) member_.size = 0;
    unread_ = padded(member_.size);
    return member_;
  }
}

// member_ is filled step by step, so that an error in the middle already names the member's number and offset.
std::optional<TarReader::Header> TarReader::read_header() {
  member_ = {.name = "", .number = member_.number + 1, .offset = file_.offset()};
  Header header{};
  const auto got = located([&] { return file_.read(header.block.data(), kBlock); });
  check_intact(got == kBlock, "the file is truncated or damaged: it ends inside a header or without an end mark");
  if (header.is_empty()) {
    read_end_mark();
    return std::nullopt;
  }
  check_intact(header.checksum_fits(), "damaged: the checksum of the header does not match");
  const auto size = header.size();
  check_intact(size && *size <= INT64_MAX - kBlock, "damaged: the size is not a number");
  member_.name = header.name();
  member_.size = *size;
  return header;
}

// Reads the second empty block and then the rest of the file, so that zlib compares gzip's checksum. Tools pad archives
// with zeros.
void TarReader::read_end_mark() {
  Header second{};
  const auto got = located([&] { return file_.read(second.block.data(), kBlock); });
  check_intact(got == kBlock && second.is_empty(),
               "the file is truncated or damaged: it ends with one empty block; expected two");
  check_intact(!name_ && !link_ && !size_, "the file is truncated or damaged: it ends after an extension");
  for (auto rest = kBlock; rest == kBlock;) {
    Header block{};
    rest = located([&] { return file_.read(block.block.data(), kBlock); });
    check(
        block.is_empty(),
        "the archive continues after its end mark, at byte {}; expected zeros; if it is several archives in one file, "
        "create one archive of their members",
        file_.offset() - rest);
  }
}

// The size limit protects against a damaged header that would make a name of many gigabytes.
void TarReader::read_extension(const Header& header) {
  check_intact(member_.size <= kExtensionBytesMax, "damaged: an extension has {} bytes; expected at most {}",
               member_.size, kExtensionBytesMax);
  unread_ = padded(member_.size);
  const auto content = read_bytes(member_.size);
  if (header.type() == 'L') name_ = std::string(until_zero(content));
  if (header.type() == 'K') link_ = std::string(until_zero(content));
  if (header.type() == 'x' || header.type() == 'X') read_pax_records(content, /*is_global=*/false);
  if (header.type() == 'g') read_pax_records(content, /*is_global=*/true);
  --member_.number;  // an extension is not counted as a member
}

// Parses records "<length> <key>=<value>\n", where <length> is the size of the complete record.
void TarReader::read_pax_records(const std::string& records, bool is_global) {
  for (std::string_view rest = records; !rest.empty();) {
    std::size_t length = 0;
    const auto [end, error] = std::from_chars(rest.data(), rest.data() + rest.size(), length);
    const auto digits = static_cast<std::size_t>(end - rest.data());
    const bool has_length = error == std::errc() && length > digits + 1 && length <= rest.size();
    const bool has_form = has_length && rest[digits] == ' ' && rest[length - 1] == '\n';
    const auto record = has_form ? rest.substr(digits + 1, length - digits - 2) : std::string_view();
    const auto equals = record.find('=');
    check_intact(equals != std::string_view::npos, "damaged: a pax record lacks a length or '='");
    const auto key = record.substr(0, equals), value = record.substr(equals + 1);
    check(!key.starts_with("GNU.sparse."), "sparse files are unsupported; create the archive without --sparse");
    check(!is_global || (key != "path" && key != "linkpath" && key != "size"),
          "a global pax record '{}' is unsupported; create the archive without it", key);
    if (key == "path") name_ = std::string(value);
    if (key == "linkpath") link_ = std::string(value);
    if (key == "size") {
      std::int64_t size = -1;
      const auto number = std::from_chars(value.data(), value.data() + value.size(), size);
      check_intact(number.ptr == value.data() + value.size() && size >= 0 && size <= INT64_MAX - kBlock,
                   "damaged: a pax record has the invalid size '{}'", value);
      size_ = size;
    }
    rest.remove_prefix(length);
  }
}

std::string TarReader::data() {
  check_state(unread_ == padded(member_.size), "{}: data() was already called for this member; call next() first",
              where());
  check(member_.size <= kMemberBytesMax, "the member has {} bytes; expected at most {}; split it, or skip it",
        member_.size, kMemberBytesMax);
  return read_bytes(member_.size);
}

// Reads in pieces, so that a damaged size does not allocate more memory than the file can fill.
std::string TarReader::read_bytes(std::int64_t num_bytes) {
  std::string bytes;
  while (static_cast<std::int64_t>(bytes.size()) < num_bytes) {
    const auto done = bytes.size();
    const auto piece = std::min(kPiece, num_bytes - static_cast<std::int64_t>(done));
    bytes.resize(done + static_cast<std::size_t>(piece));
    const auto got = located([&] { return file_.read(bytes.data() + done, piece); });
    check_intact(got == piece, "the file is truncated or damaged: expected {} bytes, got {}", num_bytes,
                 done + static_cast<std::size_t>(got));
  }
  unread_ -= num_bytes;
  return bytes;
}

// Data are padded to blocks of 512 bytes; unread_ includes the padding.
void TarReader::skip_data() {
  const bool is_there = located([&] { return file_.skip(unread_); });
  check_intact(is_there, "the file is truncated or damaged: it ends inside this member");
  unread_ = 0;
}

}  // namespace accel
