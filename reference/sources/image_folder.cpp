// Source: torchvision/datasets/folder.py, ImageFolder. The order of classes and files must equal torchvision's,
// because indices and labels are stored in checkpoints and predictions.
#include "reference/sources/image_folder.hpp"

#include <algorithm>
#include <array>
#include <filesystem>

#include "reference/core/errors.hpp"
#include "reference/core/input/listed.hpp"
#include "reference/core/letter_case.hpp"
#include "reference/files/mapped_file.hpp"
#include "reference/state/warnings.hpp"

namespace accel {
namespace {

namespace fs = std::filesystem;

// Names the entries that are skipped, in one warning.
class SkippedEntries {
 public:
  explicit SkippedEntries(std::string root) : root_(std::move(root)) {}

  void add(const fs::path& path, std::string_view reason) {
    entries_.push_back(fmt::format("{} ({})", path.lexically_relative(root_).string(), reason));
  }
  void warn() {
    std::sort(entries_.begin(), entries_.end());
    if (!entries_.empty()) warn_once(fmt::format("{}: skips {}", root_, listed(entries_, ", ")));
  }

 private:
  std::string root_;
  std::vector<std::string> entries_;
};

// Hidden copies of images are written by macOS, Jupyter and editors; torchvision reads them.
bool is_hidden(const fs::path& path) { return path.filename().string().starts_with('.'); }

// Formats that torchvision does not read either.
bool is_other_image(const fs::path& path) {
  static constexpr std::array kOthers{".gif", ".heic", ".heif", ".avif", ".jfif", ".jpe", ".jp2", ".jxl"};
  return std::find(kOthers.begin(), kOthers.end(), lower_case(path.extension().string())) != kOthers.end();
}

bool is_image(const fs::path& path) {
  return has_image_extension(path.string()) || has_unsupported_image_extension(path.string()) || is_other_image(path);
}

// A folder on a disk that is not mounted would be missing silently. A link to an image is reported when it is read.
void check_link(const fs::directory_entry& entry) {
  std::error_code error;
  check_config(!entry.is_symlink(error) || entry.exists(error) || is_image(entry.path()),
               "{}: a link whose target is missing; restore the target, or remove the link", entry.path().string());
}

std::vector<std::string> folders_of(const fs::path& root, SkippedEntries& skipped) {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(root)) {
    const bool is_folder = entry.is_directory();
    if (is_hidden(entry.path())) {
      if (is_folder || is_image(entry.path())) skipped.add(entry.path(), "hidden");
      continue;
    }
    check_link(entry);
    if (is_folder)
      names.push_back(entry.path().filename().string());
    else if (is_image(entry.path()))
      skipped.add(entry.path(), "outside of the classes");
  }
  std::sort(names.begin(), names.end());
  return names;
}

// Sorted by folder, then by name, as os.walk with sorted() gives. Sorting complete paths differs: '/' sorts after some
// characters of folder names, such as '-'.
std::vector<std::string> images_of(const fs::path& folder, SkippedEntries& skipped) {
  std::vector<std::pair<std::string, std::string>> found;
  auto entries = fs::recursive_directory_iterator(folder, fs::directory_options::follow_directory_symlink);
  for (const auto end = fs::end(entries); entries != end; ++entries) {
    const auto& path = entries->path();
    const bool is_folder = entries->is_directory();
    if (is_hidden(path)) {
      if (is_folder || is_image(path)) skipped.add(path, "hidden");
      if (is_folder) entries.disable_recursion_pending();
      continue;
    }
    // torchvision reads these formats. Skipping them would silently change all following indices.
    check_config(is_folder || !has_unsupported_image_extension(path.string()),
                 "{}: unsupported image format; convert the image to PNG or JPEG, or remove it", path.string());
    check_link(*entries);
    if (!is_folder && is_other_image(path)) skipped.add(path, "neither JPEG nor PNG");
    if (!is_folder && has_image_extension(path.string()))
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
  SkippedEntries skipped(root);
  List list{.classes = folders_of(root, skipped), .class_to_idx = {}, .files = {}};
  check_config(!list.classes.empty(), "{}: the folder has no subfolders; expected one per class", root);
  std::vector<std::string> empty;
  for (const auto& name : list.classes) {
    const auto label = static_cast<std::int64_t>(list.class_to_idx.size());
    list.class_to_idx[name] = label;
    const auto images = images_of(fs::path(root) / name, skipped);
    if (images.empty()) empty.push_back(name);
    for (const auto& image : images) list.files.emplace_back(image, label);
  }
  check_config(empty.empty(), "{}: no .jpg, .jpeg or .png files in the classes {}; expected at least one per class",
               root, listed(empty, ", "));
  skipped.warn();
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
