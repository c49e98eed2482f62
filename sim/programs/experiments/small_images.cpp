// Image data of the built-in experiments. Everything is loaded once per process by `shared`: thousands of simulated
// ranks could not each hold a copy. Pixels stay bytes where the dataset is large, and become floats batch by batch.
#include "sim/programs/experiments/small_images.hpp"

#include <ATen/ATen.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/tensor.h>

#include <algorithm>
#include <filesystem>

#include "reference/core/errors.hpp"
#include "reference/core/shared.hpp"
#include "reference/data/dataset.hpp"
#include "reference/sources/idx.hpp"
#include "reference/sources/image_folder.hpp"

namespace accel::programs {
namespace {

// The plain file wins over the compressed one if both exist: it needs no decompression.
std::string find_file(const std::string& data_dir, const std::string& name) {
  for (const auto* ending : {"", ".gz"}) {
    auto path = (std::filesystem::path(data_dir) / (name + ending)).string();
    if (std::filesystem::exists(path)) return path;
  }
  throw ConfigError(
      fmt::format("data_dir: {}/{} does not exist, neither plain nor as .gz; on Debian run apt-get install "
                  "dataset-fashion-mnist, or "
                  "set data_dir",
                  data_dir, name));
}

// Returns the sizes of an idx file of bytes. They are checked before any data is read, because a damaged header could
// ask for terabytes.
std::vector<std::int64_t> sizes_of(const std::string& path, std::size_t num_dims) {
  auto header = read_idx_header(path);
  check_config(header.dtype == at::kByte && header.sizes.size() == num_dims,
               "{}: expected an idx file of bytes with {} dimensions, got {} with {}", path, num_dims,
               c10::toString(header.dtype), header.sizes.size());
  return header.sizes;
}

// Images and labels are separate files, and nothing else ties them together, so their counts are compared. The largest
// label is checked as well: an index beyond the classes would only fail inside the loss.
LabelledImages read_split(const std::string& data_dir, const std::string& name, std::optional<std::int64_t> limit) {
  const auto image_path = find_file(data_dir, name + "-images-idx3-ubyte");
  const auto label_path = find_file(data_dir, name + "-labels-idx1-ubyte");
  const auto image_sizes = sizes_of(image_path, 3), label_sizes = sizes_of(label_path, 1);
  check_config(image_sizes[1] == 28 && image_sizes[2] == 28, "{}: images have {}x{} pixels; expected 28x28", image_path,
               image_sizes[1], image_sizes[2]);
  check_config(image_sizes[0] == label_sizes[0], "{}: {} images, but {} has {} labels; expected equal numbers",
               image_path, image_sizes[0], label_path, label_sizes[0]);
  check_config(image_sizes[0] > 0, "{}: contains no images; expected at least one", image_path);
  const auto images = open_idx(image_path, {.limit = limit}).load(),
             labels = open_idx(label_path, {.limit = limit}).load();
  const auto largest = labels.max().item<int>();
  check_config(largest < kNumFashionClasses, "{}: invalid label {}; expected 0 to {}", label_path, largest,
               kNumFashionClasses - 1);
  return {images.unsqueeze(1), labels.to(at::kLong)};
}

LabelledImages as_floats(const LabelledImages& split) { return {split.images.to(at::kFloat).div_(255), split.labels}; }

namespace fs = std::filesystem;

// Images of a folder differ in size; each is resized before it is stored, so that memory is bounded by the 32x32
// copies.
SmallImages read_folder(const ImageFolder& folder, std::optional<std::int64_t> limit) {
  std::vector<at::Tensor> images;
  std::vector<std::int64_t> labels;
  for (std::int64_t index = 0; index < std::min(folder.size(), limit.value_or(folder.size())); ++index) {
    const auto [image, label] = folder.get(index);
    images.push_back(resize_to_small(image));
    labels.push_back(label);
  }
  return {at::stack(images), at::tensor(labels, at::kLong)};
}

SmallImageData read_folders(const fs::path& root, std::optional<std::int64_t> limit,
                            std::optional<std::int64_t> eval_limit) {
  const ImageFolder train((root / "train").string()), test((root / "test").string());
  check_config(train.classes() == test.classes(),
               "{}: has {} classes that differ from the {} of {}; expected the same folders in both",
               (root / "train").string(), train.classes().size(), test.classes().size(), (root / "test").string());
  return {read_folder(train, limit), read_folder(test, eval_limit), static_cast<std::int64_t>(train.classes().size())};
}

SmallImages enlarged(const LabelledImages& split) { return {resize_to_small(split.images), split.labels}; }

}  // namespace

FashionMnist read_fashion_mnist(const std::string& data_dir, std::optional<std::int64_t> limit,
                                std::optional<std::int64_t> eval_limit) {
  return {read_split(data_dir, "train", limit), read_split(data_dir, "t10k", eval_limit)};
}

// The key contains everything that the data depends on, so that runs with different limits do not share by mistake.
std::shared_ptr<const FashionMnist> load_fashion_mnist(const std::string& data_dir, std::optional<std::int64_t> limit,
                                                       std::optional<std::int64_t> eval_limit) {
  const auto key = fmt::format("fashion_mnist:{}:{}:{}", data_dir, limit.value_or(-1), eval_limit.value_or(-1));
  return shared<FashionMnist>(key, [&] {
    const auto data = read_fashion_mnist(data_dir, limit, eval_limit);
    return FashionMnist{as_floats(data.train), as_floats(data.test)};
  });
}

// `expand` turns one grey channel into three without copying; three channels stay unchanged. `contiguous` then makes
// one copy of the batch, because convolutions need dense memory.
SmallImages::Batch SmallImages::get_batch(const std::vector<std::int64_t>& indices) const {
  const auto images = detail::select_rows(images_, indices).to(at::kFloat).div_(255);
  return {images.expand({-1, 3, kSize, kSize}).contiguous(), detail::select_rows(labels_, indices)};
}

std::shared_ptr<const SmallImageData> load_small_images(const std::string& data_dir, std::optional<std::int64_t> limit,
                                                        std::optional<std::int64_t> eval_limit) {
  const auto key = fmt::format("small_images:{}:{}:{}", data_dir, limit.value_or(-1), eval_limit.value_or(-1));
  return shared<SmallImageData>(key, [&] {
    if (fs::is_directory(fs::path(data_dir) / "train")) return read_folders(data_dir, limit, eval_limit);
    const auto data = read_fashion_mnist(data_dir, limit, eval_limit);
    return SmallImageData{enlarged(data.train), enlarged(data.test), kNumFashionClasses};
  });
}

at::Tensor resize_to_small(const at::Tensor& images) {
  const auto places = [&](std::int64_t dim) {
    return at::arange(SmallImages::kSize, at::kLong).mul(images.size(dim)).floor_divide(SmallImages::kSize);
  };
  return images.index_select(-2, places(-2)).index_select(-1, places(-1));
}

}  // namespace accel::programs
