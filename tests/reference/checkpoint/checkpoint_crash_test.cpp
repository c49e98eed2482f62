// Every crash and every failing operation of a save, of the publication of an asynchronous save, and of the recovery
// that the next process attempts, which may crash as well: whatever is on the disk, one complete checkpoint loads.
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <map>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "reference/checkpoint/checkpoint_folder.hpp"
#include "reference/checkpoint/recording_files.hpp"
#include "tests/support/crash_disk.hpp"
#include "tests/support/property.hpp"

namespace accel::checkpoint {
namespace {

using testing::CrashDisk;
using testing::Failure;
using testing::PowerLost;
using Disk = CrashDisk::Content;
using Content = std::map<std::string, std::string>;  // of a folder: names to bytes

constexpr const char* kPath = "run/state";
constexpr int kRanks = 2;

// The first has a file of a rank that the others lack, which must not be left in their folders.
const Content kFirst{{"hook", "first"}, {"rank0", "first"}, {"inner/rank1", "first, too"}, {"shard", "first"}};
const Content kSecond{{"hook", "2"}, {"plots/hook", ""}, {"rank0", "second"}, {"inner/rank1", ""}, {"more", "second"}};
const Content kThird{{"rank0", "third"}};

bool is_of_hook(const std::string& name) { return name.ends_with("hook"); }

// What a hook of the program writes, as it likes.
void write_hook(Files& files, const Content& content) {
  const std::string unfinished = std::string(kPath) + ".tmp";
  for (const auto& [name, bytes] : content) {
    if (!is_of_hook(name)) continue;
    if (name.starts_with("plots/")) files.make_folder(unfinished + "/plots");
    const auto file = files.create(unfinished + "/" + name);
    file->append(bytes);
    file->close();
  }
  sync_files(files, unfinished);
}

// What each rank writes into the unfinished folder; records, as an asynchronous save does.
void write_ranks(Files& files, const Content& content, std::vector<ManifestEntry>& entries) {
  const std::string unfinished = std::string(kPath) + ".tmp";
  for (int rank = 0; rank < kRanks; ++rank) {
    RecordingFiles recording(files, unfinished);
    for (const auto& [name, bytes] : content) {
      if (is_of_hook(name) || (name == "inner/rank1") != (rank == 1)) continue;
      if (rank == 1) recording.make_folder(unfinished + "/inner");
      write_atomically(recording, unfinished + "/" + name, bytes);
    }
    write_part(files, unfinished, rank, {.world_size = kRanks, .files = recording.entries(), .num_parts = kRanks});
    const auto own = recording.entries();
    entries.insert(entries.end(), own.begin(), own.end());
  }
}

// An asynchronous save up to the point at which every rank has recorded its files.
std::vector<ManifestEntry> begin_save(Files& files, const Content& content) {
  begin_folder(files, kPath);
  write_hook(files, content);
  std::vector<ManifestEntry> entries;
  write_ranks(files, content, entries);
  return entries;
}

void save(Files& files, const Content& content) {
  auto entries = begin_save(files, content);
  publish_folder(files, kPath, {.world_size = kRanks, .files = std::move(entries)});
}

// The verified content of the folder that a reader takes; nothing without one.
std::optional<Content> loaded(const Disk& disk, const std::string& path = kPath) {
  CrashDisk files(disk);
  const auto folder = is_folder(files, path) ? path : path + ".old";
  if (!is_folder(files, folder)) return std::nullopt;
  const auto manifest = manifest_of(files.read(folder + "/" + kManifestName), folder);
  Content content;
  for (const auto& entry : manifest.files) {
    const auto bytes = files.read(folder + "/" + entry.name);
    Checksum checksum;
    checksum.update(bytes);
    if (checksum.hex() != entry.checksum) throw CheckpointError(folder + ": damaged: " + entry.name);
    content[entry.name] = bytes;
  }
  for (const auto& name : files.list(folder)) {
    const bool is_known = name.ends_with('/') || name.starts_with(kManifestName) || name.starts_with("accel_part");
    if (!is_known && !content.contains(name)) throw CheckpointError(folder + ": of another checkpoint: " + name);
  }
  return content;
}

bool is_one_of(const std::optional<Content>& found, std::initializer_list<Content> expected) {
  return found && std::find(expected.begin(), expected.end(), *found) != expected.end();
}

// Runs `act` on the disk, with power failing after `cut` operations. Returns whether it ended.
template <typename Act>
bool survives(CrashDisk& disk, const Act& act) {
  try {
    act(disk);
    return true;
  } catch (const PowerLost&) {
    return false;
  }
}

template <typename Act>
std::size_t num_operations(const Disk& start, Failure failure, const Act& act) {
  CrashDisk disk(start, CrashDisk::kNever, failure);
  act(disk);
  return disk.num_operations();
}

// What the next process may find: everything that was written (the process was killed), and only what was synced.
std::vector<Disk> found_after(const CrashDisk& disk) {
  return {disk.content(), disk.after_power_loss([](std::size_t) { return std::size_t{0}; })};
}

// Some of both.
Disk any_found_after(const CrashDisk& disk, std::mt19937_64& random) {
  return disk.after_power_loss([&](std::size_t end) { return random() % (end + 1); });
}

Disk disk_with(const Content& content) {
  CrashDisk disk;
  save(disk, content);
  return disk.content();
}

void recover(Files& files) { finish_folder(files, kPath); }

// Crashes at every operation of `recover`, as often in a row as `depth` tells, and checks every disk that is found.
class CrashedRecoveries {
 public:
  explicit CrashedRecoveries(std::function<void(const Disk&)> check) : check_(std::move(check)) {}

