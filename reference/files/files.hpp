#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "reference/core/errors.hpp"

/// File access through an interface, so that tests can substitute a simulated disk that tears writes, fills up or
/// loses power.
///
///     PosixFiles files;
///     files.make_folder("checkpoints/checkpoint_3");
///     write_atomically(files, "checkpoints/checkpoint_3/optimizer.bin", bytes);
///
/// Every failure throws a FileError that names the file.
/// Thread rule: any thread; a WritableFile belongs to one thread, and a path has one writer at a time.
namespace accel {

/// A file operation failed. `code()` is the errno, so that a caller can distinguish a full disk from a missing file.
class FileError : public Error {
 public:
  FileError(const std::string& message, int code) : Error(message), code_(code) {}
  /// Formats the message, e.g. "a.bin: cannot be written: No space left on device; free disk space".
  FileError(const std::string& path, std::string_view done, int code);
  [[nodiscard]] int code() const { return code_; }

 private:
  int code_;
};

/// A file opened for appending. Data that was not synced may be lost in a power failure. A file that was destroyed
/// without close() may have lost data without an error.
class WritableFile {
 public:
  virtual ~WritableFile() = default;
  virtual void append(std::string_view bytes) = 0;
  /// Blocks until the disk holds every byte.
  virtual void sync() = 0;
  /// Closes the file. Some file systems report a full disk only here. The destructor closes too, but ignores errors.
  virtual void close() = 0;
};

class Files {
 public:
  virtual ~Files() = default;
  /// Creates an empty file, or truncates an existing one.
  [[nodiscard]] virtual std::unique_ptr<WritableFile> create(const std::string& path) = 0;
  [[nodiscard]] virtual std::string read(const std::string& path) = 0;
  /// Returns the sorted names in a folder; names of subfolders end in '/'. A missing folder gives an empty list.
  [[nodiscard]] virtual std::vector<std::string> list(const std::string& path) = 0;
  /// Renames atomically and replaces an existing file `to`: a reader sees either the old file or the new one. If `from`
  /// is a folder, `to` must be absent or an empty folder.
  virtual void rename(const std::string& from, const std::string& to) = 0;
  /// Gives a file a second name, which must be free. By default, and where the file system has no such links, a copy.
  virtual void link(const std::string& from, const std::string& to);
  /// Blocks until the disk holds the bytes of a file that something else has written. By default nothing: files that
  /// are written through this interface are synced there.
  virtual void sync_file(const std::string& /*path*/) {}
  /// Removes a file or an empty folder.
  virtual void remove(const std::string& path) = 0;
  /// Creates a folder and its missing parents. An existing folder is unchanged.
  virtual void make_folder(const std::string& path) = 0;
  /// Blocks until the disk holds all changes to the names in the folder: files created, renamed and removed.
  virtual void sync_folder(const std::string& path) = 0;
};

/// The operating system's files.
class PosixFiles final : public Files {
 public:
  [[nodiscard]] std::unique_ptr<WritableFile> create(const std::string& path) override;
  [[nodiscard]] std::string read(const std::string& path) override;
  [[nodiscard]] std::vector<std::string> list(const std::string& path) override;
  void rename(const std::string& from, const std::string& to) override;
  void link(const std::string& from, const std::string& to) override;
  void sync_file(const std::string& path) override;
  void remove(const std::string& path) override;
  void make_folder(const std::string& path) override;
  void sync_folder(const std::string& path) override;
};

[[nodiscard]] bool is_file(Files& files, const std::string& path);
[[nodiscard]] bool is_folder(Files& files, const std::string& path);
/// Removes a folder and its content. Does nothing if the folder does not exist.
void remove_folder(Files& files, const std::string& path);

/// Writes a file atomically: a reader of `path`, also after a crash, finds either the old content or the new one, and
/// always the new one after this function returned. On an error the old content is unchanged and the temporary file,
/// `path`.tmp, is removed. A process that dies may leave the temporary file; the next write replaces it.
void write_atomically(Files& files, const std::string& path, std::string_view bytes);
/// As above, for content that `write` produces piece by piece.
void write_atomically(Files& files, const std::string& path, const std::function<void(WritableFile&)>& write);

}  // namespace accel
