// Tests of datasets in safetensors files: rows of tensors become samples, and several files are one dataset. The
// files are written by the tests, byte for byte as the format prescribes.
#include "reference/sources/safetensors_dataset.hpp"

#include <gmock/gmock.h>

#include "reference/core/errors.hpp"
#include "reference/data/dataset.hpp"
#include "tests/support/safetensors_bytes.hpp"
#include "tests/support/temporary_folder.hpp"
#include "tests/support/torch.hpp"

namespace accel {
namespace {

using ::testing::HasSubstr;
using testing::safetensors_of;

static_assert(BatchedDataset<SafetensorsDataset<2>> && BatchedDataset<SafetensorsTable>);

class SafetensorsDatasetTest : public ::testing::Test {
 protected:
  std::string write(const std::string& name, std::int64_t begin, std::int64_t end) {
    return folder_.write(name, safetensors_of({{"image", "F32", images_.slice(0, begin, end)},
                                               {"label", "I64", labels_.slice(0, begin, end)}}));
  }
  std::string error_of(const std::vector<std::string>& paths, const std::vector<std::string>& names = {}) {
    try {
      const SafetensorsTable table(paths, names);
    } catch (const ConfigError& error) {
      return error.what();
    }
    return "no error";
  }
  testing::TemporaryFolder folder_;
  at::Tensor images_ = torch::rand({7, 2, 3}), labels_ = torch::arange(7);
};

// The order of the arguments, not that of the file.
TEST_F(SafetensorsDatasetTest, SamplesAreTuplesInTheOrderOfTheNames) {
  const SafetensorsDataset dataset(write("all", 0, 7), "label", "image");
  const auto [label, image] = dataset.get(4);
  EXPECT_TRUE(label.equal(labels_[4]) && image.equal(images_[4]));
  const auto [labels, images] = dataset.get_batch({6, 1});
  EXPECT_TRUE(labels.equal(torch::tensor({6, 1})) && images.equal(images_.index_select(0, labels)));
}

// The batch takes rows from both files, in another order than they are stored.
TEST_F(SafetensorsDatasetTest, ShardsAreConcatenatedAndAnEmptyOneIsSkipped) {
  const SafetensorsTable table({write("a", 0, 3), write("b", 3, 3), write("c", 3, 7)});
  EXPECT_EQ(table.size(), 7);
  for (std::int64_t index = 0; index < 7; ++index) {
    EXPECT_EQ(table.get(index).at("label").item<std::int64_t>(), index);
    EXPECT_TRUE(table.get(index).at("image").equal(images_[index]));
  }
  EXPECT_TRUE(table.get_batch({6, 2, 3, 0}).at("image").equal(images_.index_select(0, torch::tensor({6, 2, 3, 0}))));
  EXPECT_THROW((void)table.get(7), ArgumentError);
  EXPECT_THROW((void)table.get_batch({0, -1}), ArgumentError);
}

// As in ParquetDataset.
TEST_F(SafetensorsDatasetTest, TensorsThatTheFirstFileLacksAreNamedInAWarning) {
  const auto first = write("first", 0, 3);
  const auto second = folder_.write(
      "second", safetensors_of({{"image", "F32", images_}, {"label", "I64", labels_}, {"mask", "I64", labels_}}));
  ::testing::internal::CaptureStderr();
  EXPECT_EQ(error_of({first, second}), "no error");
  EXPECT_EQ(error_of({first, second}, {"image"}), "no error");
  EXPECT_EQ(::testing::internal::GetCapturedStderr(),
            "accel: warning: " + second +
                ": skips mask, which the first file lacks; choose names, or read the files separately\n");
}

// Different numbers of rows, no rows, different shapes between files, and a missing name.
TEST_F(SafetensorsDatasetTest, TensorsThatDoNotFormATableAreReported) {
  const auto good = write("good", 0, 3);
  const auto uneven =
      folder_.write("uneven", safetensors_of({{"image", "F32", images_}, {"label", "I64", labels_.slice(0, 0, 6)}}));
  EXPECT_THAT(error_of({uneven}), HasSubstr(uneven + ": tensor 'label' has 6 rows, but 'image' has 7"));
  const auto scalar = folder_.write("scalar", safetensors_of({{"image", "F32", torch::tensor(1.0F)}}));
  EXPECT_THAT(error_of({scalar}), HasSubstr("tensor 'image' has no dimensions"));
  const auto wider = folder_.write("wider", safetensors_of({{"image", "F32", torch::zeros({3, 2, 4})},
                                                            {"label", "I64", torch::zeros({3}, torch::kLong)}}));
  EXPECT_THAT(
      error_of({good, wider}),
      HasSubstr(wider +
                ": tensor 'image' differs in dtype or row shape from that of the first file: expected rows of "));
  EXPECT_THAT(error_of({good}, {"image", "mask"}),
              HasSubstr(good + ": the file has no tensor 'mask'; its tensors are image, label"));
}

}  // namespace
}  // namespace accel
