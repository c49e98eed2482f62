#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "reference/files/files.hpp"
#include "sim/faults/fault.hpp"

/// One rank's files, with the file faults of a plan applied.
///
///     PosixFiles disk;
///     FaultyFiles files(disk, plan_faults(read_faults("torn_write.yaml", num_ranks), num_ranks), rank);
///     write_atomically(files, "optimizer.bin", bytes);  // throws ProcessDied; optimizer.bin is unchanged
///
/// Thread rule: one thread at a time.
namespace accel::sim {

/// Thrown when a torn write has killed the rank's process. From then on its files refuse every operation, so that no
/// destructor or handler can clean up, as in a dead process.
class ProcessDied : public Error {
 public:
  using Error::Error;
};

class FaultyFiles final : public Files {
 public:
  using OnStrike = std::function<void(const Fault&)>;

  /// Applies the torn_write and disk_full faults of this rank; `files` does everything else. `on_strike` is called as
  /// each takes effect.
  FaultyFiles(Files& files, const std::vector<Fault>& plan, int rank, OnStrike on_strike = nullptr);

  /// A torn write applies to the first file whose path matches. If the fault gives the number of bytes to keep, it
  /// strikes in the append that would exceed it, or in the sync of a shorter file.
  [[nodiscard]] std::unique_ptr<WritableFile> create(const std::string& path) override;
  [[nodiscard]] std::string read(const std::string& path) override;
  [[nodiscard]] std::vector<std::string> list(const std::string& path) override;
  void rename(const std::string& from, const std::string& to) override;
  void sync_file(const std::string& path) override;
  void remove(const std::string& path) override;
  void make_folder(const std::string& path) override;
  void sync_folder(const std::string& path) override;

 private:
  class File;

  Files& living();
  [[nodiscard]] const Fault* torn_write_for(const std::string& path) const;
  [[noreturn]] void die(const Fault& fault, const std::string& path, std::int64_t size);
  void tell(const Fault& fault) const;

  Files& files_;
  OnStrike on_strike_;
  std::vector<Fault> torn_writes_;
  std::optional<Fault> disk_full_;          // the one that leaves the least room
  std::optional<std::int64_t> bytes_left_;  // on a disk that fills up; removing files frees nothing
  std::optional<std::string> death_;
};

}  // namespace accel::sim
