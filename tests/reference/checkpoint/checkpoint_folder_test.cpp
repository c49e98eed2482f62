// Checkpoint folders are published atomically: after a power loss or a kill at any point, a reader finds the old or
// the new checkpoint complete, never a mixture. CrashDisk simulates what POSIX allows after a power loss.
#include "reference/checkpoint/checkpoint_folder.hpp"

#include <gmock/gmock.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <fstream>
#include <random>
#include <thread>

#include "reference/checkpoint/recording_files.hpp"
#include "tests/support/crash_disk.hpp"
#include "tests/support/message_of.hpp"
#include "tests/support/property.hpp"
#include "tests/support/temporary_folder.hpp"

namespace accel::checkpoint {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using testing::CrashDisk;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::message_of;
using testing::put;
using testing::TemporaryFolder;

using Content = std::map<std::string, std::string>;  // of a folder: names to bytes

/// Saves as the ranks do: begins an unfinished folder, writes the files and publishes it.
void save(Files& files, const std::string& path, const Content& content) {
  const auto unfinished = begin_folder(files, path);
  RecordingFiles recording(files, unfinished);
  for (const auto& [name, bytes] : content) {
    if (name.find('/') != std::string::npos) recording.make_folder(unfinished + "/" + name.substr(0, name.find('/')));
    write_atomically(recording, unfinished + "/" + name, bytes);
  }
  publish_folder(files, path, {.world_size = 1, .files = recording.entries()});
}

/// Returns the verified files of the checkpoint at `path`, or nothing if there is no readable one.
std::optional<Content> loaded(const std::string& path) {
  const auto folder = readable_folder(path);
  if (!folder) return std::nullopt;
  const auto manifest = read_manifest(*folder);
  RC_ASSERT(manifest.has_value());  // a folder without a manifest would be an incomplete checkpoint
  Content content;
  for (const auto& entry : manifest->files) content[entry.name] = PosixFiles().read(*folder + "/" + entry.name);
  return content;
}

/// The same for the checkpoint run/state of a disk.
std::optional<Content> loaded(const CrashDisk& disk) {
  const TemporaryFolder folder;
  put(disk.content(), folder);
  return loaded(folder.path("run/state"));
}

// Random files, some of them in a subfolder.
Content any_content() {
  Content content;
  for (int i = 0, count = testing::pick(1, 4); i < count; ++i) {
    content[(testing::pick(0, 3) == 0 ? "inner/file" : "file") + std::to_string(i)] =
        *rc::gen::arbitrary<std::string>();
  }
  return content;
}

// --- power loss ------------------------------------------------------------------------------------------------------

// Saves into one folder twice, with power failing at every operation in turn. What is found must be the first
// checkpoint, or the second one, complete.
void every_power_loss_leaves_a_complete_checkpoint() {
  const auto first = any_content(), second = any_content();
  CrashDisk whole;
  save(whole, "run/state", first);
  const auto first_saved = whole.num_operations();
  save(whole, "run/state", second);
  for (std::size_t cut = 0; cut <= whole.num_operations(); ++cut) {
    CrashDisk disk(cut);
    try {
      save(disk, "run/state", first);
      save(disk, "run/state", second);
    } catch (const testing::PowerLost&) {
    }
    CrashDisk next(disk.after_power_loss([](std::size_t end) { return testing::pick<std::size_t>(0, end + 1); }));
    const auto found = loaded(next);
    RC_ASSERT(found == first || found == second || (!found && cut < first_saved));
    if (cut >= first_saved) RC_ASSERT(found.has_value());
    if (cut == whole.num_operations()) RC_ASSERT(found == second);
    // The next process saves as if nothing had happened. What it found is safe until it has saved.
    begin_folder(next, "run/state");
    RC_ASSERT(loaded(next) == found);
    save(next, "run/state", first);
    RC_ASSERT(loaded(next) == first);
    RC_ASSERT(next.list("run") == std::vector<std::string>{"state/"});
  }
}

// The power fails after each operation of the save in turn.
TEST(CheckpointFolderTest, AfterEveryPowerLossTheOldOrNewCheckpointIsComplete) {
  testing::expect_property(8, [] { every_power_loss_leaves_a_complete_checkpoint(); });
}

// With automatic naming the newest number must be complete, and the limit on checkpoints may cost at most one.
TEST(CheckpointFolderTest, AfterEveryPowerLossTheNewestNumberIsComplete) {
  testing::expect_property(12, [] {
    const int limit = testing::pick(1, 3);
    const std::vector<Content> contents{any_content(), any_content(), any_content()};
    const auto save_all = [&](Files& files) {
      for (std::size_t number = 0; number < contents.size(); ++number) {
        save(files, "run/checkpoint_" + std::to_string(number), contents[number]);
        remove_oldest(files, "run", limit, static_cast<std::int64_t>(number));
      }
    };
    CrashDisk whole;
    save_all(whole);
    for (std::size_t cut = 0; cut <= whole.num_operations(); ++cut) {
      CrashDisk disk(cut);
      try {
        save_all(disk);
      } catch (const testing::PowerLost&) {
      }
      const auto lived = disk.content();
      const TemporaryFolder folder;
      put(disk.after_power_loss([](std::size_t end) { return testing::pick<std::size_t>(0, end + 1); }), folder);
      PosixFiles files;
      const auto numbers = checkpoint_numbers(files, folder.path("run"));
      if (numbers.empty()) {
        for (const auto& [path, bytes] : lived) RC_ASSERT(!path.starts_with("run/checkpoint_1/"));
        continue;
      }
      const auto newest = numbers.back();
      RC_ASSERT(loaded(folder.path("run/checkpoint_" + std::to_string(newest))) == contents[newest]);
    }
  });
}

// An asynchronous save: two ranks write their files and parts in the background. After a crash the next process
// publishes what was finished.
TEST(CheckpointFolderTest, AfterEveryPowerLossUnpublishedFilesAreCompleteOrAbsent) {
  testing::expect_property(6, [] {
    const std::vector<Content> contents{{{"rank0", *rc::gen::arbitrary<std::string>()}},
                                        {{"rank1", *rc::gen::arbitrary<std::string>()}}};
    const auto write_all = [&](Files& files) {
      const auto unfinished = begin_folder(files, "run/state");
      for (int rank = 0; rank < 2; ++rank) {
        RecordingFiles recording(files, unfinished);
        for (const auto& [name, bytes] : contents[rank]) write_atomically(recording, unfinished + "/" + name, bytes);
        write_part(files, unfinished, rank, {.world_size = 2, .files = recording.entries(), .num_parts = 2});
      }
    };
    CrashDisk whole;
    write_all(whole);
    for (std::size_t cut = 0; cut <= whole.num_operations(); ++cut) {
      CrashDisk disk(cut);
      try {
        write_all(disk);
      } catch (const testing::PowerLost&) {
      }
      const TemporaryFolder folder;
      put(disk.after_power_loss([](std::size_t end) { return testing::pick<std::size_t>(0, end + 1); }), folder);
      PosixFiles files;
      const bool is_found = finish_folder(files, folder.path("run/state"));
      RC_ASSERT(is_found || cut < whole.num_operations());
      const auto found = loaded(folder.path("run/state"));
      RC_ASSERT(found.has_value() == is_found);
      if (found)
        RC_ASSERT(found->at("rank0") == contents[0].at("rank0") && found->at("rank1") == contents[1].at("rank1") &&
                  found->size() == 2);
    }
  });
}

// --- a process that is killed ----------------------------------------------------------------------------------------

// The content of the save with this number, which makes mixed checkpoints visible.
Content content_of(std::int64_t number) {
  const auto text = std::to_string(number);
  return {{"number", text}, {"inner/many", std::string(static_cast<std::size_t>(number % 7) * 30'000, 'x') + text}};
}

// Saves one checkpoint after the other and reports each saved one through a pipe. Never returns.
[[noreturn]] void save_for_ever(const std::string& folder, std::int64_t number, int acknowledged) {
  PosixFiles files;
  for (;; ++number) {
    save(files, folder + "/checkpoint_" + std::to_string(number), content_of(number));
    remove_oldest(files, folder, /*total_limit=*/2, number);
    if (write(acknowledged, &number, sizeof number) != sizeof number) _exit(1);
  }
}

// The same with real processes and a real disk, killed at random times.
TEST(CheckpointFolderTest, AKilledProcessLeavesTheNewestCheckpointComplete) {
  const TemporaryFolder folder;
  PosixFiles files;
  std::mt19937 random(7);
  std::int64_t saved = -1, kills_inside = 0;
  const int num_kills = testing::num_cases(100);  // 1,000 with --long
  const TemporaryFolder other;
  const auto start = std::chrono::steady_clock::now();
  for (std::int64_t number = 0; number < 3; ++number)
    save(files, other.path(std::to_string(number)), content_of(number));
  const auto of_saves = std::chrono::duration_cast<std::chrono::microseconds>(std::chrono::steady_clock::now() - start);
  const auto longest = static_cast<std::uint32_t>(std::max<std::int64_t>(30'000, 2 * of_saves.count()));
  for (int kill_number = 0; kill_number < num_kills; ++kill_number) {
    int ends[2];
    ASSERT_EQ(pipe(ends), 0);
    const auto child = fork();
    ASSERT_GE(child, 0);
    if (child == 0) save_for_ever(folder.path(), saved + 1, ends[1]);
    close(ends[1]);
    std::this_thread::sleep_for(std::chrono::microseconds(random() % longest));
    kill(child, SIGKILL);
    waitpid(child, nullptr, 0);
    for (std::int64_t number = 0; read(ends[0], &number, sizeof number) == sizeof number;) saved = number;
    close(ends[0]);

    const auto numbers = checkpoint_numbers(files, folder.path());
    if (saved < 0 && numbers.empty()) continue;
    ASSERT_FALSE(numbers.empty());
    const auto newest = numbers.back();
    ASSERT_TRUE(newest == saved || newest == saved + 1)
        << newest << ", reported " << saved;  // killed between publishing and reporting
    const auto path = folder.path("checkpoint_" + std::to_string(newest));
    const auto manifest = read_manifest(path);
    ASSERT_TRUE(manifest.has_value());
    for (const auto& [name, bytes] : content_of(newest)) ASSERT_EQ(files.read(path + "/" + name), bytes);
    kills_inside += files.list(folder.path()).size() > numbers.size() ? 1 : 0;
    saved = newest;
  }
  EXPECT_GT(kills_inside, num_kills / 4) << "most kills should meet a save";
}

// The planted bug: the rename may reach the disk before the files in the folder.
TEST(CheckpointFolderTest, AFolderThatIsRenamedBeforeItIsSyncedIsCaught) {
  testing::expect_property_fails("the folder is not synced", 100, [] {
    const auto content = any_content();
    CrashDisk disk;
    disk.make_folder("run/state.tmp");
    disk.sync_folder("run");
    RecordingFiles recording(disk, "run/state.tmp");
    for (const auto& [name, bytes] : content) {
      const auto file = recording.create("run/state.tmp/" + name.substr(name.rfind('/') + 1));
      file->append(bytes);
      file->close();
    }
    write_atomically(disk, "run/state.tmp/accel_manifest.json", to_json({.files = recording.entries()}));
    disk.rename("run/state.tmp", "run/state");
    disk.sync_folder("run");
    const TemporaryFolder folder;
    put(disk.after_power_loss([](std::size_t end) { return testing::pick<std::size_t>(0, end + 1); }), folder);
    try {
      loaded(folder.path("run/state"));
    } catch (const CheckpointError& error) {
      RC_FAIL(error.what());
    }
  });
}

// --- a folder and its manifest ---------------------------------------------------------------------------------------

class ManifestTest : public ::testing::Test {
 protected:
  ManifestTest() { save(files_, path_, {{"a", "content of a"}, {"b", "content of b"}, {"inner/c", ""}}); }
  [[nodiscard]] std::string problem() const {
    return message_of<CheckpointError>([&] { static_cast<void>(read_manifest(path_)); });
  }
  void write(const std::string& name, const std::string& bytes) const {
    std::ofstream(path_ + "/" + name, std::ios::binary) << bytes;
  }

  TemporaryFolder folder_;
  PosixFiles files_;
  std::string path_ = folder_.path("state");
};

// A removed file, a changed one and one that grew are three different problems, all in one message.
TEST_F(ManifestTest, EveryDamageIsNamed) {
  std::filesystem::remove(path_ + "/a");
  write("b", "content of c");
  write("inner/c", "more");
  EXPECT_THAT(problem(),
              AllOf(HasSubstr(path_ + ": this checkpoint is damaged: a: missing; b: the content is damaged (xxh3_64 "),
                    HasSubstr("inner/c: has 4 bytes, expected 0")));
}

// Missing, changed, grown and additional files are all named in one message.
TEST_F(ManifestTest, AnInvalidManifestOrAnotherVersionIsReported) {
  write(kManifestName, "{\"version\": 2}");
  EXPECT_THAT(problem(), HasSubstr("accel_manifest.json: version 2 is unsupported; expected version 1"));
  write(kManifestName, "{\"version\": 1,");
  EXPECT_THAT(problem(), HasSubstr("accel_manifest.json: not valid JSON: "));
  write(kManifestName, R"({"version": 1, "world_size": 1, "files": [{"name": "../a", "bytes": 0, "xxh3_64": ""}]})");
  EXPECT_THAT(problem(), HasSubstr("'../a' is a path outside the folder"));
}

// Of the manifest itself: another number of ranks, for example, would load other random streams.
TEST_F(ManifestTest, NoFlippedBitOfTheManifestChangesWhatItSays) {
  const auto intact = files_.read(path_ + "/" + kManifestName);
  const auto expected = to_json(manifest_of(intact, "m"));
  for (std::size_t bit = 0; bit < 8 * intact.size(); ++bit) {
    auto damaged = intact;
    damaged[bit / 8] = static_cast<char>(damaged[bit / 8] ^ (1 << bit % 8));
    try {
      ASSERT_EQ(to_json(manifest_of(damaged, "m")), expected) << "bit " << bit;
    } catch (const CheckpointError&) {
    }
  }
}

// Users put notes next to their checkpoints.
TEST_F(ManifestTest, ForeignFilesAreKeptByTheNextSave) {
  write("notes.txt", "mine");
  save(files_, path_, {{"a", "new"}});
  EXPECT_THAT(files_.list(path_), ElementsAre("a", kManifestName, "notes.txt"));
  EXPECT_EQ(read_manifest(path_)->files.size(), 1U);
  EXPECT_EQ(files_.read(path_ + "/notes.txt"), "mine");
}

// Otherwise damage to them would go unnoticed.
TEST_F(ManifestTest, FilesOfAHookArePartOfTheManifest) {
  const auto unfinished = begin_folder(files_, folder_.path("other"));
  std::ofstream(unfinished + "/by_hook") << "text";
  publish_folder(files_, folder_.path("other"), {});
  EXPECT_EQ(read_manifest(folder_.path("other"))->files.front().name, "by_hook");
}

// By name "checkpoint_10" precedes "checkpoint_2", and folders without a number are not counted.
TEST(CheckpointFolderTest, TheLimitComparesNumbersAndNotNames) {
  const TemporaryFolder folder;
  PosixFiles files;
  for (const int number : {2, 9, 10, 11})
    save(files, folder.path("checkpoint_" + std::to_string(number)), {{"a", "b"}});
  files.make_folder(folder.path("checkpoint_best"));
  remove_oldest(files, folder.path(), /*total_limit=*/2, /*kept=*/11);
  EXPECT_THAT(files.list(folder.path()), ElementsAre("checkpoint_10/", "checkpoint_11/", "checkpoint_best/"));
  EXPECT_THAT(checkpoint_numbers(files, folder.path()), ElementsAre(10, 11));
}

}  // namespace
}  // namespace accel::checkpoint