  void explore(const Disk& start, int depth) {
    const auto [known, is_new] = depth_of_.try_emplace(start, depth);
    if (is_new) check_(start);
    if (depth == 0 || (!is_new && known->second >= depth)) return;
    known->second = depth;
    const auto whole = num_operations(start, Failure::kPowerLoss, recover);
    for (std::size_t cut = 0; cut < whole; ++cut) {
      CrashDisk disk(start, cut);
      RC_ASSERT(!survives(disk, recover));
      ++num_crashes_;
      for (const auto& found : found_after(disk)) explore(found, depth - 1);
    }
  }
  [[nodiscard]] std::size_t num_crashes() const { return num_crashes_; }

 private:
  std::function<void(const Disk&)> check_;
  std::map<Disk, int> depth_of_;  // how far each disk has been explored
  std::size_t num_crashes_ = 0;
};

// A save over an older one crashes at every operation; the recovery of the next process does, too, and that of the one
// after it.
TEST(CheckpointCrashTest, AfterEveryCrashOfASaveAndOfTwoRecoveriesOneCheckpointIsComplete) {
  testing::expect_property(1, [] {
    std::mt19937_64 random(testing::pick<std::uint64_t>(0, 1'000'000));
    const auto start = disk_with(kFirst);
    const auto whole = num_operations(start, Failure::kPowerLoss, [](Files& files) { save(files, kSecond); });
    const auto recorded = num_operations(start, Failure::kPowerLoss, [](Files& files) { begin_save(files, kSecond); });
    std::size_t num_crashes = 0;
    for (const bool is_recorded : {false, true}) {
      CrashedRecoveries recoveries([&](const Disk& now) {
        RC_ASSERT(is_one_of(loaded(now), {kFirst, kSecond}));
        CrashDisk next(now);
        recover(next);
        const auto content = loaded(next.content());
        RC_ASSERT(is_one_of(content, {kFirst, kSecond}));
        // Once every rank has recorded its files, the save is not lost.
        if (is_recorded) RC_ASSERT(content == kSecond);
        // And the next save works, whatever is there.
        save(next, kThird);
        RC_ASSERT(loaded(next.content()) == kThird);
        RC_ASSERT(next.list("run") == std::vector<std::string>{"state/"});
      });
      for (std::size_t cut = is_recorded ? recorded : 0; cut <= (is_recorded ? whole : recorded - 1); ++cut) {
        CrashDisk disk(start, cut);
        survives(disk, [](Files& files) { save(files, kSecond); });
        ++num_crashes;
        for (const auto& found : found_after(disk)) recoveries.explore(found, /*depth=*/2);
        recoveries.explore(any_found_after(disk, random), /*depth=*/1);
      }
      num_crashes += recoveries.num_crashes();
    }
    RC_ASSERT(num_crashes > 300U);
  });
}

// A file of the user in the older checkpoint is in the new one, whatever was synced.
TEST(CheckpointCrashTest, AfterEveryCrashAUsersFileIsThere) {
  const std::string notes = std::string(kPath) + "/notes";
  CrashDisk first;
  save(first, kFirst);
  const auto file = first.create(notes);
  file->append("mine");
  file->sync();
  file->close();
  first.sync_folder(kPath);
  const auto start = first.content();
  const auto whole = num_operations(start, Failure::kPowerLoss, [](Files& files) { save(files, kSecond); });
  for (std::size_t cut = 0; cut <= whole; ++cut) {
    CrashDisk disk(start, cut);
    survives(disk, [](Files& files) { save(files, kSecond); });
    for (const auto& found : found_after(disk)) {
      CrashDisk next(found);
      recover(next);
      ASSERT_TRUE(is_file(next, notes)) << "after operation " << cut;
      EXPECT_EQ(next.read(notes), "mine");
    }
  }
}

// Without an older checkpoint, the folder is there or not.
TEST(CheckpointCrashTest, AFirstSaveIsCompleteOrAbsent) {
  testing::expect_property(1, [] {
    std::mt19937_64 random(testing::pick<std::uint64_t>(0, 1'000'000));
    const auto whole = num_operations({}, Failure::kPowerLoss, [](Files& files) { save(files, kSecond); });
    const auto recorded = num_operations({}, Failure::kPowerLoss, [](Files& files) { begin_save(files, kSecond); });
    for (const bool is_recorded : {false, true}) {
      CrashedRecoveries recoveries([&](const Disk& now) {
        CrashDisk next(now);
        recover(next);
        const auto content = loaded(next.content());
        RC_ASSERT(content == kSecond || (!content && !is_recorded));
      });
      for (std::size_t cut = is_recorded ? recorded : 0; cut <= (is_recorded ? whole : recorded - 1); ++cut) {
        CrashDisk disk(cut);
        survives(disk, [](Files& files) { save(files, kSecond); });
        for (const auto& found : found_after(disk)) recoveries.explore(found, /*depth=*/1);
        recoveries.explore(any_found_after(disk, random), /*depth=*/1);
      }
    }
  });
}

// Opens, reads, writes, renames, removals and syncs fail in turn, with an error that the program sees. A save
// without an error is there, and one with an error has damaged nothing.
TEST(CheckpointCrashTest, AfterEveryErrorOfASaveOneCheckpointIsComplete) {
  testing::expect_property(1, [] {
    const auto start = disk_with(kFirst);
    const auto whole = num_operations(start, Failure::kError, [](Files& files) { save(files, kSecond); });
    for (std::size_t failing = 0; failing < whole; ++failing) {
      CrashDisk disk(start, failing, Failure::kError);
      bool is_saved = true;
      try {
        save(disk, kSecond);
      } catch (const FileError&) {
        is_saved = false;
      }
      const auto content = loaded(disk.content());
      RC_ASSERT((is_saved ? content == kSecond : is_one_of(content, {kFirst, kSecond})));
      // The program continues, and so does the next process.
      CrashDisk next(disk.content());
      save(next, kThird);
      RC_ASSERT(loaded(next.content()) == kThird);
      recover(disk);
      RC_ASSERT(is_one_of(loaded(disk.content()), {kFirst, kSecond}));
    }
  });
}

// The same for the recovery: the next attempt succeeds.
TEST(CheckpointCrashTest, AfterEveryErrorOfARecoveryTheSaveIsThere) {
  testing::expect_property(1, [] {
    const auto start = disk_with(kFirst);
    const auto recorded = num_operations(start, Failure::kPowerLoss, [](Files& files) { begin_save(files, kSecond); });
    const auto whole = num_operations(start, Failure::kPowerLoss, [](Files& files) { save(files, kSecond); });
    for (std::size_t cut = recorded; cut <= whole; ++cut) {
      CrashDisk crashed(start, cut);
      survives(crashed, [](Files& files) { save(files, kSecond); });
      const auto num_recovery = num_operations(crashed.content(), Failure::kError, recover);
      for (std::size_t failing = 0; failing < num_recovery; ++failing) {
        CrashDisk disk(crashed.content(), failing, Failure::kError);
        try {
          recover(disk);
        } catch (const FileError&) {
        }
        RC_ASSERT(is_one_of(loaded(disk.content()), {kFirst, kSecond}));
        recover(disk);
        RC_ASSERT(loaded(disk.content()) == kSecond);
      }
    }
  });
}

// A crash while old checkpoints are removed, with the records of an asynchronous save still in them.
TEST(CheckpointCrashTest, AHalfRemovedCheckpointIsNotPublishedAgain) {
  testing::expect_property(1, [] {
    const std::vector<std::string> names{"run/checkpoint_0", "run/checkpoint_1", "run/checkpoint_2"};
    CrashDisk whole;
    for (const auto& name : names) {
      for (const auto& [path, bytes] : disk_with(kFirst)) {
        const auto target = name + path.substr(std::string(kPath).size());
        whole.make_folder(std::filesystem::path(target).parent_path().string());
        whole.create(target)->append(bytes);
      }
      write_part(whole, name, 0, {.world_size = 1, .files = {{"rank0", 5, ""}}, .num_parts = 1});
    }
    const auto start = whole.content();
    const auto remove = [](Files& files) { remove_oldest(files, "run", 1, 2); };
    const auto operations = num_operations(start, Failure::kPowerLoss, remove);
    RC_ASSERT(operations > 8U);
    for (std::size_t cut = 0; cut <= operations; ++cut) {
      CrashDisk disk(start, cut);
      survives(disk, remove);
      CrashDisk next(disk.content());
      for (const auto& folder : unfinished_checkpoints(next, "run")) finish_folder(next, folder);
      for (const auto number : checkpoint_numbers(next, "run"))
        RC_ASSERT(loaded(next.content(), "run/checkpoint_" + std::to_string(number)) == kFirst);
    }
  });
}

}  // namespace
}  // namespace accel::checkpoint
