// Loaded before the program of a rank that is a process (LD_PRELOAD) if faults of files are planned: the simulator
// decides how much of each write to a file reaches the disk. C++ streams, Python and Rust write through these
// functions; what C's own streams write (fwrite, NumPy's tofile) and what the kernel copies (sendfile) is not seen.
#include <dlfcn.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <initializer_list>

#define ACCEL_EXPORT extern "C" [[gnu::visibility("default")]]

namespace {

// See WriteDecision in backends/process/watched_writes.hpp.
using Judge = long long (*)(const char* path, unsigned long long offset, unsigned long long bytes);
std::atomic<Judge> judge{nullptr};
std::atomic<pid_t> judged_process{0};  // a process that it forks writes as ever

template <typename Function>
Function* next(const char* name) {
  return reinterpret_cast<Function*>(dlsym(RTLD_NEXT, name));
}

// Not the program's output, nor files in memory, nor the code that Python keeps.
bool is_judged(int descriptor, char (&path)[PATH_MAX]) {
  struct stat status {};
  if (descriptor <= STDERR_FILENO || fstat(descriptor, &status) != 0 || !S_ISREG(status.st_mode)) return false;
  char link[64];
  std::snprintf(link, sizeof link, "/proc/self/fd/%d", descriptor);
  const auto length = readlink(link, path, sizeof path - 1);
  if (length <= 0) return false;
  path[length] = 0;
  for (const auto* prefix : {"/memfd:", "/dev/", "/proc/", "/sys/"}) {
    if (std::strncmp(path, prefix, std::strlen(prefix)) == 0) return false;
  }
  return std::strstr(path, "/__pycache__/") == nullptr;
}

template <typename WritePart>
ssize_t write_judged(int descriptor, off_t offset, std::size_t bytes, const WritePart& write_part) {
  const auto decide = judge.load();
  char path[PATH_MAX];
  if (decide == nullptr || bytes == 0 || getpid() != judged_process || !is_judged(descriptor, path))
    return write_part(bytes);
  if (offset < 0) offset = lseek(descriptor, 0, SEEK_CUR);
  const auto allowed = decide(path, offset, bytes);
  if (allowed > 0) return write_part(allowed);
  if (allowed == 0) {
    errno = ENOSPC;
    return -1;
  }
  if (const std::size_t last = -1 - allowed; last > 0) static_cast<void>(write_part(last));
  kill(getpid(), SIGKILL);
  for (;;) pause();
}

}  // namespace

ACCEL_EXPORT void accel_judge_writes(Judge decide) {
  judged_process = getpid();
  judge = decide;
}

ACCEL_EXPORT ssize_t write(int descriptor, const void* data, std::size_t bytes) {
  static auto* const real = next<ssize_t(int, const void*, std::size_t)>("write");
  return write_judged(descriptor, -1, bytes, [&](std::size_t part) { return real(descriptor, data, part); });
}

ACCEL_EXPORT ssize_t pwrite(int descriptor, const void* data, std::size_t bytes, off_t offset) {
  static auto* const real = next<ssize_t(int, const void*, std::size_t, off_t)>("pwrite");
  return write_judged(descriptor, offset, bytes,
                      [&](std::size_t part) { return real(descriptor, data, part, offset); });
}

ACCEL_EXPORT ssize_t pwrite64(int descriptor, const void* data, std::size_t bytes, off64_t offset) {
  return pwrite(descriptor, data, bytes, offset);
}

// Piece by piece where a fault may strike, so that a part of a piece can be written.
ACCEL_EXPORT ssize_t writev(int descriptor, const iovec* pieces, int num_pieces) {
  static auto* const real = next<ssize_t(int, const iovec*, int)>("writev");
  char path[PATH_MAX];
  if (judge.load() == nullptr || getpid() != judged_process || !is_judged(descriptor, path))
    return real(descriptor, pieces, num_pieces);
  ssize_t total = 0;
  for (int piece = 0; piece < num_pieces; ++piece) {
    const auto written = write(descriptor, pieces[piece].iov_base, pieces[piece].iov_len);
    if (written < 0) return total > 0 ? total : written;
    total += written;
    if (written < static_cast<ssize_t>(pieces[piece].iov_len)) break;
  }
  return total;
}
