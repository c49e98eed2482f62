#pragma once

#include <memory>
#include <string>
#include <utility>

/// A file that one process at a time holds, by a lock of the operating system, so that the lock of a process that died
/// is free. It contains the holder's machine and process, and is removed when it is released.
///
///     const auto lock = LockFile::acquire("run/checkpoints.lock");
///     if (!lock) throw Error("in use by " + LockFile::holder("run/checkpoints.lock"));
///
/// Processes of several machines exclude each other if the file system supports locks, as NFS does. Where it supports
/// none, everyone gets the lock. Thread rule: any thread.
namespace accel {

class LockFile {
 public:
  /// Returns null if another process holds the file. Holders in one process share it. Throws FileError if the file
  /// cannot be created.
  [[nodiscard]] static std::shared_ptr<const LockFile> acquire(const std::string& path);
  /// "process 4711 on node-3"; "another process" if the file does not tell.
  [[nodiscard]] static std::string holder(const std::string& path);

  ~LockFile();
  LockFile(const LockFile&) = delete;
  LockFile& operator=(const LockFile&) = delete;

 private:
  LockFile(std::string path, int descriptor, int process)
      : path_(std::move(path)), descriptor_(descriptor), process_(process) {}
  static int open_and_lock(const std::string& path);

  std::string path_;  // canonical, so that it serves as key and outlives a change of the working folder
  int descriptor_, process_;
};

}  // namespace accel
