// Images of the size of CIFAR's, from Fashion-MNIST and from folders of images.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <png.h>

#include <filesystem>

#include "reference/core/errors.hpp"
#include "sim/programs/experiments/small_images.hpp"
#include "tests/support/temporary_folder.hpp"
#include "tests/support/torch.hpp"

namespace accel::programs {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

// --- sizes and channels ----------------------------------------------------------------------------------------------

// The experiment files document nearest-neighbour sampling with floor, so results do not depend on an image
// library.
TEST(ResizeTest, EveryPixelIsTheOneAtItsPositionRoundedDown) {
  const auto image = torch::arange(28 * 28).view({28, 28});
  const auto large = resize_to_small(image);
  ASSERT_EQ(large.sizes(), at::IntArrayRef({32, 32}));
  for (std::int64_t row = 0; row < 32; ++row) {
    for (std::int64_t column = 0; column < 32; ++column) {
      ASSERT_EQ(large[row][column].item<std::int64_t>(), row * 28 / 32 * 28 + column * 28 / 32)
          << row << ", " << column;
    }
  }
}

// The image is very wide, so exchanging the two gives other pixels.
TEST(ResizeTest, HeightAndWidthAreNotConfused) {
  const auto wide = torch::arange(2 * 64).view({1, 2, 64});
  const auto square = resize_to_small(wide);
  EXPECT_EQ(square[0][15][1].item<std::int64_t>(), 2);
  EXPECT_EQ(square[0][16][1].item<std::int64_t>(), 64 + 2);
}

// The network expects three channels, as CIFAR has.
TEST(SmallImagesTest, GreyImageHasThreeEqualChannelsFromZeroToOne) {
  const auto bytes = torch::randint(256, {3, 1, 32, 32}, torch::kByte);
  const auto [images, labels] = SmallImages(bytes, torch::tensor({4, 5, 6})).get_batch({2, 0});
  EXPECT_EQ(images.scalar_type(), torch::kFloat);
  EXPECT_TRUE(images.is_contiguous());
  for (std::int64_t channel = 0; channel < 3; ++channel) {
    EXPECT_TRUE(at::equal(images.select(1, channel)[0], bytes[2][0].to(torch::kFloat) / 255)) << channel;
  }
  EXPECT_TRUE(at::equal(labels, torch::tensor({6, 4})));
}

// --- folders ---------------------------------------------------------------------------------------------------------

class ImageFolderTaskTest : public ::testing::Test {
 protected:
  // Writes an image of a single colour.
  void add(const std::string& name, std::uint8_t red, std::uint32_t width = 8, std::uint32_t height = 4) {
    const std::filesystem::path path = folder_.path(name);
    std::filesystem::create_directories(path.parent_path());
    std::vector<std::uint8_t> pixels;
    for (std::uint32_t index = 0; index < width * height; ++index) pixels.insert(pixels.end(), {red, 20, 30});
    png_image image{.version = PNG_IMAGE_VERSION, .width = width, .height = height, .format = PNG_FORMAT_RGB};
    ASSERT_NE(png_image_write_to_file(&image, path.c_str(), 0, pixels.data(), 0, nullptr), 0) << image.message;
  }
  std::string error() {
    try {
      load_small_images(folder_.path(), std::nullopt, std::nullopt);
    } catch (const ConfigError& error) {
      return error.what();
    }
    return "no error";
  }
  testing::TemporaryFolder folder_;
};

// The layout of torchvision's ImageFolder.
TEST_F(ImageFolderTaskTest, FoldersOfTrainAndTestAreTheClasses) {
  add("train/cat/1.png", 1);
  // Images of different sizes are resized to 32 x 32 each.
  add("train/dog/1.png", 2, 100, 50);
  add("train/dog/2.png", 3);
  add("test/cat/1.png", 4);
  add("test/dog/1.png", 5);
  const auto data = load_small_images(folder_.path(), std::nullopt, 1);
  EXPECT_EQ(data->num_classes, 2);
  EXPECT_EQ(data->train.size(), 3);
  EXPECT_EQ(data->test.size(), 1);
  const auto [images, labels] = data->train.get_batch({0, 1, 2});
  EXPECT_EQ(images.sizes(), at::IntArrayRef({3, 3, 32, 32}));
  EXPECT_TRUE(at::equal(labels, torch::tensor({0, 1, 1})));
  EXPECT_TRUE(at::equal(images[1][0], torch::full({32, 32}, 2.0F) / 255));
  EXPECT_TRUE(at::equal(images[1][2], torch::full({32, 32}, 30.0F) / 255));
}

// Labels are numbers in the order of the folders, so other folders in test would silently change their meaning.
TEST_F(ImageFolderTaskTest, OtherClassesInTestAreRejected) {
  add("train/cat/1.png", 1);
  add("test/dog/1.png", 1);
  EXPECT_THAT(error(), AllOf(HasSubstr("train: has 1 classes"), HasSubstr("expected the same folders")));
}

// One bad file among thousands has to be found.
TEST_F(ImageFolderTaskTest, DamagedImageIsNamed) {
  add("train/cat/1.png", 1);
  add("test/cat/1.png", 1);
  std::filesystem::resize_file(folder_.path("test/cat/1.png"), 60);
  EXPECT_THAT(error(), HasSubstr("test/cat/1.png"));
}

TEST_F(ImageFolderTaskTest, TrainWithoutTestIsRejected) {
  add("train/cat/1.png", 1);
  EXPECT_THAT(error(), HasSubstr("/test"));
}

}  // namespace
}  // namespace accel::programs
