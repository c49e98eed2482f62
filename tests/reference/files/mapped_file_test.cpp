// Files from which weights and samples are read. A shortened or replaced file must give an error and never a SIGBUS.
#include "reference/files/mapped_file.hpp"

#include <gmock/gmock.h>
#include <sys/resource.h>
#include <unistd.h>

#include <filesystem>
#include <memory>
#include <optional>

#include "reference/core/errors.hpp"
#include "reference/files/files.hpp"
#include "tests/support/message_of.hpp"
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
  EXPECT_EQ(file.read(), text);
  EXPECT_EQ(file.read(), text);
}

// mmap() of no bytes is an error of the system, so it needs its own path.
TEST(MappedFileTest, EmptyFileHasNoBytes) {
  const testing::TemporaryFolder folder;
  const MappedFile file(folder.write("empty", ""));
  file.advise(MappedFile::Access::kRandom);
  EXPECT_EQ(file.read(), "");
  EXPECT_EQ(file.read(), "");
}

// The system's own message for a folder is misleading.
TEST(MappedFileTest, FilesThatCannotBeMappedAreNamedWithTheReason) {
  const testing::TemporaryFolder folder;
  EXPECT_THAT(error_of(folder.path("none")),
              HasSubstr(folder.path("none") + ": cannot be opened: No such file or directory"));
  EXPECT_THAT(error_of(folder.path()), HasSubstr("is a folder; expected a regular file"));
  EXPECT_THAT(error_of("/dev/null"), HasSubstr("/dev/null: is a pipe or a device"));
}

std::ptrdiff_t num_open() {
  return std::distance(std::filesystem::directory_iterator("/proc/self/fd"), std::filesystem::directory_iterator());
}

// Sets the limit of open files.
class DescriptorLimit {
 public:
  explicit DescriptorLimit(rlim_t limit) {
    getrlimit(RLIMIT_NOFILE, &before_);
    const rlimit lowered{limit, before_.rlim_max};
    setrlimit(RLIMIT_NOFILE, &lowered);
  }
  ~DescriptorLimit() { setrlimit(RLIMIT_NOFILE, &before_); }
  DescriptorLimit(const DescriptorLimit&) = delete;
  DescriptorLimit& operator=(const DescriptorLimit&) = delete;

 private:
  rlimit before_{};
};

// With a descriptor that is kept, and with a file that is opened for each read.
class MappedFileReadTest : public ::testing::TestWithParam<bool> {
 protected:
  [[nodiscard]] static std::unique_ptr<const MappedFile> opened(const std::string& path) {
    const auto before = num_open();
    const DescriptorLimit limit(GetParam() ? 1024 : static_cast<rlim_t>(before) + 1);
    auto file = std::make_unique<const MappedFile>(path);
    EXPECT_EQ(num_open(), before + (GetParam() ? 1 : 0));
    return file;
  }
  [[nodiscard]] static std::string error_of_read(const MappedFile& file) {
    return testing::message_of<FileError>([&] { (void)file.read(); });
  }
  const testing::TemporaryFolder folder_;
};

TEST_P(MappedFileReadTest, PartsAreCopiedUnchanged) {
  std::string bytes(20'000'001, '\0');
  for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<char>(i * 2654435761u >> 13);
  const auto file = opened(folder_.write("large", bytes));
  for (const auto& [from, size] : {std::pair<std::size_t, std::size_t>{0, bytes.size()},
                                   {1, 9'000'000},
                                   {12'345'678, 7},
                                   {4096, 8 << 20},
                                   {5, 0}}) {
    EXPECT_TRUE(file->read(from, size) == bytes.substr(from, size)) << from;
  }
  file->read(3, 0, nullptr);
  EXPECT_THROW((void)file->read(20'000'000, 2), ArgumentError);
}

// Checkpoints are replaced by renaming while an old one may still be open.
TEST_P(MappedFileReadTest, AReplacedFileIsNotRead) {
  const auto path = folder_.write("weights", "those that were opened");
  const auto file = opened(path);
  std::filesystem::rename(folder_.write("new", "others of equal length"), path);
  EXPECT_EQ(file->read(), "those that were opened");
  std::filesystem::remove(path);
  EXPECT_EQ(file->read(), "those that were opened");
}

// Reading beyond the end of a mapped file raises SIGBUS, which would kill all ranks of a simulation. Within the last
// page it returns zeros silently.
TEST_P(MappedFileReadTest, AShortenedFileIsAnError) {
  const auto path = folder_.write("short", std::string(10'000, 'x'));
  const auto file = opened(path);
  for (const auto size : {9'999, 9'000, 5'000, 0}) {
    std::filesystem::resize_file(path, size);
    EXPECT_THAT(
        error_of_read(*file),
        HasSubstr(path + ": the file became shorter after it was opened; keep other programs from writing to it"));
  }
}

// Only the mapping still refers to the bytes if no descriptor was kept.
TEST_P(MappedFileReadTest, AReplacedFileThatWasShortenedIsAnError) {
  const auto path = folder_.write("replaced", std::string(10'000, 'x'));
  std::filesystem::create_hard_link(path, folder_.path("other_name"));
  const auto file = opened(path);
  std::filesystem::rename(folder_.write("new", std::string(10'000, 'y')), path);
  EXPECT_EQ(file->read(5'000, 1), "x");
  std::filesystem::resize_file(folder_.path("other_name"), 0);
  EXPECT_THAT(error_of_read(*file), HasSubstr("the file became shorter after it was opened"));
}

INSTANTIATE_TEST_SUITE_P(Descriptors, MappedFileReadTest, ::testing::Bool(),
                         [](const auto& info) { return info.param ? "Kept" : "OpenedForEachRead"; });

// The limit of open files is 1,024 on many systems, and checkpoints of many ranks have more files.
TEST(MappedFileTest, HalfOfTheDescriptorsAreLeft) {
  const testing::TemporaryFolder folder;
  const auto path = folder.write("one", "1");
  const DescriptorLimit limit(200);
  std::vector<std::unique_ptr<const MappedFile>> files;
  for (int i = 0; i < 300; ++i) files.push_back(std::make_unique<const MappedFile>(path));
  EXPECT_LE(num_open(), 102);
  EXPECT_EQ(files.back()->read(), "1");
}

}  // namespace
}  // namespace accel
