// Note [Ranks as processes]
// A rank that is a process speaks to the simulator through a Channel: it copies a request and the tensors of its call
// into its payload, counts the request in `posted` and raises `wakeups`. Its proxy, a thread of the simulator, maps the
// same memory: it makes the call on tensors that lie there, on behalf of the rank. A call is not answered, only a wait
// is, by the thread that ends the collective: the proxy itself sleeps on until the next request. The engine sees the
// proxy's thread and needs to know no more. Each thread of the process has a place of its own for answers, so that
// several can wait at a time.
#include "backends/process/shared_area.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <new>

#include "reference/core/system/futex.hpp"
#include "reference/core/system/resource_limits.hpp"

namespace accel::process {
namespace {

constexpr std::uint64_t kMagic = 0x3330'6c65'6363'61ull;  // "accel03": rises with the layout
constexpr std::size_t kPage = 4096;

constexpr std::size_t pages(std::size_t bytes) { return (bytes + kPage - 1) / kPage * kPage; }

}  // namespace

struct SharedArea::Header {
  std::uint64_t magic;
  int num_ranks;
  std::atomic<std::uint32_t> ready;
  std::atomic<pid_t> simulator;
};

namespace {

std::size_t bytes_of(int num_ranks) { return kPage + num_ranks * (pages(sizeof(Channel)) + SharedArea::kPayloadBytes); }

}  // namespace

std::shared_ptr<SharedArea> SharedArea::create(int num_ranks) {
  check_config(num_ranks >= 1 && num_ranks <= kMaxRanks,
               "ranks: cannot simulate {} ranks as processes; expected 1 to {}", num_ranks, kMaxRanks);
  const int descriptor = memfd_create("accel-ranks", MFD_CLOEXEC);
  check_config(descriptor >= 0 && ftruncate(descriptor, static_cast<off_t>(bytes_of(num_ranks))) == 0,
               "the shared memory of {} ranks: {}", num_ranks, describe_system_error(errno));
  std::shared_ptr<SharedArea> area(new SharedArea(descriptor, num_ranks));
  area->header().num_ranks = num_ranks;
  area->header().magic = kMagic;
  return area;
}

std::shared_ptr<SharedArea> SharedArea::attach(int descriptor) {
  Header header{};
  const bool is_area = pread(descriptor, &header, sizeof header, 0) == sizeof header && header.magic == kMagic;
  check_config(is_area,
               "descriptor {} is not the shared memory of a simulator of this version; start the program by sim-run of "
               "the same installation",
               descriptor);
  fcntl(descriptor, F_SETFD, FD_CLOEXEC);
  return std::shared_ptr<SharedArea>(new SharedArea(descriptor, header.num_ranks));
}

SharedArea::SharedArea(int descriptor, int num_ranks) : descriptor_(descriptor), bytes_(bytes_of(num_ranks)) {
  auto* memory = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, descriptor, 0);
  check_config(memory != MAP_FAILED, "the shared memory of {} ranks: {}", num_ranks, describe_system_error(errno));
  begin_ = static_cast<std::byte*>(memory);
}

SharedArea::~SharedArea() {
  munmap(begin_, bytes_);
  close(descriptor_);
}

SharedArea::Header& SharedArea::header() const { return *reinterpret_cast<Header*>(begin_); }
int SharedArea::num_ranks() const { return header().num_ranks; }
std::atomic<pid_t>& SharedArea::simulator() const { return header().simulator; }
std::atomic<std::uint32_t>& SharedArea::ready() const { return header().ready; }

Channel& SharedArea::channel(int rank) const {
  return *reinterpret_cast<Channel*>(begin_ + kPage + rank * pages(sizeof(Channel)));
}

std::byte* SharedArea::payload(int rank) const {
  return begin_ + kPage + num_ranks() * pages(sizeof(Channel)) + rank * kPayloadBytes;
}

void SharedArea::record_end(int rank, int status) const {
  auto& own = channel(rank);
  own.end.status = status;
  own.end.has_ended = 1;
  wake_proxy(own);
}

void SharedArea::record_lost_ends(int status) const {
  for (int rank = 0; rank < num_ranks(); ++rank) {
    if (channel(rank).end.has_ended == 0) record_end(rank, status);
  }
}

void wake_proxy(Channel& channel) {
  ++channel.wakeups;
  futex_wake(channel.wakeups, FutexScope::kProcesses);
}

}  // namespace accel::process
