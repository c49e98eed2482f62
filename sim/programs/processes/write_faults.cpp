#include "sim/programs/processes/write_faults.hpp"

#include <algorithm>

#include "reference/core/errors.hpp"
#include "sim/ranks/group_member.hpp"

namespace accel::programs {
namespace {

constexpr std::uint64_t kChunk = 1 << 20;

}  // namespace

// Counts what a disk would get. The process itself does everything but writing on its own disk.
class WriteFaults::Disk final : public Files {
 public:
  std::int64_t taken = 0;  // bytes of the current write

  [[nodiscard]] std::unique_ptr<WritableFile> create(const std::string& /*path*/) override {
    return std::make_unique<File>(*this);
  }
  [[nodiscard]] std::string read(const std::string& path) override { refuse(path); }
  [[nodiscard]] std::vector<std::string> list(const std::string& path) override { refuse(path); }
  void rename(const std::string& from, const std::string& /*to*/) override { refuse(from); }
  void remove(const std::string& path) override { refuse(path); }
  void make_folder(const std::string& path) override { refuse(path); }
  void sync_folder(const std::string& path) override { refuse(path); }

 private:
  struct File : WritableFile {
    explicit File(Disk& disk) : disk(disk) {}
    void append(std::string_view bytes) override { disk.taken += std::ssize(bytes); }
    void sync() override {}
    void close() override {}
    Disk& disk;
  };
  [[noreturn]] static void refuse(const std::string& path) {
    throw InternalError(fmt::format("{}: only writes of a rank's process are decided", path));
  }
};

WriteFaults::WriteFaults(const sim::SimulatedRank& simulated) : disk_(std::make_shared<Disk>()) {
  if (simulated.faults != nullptr)
    files_ = simulated.faults->files(*simulated.member.world, simulated.member.rank, disk_);
}

WriteFaults::~WriteFaults() = default;

std::int64_t WriteFaults::answer_of(const std::string& path, std::uint64_t offset, std::uint64_t bytes) {
  if (!files_) return static_cast<std::int64_t>(bytes);
  disk_->taken = 0;
  try {
    auto& file = files_open_[path];
    if (!file || offset == 0) file = files_->create(path);
    static const std::string zeros(kChunk, '\0');  // the disk only counts
    for (std::uint64_t left = bytes; left > 0; left -= std::min(left, kChunk))
      file->append(std::string_view(zeros).substr(0, std::min(left, kChunk)));
  } catch (const FileError&) {
    return disk_->taken;
  } catch (const Error&) {  // ProcessDied
    death_ = std::current_exception();
    return -1 - disk_->taken;
  }
  return disk_->taken;
}

}  // namespace accel::programs
