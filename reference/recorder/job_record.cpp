#include "reference/recorder/job_record.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "reference/core/errors.hpp"
#include "reference/core/system/resource_limits.hpp"

namespace accel::recorder {
namespace {

constexpr std::uint64_t kMagic = 0x3430'6472'6f63'6572ull;  // "record04": rises with the layout
constexpr std::size_t kPage = 4096;
constexpr int kLowestDescriptor = 32;  // below, launchers and shells place those that they pass to programs

constexpr std::size_t kFirstRank = kPage + sizeof(Ending);

std::size_t bytes_of(int num_local) { return kFirstRank + num_local * sizeof(RankRecord); }

}  // namespace

int group_index(const RankRecord& rank, const char* name) {
  const auto count = std::min<std::size_t>(rank.num_groups.load(std::memory_order_acquire), kGroups);
  for (std::size_t index = 0; index < count; ++index) {
    if (std::strcmp(rank.groups[index].name, name) == 0) return static_cast<int>(index);
  }
  return -1;
}

int member_index(const RecordedGroup& group, int world_rank) {
  const auto* const end = group.members + group.size;
  const auto* const found = std::find(group.members, end, world_rank);
  return found == end ? -1 : static_cast<int>(found - group.members);
}

struct JobRecord::Header {
  std::uint64_t magic;
  JobRecordOptions options;
  Verdict verdict;
  std::atomic<bool> is_watched, is_elastic;
};

std::shared_ptr<JobRecord> JobRecord::create(const JobRecordOptions& options) {
  check_config(options.num_local >= 1 && options.world_size <= kMaxRanks && options.first_rank >= 0 &&
                   options.first_rank + options.num_local <= options.world_size,
               "the record of a job: ranks {} to {} of {}; expected at most {}", options.first_rank,
               options.first_rank + options.num_local - 1, options.world_size, kMaxRanks);
  const int memory = memfd_create("accel-record", MFD_CLOEXEC);
  const int descriptor = fcntl(memory, F_DUPFD_CLOEXEC, kLowestDescriptor);
  close(memory);
  const auto bytes = bytes_of(options.num_local);
  check_config(descriptor >= 0 && ftruncate(descriptor, static_cast<off_t>(bytes)) == 0, "the record of {} ranks: {}",
               options.num_local, describe_system_error(errno));
  std::shared_ptr<JobRecord> record(new JobRecord(descriptor, bytes));
  record->header().options = options;
  record->header().magic = kMagic;
  return record;
}

std::shared_ptr<JobRecord> JobRecord::attach(int descriptor) {
  Header header{};
  const bool is_record = pread(descriptor, &header, sizeof header, 0) == sizeof header && header.magic == kMagic;
  check_config(
      is_record,
      "descriptor {} is not the record of a job of this version; start the program by accel launch of the same "
      "installation",
      descriptor);
  fcntl(descriptor, F_SETFD, FD_CLOEXEC);
  return std::shared_ptr<JobRecord>(new JobRecord(descriptor, bytes_of(header.options.num_local)));
}

JobRecord::JobRecord(int descriptor, std::size_t bytes) : descriptor_(descriptor), bytes_(bytes) {
  auto* memory = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, descriptor, 0);
  if (memory == MAP_FAILED) {
    const int reason = errno;
    close(descriptor);
    throw ConfigError("the record of a job: " + describe_system_error(reason));
  }
  begin_ = static_cast<std::byte*>(memory);
}

JobRecord::~JobRecord() {
  munmap(begin_, bytes_);
  close(descriptor_);
}

JobRecord::Header& JobRecord::header() const { return *reinterpret_cast<Header*>(begin_); }
int JobRecord::world_size() const { return header().options.world_size; }
int JobRecord::first_rank() const { return header().options.first_rank; }
int JobRecord::num_local() const { return header().options.num_local; }
Verdict& JobRecord::verdict() const { return header().verdict; }
Ending& JobRecord::ending() const { return *reinterpret_cast<Ending*>(begin_ + kPage); }
std::atomic<bool>& JobRecord::is_watched() const { return header().is_watched; }
std::atomic<bool>& JobRecord::is_elastic() const { return header().is_elastic; }

RankRecord& JobRecord::rank(int world_rank) const {
  return *reinterpret_cast<RankRecord*>(begin_ + kFirstRank + (world_rank - first_rank()) * sizeof(RankRecord));
}

void JobRecord::clear(int world_rank) const {
  const auto offset = reinterpret_cast<std::byte*>(&rank(world_rank)) - begin_;
  fallocate(descriptor_, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, offset, sizeof(RankRecord));
}

// Punches a hole instead of writing zeros, which would use all pages.
void JobRecord::clear() const {
  fallocate(descriptor_, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, kPage, static_cast<off_t>(bytes_ - kPage));
  verdict().state = 0;
  is_elastic() = false;
}

}  // namespace accel::recorder
