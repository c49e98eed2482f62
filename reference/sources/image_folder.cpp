// Source: torchvision/datasets/folder.py, ImageFolder. The order of classes and files must equal torchvision's,
// because indices and labels are stored in checkpoints and predictions.
#include "reference/sources/image_folder.hpp"

#include <algorithm>
#include <filesystem>

#include "reference/core/errors.hpp"
#include "reference/core/input/listed.hpp"
#include "reference/core/mapped_file.hpp"

namespace accel {
namespace {

namespace fs = std::filesystem;

std::vector<std::string> folders_of(const fs::path& root) {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(root)) {
    if (entry.is_directory()) names.push_back(entry.path().filename().string());
  }
  std::sort(names.begin(), names.end());
  return names;
}

// Sorted by folder, then by name, as os.walk with sorted() gives. Sorting complete paths differs: '/' sorts after some
// characters of folder names, such as '-'.
std::vector<std::string> images_of(const fs::path& folder) {
  std::vector<std::pair<std::string, std::string>> found;
  for (const auto& entry : fs::recursive_directory_iterator(folder, fs::directory_options::follow_directory_symlink)) {
    const auto& path = entry.path();
    // torchvision reads these formats. Skipping them would silently change all following indices.
    check_config(entry.is_directory() || !has_unsupported_image_extension(path.string()),
                 "{}: unsupported image format; convert the image to PNG or JPEG, or remove it", path.string());
    // A broken link counts as a file here and is reported when it is read.
    if (entry.is_directory() || !has_image_extension(path.string())) continue;
    found.emplace_back(path.parent_path().string(), path.filename().string());
  }
  std::sort(found.begin(), found.end());
  std::vector<std::string> paths;
  for (const auto& [parent, name] : found) paths.push_back((fs::path(parent) / name).string());
  return paths;
}

}  // namespace

ImageFolder::ImageFolder(const std::string& root, const ImageOptions& options) : options_(options) {
  std::error_code error;
  check_config(fs::is_directory(root, error), "{}: not a folder; expected a folder with one subfolder per class", root);
  try {
    list_ = std::make_shared<const List>(list_images(root));
  } catch (const fs::filesystem_error& error) {
    throw ConfigError(fmt::format("{}: cannot be listed: {}", root, error.what()));
  }
}

// A class without images is an error, as in torchvision, because it usually means a wrong path or a missing
// download.
ImageFolder::List ImageFolder::list_images(const std::string& root) {
  List list{.classes = folders_of(root), .class_to_idx = {}, .files = {}};
  check_config(!list.classes.empty(), "{}: the folder has no subfolders; expected one per class", root);
  std::vector<std::string> empty;
  for (const auto& name : list.classes) {
    const auto label = static_cast<std::int64_t>(list.class_to_idx.size());
    list.class_to_idx[name] = label;
    const auto images = images_of(fs::path(root) / name);
    if (images.empty()) empty.push_back(name);
    for (const auto& image : images) list.files.emplace_back(image, label);
  }
  check_config(empty.empty(), "{}: no .jpg, .jpeg or .png files in the classes {}; expected at least one per class",
               root, listed(empty, ", "));
  return list;
}

// The file is opened per sample and not at construction: a data set may have more files than a process may have
// open.
ImageFolder::Sample ImageFolder::get(std::int64_t index) const {
  check_argument(index >= 0 && index < size(),
                 "image index {} is out of range for {} images; expected 0 or more and less than {}", index, size(),
                 size());
  const auto& [path, label] = list_->files[index];
  return {decode_image(MappedFile(path).read(), path, options_), label};
}

}  // namespace accel
