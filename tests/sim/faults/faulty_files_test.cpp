// Faults of files: a write that is torn because the process dies, and a disk that is full. Atomic writes must leave
// the old checkpoint readable after a fault at any byte.
#include "sim/faults/faulty_files.hpp"

#include <gmock/gmock.h>

#include <algorithm>
#include <cerrno>

#include "tests/support/crash_disk.hpp"
#include "tests/support/property.hpp"
#include "tests/support/small_checkpoint.hpp"
#include "tests/support/temporary_folder.hpp"

namespace accel::sim {
namespace {

using testing::CrashDisk;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::kAtomically;
using testing::save;
using testing::saved_in;
using testing::TemporaryFolder;

Fault torn_write(std::optional<std::int64_t> bytes, std::optional<std::string> file = std::nullopt,
                 std::uint64_t seed = 0) {
  return {.kind = FaultKind::kTornWrite, .rank = 1, .bytes = bytes, .file = file, .seed = seed};
}

Fault disk_full(std::int64_t after_bytes) {
  return {.kind = FaultKind::kDiskFull, .rank = 1, .after_bytes = after_bytes};
}

std::map<std::string, std::string> content_of(const TemporaryFolder& folder) {
  std::map<std::string, std::string> content;
  for (const auto& name : folder.files()) content[name] = PosixFiles().read(folder.path(name));
  return content;
}

bool has_temporary(const CrashDisk& disk) {
  const auto content = disk.content();
  return std::any_of(content.begin(), content.end(),
                     [](const auto& file) { return testing::is_temporary(file.first); });
}

// Returns the message of the FileError of a full disk, or "" if there is none.
template <typename Body>
std::string refusal_of(Body&& body) {
  try {
    body();
  } catch (const FileError& error) {
    EXPECT_EQ(error.code(), ENOSPC);
    return error.what();
  }
  return "";
}

template <typename Body>
bool dies(Body&& body) {
  try {
    body();
  } catch (const ProcessDied&) {
    return true;
  }
  return false;
}

// --- torn writes -----------------------------------------------------------------------------------------------------

// A process saves a checkpoint and dies while it saves the next one.
void a_torn_write_leaves_the_old_checkpoint(const testing::Write& write) {
  const auto first = testing::any_checkpoint(), second = testing::any_checkpoint();
  auto written = second;
  written["latest"] = "second";
  for (const auto& [file, bytes] : written) {
    for (std::int64_t kept = -1; kept <= std::ssize(bytes); ++kept) {  // -1 draws the number of bytes
      CrashDisk disk;
      save(disk, first, "first", kAtomically);
      const auto fault =
          kept < 0 ? torn_write(std::nullopt, file, testing::pick<std::uint64_t>(0, 1000)) : torn_write(kept, file);
      FaultyFiles files(disk, {fault}, /*rank=*/1);
      RC_ASSERT(dies([&] { save(files, second, "second", write); }));
      RC_ASSERT(saved_in(disk.content()) == first);
      save(disk, second, "second", write);  // a new process saves again
      RC_ASSERT(saved_in(disk.content()) == second);
      RC_ASSERT(!has_temporary(disk));
    }
  }
}

// The promise to users: a process that dies while it saves never destroys the previous checkpoint.
TEST(TornWriteTest, AfterACutAnywhereTheOldCheckpointIsIntact) {
  testing::expect_property(100, [] { a_torn_write_leaves_the_old_checkpoint(kAtomically); });
}

// The planted bug: without a temporary file the old contents are gone as soon as the file is created.
TEST(TornWriteTest, AFileWrittenInPlaceIsLost) {
  testing::expect_property_fails("no temporary file", 10, [] {
    a_torn_write_leaves_the_old_checkpoint([](Files& files, const std::string& path, const std::string& bytes) {
      const auto file = files.create(path);
      file->append(bytes);
      file->sync();
      file->close();
    });
  });
}

// As on a real disk: the bytes written so far remain, and the next start must cope with them.
TEST(TornWriteTest, ThePrefixStaysOnTheDiskUnderItsTemporaryName) {
  const TemporaryFolder folder;
  PosixFiles disk;
  for (std::int64_t kept = 0; kept <= 6; ++kept) {
    FaultyFiles files(disk, {torn_write(kept)}, 1);
    EXPECT_TRUE(dies([&] { write_atomically(files, folder.path("a"), "abcdef"); }));
    EXPECT_THAT(folder.files(), ElementsAre("a.tmp"));
    EXPECT_EQ(disk.read(folder.path("a.tmp")), std::string("abcdef").substr(0, static_cast<std::size_t>(kept)));
  }
}

// Files are written in pieces; the limit counts the bytes of all of them.
TEST(TornWriteTest, PiecesCountTogether) {
  const TemporaryFolder folder;
  PosixFiles disk;
  FaultyFiles files(disk, {torn_write(5)}, 1);
  const auto file = files.create(folder.path("a"));
  file->append("abc");
  file->append("de");
  EXPECT_TRUE(dies([&] { file->append("fg"); }));
  EXPECT_EQ(disk.read(folder.path("a")), "abcde");
}

// The fault must occur although the limit is never reached, or the run would pass without a test.
TEST(TornWriteTest, AFileWithFewerBytesThanAreKeptIsTornAtItsSync) {
  const TemporaryFolder folder;
  PosixFiles disk;
  FaultyFiles files(disk, {torn_write(100)}, 1);
  const auto file = files.create(folder.path("a"));
  file->append("abc");
  EXPECT_TRUE(dies([&] { file->sync(); }));
}

// After the death of a process none of its threads may change the disk any more, although its code continues to run
// here.
TEST(TornWriteTest, ADeadProcessDoesNothing) {
  const TemporaryFolder folder;
  PosixFiles disk;
  FaultyFiles files(disk, {torn_write(1, "torn")}, 1);
  const auto other = folder.write("other", "x");
  const auto open = files.create(folder.path("open"));
  const auto torn = files.create(folder.path("torn"));
  EXPECT_TRUE(dies([&] { torn->append("ab"); }));
  const auto before = content_of(folder);
  EXPECT_TRUE(dies([&] { torn->append("c"); }));
  EXPECT_TRUE(dies([&] { open->append("c"); }));
  EXPECT_TRUE(dies([&] { open->sync(); }));
  EXPECT_TRUE(dies([&] { open->close(); }));
  EXPECT_TRUE(dies([&] { (void)files.create(folder.path("new")); }));
  EXPECT_TRUE(dies([&] { (void)files.read(other); }));
  EXPECT_TRUE(dies([&] { files.rename(other, folder.path("new")); }));
  EXPECT_TRUE(dies([&] { files.remove(other); }));
  EXPECT_TRUE(dies([&] { files.make_folder(folder.path("new")); }));
  EXPECT_TRUE(dies([&] { files.sync_folder(folder.path()); }));
  EXPECT_EQ(content_of(folder), before);
}

// The report of a run shows this text, which has to say what happened without a debugger.
TEST(TornWriteTest, TheErrorNamesRankFileAndBytes) {
  const TemporaryFolder folder;
  PosixFiles disk;
  FaultyFiles files(disk, {torn_write(2, "weights")}, 1);
  try {
    write_atomically(files, folder.path("weights.bin"), "abcdef");
    FAIL() << "the process did not die";
  } catch (const ProcessDied& death) {
    EXPECT_EQ(death.what(), "torn_write on rank 1, bytes 2, file weights: the process died while writing " +
                                folder.path("weights.bin.tmp") + "; 2 bytes of it reached the disk");
  }
}

// A fault may be limited to a rank and to a part of the file's name.
TEST(TornWriteTest, OtherRanksAndOtherFilesAreUnaffected) {
  const TemporaryFolder folder;
  PosixFiles disk;
  FaultyFiles other_rank(disk, {torn_write(0)}, 2), other_file(disk, {torn_write(0, "weights")}, 1);
  write_atomically(other_rank, folder.path("weights"), "a");
  write_atomically(other_file, folder.path("optimizer"), "b");
  EXPECT_EQ(content_of(folder), (std::map<std::string, std::string>{{"optimizer", "b"}, {"weights", "a"}}));
  EXPECT_TRUE(dies([&] { write_atomically(other_file, folder.path("weights"), "c"); }));
}

// --- a full disk -----------------------------------------------------------------------------------------------------

// Unlike a dead process, one whose disk is full can clean up, and must, to free the space.
TEST(DiskFullTest, AtEveryByteTheOldCheckpointStaysWithoutTemporaryFiles) {
  testing::expect_property(100, [] {
    const auto first = testing::any_checkpoint(), second = testing::any_checkpoint();
    std::int64_t needed = std::ssize(std::string("second"));
    for (const auto& [file, bytes] : second) needed += std::ssize(bytes);
    for (std::int64_t room = 0; room <= needed; ++room) {
      CrashDisk disk;
      save(disk, first, "first", kAtomically);
      FaultyFiles files(disk, {disk_full(room)}, 1);
      const auto refusal = refusal_of([&] { save(files, second, "second", kAtomically); });
      // Only the exact size suffices. In contrast to a dead process, this one lives and must remove its temporary
      // file.
      RC_ASSERT(refusal.empty() == (room == needed));
      RC_ASSERT(saved_in(disk.content()) == (room == needed ? second : first));
      RC_ASSERT(!has_temporary(disk));
    }
  });
}

// A simulated error must look like a real one, so that a program's handling of it is tested.
TEST(DiskFullTest, TheMessageIsTheSystemsMessageWithTheFile) {
  const TemporaryFolder folder;
  PosixFiles disk;
  FaultyFiles files(disk, {disk_full(10)}, 1);
  write_atomically(files, folder.path("a"), "123456");
  const auto path = folder.path("b");
  EXPECT_EQ(refusal_of([&] { write_atomically(files, path, "12345"); }),
            path + ": not written; the previous content is unchanged: " + path +
                ".tmp: cannot be written: No space left on device; free disk space");
  EXPECT_THAT(folder.files(), ElementsAre("a"));
}

TEST(DiskFullTest, WritesSucceedUntilTheDiskIsFull) {
  const TemporaryFolder folder;
  PosixFiles disk;
  // Two such faults: the smaller limit counts. Removing a file frees nothing, because other programs may have
  // filled it.
  FaultyFiles files(disk, {disk_full(100), disk_full(4)}, 1);
  const auto file = files.create(folder.path("a"));
  file->append("abc");
  EXPECT_THAT(refusal_of([&] { file->append("de"); }), HasSubstr("No space left on device"));
  EXPECT_THAT(refusal_of([&] { file->append("f"); }), HasSubstr("No space left on device"));
  file->close();
  EXPECT_EQ(files.read(folder.path("a")), "abcd");
  files.remove(folder.path("a"));
  EXPECT_THAT(refusal_of([&] { write_atomically(files, folder.path("b"), "x"); }),
              HasSubstr("No space left on device"));
}

// Each rank has its own disk in the simulation.
TEST(DiskFullTest, OtherRanksHaveRoom) {
  const TemporaryFolder folder;
  PosixFiles disk;
  FaultyFiles files(disk, {disk_full(0)}, 2);
  write_atomically(files, folder.path("a"), "abc");
  EXPECT_EQ(disk.read(folder.path("a")), "abc");
}

// Two faults of one file: whichever limit is reached first decides.
TEST(DiskFullTest, TheEarlierOfTornWriteAndFullDiskOccurs) {
  const TemporaryFolder folder;
  PosixFiles disk;
  for (std::int64_t room = 0; room < 6; ++room) {
    FaultyFiles files(disk, {disk_full(room), torn_write(3)}, 1);
    const auto write = [&] { write_atomically(files, folder.path("a"), "abcdef"); };
    if (room >= 3)
      EXPECT_TRUE(dies(write)) << room;
    else
      EXPECT_NE(refusal_of(write), "") << room;
  }
}

}  // namespace
}  // namespace accel::sim
