#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

/// Labelled images, read from files.
namespace accel::programs {

inline constexpr int kNumFashionClasses = 10;

/// Images (n, 1, 28, 28), and labels (n) int64.
struct LabelledImages {
  at::Tensor images, labels;
};

struct FashionMnist {
  LabelledImages train, test;
};

/// Reads the four idx files, plain or .gz. Images are uint8. Throws ConfigError that names the file if one is missing,
/// short, damaged or of another format.
FashionMnist read_fashion_mnist(const std::string& data_dir, std::optional<std::int64_t> limit,
                                std::optional<std::int64_t> eval_limit);

/// Reads the same data once per process and shares it among all ranks. Images are float32 in [0, 1].
std::shared_ptr<const FashionMnist> load_fashion_mnist(const std::string& data_dir, std::optional<std::int64_t> limit,
                                                       std::optional<std::int64_t> eval_limit);

/// Labelled images of CIFAR's size, kept as bytes: 60,000 images of three channels are 184 MB.
///
/// Thread rule: any number of readers; copies share the images.
class SmallImages {
 public:
  using Batch = std::tuple<at::Tensor, at::Tensor>;
  static constexpr std::int64_t kSize = 32;

  /// Images (n, 1 or 3, 32, 32) uint8 and labels (n) int64.
  SmallImages(at::Tensor images, at::Tensor labels) : images_(std::move(images)), labels_(std::move(labels)) {}

  [[nodiscard]] std::int64_t size() const { return labels_.size(0); }
  /// Returns images (B, 3, 32, 32) float32 in [0, 1], with grey ones in three equal channels, and labels (B).
  [[nodiscard]] Batch get_batch(const std::vector<std::int64_t>& indices) const;

 private:
  at::Tensor images_, labels_;
};

struct SmallImageData {
  SmallImages train, test;
  std::int64_t num_classes = 0;
};

/// Reads the image folders train/ and test/ of `data_dir`, with one folder per class, if train/ exists; else the idx
/// files of Fashion-MNIST. Loads once per process and shares the data among all ranks. A limit selects the first images
/// in the order of an ImageFolder, i.e. of its first classes. Throws ConfigError that names a missing or damaged file
/// or folder, or if test/ has other classes than train/.
std::shared_ptr<const SmallImageData> load_small_images(const std::string& data_dir, std::optional<std::int64_t> limit,
                                                        std::optional<std::int64_t> eval_limit);

/// Resizes images (..., height, width) of any dtype to 32x32 by nearest-neighbor sampling in integer arithmetic, which
/// gives equal results on every machine.
at::Tensor resize_to_small(const at::Tensor& images);

}  // namespace accel::programs
