#include "reference/sources/image_folder.hpp"

#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>

#include "reference/core/errors.hpp"
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

// Sorted by folder, then by name: not as one text, in which '/' would stand between other letters.
std::vector<std::string> images_of(const fs::path& folder) {
  std::vector<std::pair<std::string, std::string>> found;
  for (const auto& entry : fs::recursive_directory_iterator(folder, fs::directory_options::follow_directory_symlink)) {
    const auto& path = entry.path();
    // torchvision reads these: to leave them out would change every index.
    check_config(entry.is_directory() || !has_unread_image_extension(path.string()),
                 "{}: an image of a kind that is not read here; convert it to PNG or JPEG, or remove it",
                 path.string());
    if (entry.is_directory() || !has_image_extension(path.string()))
      continue;  // a link to nothing is found out when it is read
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
  check_config(fs::is_directory(root, error), "{}: is no folder; expected one that holds a folder for each class",
               root);
  try {
    list_ = std::make_shared<const List>(list_images(root));
  } catch (const fs::filesystem_error& error) {
    throw ConfigError(fmt::format("{}: cannot be listed: {}", root, error.what()));
  }
}

ImageFolder::List ImageFolder::list_images(const std::string& root) {
  List list{.classes = folders_of(root), .class_to_idx = {}, .files = {}};
  check_config(!list.classes.empty(), "{}: no folders in it; expected one for each class", root);
  std::vector<std::string> empty;
  for (const auto& name : list.classes) {
    const auto label = static_cast<std::int64_t>(list.class_to_idx.size());
    list.class_to_idx[name] = label;
    const auto images = images_of(fs::path(root) / name);
    if (images.empty()) empty.push_back(name);
    for (const auto& image : images) list.files.emplace_back(image, label);
  }
  check_config(empty.empty(), "{}: no .jpg, .jpeg or .png in the classes {}", root, fmt::join(empty, ", "));
  return list;
}

ImageFolder::Sample ImageFolder::get(std::int64_t index) const {
  check_argument(index >= 0 && index < size(), "image {} of {}", index, size());
  const auto& [path, label] = list_->files[index];
  const MappedFile file(path);
  return {decode_image(file.bytes(), path, options_), label};
}

}  // namespace accel
