// Memory-mapped files, from which weights are loaded. A truncated or replaced file must give an error and never a
// SIGBUS.
#include "reference/core/mapped_file.hpp"

#include <gmock/gmock.h>
#include <sys/stat.h>

#include <filesystem>

#include "reference/core/errors.hpp"
#include "reference/core/files.hpp"
#include "tests/support/temporary_folder.hpp"

namespace accel {
namespace {

using ::testing::HasSubstr;

// The message when the file is opened; "" if there is none.
std::string error_of(const std::string& path) {
  try {
    const MappedFile file(path);
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "no error";
}

TEST(MappedFileTest, BytesAreThoseOfTheFile) {
  const testing::TemporaryFolder folder;
  const std::string text("a\0b\nc", 5);
  const MappedFile file(folder.write("five", text));
  file.advise(MappedFile::Access::kSequential);
  EXPECT_EQ(file.bytes(), text);
}

// mmap() of no bytes is an error of the system, so it needs its own path.
TEST(MappedFileTest, EmptyFileHasNoBytes) {
  const testing::TemporaryFolder folder;
  const MappedFile file(folder.write("empty", ""));
  file.advise(MappedFile::Access::kRandom);
  EXPECT_EQ(file.bytes(), "");
}

// The system's own message for a folder is misleading.
TEST(MappedFileTest, FilesThatCannotBeMappedAreNamedWithTheReason) {
  const testing::TemporaryFolder folder;
  EXPECT_THAT(error_of(folder.path("none")),
              HasSubstr(folder.path("none") + ": cannot be opened: No such file or directory"));
  EXPECT_THAT(error_of(folder.path()), HasSubstr("is a folder; expected a regular file"));
  EXPECT_THAT(error_of("/dev/null"), HasSubstr("/dev/null: is a pipe or a device"));
}

// 20 MB are copied in several pieces.
TEST(MappedFileTest, PartsAreCopiedUnchanged) {
  const testing::TemporaryFolder folder;
  std::string bytes(20'000'001, '\0');
  for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<char>(i * 2654435761u >> 13);
  const MappedFile file(folder.write("large", bytes));
  for (const auto& [from, size] : {std::pair<std::size_t, std::size_t>{0, bytes.size()},
                                   {1, 9'000'000},
                                   {12'345'678, 7},
                                   {4096, 8 << 20},
                                   {5, 0}}) {
    std::string copy(size, 'x');
    file.copy_out(file.bytes().substr(from, size), copy.data());
    EXPECT_TRUE(copy == bytes.substr(from, size)) << from;
  }
  file.copy_out(file.bytes().substr(3, 0), nullptr);
  EXPECT_TRUE(file.bytes() == bytes);
}

// Checkpoints are replaced by renaming while an old one may still be mapped.
TEST(MappedFileTest, AReplacedFileIsNotRead) {
  const testing::TemporaryFolder folder;
  const auto path = folder.write("weights", "those that were mapped");
  const MappedFile file(path);
  std::string copy(file.bytes().size(), '-');
  std::filesystem::rename(folder.write("new", "others of equal length"), path);
  file.copy_out(file.bytes(), copy.data());
  EXPECT_EQ(copy, "those that were mapped");
  std::filesystem::remove(path);
  copy.assign(copy.size(), '-');
  file.copy_out(file.bytes(), copy.data());
  EXPECT_EQ(copy, "those that were mapped");
}

// The limit of open files is 1,024 on many systems, and checkpoints of many ranks have more files.
TEST(MappedFileTest, AMappingHoldsNoDescriptor) {
  const testing::TemporaryFolder folder;
  const auto path = folder.write("one", "1");
  const auto num_open = [] {
    return std::distance(std::filesystem::directory_iterator("/proc/self/fd"), std::filesystem::directory_iterator());
  };
  const auto before = num_open();
  const MappedFile file(path);
  char byte = 0;
  file.copy_out(file.bytes(), &byte);
  EXPECT_EQ(num_open(), before);
}

// Reading beyond the end of a mapped file raises SIGBUS, which would kill all ranks of a simulation.
TEST(MappedFileTest, ATruncatedFileIsAnError) {
  const testing::TemporaryFolder folder;
  const auto path = folder.write("short", std::string(10'000, 'x'));
  const MappedFile file(path);
  std::filesystem::resize_file(path, 9'000);
  std::string copy(10'000, '\0');
  try {
    file.copy_out(file.bytes(), copy.data());
    ADD_FAILURE() << "there are 9,000 bytes";
  } catch (const FileError& error) {
    EXPECT_THAT(
        error.what(),
        HasSubstr(path + ": the file became shorter after it was opened; keep other programs from writing to it"));
  }
}

}  // namespace
}  // namespace accel
