// Sequential reading through zlib's gzip layer, which reads plain files too. zlib reports some errors only
// indirectly, so every short read asks for the error state.
#include "reference/sources/sequential_file.hpp"

#include <zlib.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <filesystem>
#include <system_error>
#include <utility>

#include "reference/core/errors.hpp"

namespace accel {

namespace {

constexpr std::int64_t kSequentialPiece = 1 << 24;

// Opening a pipe without a writer would block forever.
bool can_be_opened(const std::string& path) {
  std::error_code error;
  return !std::filesystem::exists(path, error) || std::filesystem::is_regular_file(path, error);
}

}  // namespace

SequentialFile::SequentialFile(std::string path) : path_(std::move(path)), file_(nullptr, gzclose) {
  check_config(can_be_opened(path_), "{}: is a folder, a pipe or a device; expected a regular file", path_);
  file_.reset(gzopen(path_.c_str(), "rbe"));
  check_config(file_ != nullptr, "{}: cannot be opened: {}; expected a readable file", path_,
               std::generic_category().message(errno));
  gzbuffer(file_.get(), 1 << 15);  // small, because skipping a tar member discards a buffer
  if (is_gzip(path_)) expanded_bytes_max_ = expanded_gzip_bytes_max(path_);
}

// The contract is all or the end of the file, while gzread may return fewer bytes at any time.
std::int64_t SequentialFile::read(char* data, std::int64_t num_bytes) {
  std::int64_t done = 0;
  while (done < num_bytes) {
    const auto got =
        gzread(file_.get(), data + done, static_cast<unsigned>(std::min(kSequentialPiece, num_bytes - done)));
    if (got < 0) throw_damaged();
    if (got == 0) break;
    done += got;
    offset_ += got;
    check_expansion();
  }
  int code = Z_OK;
  if (done < num_bytes) gzerror(file_.get(), &code);
  // A truncated gzip stream returns the available data without an error, and only gzerror reports it.
  if (code != Z_OK) throw_damaged();
  return done;
}

// Reads the last byte instead of skipping it, because seeking beyond the end of a plain file succeeds.
bool SequentialFile::skip(std::int64_t num_bytes) {
  if (num_bytes == 0) return true;
  for (; expanded_bytes_max_ && num_bytes > kSequentialPiece; num_bytes -= kSequentialPiece) {
    if (!skip(kSequentialPiece)) return false;
  }
  if (gzseek(file_.get(), num_bytes - 1, SEEK_CUR) < 0) throw_damaged();
  offset_ += num_bytes - 1;
  char last = 0;
  return read(&last, 1) == 1;
}

// Checked while data are read, since the sizes that gzip stores may be wrong.
void SequentialFile::check_expansion() const {
  if (!expanded_bytes_max_ || offset_ <= *expanded_bytes_max_) return;
  throw ConfigError(fmt::format(
      "{}: the gzip data expand to more than {} bytes; expected at most 64 MiB or 100 times the size of the "
      "file; decompress the file if this is correct",
      path_, *expanded_bytes_max_));
}

// Z_ERRNO means that the reason is in errno; Z_OK occurs if a seek failed without an error of zlib.
void SequentialFile::throw_damaged() const {
  int code = Z_OK;
  const std::string text = gzerror(file_.get(), &code);
  const auto why = code == Z_ERRNO || code == Z_OK ? std::generic_category().message(errno) : text;
  throw ConfigError(
      fmt::format("{}: the file is truncated or damaged: reading stopped at byte {}: {}; copy or download it again",
                  path_, offset_, why));
}

bool is_gzip(const std::string& path) {
  if (!can_be_opened(path)) return false;
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> file(std::fopen(path.c_str(), "rbe"), std::fclose);
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
