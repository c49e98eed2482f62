// `Files` can create files but not open existing ones for appending, because a simulated disk must know every
// byte of a file. Continuing an existing file therefore copies its content.
#include "reference/tracking/appendable_file.hpp"

#include <cerrno>
#include <utility>

namespace accel::tracking {

// Tries to read instead of asking for the existence first: a file may appear or vanish in between. Other errors
// than a missing file must not look like an empty file, or the old content would be overwritten.
std::optional<std::string> read_if_exists(Files& files, const std::string& path) {
  try {
    return files.read(path);
  } catch (const FileError& error) {
    if (error.code() == ENOENT) return std::nullopt;
    throw;
  }
}

std::string_view complete_lines(std::string_view content) { return content.substr(0, content.rfind('\n') + 1); }

AppendableFile::AppendableFile(Files& files, std::string path) : files_(files), path_(std::move(path)) {
  replace(content());
}

std::string AppendableFile::content() const {
  return std::string(complete_lines(read_if_exists(files_, path_).value_or("")));
}

// The descriptor stays valid after the rename, so later appends go to the renamed file. Not write_atomically,
// which closes the file. The sync keeps old content that was already on the disk from being lost with the rename.
void AppendableFile::replace(std::string_view content) {
  const auto temporary = path_ + ".tmp";
  auto file = files_.create(temporary);
  file->append(content);
  if (!content.empty()) file->sync();
  files_.rename(temporary, path_);
  file_ = std::move(file);
}

}  // namespace accel::tracking
