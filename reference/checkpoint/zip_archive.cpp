// A reader for the zip format of torch.save (PKWARE APPNOTE.TXT, with zip64). It is used instead of LibTorch's
// PyTorchStreamReader because records stay in the file until they are needed, and because all numbers are
// checked against the size of the file before they are used.
#include "reference/checkpoint/zip_archive.hpp"

#include <zlib.h>

#include <algorithm>
#include <cstring>
#include <utility>
#include <vector>

#include "reference/checkpoint/byte_cursor.hpp"
#include "reference/core/errors.hpp"

namespace accel::checkpoint {
namespace {

constexpr std::uint32_t kLocalHeader = 0x04034b50, kEntry = 0x02014b50, kEnd = 0x06054b50, kEnd64 = 0x06064b50,
                        kEnd64Locator = 0x07064b50;
constexpr std::uint64_t kEndBytes = 22, kEnd64LocatorBytes = 20, kEnd64Bytes = 56, kLocalHeaderBytes = 30,
                        kCommentBytesMax = 0xffff, kDirectoryBytesMax = std::uint64_t{1} << 28;

// A file that cannot be opened is an error of the checkpoint here, not of the configuration.
std::shared_ptr<const MappedFile> opened(const std::string& path) {
  try {
    return std::make_shared<const MappedFile>(path);
  } catch (const ConfigError& error) {
    throw CheckpointError(error.what());
  }
}

// Finds the end-of-central-directory record from the back: the one whose comment ends exactly at the end of the file.
// The magic number alone may occur in data. Returns its distance from the end; 0 if there is none.
std::uint64_t distance_of_end(std::string_view tail) {
  for (std::uint64_t back = kEndBytes; back <= tail.size(); ++back) {
    const auto end = tail.substr(tail.size() - back);
    std::uint32_t magic = 0;
    std::uint16_t comment_bytes = 0;
    std::memcpy(&magic, end.data(), sizeof magic);
    std::memcpy(&comment_bytes, end.data() + 20, sizeof comment_bytes);
    if (magic == kEnd && comment_bytes == back - kEndBytes) return back;
  }
  return 0;
}

struct Entry {
  std::string name;
  std::uint32_t checksum = 0;
  std::uint64_t size = 0, header = 0;
};

// Reads one entry of the central directory. Fields that this reader does not need are skipped (versions, times,
// attributes).
Entry read_entry(ByteCursor& cursor) {
  const auto& what = cursor.what();
  check_checkpoint(cursor.number<std::uint32_t>() == kEntry,
                   "{}: damaged: no directory entry at byte {}; copy or save the file again", what, cursor.place() - 4);
  cursor.skip(6);
  const auto method = cursor.number<std::uint16_t>();
  cursor.skip(4);
  Entry entry{.checksum = cursor.number<std::uint32_t>()};
  std::uint64_t compressed_size = cursor.number<std::uint32_t>();
  entry.size = cursor.number<std::uint32_t>();
  const auto name_bytes = cursor.number<std::uint16_t>(), extra_bytes = cursor.number<std::uint16_t>(),
             comment_bytes = cursor.number<std::uint16_t>();
  cursor.skip(8);
  entry.header = cursor.number<std::uint32_t>();
  entry.name = cursor.take(name_bytes);
  ByteCursor extra(cursor.take(extra_bytes), what + ": the directory's entry of " + entry.name);
  while (extra.place() + 4 <= extra_bytes) {
    const auto kind = extra.number<std::uint16_t>();
    ByteCursor field(extra.take(extra.number<std::uint16_t>()), extra.what());
    if (kind != 1) continue;  // 1: the zip64 field, which contains the numbers that are 0xffffffff above
    for (auto* number : {&entry.size, &compressed_size, &entry.header}) {
      if (*number == 0xffffffff) *number = field.number<std::uint64_t>();
    }
  }
  cursor.skip(comment_bytes);
  check_checkpoint(method == 0 && compressed_size == entry.size,
                   "{}: record {} is compressed; expected uncompressed records, as torch.save writes them", what,
                   entry.name);
  return entry;
}

}  // namespace

struct ZipArchive::Directory {
  std::uint64_t num_entries = 0, place = 0, size = 0;
};

ZipArchive::ZipArchive(const std::string& path) : ZipArchive(opened(path)) {}

ZipArchive::ZipArchive(const std::shared_ptr<const MappedFile>& file)
    : ZipArchive({.file = file, .begin = 0, .size = file->size()}, file->path()) {}

ZipArchive::ZipArchive(Part part, std::string name) : part_(std::move(part)), name_(std::move(name)) {
  read_records(read_end());
}

std::string ZipArchive::read(std::uint64_t begin, std::uint64_t num_bytes, const std::string& what) const {
  check_part(part_.size, begin, num_bytes, what);
  return part_.file->read(part_.begin + begin, num_bytes);
}

// The 32-bit numbers of the end record; a zip64 locator in front of it refers to 64-bit ones that replace them.
ZipArchive::Directory ZipArchive::read_end() const {
  const auto tail_bytes = std::min(part_.size, kEnd64LocatorBytes + kEndBytes + kCommentBytesMax);
  const auto tail = read(part_.size - tail_bytes, tail_bytes, path());
  const auto back = distance_of_end(tail);
  check_checkpoint(
      back > 0,
      "{}: not a complete file of torch.save: no end of a zip archive in {} bytes; the file is truncated or "
      "has another format (files of torch before 1.6 are not archives; load and save them again in Python)",
      path(), part_.size);
  const auto end = part_.size - back;
  ByteCursor cursor(tail, path(), tail.size() - back + 10);
  Directory directory{.num_entries = cursor.number<std::uint16_t>(), .size = cursor.number<std::uint32_t>()};
  directory.place = cursor.number<std::uint32_t>();
  if (end >= kEnd64LocatorBytes) {
    ByteCursor locator(tail, path(), tail.size() - back - kEnd64LocatorBytes);
    if (locator.number<std::uint32_t>() == kEnd64Locator) {
      locator.skip(4);
      const auto bytes = read(locator.number<std::uint64_t>(), kEnd64Bytes, path());
      ByteCursor wide(bytes, path());
      check_checkpoint(wide.number<std::uint32_t>() == kEnd64,
                       "{}: damaged: the archive's zip64 end record is missing; copy or save the file again", path());
      wide.skip(28);
      directory.num_entries = wide.number<std::uint64_t>();
      directory.size = wide.number<std::uint64_t>();
      directory.place = wide.number<std::uint64_t>();
    }
  }
  check_checkpoint(directory.place <= end && directory.size <= end - directory.place,
                   "{}: damaged: the archive's directory lies outside the file; copy or save the file again", path());
  check_checkpoint(directory.size <= kDirectoryBytesMax,
                   "{}: damaged: the archive's directory has {} bytes; expected at most {}; copy or save the file "
                   "again",
                   path(), directory.size, kDirectoryBytesMax);
  return directory;
}

// Every record has a local header before its data, whose name must match the directory. Overlapping records are
// rejected after sorting: a "zip bomb" could otherwise make a small file look huge.
void ZipArchive::read_records(const Directory& directory) {
  const auto entries = read(directory.place, directory.size, path());
  ByteCursor cursor(entries, path());
  std::vector<std::pair<std::uint64_t, std::uint64_t>>
      parts;  // begin and end of each record in the file, header included
  for (std::uint64_t i = 0; i < directory.num_entries; ++i) {
    const auto entry = read_entry(cursor);
    const auto what = path() + ": record " + entry.name;
    check_part(directory.place, entry.header, kLocalHeaderBytes, what);
    const auto header = read(entry.header, kLocalHeaderBytes, what);
    ByteCursor local(header, what);
    check_checkpoint(local.number<std::uint32_t>() == kLocalHeader,
                     "{}: damaged: record {} has no header at byte {}; copy or save the file again", path(), entry.name,
                     entry.header);
    local.skip(22);
    const auto name_bytes = local.number<std::uint16_t>(), extra_bytes = local.number<std::uint16_t>();
    const auto name = read(entry.header + kLocalHeaderBytes, name_bytes, what);
    check_checkpoint(name == entry.name,
                     "{}: damaged: record {} has the name {} in its own header; copy or save the file again", path(),
                     entry.name, name);
    const auto begin = entry.header + kLocalHeaderBytes + name_bytes + extra_bytes;
    check_part(directory.place, begin, entry.size, what);
    parts.emplace_back(entry.header, begin + entry.size);
    // torch.save puts all records into one folder named after the file, which readers ignore.
    const auto slash = entry.name.find('/');
    const bool is_new = records_
                            .emplace(entry.name.substr(slash == std::string::npos ? 0 : slash + 1),
                                     Record{begin, entry.size, entry.checksum})
                            .second;
    check_checkpoint(is_new, "{}: damaged: two records have the name {}; copy or save the file again", path(),
                     entry.name);
    has_checksums_ |= entry.checksum != 0;  // torch.serialization.set_crc32_options(False) writes zeros
  }
  std::sort(parts.begin(), parts.end());
  for (std::size_t i = 1; i < parts.size(); ++i) {
    check_checkpoint(parts[i].first >= parts[i - 1].second,
                     "{}: damaged: two records overlap at byte {}; copy or save the file again", path(),
                     parts[i].first);
  }
}

const ZipArchive::Record& ZipArchive::at(const std::string& name) const {
  const auto found = records_.find(name);
  check_checkpoint(found != records_.end(),
                   "{}: lacks record {}; the file is damaged, or was not written by torch.save; copy it again, or save "
                   "it with torch.save",
                   path(), name);
  return found->second;
}

void ZipArchive::check(const std::string& name, std::string_view bytes) const {
  if (!has_checksums_) return;
  const auto expected = at(name).checksum;
  const auto found = crc32_z(0, reinterpret_cast<const Bytef*>(bytes.data()), bytes.size());
  check_checkpoint(
      found == expected,
      "{}: damaged: record {} of {} bytes has the checksum {:08x}; expected {:08x}; copy or save the file again",
      path(), name, bytes.size(), found, expected);
}

std::string ZipArchive::record(const std::string& name) const {
  std::string bytes(size(name), '\0');
  copy_out(name, bytes.data());
  return bytes;
}

// The checksum is computed on the copy, so the file is read only once.
void ZipArchive::copy_out(const std::string& name, char* to) const {
  const auto& record = at(name);
  part_.file->read(part_.begin + record.begin, record.size, to);
  check(name, {to, record.size});
}

}  // namespace accel::checkpoint
