#pragma once

#include <cstdio>
#include <filesystem>
#include <memory>
#include <string>

#include "reference/core/errors.hpp"
#include "reference/files/temporary_folder.hpp"

namespace accel::bench {

/// Writes the text of an experiment to a file that exists while the value lives.
class ExperimentFile {
 public:
  explicit ExperimentFile(const std::string& text)
      : path_((std::filesystem::path(folder_.path()) / "experiment.yaml").string()) {
    const std::unique_ptr<FILE, int (*)(FILE*)> file(std::fopen(path_.c_str(), "w"), std::fclose);
    if (!file || std::fputs(text.c_str(), file.get()) < 0 || std::fflush(file.get()) != 0)
      throw Error(path_ + ": cannot write the file");
  }
  [[nodiscard]] const std::string& path() const { return path_; }

 private:
  TemporaryFolder folder_;
  std::string path_;
};

}  // namespace accel::bench
