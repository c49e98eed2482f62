// Tests of decoding JPEG and PNG images and of ImageFolder. The reference for JPEG is Pillow: every byte must be
// equal, as a model trained with Python's pixels would otherwise see other inputs. PNG is exact by definition.
#include "reference/sources/image.hpp"

#include <gmock/gmock.h>
#include <png.h>
#include <zlib.h>

#include "reference/core/errors.hpp"
#include "reference/data/dataset.hpp"
#include "reference/files/sha256.hpp"
#include "reference/sources/image_folder.hpp"
#include "tests/support/damage.hpp"
#include "tests/support/property.hpp"
#include "tests/support/temporary_folder.hpp"
#include "tests/support/torch.hpp"

namespace accel {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Pair;
using ::testing::StartsWith;
using namespace std::string_literals;

static_assert(MapDataset<ImageFolder>);

// JPEG files of 9 x 7 pixels, written by Pillow 13, in base 64, and the SHA-256 of the pixels that Pillow's
// `convert("RGB")` gives.
struct Jpeg {
  std::string name, base64, sha256;
};
const std::vector<Jpeg> kJpegs{
    {"colour",
     "/9j/4AAQSkZJRgABAQAAAQABAAD/"
     "2wBDABQODxIPDRQSEBIXFRQYHjIhHhwcHj0sLiQySUBMS0dARkVQWnNiUFVtVkVGZIhlbXd7gYKBTmCNl4x9lnN+gX"
     "z/2wBDARUXFx4aHjshITt8U0ZTfHx8fHx8fHx8fHx8fHx8fHx8fHx8fHx8fHx8fHx8fHx8fHx8fHx8fHx8fHx8fHx8fHz/"
     "wAARCAAHAAkDASIAAhEBAxEB"
     "/8QAFgABAQEAAAAAAAAAAAAAAAAAAAMF/8QAGxAAAQQDAAAAAAAAAAAAAAAAAAECBCEFFVH/xAAUAQEAAAAAAAAAAAAAAAAAAAAC/"
     "8QAGxEAAgEFAAAAAA"
     "AAAAAAAAAAAAIEAQMREzH/2gAMAwEAAhEDEQA/AIwsK2qQ09K3iACRq4DEk3dfT//Z",
     "687a6dd3c5b01bb8901b2499777f6f70e39e8bfe3bb3d6cae21d480c8a284e82"},
    {"progressive",
     "/9j/4AAQSkZJRgABAQAAAQABAAD/"
     "2wBDABQODxIPDRQSEBIXFRQYHjIhHhwcHj0sLiQySUBMS0dARkVQWnNiUFVtVkVGZIhlbXd7gYKBTmCNl4x9lnN+gX"
     "z/2wBDARUXFx4aHjshITt8U0ZTfHx8fHx8fHx8fHx8fHx8fHx8fHx8fHx8fHx8fHx8fHx8fHx8fHx8fHx8fHx8fHx8fHz/"
     "wgARCAAHAAkDASEAAhEBAxEB"
     "/8QAFQABAQAAAAAAAAAAAAAAAAAAAgT/xAAUAQEAAAAAAAAAAAAAAAAAAAAC/9oADAMBAAIQAxAAAAEUp//"
     "EABcQAQADAAAAAAAAAAAAAAAAAAACAxP/2g"
     "AIAQEAAQUChSxf/8QAFhEBAQEAAAAAAAAAAAAAAAAAAwAi/9oACAEDAQE/ASbN/8QAFREBAQAAAAAAAAAAAAAAAAAAAQD/2gAIAQIBAT8BG//"
     "EABQQAQAA"
     "AAAAAAAAAAAAAAAAABD/2gAIAQEABj8CP//EABYQAQEBAAAAAAAAAAAAAAAAAAABEf/aAAgBAQABPyGLL//aAAwDAQACAAMAAAAQT//"
     "EABURAQEAAAAAAA"
     "AAAAAAAAAAAAAB/9oACAEDAQE/ELH/xAAVEQEBAAAAAAAAAAAAAAAAAAAAIf/aAAgBAgEBPxCT/8QAFxAAAwEAAAAAAAAAAAAAAAAAAAEhYf/"
     "aAAgBAQAB"
     "PxCSIwR//9k=",
     "768f32de40d0f90eee5abd74b9a0d92a8414aafd61201d19704109e1291e84ba"},
    {"grey",
     "/9j/4AAQSkZJRgABAQAAAQABAAD/"
     "2wBDABQODxIPDRQSEBIXFRQYHjIhHhwcHj0sLiQySUBMS0dARkVQWnNiUFVtVkVGZIhlbXd7gYKBTmCNl4x9lnN+gX"
     "z/wAALCAAHAAkBAREA/8QAFQABAQAAAAAAAAAAAAAAAAAABAb/xAAWEAEBAQAAAAAAAAAAAAAAAAAABkL/2gAIAQEAAD8AHN4WT//Z",
     "1844375eeabe0908253881ac8df1c3c0620e0009e32eea1916b66648f5d32b02"},
    {"cmyk",
     "/9j/7gAOQWRvYmUAZAAAAAAA/"
     "9sAQwAUDg8SDw0UEhASFxUUGB4yIR4cHB49LC4kMklATEtHQEZFUFpzYlBVbVZFRmSIZW13e4GCgU5gjZeMfZZzfoF8/8"
     "AAFAgABwAJBEMRAE0RAFkRAEsRAP/EABkAAAIDAQAAAAAAAAAAAAAAAAMGAAIEBf/EAB8QAAEDAwUAAAAAAAAAAAAAAAABAlEDBRYGFSEiQv/"
     "aAA4EQwBN"
     "AFkASwAAPwDZqT2Wyh8uCXa5r25Ub6gmEyh8uOBuayoE/9k=",
     "00527697d648f9b6641720b0b5d9600917ec29943546f283e17604e73309937b"}};

// Decodes base 64.
std::string bytes_of(const Jpeg& jpeg) {
  const std::string letters = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string bytes;
  unsigned window = 0;
  int bits = 0;
  for (const char letter : jpeg.base64.substr(0, jpeg.base64.find('='))) {
    window = window << 6 | static_cast<unsigned>(letters.find(letter));
    bits += 6;
    if (bits >= 8) bytes += static_cast<char>(window >> (bits -= 8));
  }
  return bytes;
}

std::string sha256_of(const at::Tensor& image) {
  Sha256 hash;
  hash.update(image.const_data_ptr(), image.nbytes());
  return hash.hex();
}

std::string big_endian(std::uint32_t value) {
  return {static_cast<char>(value >> 24), static_cast<char>(value >> 16), static_cast<char>(value >> 8),
          static_cast<char>(value)};
}

// A chunk of a PNG: its length, its type, its data and their checksum.
std::string chunk(const std::string& type, const std::string& data) {
  const auto body = type + data;
  return big_endian(static_cast<std::uint32_t>(data.size())) + body +
         big_endian(static_cast<std::uint32_t>(crc32(0, reinterpret_cast<const Bytef*>(body.data()), body.size())));
}

// A PNG that the test writes itself, so that every kind can be made.
struct Png {
  std::uint32_t width = 0, height = 0;
  char depth = 8, colour = PNG_COLOR_TYPE_RGB;
  std::string rows;        // each preceded by its filter byte
  std::string extra = {};  // chunks before the data
};

// The complete file: signature, header, extra chunks, data and end.
std::string bytes_of(const Png& png) {
  std::string packed(compressBound(png.rows.size()), '\0');
  auto size = packed.size();
  compress(reinterpret_cast<Bytef*>(packed.data()), &size, reinterpret_cast<const Bytef*>(png.rows.data()),
           png.rows.size());
  packed.resize(size);
  return "\x89PNG\r\n\x1a\n" +
         chunk("IHDR", big_endian(png.width) + big_endian(png.height) + png.depth + png.colour + std::string(3, '\0')) +
         png.extra + chunk("IDAT", packed) + chunk("IEND", "");
}

// All values, channel by channel.
std::vector<int> pixels_of(const std::string& bytes) {
  const auto image = decode_image(bytes).flatten().to(torch::kInt);
  return {image.data_ptr<int>(), image.data_ptr<int>() + image.numel()};
}

// Every error must begin with the name of the file.
std::string error_of(const std::string& bytes, const ImageOptions& options = {}) {
  try {
    decode_image(bytes, "cat.jpg", options);
  } catch (const ConfigError& error) {
    EXPECT_THAT(error.what(), StartsWith("cat.jpg: "));
    return error.what();
  }
  return "no error";
}

// Colour, progressive, greyscale and CMYK files; decoders differ in the last bit unless they round alike.
TEST(ImageTest, JpegsDecodeToTheSameBytesAsPillow) {
  for (const auto& jpeg : kJpegs) {
    const auto image = decode_image(bytes_of(jpeg));
    EXPECT_EQ(image.sizes(), at::IntArrayRef({3, 7, 9}));
    EXPECT_TRUE(image.is_contiguous());
    EXPECT_EQ(sha256_of(image), jpeg.sha256) << jpeg.name;
  }
}

// Random pixels without a filter.
TEST(ImageTest, PngPixelsAreThoseStored) {
  testing::expect_property(100, [] {
    const auto width = testing::pick<std::uint32_t>(1, 20), height = testing::pick<std::uint32_t>(1, 20);
    const auto values = *rc::gen::container<std::string>(3 * width * height, rc::gen::arbitrary<char>());
    std::string rows;
    for (std::uint32_t row = 0; row < height; ++row) rows += '\0' + values.substr(3 * width * row, 3 * width);
    // A gamma chunk asks for a correction, which Pillow ignores.
    const auto gamma = *rc::gen::arbitrary<bool>() ? chunk("gAMA", big_endian(100000)) : "";
    const auto image = decode_image(bytes_of(Png{.width = width, .height = height, .rows = rows, .extra = gamma}));
    const auto expected =
        torch::from_blob(const_cast<char*>(values.data()), {height, width, 3}, torch::kByte).permute({2, 0, 1});
    RC_ASSERT(image.equal(expected));
  });
}

// Grey values of 1, 4, 8 and 16 bits, palettes and transparency all have to become RGB, in the way of Pillow.
TEST(ImageTest, EveryKindOfPngBecomesRgb) {
  const auto grey = [](char depth, const std::string& row) {
    return bytes_of(Png{.width = 2, .height = 1, .depth = depth, .colour = PNG_COLOR_TYPE_GRAY, .rows = '\0' + row});
  };
  EXPECT_THAT(pixels_of(grey(8, "\x07\xff")), ElementsAre(7, 255, 7, 255, 7, 255));
  EXPECT_THAT(pixels_of(grey(1, "\x40")), ElementsAre(0, 255, 0, 255, 0, 255));
  EXPECT_THAT(pixels_of(grey(4, "\x1f")), ElementsAre(17, 255, 17, 255, 17, 255));
  EXPECT_THAT(pixels_of(grey(16, "\x12\xff\x01\x80")), ElementsAre(0x12, 1, 0x12, 1, 0x12, 1));  // the upper 8 bits
  const auto one = [](char depth, char colour, const std::string& row, const std::string& extra = "") {
    return bytes_of(Png{.width = 1, .height = 1, .depth = depth, .colour = colour, .rows = '\0' + row, .extra = extra});
  };
  EXPECT_THAT(pixels_of(one(8, PNG_COLOR_TYPE_RGB_ALPHA, std::string("\x01\x02\x03\x00", 4))),
              ElementsAre(1, 2, 3));  // transparent
  // Transparency is dropped, not blended with a background.
  EXPECT_THAT(pixels_of(one(8, PNG_COLOR_TYPE_GRAY_ALPHA, "\x05\x80")), ElementsAre(5, 5, 5));
  EXPECT_THAT(pixels_of(one(16, PNG_COLOR_TYPE_RGB, "\x01\xff\x02\xff\x03\xff")), ElementsAre(1, 2, 3));
  const auto palette = chunk("PLTE", "\x09\x09\x09\x0a\x0b\x0c") + chunk("tRNS", std::string("\xff\x00", 2));
  EXPECT_THAT(pixels_of(one(8, PNG_COLOR_TYPE_PALETTE, "\x01", palette)), ElementsAre(10, 11, 12));
}

// The extension says nothing about the content.
TEST(ImageTest, AFileThatIsNoImageIsReported) {
  EXPECT_THAT(error_of(""), HasSubstr("the image is empty; expected a JPEG or PNG image"));
  EXPECT_THAT(error_of("GIF89a"), HasSubstr("neither JPEG nor PNG"));
}

// libjpeg fills the missing part with grey and only warns. A training set with grey images is worse than an error.
TEST(ImageTest, AnImageThatEndsEarlyIsAlwaysAnError) {
  for (const auto& jpeg : kJpegs) {
    const auto bytes = bytes_of(jpeg);
    for (const bool allow : {false, true}) {
      EXPECT_THAT(error_of(bytes.substr(0, bytes.size() - 8), {.allow_jpeg_warnings = allow}),
                  HasSubstr("the JPEG image is damaged: the image is truncated (byte"))
          << jpeg.name;
    }
  }
  const auto png = bytes_of(Png{.width = 1, .height = 1, .rows = std::string("\0abc", 4)});
  EXPECT_THAT(error_of(png.substr(0, 50)), HasSubstr("the PNG image is damaged: the image is truncated (byte 50)"));
  EXPECT_THAT(error_of(png.substr(0, png.size() - 1)), HasSubstr("the image is truncated"));
}

// Extra bytes before the end mark: libjpeg warns and decodes the image correctly.
TEST(ImageTest, WhatLibjpegRepairsIsAcceptedOnlyIfAllowed) {
  auto bytes = bytes_of(kJpegs.front());
  bytes.insert(bytes.size() - 2, 20, '\x01');  // before the end mark
  EXPECT_THAT(error_of(bytes),
              AllOf(HasSubstr("the JPEG image is damaged: Corrupt JPEG data"), HasSubstr("allow_jpeg_warnings")));
  EXPECT_EQ(error_of(bytes, {.allow_jpeg_warnings = true}), "no error");
  EXPECT_EQ(sha256_of(decode_image(bytes, "", {.allow_jpeg_warnings = true})), kJpegs.front().sha256);
}

// Pillow's limit against decompression bombs: a small file that claims billions of pixels.
TEST(ImageTest, SizeBeyondPillowsLimitIsAnErrorBeforeAnyAllocation) {
  EXPECT_THAT(error_of(bytes_of(Png{.width = 20000, .height = 9000, .rows = "x"})),
              HasSubstr("20000x9000 pixels; expected at most 178956970"));
  auto jpeg = bytes_of(kJpegs.front());
  const auto frame = jpeg.find("\xff\xc0");
  // Height and width in the frame header.
  jpeg.replace(frame + 5, 4, "\xff\x00\xff\x00"s);
  EXPECT_THAT(error_of(jpeg), HasSubstr("65280x65280 pixels"));
}

// Images that decode must have three channels whatever was damaged.
TEST(ImageTest, AnyDamageIsRejectedOrOnlyChangesValues) {
  const auto png = bytes_of(Png{.width = 3, .height = 2, .rows = std::string("\0abcdefghi\1abcdefghi", 20)});
  testing::expect_property(1000, [&] {
    const auto kind = testing::pick<std::size_t>(0, kJpegs.size() + 1);
    const auto bytes = testing::damaged(kind < kJpegs.size() ? bytes_of(kJpegs[kind]) : png);
    testing::read_or_reject("name", [&] {
      const auto image = decode_image(bytes, "name", {.allow_jpeg_warnings = *rc::gen::arbitrary<bool>()});
      RC_ASSERT(image.size(0) == 3);
    });
  });
}

class ImageFolderTest : public ::testing::Test {
 protected:
  void write(const std::string& name, const std::string& bytes) {
    std::filesystem::create_directories(std::filesystem::path(folder_.path(name)).parent_path());
    folder_.write(name, bytes);
  }
  static std::string pixel(char value) {
    return bytes_of(Png{.width = 1, .height = 1, .rows = std::string(1, '\0') + std::string(3, value)});
  }
  std::string error() {
    try {
      ImageFolder folder(folder_.path());
    } catch (const ConfigError& error) {
      return error.what();
    }
    return "no error";
  }
  testing::TemporaryFolder folder_;
};

// The order decides the class numbers and the indices of samples. "a/z" and "a-b/x" show whether folders are sorted
// by path or by name.
TEST_F(ImageFolderTest, ClassesAndFilesAreSortedLikeTorchvisions) {
  for (const auto* name : {"dog/b.png", "dog/a/z.PNG", "dog/a.png", "cat/1.png", "dog/a-b/x.png"})
    write(name, pixel('x'));
  write("dog/notes.txt", "no image");
  write("top.png", pixel('t'));
  const ImageFolder folder(folder_.path());
  EXPECT_THAT(folder.classes(), ElementsAre("cat", "dog"));
  EXPECT_THAT(folder.class_to_idx(), ElementsAre(Pair("cat", 0), Pair("dog", 1)));
  EXPECT_THAT(folder.samples(), ElementsAre(Pair(folder_.path("cat/1.png"), 0), Pair(folder_.path("dog/a.png"), 1),
                                            Pair(folder_.path("dog/b.png"), 1), Pair(folder_.path("dog/a/z.PNG"), 1),
                                            Pair(folder_.path("dog/a-b/x.png"), 1)));
}

// Editors, macOS and Jupyter write hidden copies of images. torchvision has them as classes and samples.
TEST_F(ImageFolderTest, HiddenFoldersAndImagesAreSkippedWithAWarning) {
  for (const auto* name : {"cat/1.png", "cat/._1.png", "cat/a/.thumbnails/1.png", "cat/.DS_Store",
                           ".ipynb_checkpoints/2.png", "top.png", "dog/1.png", "dog/2.GIF", "dog/notes.txt"})
    write(name, pixel('x'));
  ::testing::internal::CaptureStderr();
  const ImageFolder folder(folder_.path());
  EXPECT_EQ(::testing::internal::GetCapturedStderr(),
            "accel: warning: " + folder_.path() +
                ": skips .ipynb_checkpoints (hidden), cat/._1.png (hidden), "
                "cat/a/.thumbnails (hidden), dog/2.GIF (neither JPEG nor PNG), top.png (outside of the classes)\n");
  EXPECT_THAT(folder.classes(), ElementsAre("cat", "dog"));
  EXPECT_THAT(folder.samples(), ElementsAre(Pair(folder_.path("cat/1.png"), 0), Pair(folder_.path("dog/1.png"), 1)));
  ::testing::internal::CaptureStderr();
  EXPECT_EQ(ImageFolder(folder_.path() + "/").size(), 2);
  EXPECT_THAT(::testing::internal::GetCapturedStderr(), HasSubstr("/: skips .ipynb_checkpoints (hidden), cat/._1.png"));
}

// A class on a disk that is not mounted would be missing silently.
TEST_F(ImageFolderTest, LinksAreFollowedAndBrokenOnesReported) {
  write("cat/1.png", pixel('x'));
  write("elsewhere.d/dog/2.png", pixel('x'));
  std::filesystem::create_directory_symlink(folder_.path("elsewhere.d/dog"), folder_.path("cat/more"));
  EXPECT_THAT(ImageFolder(folder_.path()).samples().front().first, folder_.path("cat/1.png"));
  EXPECT_EQ(ImageFolder(folder_.path()).samples()[1].first, folder_.path("cat/more/2.png"));
  std::filesystem::create_directory_symlink(folder_.path("none"), folder_.path("cat/gone"));
  EXPECT_THAT(error(), HasSubstr("cat/gone: a link whose target is missing; restore the target, or remove the link"));
  std::filesystem::rename(folder_.path("cat/gone"), folder_.path("gone"));
  EXPECT_THAT(error(), HasSubstr("gone: a link whose target is missing"));
  std::filesystem::remove(folder_.path("gone"));
  std::filesystem::create_directory_symlink(folder_.path("cat"), folder_.path("cat/loop"));
  EXPECT_THAT(error(), HasSubstr("cannot be listed: "));
}

// PNG and JPEG in one data set.
TEST_F(ImageFolderTest, ASampleIsAnImageAndItsClass) {
  write("a/1.png", pixel('1'));
  write("b/2.jpeg", bytes_of(kJpegs.front()));
  const ImageFolder folder(folder_.path());
  EXPECT_EQ(folder.size(), 2);
  const auto [image, label] = folder.get(0);
  EXPECT_TRUE(image.equal(torch::full({3, 1, 1}, '1', torch::kByte)));
  EXPECT_EQ(label, 0);
  EXPECT_EQ(sha256_of(folder.get(1).first), kJpegs.front().sha256);
  EXPECT_EQ(folder.get(1).second, 1);
  EXPECT_THROW((void)folder.get(2), ArgumentError);
}

// Opening the folder only lists files; checking a million images would take hours.
TEST_F(ImageFolderTest, DamagedImageIsNamedWhenItIsRead) {
  write("a/1.png", pixel('1').substr(0, 40));
  const ImageFolder folder(folder_.path());
  try {
    (void)folder.get(0);
    FAIL() << "expected a ConfigError";
  } catch (const ConfigError& error) {
    EXPECT_THAT(error.what(), StartsWith(folder_.path("a/1.png") + ": the PNG image is damaged"));
  }
}

TEST_F(ImageFolderTest, FolderWithoutClassesOrImagesIsRefused) {
  EXPECT_THAT(error(), HasSubstr("the folder has no subfolders"));
  write("a/x.txt", "");
  write("b/x.png", "");
  write("c/x.gif", "");
  EXPECT_THAT(error(), HasSubstr("no .jpg, .jpeg or .png files in the classes a, c"));
  EXPECT_THROW(ImageFolder(folder_.path("none")), ConfigError);
  // torchvision would read this file, so ignoring it would silently train on fewer images.
  write("a/y.WebP", "");
  EXPECT_THAT(error(), HasSubstr("y.WebP: unsupported image format"));
}

}  // namespace
}  // namespace accel
