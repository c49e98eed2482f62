// Files on POSIX: writing, reading, and replacing a file atomically. The property is that a crash or a full disk at
// any moment leaves the old contents or the new ones; power loss is simulated by CrashDisk.
#include "reference/files/files.hpp"

#include <gmock/gmock.h>
#include <sys/resource.h>

#include <csignal>
#include <filesystem>

#include "tests/support/crash_disk.hpp"
#include "tests/support/property.hpp"
#include "tests/support/small_checkpoint.hpp"
#include "tests/support/temporary_folder.hpp"

namespace accel {
namespace {

using ::testing::AllOf;
using testing::CrashDisk;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::kAtomically;
using testing::save;
using testing::saved_in;
using testing::TemporaryFolder;

// An error of a file operation.
struct Refusal {
  std::string message;
  int code = 0;
};

template <typename Body>
Refusal refusal_of(Body&& body) {
  try {
    body();
  } catch (const FileError& error) {
    return {error.what(), error.code()};
  }
  return {};
}

// Limits the size of files of this process while the object lives. Beyond the limit the system writes a part and
// then fails, as a full disk does.
class FileSizeLimit {
 public:
  explicit FileSizeLimit(rlim_t bytes) : handler_(std::signal(SIGXFSZ, SIG_IGN)) {
    getrlimit(RLIMIT_FSIZE, &before_);
    const rlimit limit{bytes, before_.rlim_max};
    setrlimit(RLIMIT_FSIZE, &limit);
  }
  ~FileSizeLimit() {
    setrlimit(RLIMIT_FSIZE, &before_);
    std::signal(SIGXFSZ, handler_);
  }
  FileSizeLimit(const FileSizeLimit&) = delete;
  FileSizeLimit& operator=(const FileSizeLimit&) = delete;

