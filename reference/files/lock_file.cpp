#include "reference/files/lock_file.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <climits>
#include <filesystem>
#include <fstream>
#include <map>
#include <mutex>
#include <thread>
#include <utility>

#include "reference/files/files.hpp"

namespace accel {
namespace {

// The locks of this process. flock excludes other descriptors of the same process, too.
struct OwnLocks {
  std::mutex mutex;
  std::map<std::string, std::weak_ptr<const LockFile>> by_path;
};

OwnLocks& own_locks() {
  static auto& locks = *new OwnLocks;  // locks of static objects are released after all destructors of this file
  return locks;
}

constexpr int kHeld = -1;

std::string host_name() {
  char name[HOST_NAME_MAX + 1] = "";
  return gethostname(name, sizeof name) == 0 ? name : "an unknown machine";
}

// Whether the path still names the open file. A holder removes its file when it releases it.
bool is_at(const std::string& path, int descriptor) {
  struct stat open_file {
  }, named{};
  return fstat(descriptor, &open_file) == 0 && stat(path.c_str(), &named) == 0 && open_file.st_dev == named.st_dev &&
         open_file.st_ino == named.st_ino;
}

// A failed write leaves a file that does not tell its holder.
void write_holder(int descriptor) {
  const auto text = fmt::format("process {} on {}\n", getpid(), host_name());
  if (ftruncate(descriptor, 0) == 0 && write(descriptor, text.data(), text.size()) < 0) return;
}

}  // namespace

int LockFile::open_and_lock(const std::string& path) {
  constexpr int kAttempts = 1000;  // some file systems number a file anew each time
  for (int attempt = 1;; ++attempt) {
    const int descriptor = open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    if (descriptor < 0) throw FileError(path, "created", errno);
    int result = 0;
    do result = flock(descriptor, LOCK_EX | LOCK_NB);
    while (result != 0 && errno == EINTR);
    if (result != 0 && errno == EWOULDBLOCK) {
      close(descriptor);
      return kHeld;
    }
    // Other errors: the file system has no locks.
    if (is_at(path, descriptor) || attempt == kAttempts) {
      write_holder(descriptor);
      return descriptor;
    }
    close(descriptor);
  }
}

std::shared_ptr<const LockFile> LockFile::acquire(const std::string& path) {
  const auto key = std::filesystem::weakly_canonical(std::filesystem::absolute(path)).string();
  auto& [mutex, by_path] = own_locks();
  std::unique_lock lock(mutex);
  for (auto known = by_path.find(key); known != by_path.end(); known = by_path.find(key)) {
    if (auto own = known->second.lock()) return own;
    lock.unlock();  // another thread is releasing it
    std::this_thread::yield();
    lock.lock();
  }
  const int descriptor = open_and_lock(key);
  if (descriptor == kHeld) return nullptr;
  std::shared_ptr<const LockFile> own(new LockFile(key, descriptor, getpid()));
  by_path[key] = own;
  return own;
}

std::string LockFile::holder(const std::string& path) {
  std::ifstream in(path);
  std::string text;
  return std::getline(in, text) && text.starts_with("process ") ? text : "another process";
}

// Removed before it is released: a process that opened it meanwhile sees that the path names another file. A forked
// process has a copy of this object, and somebody may have removed the file and made another.
LockFile::~LockFile() {
  const std::lock_guard lock(own_locks().mutex);
  own_locks().by_path.erase(path_);
  if (getpid() == process_ && is_at(path_, descriptor_)) unlink(path_.c_str());
  close(descriptor_);
}

}  // namespace accel
