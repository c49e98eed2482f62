// Sequential reading of plain files and of gzip files. zlib's own layer, gzread, silently ignores what follows the last
// gzip member, so that inflate is used directly.
#include "reference/sources/sequential_file.hpp"

#include <zlib.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <system_error>
#include <utility>
#include <vector>

#include "reference/core/errors.hpp"

namespace accel {

namespace {

constexpr std::int64_t kSequentialPiece = 1 << 24;
constexpr std::size_t kBufferBytes = 1 << 15;  // small, because skipping a tar member discards a buffer

// Opening a pipe without a writer would block forever.
bool can_be_opened(const std::string& path) {
  std::error_code error;
  return !std::filesystem::exists(path, error) || std::filesystem::is_regular_file(path, error);
}

using OpenFile = std::unique_ptr<std::FILE, int (*)(std::FILE*)>;

OpenFile open_file(const std::string& path) { return {std::fopen(path.c_str(), "rbe"), std::fclose}; }

}  // namespace

// Gzip data are one or more members, as `cat a.gz b.gz` makes them, and may be padded with zeros.
class SequentialFile::Source {
 public:
  explicit Source(const std::string& path) : file_(open_file(path)) {
    check_config(file_ != nullptr, "{}: cannot be opened: {}; expected a readable file", path,
                 std::generic_category().message(errno));
    std::setvbuf(file_.get(), nullptr, _IOFBF, kBufferBytes);
    if (!is_gzip(path)) return;
    input_.resize(kBufferBytes);
    constexpr int kGzipOnly = 16 + MAX_WBITS;
    ensure(inflateInit2(&stream_, kGzipOnly) == Z_OK, "{}: zlib failed to start", path);
  }
  ~Source() { inflateEnd(&stream_); }
  Source(const Source&) = delete;
  Source& operator=(const Source&) = delete;

  // Returns the number of bytes read: 0 at the end of the file or at an error, whose reason is in `fault`.
  std::int64_t read(char* data, std::int64_t num_bytes) {
    return input_.empty() ? read_file(data, static_cast<std::size_t>(num_bytes)) : inflate_some(data, num_bytes);
  }
  // Of a plain file.
  bool seek(std::int64_t num_bytes) { return fseeko(file_.get(), num_bytes, SEEK_CUR) == 0; }

  std::string fault;

 private:
  std::int64_t read_file(char* data, std::size_t num_bytes) {
    const auto got = std::fread(data, 1, num_bytes, file_.get());
    if (std::ferror(file_.get()) != 0) fault = std::generic_category().message(errno);
    return static_cast<std::int64_t>(got);
  }

  // Returns false at the end of the file.
  bool fill() {
    if (stream_.avail_in > 0) return true;
    stream_.next_in = input_.data();
    stream_.avail_in = static_cast<unsigned>(read_file(reinterpret_cast<char*>(input_.data()), input_.size()));
    return stream_.avail_in > 0;
  }

  std::int64_t inflate_some(char* data, std::int64_t num_bytes) {
    stream_.next_out = reinterpret_cast<Bytef*>(data);
    stream_.avail_out = static_cast<unsigned>(num_bytes);
    while (fault.empty() && stream_.avail_out == static_cast<unsigned>(num_bytes)) {
      if (is_between_members_ && !start_member()) break;
      const bool is_end_of_file = !fill();  // zlib may still have output
      const auto code = inflate(&stream_, Z_NO_FLUSH);
      is_between_members_ = code == Z_STREAM_END;
      if (code == Z_BUF_ERROR && is_end_of_file && fault.empty()) fault = "unexpected end of file";
      if (code != Z_OK && code != Z_STREAM_END && code != Z_BUF_ERROR)
        fault = stream_.msg != nullptr ? stream_.msg : zError(code);
    }
    return num_bytes - stream_.avail_out;
  }

