// A file layer that fails as real disks and dying processes do. write_atomically (reference/files/files.hpp)
// relies on the order append, sync, close, rename; each of these checks first whether the process still lives.
#include "sim/faults/faulty_files.hpp"

#include <algorithm>
#include <cerrno>

#include "sim/faults/fault_plan.hpp"

namespace accel::sim {

class FaultyFiles::File final : public WritableFile {
 public:
  File(FaultyFiles& files, const std::string& path)
      : files_(files), path_(path), fault_(files.torn_write_for(path)), file_(files.living().create(path)) {}

  // Both faults may apply to one append; the one that allows fewer bytes strikes. The bytes that fit are
  // written first, because a real disk keeps them too.
  void append(std::string_view bytes) override {
    files_.living();
    const auto size = std::ssize(bytes);
    const auto room = files_.bytes_left_.value_or(size);
    const auto torn = torn_after(size);
    write(bytes.substr(0, static_cast<std::size_t>(std::min({size, room, torn.value_or(size)}))));
    if (torn && *torn <= room) files_.die(*fault_, path_, size_);
    if (room < size) {
      files_.tell(*files_.disk_full_);
      throw FileError(path_, "written", ENOSPC);
    }
  }

  // A torn file never syncs: the process dies at the latest here, before the file could be renamed into place.
  void sync() override {
    files_.living();
    if (fault_) files_.die(*fault_, path_, size_);
    file_->sync();
  }

  void close() override {
    files_.living();
    file_->close();
  }

 private:
  // Returns how many bytes of an append the process writes before it dies; null if it survives the append.
  [[nodiscard]] std::optional<std::int64_t> torn_after(std::int64_t size) const {
    if (!fault_) return std::nullopt;
    if (!fault_->bytes) return drawn_bytes(*fault_, size);
    const auto left = *fault_->bytes - size_;
    return left < size ? std::optional(left) : std::nullopt;
  }
  void write(std::string_view bytes) {
    file_->append(bytes);
    size_ += std::ssize(bytes);
    if (files_.bytes_left_) *files_.bytes_left_ -= std::ssize(bytes);
  }

  FaultyFiles& files_;
  const std::string path_;
  const Fault* fault_;  // null: no torn write on this file
  std::unique_ptr<WritableFile> file_;
  std::int64_t size_ = 0;
};

FaultyFiles::FaultyFiles(Files& files, const std::vector<Fault>& plan, int rank, OnStrike on_strike)
    : files_(files), on_strike_(std::move(on_strike)) {
  for (const auto& fault : plan) {
    if (fault.rank != rank) continue;
    if (fault.kind == FaultKind::kTornWrite) torn_writes_.push_back(fault);
    if (fault.kind == FaultKind::kDiskFull && fault.after_bytes.value() < bytes_left_.value_or(INT64_MAX)) {
      bytes_left_ = fault.after_bytes;
      disk_full_ = fault;
    }
  }
}

std::unique_ptr<WritableFile> FaultyFiles::create(const std::string& path) {
  return std::make_unique<File>(*this, path);
}
std::string FaultyFiles::read(const std::string& path) { return living().read(path); }
std::vector<std::string> FaultyFiles::list(const std::string& path) { return living().list(path); }
void FaultyFiles::rename(const std::string& from, const std::string& to) { living().rename(from, to); }
void FaultyFiles::sync_file(const std::string& path) { living().sync_file(path); }
void FaultyFiles::remove(const std::string& path) { living().remove(path); }
void FaultyFiles::make_folder(const std::string& path) { living().make_folder(path); }
void FaultyFiles::sync_folder(const std::string& path) { living().sync_folder(path); }

// Called before every operation; see ProcessDied.
Files& FaultyFiles::living() {
  if (death_) throw ProcessDied(*death_);
  return files_;
}

// The path is matched when the file is created: later renames do not matter to a write in progress.
const Fault* FaultyFiles::torn_write_for(const std::string& path) const {
  const auto is_meant = [&](const Fault& torn) { return path.find(torn.file.value_or("")) != std::string::npos; };
  const auto fault = std::find_if(torn_writes_.begin(), torn_writes_.end(), is_meant);
  return fault == torn_writes_.end() ? nullptr : &*fault;
}

// `death_` is set before the strike is reported: the report disconnects the peers, and from then on this rank
// is dead.
void FaultyFiles::die(const Fault& fault, const std::string& path, std::int64_t size) {
  death_ = fmt::format("{}: the process died while writing {}; {} bytes of it reached the disk", describe(fault), path,
                       size);
  tell(fault);
  throw ProcessDied(*death_);
}

void FaultyFiles::tell(const Fault& fault) const {
  if (on_strike_) on_strike_(fault);
}

}  // namespace accel::sim
