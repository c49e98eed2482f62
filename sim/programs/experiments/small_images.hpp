#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

/// Images with their classes, from files.
namespace accel::programs {

inline constexpr int kNumFashionClasses = 10;

/// Images (n, 1, 28, 28), and labels (n) int64.
struct LabelledImages {
  at::Tensor images, labels;
};

struct FashionMnist {
  LabelledImages train, test;
};

/// Reads the four idx files, plain or .gz: images uint8.
/// Throws ConfigError that names the file if one is missing, short, damaged or of another format.
FashionMnist read_fashion_mnist(const std::string& data_dir, std::optional<std::int64_t> limit,
                                std::optional<std::int64_t> eval_limit);

/// The same once per process, shared by all ranks: images float32 in [0, 1].
std::shared_ptr<const FashionMnist> load_fashion_mnist(const std::string& data_dir, std::optional<std::int64_t> limit,
                                                       std::optional<std::int64_t> eval_limit);

/// Images of CIFAR's size with their classes, kept as bytes: 60,000 of three channels are 184 MB.
///
/// Thread rule: any number of readers; copies share the images.
class SmallImages {
 public:
  using Batch = std::tuple<at::Tensor, at::Tensor>;
  static constexpr std::int64_t kSize = 32;

  /// Images (n, 1 or 3, 32, 32) uint8 and labels (n) int64.
  SmallImages(at::Tensor images, at::Tensor labels) : images_(std::move(images)), labels_(std::move(labels)) {}

  [[nodiscard]] std::int64_t size() const { return labels_.size(0); }
  /// Images (B, 3, 32, 32) float32 in [0, 1], grey ones in three equal channels, and labels (B).
  [[nodiscard]] Batch get_batch(const std::vector<std::int64_t>& indices) const;

 private:
  at::Tensor images_, labels_;
};

struct SmallImageData {
  SmallImages train, test;
  std::int64_t num_classes = 0;
};

/// Image folders train/ and test/ of `data_dir`, a folder a class, if there is a train/; else the idx files of
/// Fashion-MNIST. Once per process, shared by all ranks. A limit takes the first images, in the order of an
/// ImageFolder: of its first classes. Throws ConfigError that names a file or folder that is missing or damaged, and
/// for other classes in test/ than in train/.
std::shared_ptr<const SmallImageData> load_small_images(const std::string& data_dir, std::optional<std::int64_t> limit,
                                                        std::optional<std::int64_t> eval_limit);

/// Images (..., height, width) of any dtype at 32x32: each pixel is that whose place, rounded down, it has (nearest
/// neighbour by whole numbers, equal on every machine).
at::Tensor resize_to_small(const at::Tensor& images);

}  // namespace accel::programs
