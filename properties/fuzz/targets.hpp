#pragma once

#include <string>
#include <string_view>
#include <vector>

/// What fuzzers feed with bytes: every reader of files that come from elsewhere. Whatever the bytes are, each returns,
/// or the reader has a fault: a crash, memory beyond the file, an error that does not name the file.
///
///     for (const auto& target : fuzz_targets()) target.run(bytes);
///
/// Thread rule: one thread; they share a file.
namespace accel::testing {

struct FuzzTarget {
  std::string name;  ///< of its corpus, beside this file
  void (*run)(std::string_view bytes);
};

const std::vector<FuzzTarget>& fuzz_targets();

}  // namespace accel::testing
