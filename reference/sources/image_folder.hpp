#pragma once

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "reference/sources/image.hpp"

/// A map-style dataset of images with one folder per class: root/cat/1.jpg, root/dog/a/2.png.
///
///     accel::ImageFolder photos("photos");
///     auto squares = accel::transformed(
///         photos, [](auto sample) { return std::pair(resize(sample.first), sample.second); });
///     accel::DataLoader loader(squares, {.batch_size = 32, .shuffle = true, .num_workers = 4});
///
/// Classes are the sorted subfolders of `root`. Samples are ordered by class, then by folder, then by file name. A
/// warning names what is skipped: hidden folders and images, which torchvision reads (.ipynb_checkpoints, ._x.png),
/// images outside of the classes, and images in formats that torchvision does not read either. Thread rule: any number
/// of readers; copies share the list of files. Source: torchvision/datasets/folder.py, ImageFolder.
namespace accel {

class ImageFolder {
 public:
  using Sample = std::pair<at::Tensor, std::int64_t>;  ///< (3, height, width) uint8, and the class

  /// Throws ConfigError if `root` is not a folder or has no subfolders, if classes have no images (lists all of
  /// them), for images in formats that only torchvision reads, and for links whose target is missing.
  explicit ImageFolder(const std::string& root, const ImageOptions& options = {});

  [[nodiscard]] std::int64_t size() const { return static_cast<std::int64_t>(list_->files.size()); }
  /// Throws ConfigError, which names the file, if it cannot be read or decoded; ArgumentError if `index` is out of
  /// range.
  [[nodiscard]] Sample get(std::int64_t index) const;

  [[nodiscard]] const std::vector<std::string>& classes() const { return list_->classes; }
  [[nodiscard]] const std::map<std::string, std::int64_t>& class_to_idx() const { return list_->class_to_idx; }
  /// File and class of every image.
  [[nodiscard]] const std::vector<std::pair<std::string, std::int64_t>>& samples() const { return list_->files; }

 private:
  struct List {
    std::vector<std::string> classes = {};
    std::map<std::string, std::int64_t> class_to_idx = {};
    std::vector<std::pair<std::string, std::int64_t>> files = {};
  };
  static List list_images(const std::string& root);

  std::shared_ptr<const List> list_;
  ImageOptions options_;
};

}  // namespace accel
