#include "sim/programs/experiments/small_images.hpp"

#include <ATen/ops/arange.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/tensor.h>

#include <algorithm>
#include <filesystem>

#include "reference/core/errors.hpp"
#include "reference/core/shared.hpp"
#include "reference/data/dataset.hpp"
#include "reference/sources/image_folder.hpp"
#include "sim/programs/experiments/fashion_mnist.hpp"

namespace accel::programs {
namespace {

namespace fs = std::filesystem;

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
               "{}: {} classes, but {} has {}, or others; expected the same folders in both", (root / "train").string(),
               train.classes().size(), (root / "test").string(), test.classes().size());
  return {read_folder(train, limit), read_folder(test, eval_limit), static_cast<std::int64_t>(train.classes().size())};
}

SmallImages enlarged(const LabelledImages& split) { return {resize_to_small(split.images), split.labels}; }

}  // namespace

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
