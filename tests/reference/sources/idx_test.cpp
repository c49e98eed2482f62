// Tests of the reader for IDX files, the format of MNIST, plain and compressed with gzip. The tests write the files
// themselves. Damaged files must give an error that names the file, never a crash or a huge allocation.
#include "reference/sources/idx.hpp"

#include <gmock/gmock.h>
#include <zlib.h>

#include <fstream>
#include <numeric>

#include "reference/core/errors.hpp"
#include "reference/data/data_loader.hpp"
#include "tests/support/damage.hpp"
#include "tests/support/property.hpp"
#include "tests/support/safetensors_bytes.hpp"
#include "tests/support/temporary_folder.hpp"
#include "tests/support/torch.hpp"

namespace accel {
namespace {

using ::testing::HasSubstr;
using testing::raw_bytes;
using testing::TemporaryFolder;

static_assert(BatchedDataset<IdxDataset>);

// A type of the format, with its code.
struct Format {
  char code;
  at::ScalarType dtype;
};
const std::vector<Format> kFormats{{8, at::kByte}, {9, at::kChar},   {11, at::kShort},
                                   {12, at::kInt}, {13, at::kFloat}, {14, at::kDouble}};

// The format stores numbers with the most significant byte first.
std::string big_endian(std::string bytes, std::size_t width) {
  for (std::size_t begin = 0; begin + width <= bytes.size(); begin += width)
    std::reverse(bytes.data() + begin, bytes.data() + begin + width);
  return bytes;
}

// A file with this tensor.
std::string idx_of(char code, const at::Tensor& tensor) {
  std::string bytes{0, 0, code, static_cast<char>(tensor.dim())};
  for (const auto size : tensor.sizes()) bytes += big_endian(raw_bytes(torch::tensor(size, torch::kInt)), 4);
  return bytes + big_endian(raw_bytes(tensor), tensor.element_size());
}

// Writes a compressed file and returns its path.
std::string write_gzip(const std::string& path, const std::string& bytes) {
  auto* file = gzopen(path.c_str(), "wb");
  gzwrite(file, bytes.data(), static_cast<unsigned>(bytes.size()));
  gzclose(file);
  return path;
}

// The content of a file.
std::string bytes_in(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

class IdxTest : public ::testing::Test {
 protected:
  static std::string error_of(const std::function<void()>& f) {
    try {
      f();
    } catch (const ConfigError& error) {
      return error.what();
    }
    return "no error";
  }
  TemporaryFolder folder_;
  at::Tensor images_ = torch::arange(5 * 3 * 2).to(torch::kByte).reshape({5, 3, 2}),
             labels_ = torch::arange(5).to(torch::kByte);
  std::string image_path_ = folder_.write("images", idx_of(8, images_)),
              label_path_ = folder_.write("labels", idx_of(8, labels_));
};

TEST_F(IdxTest, EveryTypeAndShapeIsReadPlainAndCompressed) {
  testing::expect_property(100, [&] {
    const auto [code, dtype] = testing::pick_from(kFormats);
    const auto num_dims = *rc::gen::element<std::size_t>(1, 2, 3);
    const auto sizes =
        *rc::gen::container<std::vector<std::int64_t>>(num_dims, rc::gen::element<std::int64_t>(0, 1, 2, 3, 4));
    auto tensor = at::empty(sizes, at::TensorOptions(dtype));
    const auto bytes = *rc::gen::container<std::string>(tensor.nbytes(), rc::gen::arbitrary<char>());
    std::copy(bytes.begin(), bytes.end(), static_cast<char*>(tensor.data_ptr()));
    for (const auto& path :
         {folder_.write("any", idx_of(code, tensor)), write_gzip(folder_.path("any.gz"), idx_of(code, tensor))}) {
      const auto stored = open_idx(path);
      RC_ASSERT(stored.dtype == dtype);
      RC_ASSERT(stored.sizes == sizes);
      RC_ASSERT(raw_bytes(stored.load()) == bytes);
      std::vector<std::int64_t> all(static_cast<std::size_t>(sizes.front()));
      std::iota(all.begin(), all.end(), 0);
      RC_ASSERT(raw_bytes(stored.rows(all)) == bytes);
    }
  });
}

// Labels are bytes in the file, but losses expect int64.
TEST_F(IdxTest, ASampleIsAnImageAndItsLabelAsInt64) {
  const IdxDataset dataset(image_path_, label_path_);
  EXPECT_EQ(dataset.size(), 5);
  const auto [image, label] = dataset.get(3);
  EXPECT_TRUE(image.equal(images_[3]));
  EXPECT_EQ(label.scalar_type(), torch::kLong);
  EXPECT_EQ(label.item<std::int64_t>(), 3);
  EXPECT_THROW((void)dataset.get(5), ArgumentError);
}

// A loader may ask for a batch in one call, which has to equal the samples collated one by one.
TEST_F(IdxTest, ABatchIsTheStackOfItsSamples) {
  const IdxDataset dataset(image_path_, write_gzip(folder_.path("labels.gz"), idx_of(8, labels_)));
  const auto [images, labels] = dataset.get_batch({4, 0, 4});
  const auto [stacked_images, stacked_labels] =
      default_collate(std::vector{dataset.get(4), dataset.get(0), dataset.get(4)});
  EXPECT_TRUE(images.equal(stacked_images));
  EXPECT_EQ(labels.scalar_type(), torch::kLong);
  EXPECT_TRUE(labels.equal(stacked_labels));
}

// A larger limit than the file has rows is no error.
TEST_F(IdxTest, LimitTakesTheFirstRows) {
  for (const auto& path : {image_path_, write_gzip(folder_.path("images.gz"), idx_of(8, images_))}) {
    EXPECT_TRUE(open_idx(path, {.limit = 2}).load().equal(images_.narrow(0, 0, 2)));
    EXPECT_TRUE(open_idx(path, {.limit = 9}).load().equal(images_));
  }
}

// Both files have more rows than the limit. The mismatch still means that images and labels do not belong together.
TEST_F(IdxTest, FilesWithDifferentNumbersOfRowsAreAnErrorForAnyLimit) {
  const auto fewer = folder_.write("fewer", idx_of(8, labels_.narrow(0, 0, 4)));
  EXPECT_THAT(error_of([&] { IdxDataset(image_path_, fewer, {.limit = 2}); }),
              HasSubstr("5 images, but " + fewer + " has 4 labels"));
}

// A download that stopped, two files in one, and a file of another format.
TEST_F(IdxTest, ShortLongAndForeignFilesAreNamed) {
  const auto bytes = idx_of(8, images_);
  EXPECT_THAT(error_of([&] { open_idx(folder_.write("short", bytes.substr(0, 20))); }),
              HasSubstr("short: the file is truncated or damaged: expected 30 bytes of data, got 4"));
  EXPECT_THAT(error_of([&] { open_idx(folder_.write("long", bytes + "x")); }),
              HasSubstr("long: the file is damaged: it continues after its 30 bytes"));
  EXPECT_THAT(error_of([&] { open_idx(write_gzip(folder_.path("long.gz"), bytes + "x")); }),
              HasSubstr("it continues after its 30 bytes"));
  EXPECT_THAT(error_of([&] { open_idx(folder_.write("text", "Lorem ipsum")); }),
              HasSubstr("text: not an idx file (it starts with 4c 6f 72 65"));
  EXPECT_THAT(error_of([&] { open_idx(folder_.path("none")); }), HasSubstr("none: cannot be opened: No such file"));
}

// The flipped bit lies in gzip's own checksum at the end: the data are complete, but must not be trusted.
TEST_F(IdxTest, GzipWithAWrongChecksumIsAnError) {
  auto path = write_gzip(folder_.path("images.gz"), idx_of(8, images_));
  auto bytes = bytes_in(path);
  bytes[bytes.size() - 6] ^= 1;
  EXPECT_THAT(error_of([&] { open_idx(folder_.write("damaged.gz", bytes)); }),
              HasSubstr("damaged.gz: the file is truncated or damaged"));
}

// The header announces 2^62 bytes. Allocating them would end the process instead of naming the file.
TEST_F(IdxTest, AHeaderThatPromisesTooMuchIsAnErrorBeforeAnyAllocation) {
  const std::string header("\0\0\x08\x02\x7f\xff\xff\xff\x7f\xff\xff\xff", 12);
  EXPECT_THAT(error_of([&] { open_idx(folder_.write("huge", header)); }), HasSubstr("bytes of data, "));
  EXPECT_THAT(error_of([&] { open_idx(write_gzip(folder_.path("huge.gz"), header)); }), HasSubstr("bytes of data, "));
}

TEST_F(IdxTest, AnyDamageIsRejectedOrOnlyChangesValues) {
  testing::expect_property(300, [&] {
    const auto gzip = *rc::gen::arbitrary<bool>();
    const auto path = folder_.write(
        "damaged",
        testing::damaged(gzip ? bytes_in(write_gzip(folder_.path("whole"), idx_of(8, images_))) : idx_of(8, images_)));
    testing::read_or_reject(path, [&] { (void)open_idx(path).load(); });
  });
}

TEST_F(IdxTest, ALoaderWithWorkersReadsAllOfIt) {
  const auto context = make_single_rank();
  const RankScope scope(*context);
  DataLoader loader(IdxDataset(image_path_, label_path_), {.batch_size = 2, .num_workers = 3});
  std::vector<at::Tensor> seen;
  for (auto& [images, labels] : loader) seen.push_back(images);
  EXPECT_TRUE(torch::cat(seen).equal(images_));
}

}  // namespace
}  // namespace accel
