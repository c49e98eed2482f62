#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "reference/core/errors.hpp"

/// Files as what writes them needs them to be: an interface, so that a simulated disk can tear, fill up or lose power.
///
///     PosixFiles files;
///     files.make_folder("checkpoints/checkpoint_3");
///     write_atomically(files, "checkpoints/checkpoint_3/optimizer.bin", bytes);
///
/// Every failure is a FileError that names the file.
/// Thread rule: any threads, each with files of its own; one path has one writer at a time.
namespace accel {

/// The system refused something; `code()` is its errno, so that a caller can tell a full disk from a missing file.
class FileError : public Error {
 public:
  FileError(const std::string& message, int code) : Error(message), code_(code) {}
  /// E.g. "a.bin: cannot be written: No space left on device".
  FileError(const std::string& path, std::string_view done, int code);
  [[nodiscard]] int code() const { return code_; }

 private:
  int code_;
};

/// A file that grows. What is not synced may be lost with the machine; what is not closed, with an error unseen.
class WritableFile {
 public:
  virtual ~WritableFile() = default;
  virtual void append(std::string_view bytes) = 0;
  /// Returns when the disk holds every byte.
  virtual void sync() = 0;
  /// Some file systems say only here that the disk is full. The destructor closes too, and says nothing.
  virtual void close() = 0;
};

class Files {
 public:
  virtual ~Files() = default;
  /// An empty file, in place of one that is there.
  [[nodiscard]] virtual std::unique_ptr<WritableFile> create(const std::string& path) = 0;
  [[nodiscard]] virtual std::string read(const std::string& path) = 0;
  /// Names in a folder, in order; those of folders end in '/'. One that is not there has none.
  [[nodiscard]] virtual std::vector<std::string> list(const std::string& path) = 0;
  /// One step, in which a file `to` is replaced: at any time there is the old file or the new one. Of a folder, `to` is
  /// not there or empty.
  virtual void rename(const std::string& from, const std::string& to) = 0;
  /// A file or an empty folder.
  virtual void remove(const std::string& path) = 0;
  /// And the folders above it; one that is there is left as it is.
  virtual void make_folder(const std::string& path) = 0;
  /// Returns when the disk holds the folder's names: those created, renamed and removed before.
  virtual void sync_folder(const std::string& path) = 0;
};

/// The system's.
class PosixFiles final : public Files {
 public:
  [[nodiscard]] std::unique_ptr<WritableFile> create(const std::string& path) override;
  [[nodiscard]] std::string read(const std::string& path) override;
  [[nodiscard]] std::vector<std::string> list(const std::string& path) override;
  void rename(const std::string& from, const std::string& to) override;
  void remove(const std::string& path) override;
  void make_folder(const std::string& path) override;
  void sync_folder(const std::string& path) override;
};

[[nodiscard]] bool is_file(Files& files, const std::string& path);
[[nodiscard]] bool is_folder(Files& files, const std::string& path);
/// A folder and all that is in it; nothing if it is not there.
void remove_folder(Files& files, const std::string& path);

/// Writes a whole file or none: whoever reads `path`, after a crash too, finds the old content or the new one, and
/// after the return the new one. On an error what was there is there still, and the temporary file, `path`.tmp, is
/// gone; a process that dies leaves it behind, and the next write replaces it.
void write_atomically(Files& files, const std::string& path, std::string_view bytes);
/// The same for content that comes in pieces.
void write_atomically(Files& files, const std::string& path, const std::function<void(WritableFile&)>& write);

}  // namespace accel
