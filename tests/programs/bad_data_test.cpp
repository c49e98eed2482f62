// Errors in the files of an image dataset: truncated, damaged, of another kind, or inconsistent. A reader that
// accepts them would train on noise, so every case must end with exit code 2: see bad_input.hpp.
#include <filesystem>
#include <nlohmann/json.hpp>

#include "tests/programs/support/bad_input.hpp"

namespace accel::testing::bad_data_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

std::string big_endian(std::uint32_t value) {
  return {static_cast<char>(value >> 24), static_cast<char>(value >> 16), static_cast<char>(value >> 8),
          static_cast<char>(value)};
}

// Writes an idx file: magic number 0 0 8 and the number of dimensions, then the sizes in big endian, then the
// bytes.
std::string idx(const std::vector<std::uint32_t>& sizes, std::size_t num_bytes) {
  std::string text{0, 0, 8, static_cast<char>(sizes.size())};
  for (const auto size : sizes) text += big_endian(size);
  for (std::size_t index = 0; index < num_bytes; ++index)
    // Labels are 0 to 9; pixels are arbitrary.
    text += static_cast<char>(sizes.size() == 1 ? index % 10 : index * 31);
  return text;
}

// A small data set that is valid; each test damages one file of it.
class BadDataTest : public ExperimentFiles {
 protected:
  BadDataTest() {
    data_.write("train-images-idx3-ubyte", idx({100, 28, 28}, 100 * 784));
    data_.write("train-labels-idx1-ubyte", idx({100}, 100));
    data_.write("t10k-images-idx3-ubyte", idx({20, 28, 28}, 20 * 784));
    data_.write("t10k-labels-idx1-ubyte", idx({20}, 20));
  }
  [[nodiscard]] CommandResult run() const { return sim_run({with("data_dir: " + data_.path())}); }
  TemporaryFolder data_;
};

TEST_F(BadDataTest, PlainIdxFilesAreReadUpToTheLimit) {
  const auto result = run();
  EXPECT_EQ(result.exit_code, 0) << result.error;
  // The experiment has eval_limit 16, fewer than the 20 samples in the file.
  EXPECT_EQ(nlohmann::json::parse(result.output)["eval_samples"], 16);
}

// A limit is a maximum, so this is no error.
TEST_F(BadDataTest, LimitBeyondTheDataTakesAllOfIt) {
  const auto result =
      sim_run({"--set", "eval_limit=1000", "--set", "limit=1000000", with("data_dir: " + data_.path())});
  EXPECT_EQ(result.exit_code, 0) << result.error;
  EXPECT_EQ(nlohmann::json::parse(result.output)["eval_samples"], 20);
}

// The usual case on a new machine: the data are not installed.
TEST_F(BadDataTest, MissingFolderIsNamedWithThePackageThatProvidesIt) {
  expect_refused(sim_run({with("data_dir: /does/not/exist")}),
                 AllOf(HasSubstr("data_dir: /does/not/exist/"), HasSubstr("apt-get install")));
}

TEST_F(BadDataTest, MissingFileIsNamed) {
  std::filesystem::remove(data_.path("t10k-labels-idx1-ubyte"));
  expect_refused(run(), HasSubstr("t10k-labels-idx1-ubyte does not exist"));
}

TEST_F(BadDataTest, TruncatedFileIsRefused) {
  data_.write("train-images-idx3-ubyte", idx({100, 28, 28}, 1000));
  expect_refused(run(),
                 AllOf(HasSubstr("train-images-idx3-ubyte: the file is truncated or damaged"), HasSubstr("got 1000")));
}

TEST_F(BadDataTest, TruncatedHeaderIsRefused) {
  data_.write("train-labels-idx1-ubyte", idx({100}, 0).substr(0, 5));
  expect_refused(run(), HasSubstr("train-labels-idx1-ubyte: the file is truncated or damaged"));
}

TEST_F(BadDataTest, DamagedGzipIsRefused) {
  std::filesystem::remove(data_.path("t10k-labels-idx1-ubyte"));
  data_.write("t10k-labels-idx1-ubyte.gz",
              // The gzip header is valid, so the error comes from the compressed data.
              std::string("\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\x03garbage that no stream is", 35));
  expect_refused(run(), HasSubstr("t10k-labels-idx1-ubyte.gz: the file is truncated or damaged"));
}

// A text file, and labels in place of images.
TEST_F(BadDataTest, FileOfAnotherKindIsRefused) {
  data_.write("train-images-idx3-ubyte", "this is no idx file, but text");
  expect_refused(run(),
                 HasSubstr("train-images-idx3-ubyte: not an idx file (it starts with 74 68 69 73; expected 00 00"));
  data_.write("train-images-idx3-ubyte", idx({100}, 100));
  expect_refused(
      run(), HasSubstr("train-images-idx3-ubyte: expected an idx file of bytes with 3 dimensions, got Byte with 1"));
}

// The sizes promise 3 TB. A reader that trusts them would be killed by the kernel without a message.
TEST_F(BadDataTest, HeaderThatPromisesTerabytesIsRefusedBeforeTheyAreAllocated) {
  data_.write("train-images-idx3-ubyte", idx({0xffffffff, 28, 28}, 1000));
  auto file = with("data_dir: " + data_.path());
  expect_refused(sim_run({"--set", "limit=~", file}), HasSubstr("train-images-idx3-ubyte"));
  data_.write("train-images-idx3-ubyte", idx({100, 0xffffffff, 0xffffffff}, 1000));
  expect_refused(sim_run({file}),
                 HasSubstr("train-images-idx3-ubyte: images have 4294967295x4294967295 pixels; expected 28x28"));
}

// The headers of both files are valid, but they do not belong together.
TEST_F(BadDataTest, ImagesOfAnotherSizeOrAnotherNumberThanLabelsAreRefused) {
  data_.write("t10k-labels-idx1-ubyte", idx({10}, 10));
  expect_refused(run(), HasSubstr("10 labels"));
  data_.write("train-images-idx3-ubyte", idx({100, 14, 14}, 100 * 196));
  expect_refused(run(), HasSubstr("images have 14x14 pixels; expected 28x28"));
}

// Label 10 would index beyond the ten classes in the loss.
TEST_F(BadDataTest, LabelOutsideTheTenClassesIsRefused) {
  data_.write("train-labels-idx1-ubyte", idx({100}, 0) + std::string(100, '\x0a'));
  expect_refused(run(), AllOf(HasSubstr("train-labels-idx1-ubyte"), HasSubstr("label 10")));
}

}  // namespace
}  // namespace accel::testing::bad_data_test