 private:
  rlimit before_{};
  void (*handler_)(int);
};

// Any pieces, also empty ones.
TEST(PosixFilesTest, AppendedBytesAreRead) {
  const TemporaryFolder folder;
  PosixFiles files;
  testing::expect_property(50, [&] {
    const auto pieces = *rc::gen::arbitrary<std::vector<std::string>>();
    std::string whole;
    const auto file = files.create(folder.path("any"));
    for (const auto& piece : pieces) {
      file->append(piece);
      whole += piece;
    }
    file->sync();
    file->close();
    RC_ASSERT(files.read(folder.path("any")) == whole);
  });
}

// read() may return less than asked for, and one call reads at most 2 GiB.
TEST(PosixFilesTest, AFileLargerThanOneReadIsComplete) {
  const TemporaryFolder folder;
  PosixFiles files;
  std::string bytes(3'500'001, '\0');
  for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<char>(i * 2654435761u >> 13);
  write_atomically(files, folder.path("large"), bytes);
  EXPECT_EQ(files.read(folder.path("large")), bytes);
}

TEST(PosixFilesTest, ACreatedFileReplacesAnExistingOne) {
  const TemporaryFolder folder;
  PosixFiles files;
  folder.write("a", "before");
  EXPECT_NE(files.create(folder.path("a")), nullptr);
  EXPECT_EQ(files.read(folder.path("a")), "");
}

// Making a folder that exists is no error, since several ranks may do it.
TEST(PosixFilesTest, FoldersAreMadeWithTheirParentsAndRemovedWhenEmpty) {
  const TemporaryFolder folder;
  PosixFiles files;
  files.make_folder(folder.path("a/b/c"));
  files.make_folder(folder.path("a/b/c"));
  write_atomically(files, folder.path("a/b/c/file"), "x");
  files.rename(folder.path("a/b"), folder.path("d"));
  EXPECT_EQ(files.read(folder.path("d/c/file")), "x");
  EXPECT_EQ(refusal_of([&] { files.remove(folder.path("d/c")); }).code, ENOTEMPTY);
  files.remove(folder.path("d/c/file"));
  files.remove(folder.path("d/c"));
  EXPECT_FALSE(std::filesystem::exists(folder.path("d/c")));
}

// The system's own messages do not.
TEST(PosixFilesTest, EveryErrorNamesItsFile) {
  const TemporaryFolder folder;
  PosixFiles files;
  const auto absent = folder.path("absent");
  const auto file = folder.write("file", "x");
  for (const auto& refusal : {
           refusal_of([&] { (void)files.read(absent); }),
           refusal_of([&] { files.remove(absent); }),
           refusal_of([&] { files.rename(absent, file); }),
           refusal_of([&] { files.sync_folder(absent); }),
           refusal_of([&] { (void)files.create(absent + "/x"); }),
           refusal_of([&] { write_atomically(files, absent + "/x", "y"); }),
       }) {
    EXPECT_THAT(refusal.message,
                AllOf(HasSubstr(absent), HasSubstr(": cannot be "), HasSubstr(": No such file or directory")));
    EXPECT_EQ(refusal.code, ENOENT);
  }
  EXPECT_EQ(refusal_of([&] { files.make_folder(file + "/x"); }).code, ENOTDIR);
  EXPECT_EQ(refusal_of([&] { files.sync_folder(file); }).code, ENOTDIR);
  EXPECT_EQ(refusal_of([&] { (void)files.read(folder.path()); }).code, EISDIR);
  EXPECT_THAT(folder.files(), ElementsAre("file"));
}

// Shorter and longer than before, and empty.
TEST(WriteAtomicallyTest, NewContentReplacesTheOld) {
  const TemporaryFolder folder;
  PosixFiles files;
  for (const std::string bytes : {"a", "", "longer than before"}) {
    write_atomically(files, folder.path("a"), bytes);
    EXPECT_EQ(files.read(folder.path("a")), bytes);
    EXPECT_THAT(folder.files(), ElementsAre("a"));
  }
}

// A limit on the file size of the process stands for a full disk.
TEST(WriteAtomicallyTest, AFullDiskLeavesTheOldFileWithoutTemporaryFiles) {
  const TemporaryFolder folder;
  PosixFiles files;
  const auto path = folder.write("weights.bin", "old");
  const auto refusal = [&] {
    const FileSizeLimit limit(1000);
    return refusal_of([&] { write_atomically(files, path, std::string(1001, 'x')); });
  }();
  EXPECT_EQ(refusal.message, path + ": not written; the previous content is unchanged: " + path +
                                 ".tmp: cannot be written: File too large");
  EXPECT_EQ(refusal.code, EFBIG);
  EXPECT_EQ(files.read(path), "old");
  EXPECT_THAT(folder.files(), ElementsAre("weights.bin"));
}

// Nothing would ever remove it.
TEST(WriteAtomicallyTest, AFailedRenameLeavesNoTemporaryFile) {
  const TemporaryFolder folder;
  PosixFiles files;
  files.make_folder(folder.path("taken/by"));
  EXPECT_THAT(refusal_of([&] { write_atomically(files, folder.path("taken"), "x"); }).message,
              HasSubstr("Is a directory; choose another name"));
  EXPECT_THAT(folder.files(), ElementsAre("taken"));
}

// The user must see the cause, not an error of the clean-up.
TEST(WriteAtomicallyTest, AWriterThatThrowsKeepsTheOldFileAndTheError) {
  const TemporaryFolder folder;
  PosixFiles files;
  const auto path = folder.write("a", "old");
  EXPECT_THROW(write_atomically(files, path,
                                [](WritableFile& file) {
                                  file.append("new");
                                  throw ArgumentError("no more");
                                }),
               ArgumentError);
  EXPECT_EQ(files.read(path), "old");
  EXPECT_THAT(folder.files(), ElementsAre("a"));
}

// It is longer than the new content, so appending or overwriting in place would leave a rest.
TEST(WriteAtomicallyTest, ATemporaryFileOfADeadProcessIsReplaced) {
  const TemporaryFolder folder;
  PosixFiles files;
  folder.write("a.tmp", "a longer piece that an earlier process left");
  write_atomically(files, folder.path("a"), "new");
  EXPECT_EQ(files.read(folder.path("a")), "new");
  EXPECT_THAT(folder.files(), ElementsAre("a"));
}

// --- power loss ------------------------------------------------------------------------------------------------------

// Saves two checkpoints one after the other, with power failing at every operation in turn.
void every_power_loss_leaves_the_old_or_the_new_checkpoint(const testing::Write& write) {
  const auto first = testing::any_checkpoint(), second = testing::any_checkpoint();
  const auto choose = [](std::size_t end) { return testing::pick<std::size_t>(0, end + 1); };
  CrashDisk whole;
  save(whole, first, "first", write);
  const auto first_saved = whole.num_operations();
  save(whole, second, "second", write);
  for (std::size_t cut = 0; cut <= whole.num_operations(); ++cut) {
    CrashDisk disk(cut);
    try {
      save(disk, first, "first", write);
      save(disk, second, "second", write);
    } catch (const testing::PowerLost&) {
    }
    const auto found = saved_in(disk.after_power_loss(choose));
    RC_ASSERT(found == first || found == second || (found.empty() && cut < first_saved));
    if (cut == whole.num_operations()) RC_ASSERT(found == second);
  }
}

// CrashDisk loses what was not synced, as real disks may.
TEST(WriteAtomicallyTest, AfterEveryPowerLossTheOldOrNewCheckpointIsReadable) {
  testing::expect_property(300, [] { every_power_loss_leaves_the_old_or_the_new_checkpoint(kAtomically); });
}

// The planted bugs: without the temporary name, the sync of the file, or the sync of the folder, some crash loses
// both versions.
TEST(WriteAtomicallyTest, EveryStepOfWritingAtomicallyIsNeeded) {
  enum class Left { kTemporary, kSync, kSyncOfTheFolder };
  const auto careless = [](Left left) -> testing::Write {
    return [left](Files& files, const std::string& path, const std::string& bytes) {
      const auto written = left == Left::kTemporary ? path : path + ".tmp";
      const auto file = files.create(written);
      file->append(bytes);
      if (left != Left::kSync) file->sync();
      file->close();
      if (left != Left::kTemporary) files.rename(written, path);
      if (left != Left::kSyncOfTheFolder) files.sync_folder(".");
    };
  };
  for (const auto& [what, left] : {std::pair{"no temporary file", Left::kTemporary},
                                   {"rename before sync", Left::kSync},
                                   {"folder not synced", Left::kSyncOfTheFolder}}) {
    testing::expect_property_fails(what, 100,
                                   [&] { every_power_loss_leaves_the_old_or_the_new_checkpoint(careless(left)); });
  }
}

}  // namespace
}  // namespace accel
