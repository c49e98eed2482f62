// POSIX implementation of `Files`, and the operations built on the interface. Checkpoints rely on
// write_atomically: every file of a checkpoint is either complete or absent after a crash.
#include "reference/files/files.hpp"

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

// Repeats a system call that a signal interrupted.
template <typename Call>
auto uninterrupted(Call&& call) {
  auto result = call();
  while (result < 0 && errno == EINTR) result = call();
  return result;
}

// Owns a file descriptor. O_CLOEXEC keeps it out of programs that this process starts.
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
  // Not repeated after EINTR: Linux has already released the descriptor, which another thread may own by then.
  int close() { return descriptor_ < 0 ? 0 : ::close(std::exchange(descriptor_, -1)); }

 private:
  int descriptor_;
};

// Writes are unbuffered: when append() returns, the operating system has the data, and a full disk is reported at
// once.
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

// Uses `list` rather than a stat call, so that a simulated disk needs only the functions of the interface.
bool is_listed(Files& files, const std::string& path, std::string_view ending) {
  const auto name = std::filesystem::path(path).filename().string().append(ending);
  const auto names = files.list(folder_of(path));
  return std::find(names.begin(), names.end(), name) != names.end();
}

void remove_if_exists(Files& files, const std::string& path) {
  try {
    files.remove(path);
  } catch (const Error&) {
    // Ignored: the caller reports the error that made the removal necessary.
  }
}

// What to do, where the system's text of the error does not imply it. ENOENT of a file to create means that its folder
// is missing.
const char* what_to_do(std::string_view done, int code) {
  switch (code) {
    case ENOENT:
      if (done.starts_with("renamed")) return "; expected an existing file, and an existing folder for the new name";
      return done == "created" || done == "opened as a folder" ? "; create the folder first" : "";
    case ENOTDIR: return "; expected a folder, but a part of the path is a file";
    case EISDIR: return done == "read" ? "" : "; choose another name, or remove the folder";
    case ENOTEMPTY: return "; remove the content of the folder first";
    case ENOSPC: return "; free disk space";
    case EACCES:
    case EPERM:
    case EROFS: return "; change the permissions, or choose another path";
    case EMFILE: return "; raise the limit of open files (ulimit -n)";
    default: return "";
  }
}

}  // namespace

FileError::FileError(const std::string& path, std::string_view done, int code)
    : FileError(fmt::format("{}: cannot be {}: {}{}", path, done, std::generic_category().message(code),
                            what_to_do(done, code)),
                code) {}

std::unique_ptr<WritableFile> PosixFiles::create(const std::string& path) { return std::make_unique<PosixFile>(path); }

// Reads until end of file instead of asking for the size first: files under /proc report size 0, and a file may
// grow between the two calls.
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

// Sorted, because the order of directory entries depends on the file system and must not affect a run.
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

void Files::link(const std::string& from, const std::string& to) {
  const auto file = create(to);
  file->append(read(from));
  file->sync();
  file->close();
}

void PosixFiles::link(const std::string& from, const std::string& to) {
  if (::link(from.c_str(), to.c_str()) == 0) return;
  const bool has_links = errno != EPERM && errno != EOPNOTSUPP && errno != ENOSYS && errno != EMLINK && errno != EXDEV;
  if (has_links) throw FileError(from, "given the name " + to, errno);
  Files::link(from, to);
}

void PosixFiles::sync_file(const std::string& path) {
  const Descriptor file(path, O_RDONLY, "read");
  if (uninterrupted([&] { return ::fsync(file.get()); }) != 0) throw FileError(path, "written to the disk", errno);
}

void PosixFiles::remove(const std::string& path) {
  if (::remove(path.c_str()) != 0) throw FileError(path, "removed", errno);
}

void PosixFiles::make_folder(const std::string& path) {
  std::error_code code;
  std::filesystem::create_directories(path, code);
  if (code) throw FileError(path, "created as a folder", code.value());
}

// A rename is durable only after the directory that holds the name was synced.
void PosixFiles::sync_folder(const std::string& path) {
  const Descriptor folder(path, O_RDONLY | O_DIRECTORY, "opened as a folder");
  const bool is_synced = uninterrupted([&] { return ::fsync(folder.get()); }) == 0;
  // EINVAL: the file system (some network and FUSE ones) does not support fsync on a directory.
  if (!is_synced && errno != EINVAL) throw FileError(path, "written to the disk", errno);
}

bool is_file(Files& files, const std::string& path) { return is_listed(files, path, ""); }
bool is_folder(Files& files, const std::string& path) { return is_listed(files, path, "/"); }

// Recursive over the interface rather than std::filesystem::remove_all, so that a simulated disk can fail in
// between.
void remove_folder(Files& files, const std::string& path) {
  if (!is_folder(files, path)) return;
  for (const auto& name : files.list(path))
    name.ends_with('/') ? remove_folder(files, path + "/" + name.substr(0, name.size() - 1))
                        : files.remove(path + "/" + name);
  files.remove(path);
}

// The order is what makes the write atomic: write the temporary file, sync its data, rename, sync the directory.
// The temporary file is in the same directory because rename cannot cross file systems.
void write_atomically(Files& files, const std::string& path, const std::function<void(WritableFile&)>& write) {
  const auto temporary = path + ".tmp";
  try {
    const auto file = files.create(temporary);
    write(*file);
    // Sync before the rename: otherwise the disk could hold the new name without its data after a power loss.
    file->sync();
    file->close();
    files.rename(temporary, path);
  } catch (const FileError& error) {
    remove_if_exists(files, temporary);
    throw FileError(fmt::format("{}: not written; the previous content is unchanged: {}", path, error.what()),
                    error.code());
  } catch (...) {
    remove_if_exists(files, temporary);
    throw;
  }
  files.sync_folder(folder_of(path));
}

void write_atomically(Files& files, const std::string& path, std::string_view bytes) {
  write_atomically(files, path, [&](WritableFile& file) { file.append(bytes); });
}

}  // namespace accel
