#include "reference/core/files.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <system_error>
#include <utility>

namespace accel {
namespace {

// Repeats a system call that a signal cut short.
template <typename Call>
auto uninterrupted(Call&& call) {
  auto result = call();
  while (result < 0 && errno == EINTR) result = call();
  return result;
}

class Descriptor {
 public:
  Descriptor(const std::string& path, int flags, std::string_view done)
      : descriptor_(uninterrupted([&] { return ::open(path.c_str(), flags | O_CLOEXEC, 0666); })) {
    if (descriptor_ < 0) throw FileError(path, done, errno);
  }
  ~Descriptor() { close(); }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  [[nodiscard]] int get() const { return descriptor_; }
  /// Not repeated after a signal: the descriptor is gone by then.
  int close() { return descriptor_ < 0 ? 0 : ::close(std::exchange(descriptor_, -1)); }

 private:
  int descriptor_;
};

class PosixFile final : public WritableFile {
 public:
  explicit PosixFile(const std::string& path) : path_(path), file_(path, O_WRONLY | O_CREAT | O_TRUNC, "created") {}

  void append(std::string_view bytes) override {
    while (!bytes.empty()) {
      const auto written = uninterrupted([&] { return ::write(file_.get(), bytes.data(), bytes.size()); });
      if (written < 0) throw FileError(path_, "written", errno);
      bytes.remove_prefix(static_cast<std::size_t>(written));
    }
  }
  void sync() override {
    if (uninterrupted([&] { return ::fsync(file_.get()); }) != 0) throw FileError(path_, "written to the disk", errno);
  }
  void close() override {
    if (file_.close() != 0 && errno != EINTR) throw FileError(path_, "written", errno);
  }

 private:
  std::string path_;
  Descriptor file_;
};

std::string folder_of(const std::string& path) {
  const auto folder = std::filesystem::path(path).parent_path().string();
  return folder.empty() ? "." : folder;
}

bool is_listed(Files& files, const std::string& path, std::string_view ending) {
  const auto name = std::filesystem::path(path).filename().string().append(ending);
  const auto names = files.list(folder_of(path));
  return std::find(names.begin(), names.end(), name) != names.end();
}

void remove_if_there(Files& files, const std::string& path) {
  try {
    files.remove(path);
  } catch (const Error&) {
    // The error that led here is the one to tell.
  }
}

}  // namespace

FileError::FileError(const std::string& path, std::string_view done, int code)
    : FileError(fmt::format("{}: cannot be {}: {}", path, done, std::generic_category().message(code)), code) {}

std::unique_ptr<WritableFile> PosixFiles::create(const std::string& path) { return std::make_unique<PosixFile>(path); }

std::string PosixFiles::read(const std::string& path) {
  const Descriptor file(path, O_RDONLY, "read");
  std::string bytes;
  for (std::size_t size = 0;;) {
    constexpr std::size_t kStep = 1 << 20;
    bytes.resize(size + kStep);
    const auto count = uninterrupted([&] { return ::read(file.get(), bytes.data() + size, kStep); });
    if (count < 0) throw FileError(path, "read", errno);
    bytes.resize(size += static_cast<std::size_t>(count));
    if (count == 0) return bytes;
  }
}

std::vector<std::string> PosixFiles::list(const std::string& path) {
  std::error_code code;
  std::vector<std::string> names;
  for (std::filesystem::directory_iterator entry(path, code), end; !code && entry != end; entry.increment(code)) {
    names.push_back(entry->path().filename().string() + (entry->is_directory() ? "/" : ""));
  }
  if (code && code != std::errc::no_such_file_or_directory) throw FileError(path, "listed", code.value());
  std::sort(names.begin(), names.end());
  return names;
}

void PosixFiles::rename(const std::string& from, const std::string& to) {
  if (::rename(from.c_str(), to.c_str()) != 0) throw FileError(from, "renamed to " + to, errno);
}

void PosixFiles::remove(const std::string& path) {
  if (::remove(path.c_str()) != 0) throw FileError(path, "removed", errno);
}

void PosixFiles::make_folder(const std::string& path) {
  std::error_code code;
  std::filesystem::create_directories(path, code);
  if (code) throw FileError(path, "made a folder", code.value());
}

void PosixFiles::sync_folder(const std::string& path) {
  const Descriptor folder(path, O_RDONLY | O_DIRECTORY, "opened as a folder");
  const bool is_synced = uninterrupted([&] { return ::fsync(folder.get()); }) == 0;
  // EINVAL: a file system that keeps folders elsewhere, and has nothing to sync here.
  if (!is_synced && errno != EINVAL) throw FileError(path, "written to the disk", errno);
}

bool is_file(Files& files, const std::string& path) { return is_listed(files, path, ""); }
bool is_folder(Files& files, const std::string& path) { return is_listed(files, path, "/"); }

void remove_folder(Files& files, const std::string& path) {
  if (!is_folder(files, path)) return;
  for (const auto& name : files.list(path))
    name.ends_with('/') ? remove_folder(files, path + "/" + name.substr(0, name.size() - 1))
                        : files.remove(path + "/" + name);
  files.remove(path);
}

void write_atomically(Files& files, const std::string& path, const std::function<void(WritableFile&)>& write) {
  const auto temporary = path + ".tmp";
  try {
    const auto file = files.create(temporary);
    write(*file);
    file->sync();  // before the rename: else a name that is on the disk could lead to data that is not
    file->close();
    files.rename(temporary, path);
  } catch (const FileError& error) {
    remove_if_there(files, temporary);
    throw FileError(fmt::format("{}: not written; what was there before is untouched: {}", path, error.what()),
                    error.code());
  } catch (...) {
    remove_if_there(files, temporary);
    throw;
  }
  files.sync_folder(folder_of(path));
}

void write_atomically(Files& files, const std::string& path, std::string_view bytes) {
  write_atomically(files, path, [&](WritableFile& file) { file.append(bytes); });
}

}  // namespace accel