  // Returns false at the end of the file.
  bool start_member() {
    while (fill() && *stream_.next_in == 0) {
      ++stream_.next_in;
      --stream_.avail_in;
    }
    if (stream_.avail_in == 0) return false;
    if (*stream_.next_in != 0x1f) fault = "other data follow the gzip data";
    inflateReset(&stream_);
    return fault.empty();
  }

  OpenFile file_;
  std::vector<Bytef> input_;  // empty: the file is not compressed
  z_stream stream_{};
  bool is_between_members_ = false;
};

SequentialFile::SequentialFile(std::string path) : path_(std::move(path)) {
  check_config(can_be_opened(path_), "{}: is a folder, a pipe or a device; expected a regular file", path_);
  source_ = std::make_unique<Source>(path_);
  if (is_gzip(path_)) expanded_bytes_max_ = expanded_gzip_bytes_max(path_);
}

SequentialFile::~SequentialFile() = default;

std::int64_t SequentialFile::read(char* data, std::int64_t num_bytes) {
  std::int64_t done = 0;
  while (done < num_bytes) {
    const auto got = source_->read(data + done, std::min(kSequentialPiece, num_bytes - done));
    done += got;
    offset_ += got;
    check_expansion();
    if (!source_->fault.empty()) throw_damaged();
    if (got == 0) break;
  }
  return done;
}

// Reads the last byte instead of skipping it, because seeking beyond the end of a plain file succeeds.
bool SequentialFile::skip(std::int64_t num_bytes) {
  if (num_bytes == 0) return true;
  if (!expanded_bytes_max_) {
    if (!source_->seek(num_bytes - 1)) source_->fault = std::generic_category().message(errno);
    if (!source_->fault.empty()) throw_damaged();
    offset_ += num_bytes - 1;
    num_bytes = 1;
  }
  std::vector<char> skipped(static_cast<std::size_t>(std::min(num_bytes, std::int64_t{kBufferBytes})));
  while (num_bytes > 0) {
    const auto piece = std::min(num_bytes, std::ssize(skipped));
    if (read(skipped.data(), piece) < piece) return false;
    num_bytes -= piece;
  }
  return true;
}

// Checked while data are read, since the sizes that gzip stores may be wrong.
void SequentialFile::check_expansion() const {
  if (!expanded_bytes_max_ || offset_ <= *expanded_bytes_max_) return;
  throw ConfigError(fmt::format(
      "{}: the gzip data expand to more than {} bytes; expected at most 64 MiB or 100 times the size of the "
      "file; decompress the file if this is correct",
      path_, *expanded_bytes_max_));
}

void SequentialFile::throw_damaged() const {
  throw ConfigError(
      fmt::format("{}: the file is truncated or damaged: reading stopped at byte {}: {}; copy or download it again",
                  path_, offset_, source_->fault));
}

bool is_gzip(const std::string& path) {
  if (!can_be_opened(path)) return false;
  const auto file = open_file(path);
  std::array<unsigned char, 2> magic{};
  return file && std::fread(magic.data(), 1, magic.size(), file.get()) == magic.size() && magic[0] == 0x1f &&
         magic[1] == 0x8b;
}

std::int64_t expanded_gzip_bytes_max(const std::string& path) {
  constexpr std::int64_t kBytesMax = 64 << 20, kRatioMax = 100;
  std::error_code error;
  const auto num_bytes = std::filesystem::file_size(path, error);
  return std::max(kBytesMax, error ? 0 : kRatioMax * static_cast<std::int64_t>(num_bytes));
}

// The size of a .gz file's contents is unknown in advance, so the text grows piece by piece until a short read.
std::string read_all(const std::string& path) {
  SequentialFile file(path);
  constexpr std::int64_t kPiece = 1 << 20;
  std::string text;
  for (std::int64_t got = kPiece; got == kPiece;) {
    text.resize(text.size() + kPiece);
    got = file.read(text.data() + text.size() - kPiece, kPiece);
    text.resize(text.size() - kPiece + got);
  }
  return text;
}

}  // namespace accel
