#include "sim/programs/experiments/fashion_mnist.hpp"

#include <ATen/ATen.h>

#include <filesystem>
#include <vector>

#include "reference/core/errors.hpp"
#include "reference/core/shared.hpp"
#include "reference/sources/idx.hpp"

namespace accel::programs {
namespace {

std::string find_file(const std::string& data_dir, const std::string& name) {
  for (const auto* ending : {"", ".gz"}) {
    auto path = (std::filesystem::path(data_dir) / (name + ending)).string();
    if (std::filesystem::exists(path)) return path;
  }
  throw ConfigError(fmt::format(
      "data_dir: {}/{} is missing, plain or as .gz; on Debian: apt-get install dataset-fashion-mnist, or set data_dir",
      data_dir, name));
}

// The sizes of a file of bytes, checked before any of its data is read.
std::vector<std::int64_t> sizes_of(const std::string& path, std::size_t num_dims) {
  auto header = read_idx_header(path);
  check_config(header.dtype == at::kByte && header.sizes.size() == num_dims,
               "{}: not an idx file of bytes with {} dimensions, but of {} with {}", path, num_dims,
               c10::toString(header.dtype), header.sizes.size());
  return header.sizes;
}

LabelledImages read_split(const std::string& data_dir, const std::string& name, std::optional<std::int64_t> limit) {
  const auto image_path = find_file(data_dir, name + "-images-idx3-ubyte");
  const auto label_path = find_file(data_dir, name + "-labels-idx1-ubyte");
  const auto image_sizes = sizes_of(image_path, 3), label_sizes = sizes_of(label_path, 1);
  check_config(image_sizes[1] == 28 && image_sizes[2] == 28, "{}: images of {}x{}; expected 28x28", image_path,
               image_sizes[1], image_sizes[2]);
  check_config(image_sizes[0] == label_sizes[0], "{}: {} images, but {} has {} labels", image_path, image_sizes[0],
               label_path, label_sizes[0]);
  check_config(image_sizes[0] > 0, "{}: no images", image_path);
  const auto images = open_idx(image_path, {.limit = limit}).load(),
             labels = open_idx(label_path, {.limit = limit}).load();
  const auto largest = labels.max().item<int>();
  check_config(largest < kNumFashionClasses, "{}: label {}; expected 0 to {}", label_path, largest,
               kNumFashionClasses - 1);
  return {images.unsqueeze(1), labels.to(at::kLong)};
}

LabelledImages as_floats(const LabelledImages& split) { return {split.images.to(at::kFloat).div_(255), split.labels}; }

}  // namespace

FashionMnist read_fashion_mnist(const std::string& data_dir, std::optional<std::int64_t> limit,
                                std::optional<std::int64_t> eval_limit) {
  return {read_split(data_dir, "train", limit), read_split(data_dir, "t10k", eval_limit)};
}

std::shared_ptr<const FashionMnist> load_fashion_mnist(const std::string& data_dir, std::optional<std::int64_t> limit,
                                                       std::optional<std::int64_t> eval_limit) {
  const auto key = fmt::format("fashion_mnist:{}:{}:{}", data_dir, limit.value_or(-1), eval_limit.value_or(-1));
  return shared<FashionMnist>(key, [&] {
    const auto data = read_fashion_mnist(data_dir, limit, eval_limit);
    return FashionMnist{as_floats(data.train), as_floats(data.test)};
  });
}

}  // namespace accel::programs
