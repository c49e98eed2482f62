#pragma once

#include <string>
#include <string_view>
#include <vector>

/// The targets of the fuzzers: every reader of files from untrusted sources. Whatever the bytes are, a target
/// returns. Otherwise the reader has a bug: a crash, memory use beyond the file's size, or an error that does not
/// name the file.
namespace accel::testing {

struct FuzzTarget {
  std::string name;  ///< name of its corpus, a folder next to this file
  void (*run)(std::string_view bytes);
};

const std::vector<FuzzTarget>& fuzz_targets();

}  // namespace accel::testing
