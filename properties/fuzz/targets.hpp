#pragma once

#include <string>
#include <string_view>
#include <vector>

/// The targets of the fuzzers: every reader of files from untrusted sources. Whatever the bytes are, a target
/// returns within 1 s and 512 MB. Otherwise the reader has a bug: a crash, time or memory beyond what the file
/// justifies, or an error that does not name the file.
namespace accel::testing {

struct FuzzTarget {
  std::string name;  ///< name of its corpus, a folder next to this file
  void (*run)(std::string_view bytes);
};

const std::vector<FuzzTarget>& fuzz_targets();

}  // namespace accel::testing
