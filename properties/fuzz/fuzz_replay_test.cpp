// Runs every reader on the fuzzers' corpora, unchanged and mutated at random. This needs no Clang, so ordinary
// builds keep what the fuzzers found fixed.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "properties/fuzz/targets.hpp"
#include "reference/core/errors.hpp"
#include "reference/files/files.hpp"
#include "reference/sources/tar_reader.hpp"
#include "tests/support/cpu_time.hpp"
#include "tests/support/property.hpp"
#include "tests/support/torch.hpp"

namespace accel::testing::fuzz_replay_test {
namespace {

// Returns hand-made files and those that fuzzers found, which an archive holds.
std::vector<std::string> corpus(const std::string& target) {
  std::vector<std::string> files, contents;
  const auto folder = std::string(std::getenv("ACCEL_SOURCE_DIR")) + "/properties/fuzz/corpus/" + target;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) files.push_back(entry.path().string());
  std::sort(files.begin(), files.end());
  for (const auto& file : files) contents.push_back(PosixFiles().read(file));
  TarReader found(folder + ".tar.gz");
  while (const auto member = found.next()) {
    if (member->type == TarMember::Type::kFile) contents.push_back(found.data());
  }
  return contents;
}

// Changes, removes, repeats or replaces bytes, also with bytes of another file. Runs of 0x00 and 0xff hit lengths.
std::string mutated(const std::vector<std::string>& contents) {
  auto bytes = contents[pick<std::size_t>(0, contents.size())];
  for (int i = 0, changes = pick(1, 6); i < changes && !bytes.empty(); ++i) {
    const auto place = pick<std::size_t>(0, bytes.size()), length = pick<std::size_t>(1, 9);
    const auto& other = contents[pick<std::size_t>(0, contents.size())];
    const auto from = other.empty() ? 0 : pick<std::size_t>(0, other.size());
    switch (pick(0, 5)) {
      case 0: bytes[place] = static_cast<char>(pick(0, 256)); break;
      case 1: bytes.erase(place, length); break;
      case 2: bytes.insert(place, bytes.substr(place, length)); break;
      case 3: bytes.insert(place, other.substr(from, 4 * length)); break;
      default: bytes.replace(place, length, std::string(length, pick(0, 2) == 0 ? '\0' : '\xff')); break;
    }
  }
  return bytes;
}

// The highest resident memory of the process since `forget_peak`, in bytes.
std::int64_t peak_bytes() {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with("VmHWM:")) return std::stoll(line.substr(6)) * 1024;
  }
  return 0;
}

void forget_peak() { std::ofstream("/proc/self/clear_refs") << 5; }

// The limits of the fuzzers. The memory is counted from what the process had before.
void run_in_limits(const FuzzTarget& target, const std::string& bytes) {
  constexpr double kSecondsMax = 1;
  constexpr std::int64_t kBytesMax = 512 << 20;
  forget_peak();
  const auto before = peak_bytes();
  const auto seconds = cpu_seconds([&] { target.run(bytes); });
  ensure(seconds < kSecondsMax, "{}: an input of {} bytes took {} s; expected less than {} s", target.name,
         bytes.size(), seconds, kSecondsMax);
  ensure(peak_bytes() - before < kBytesMax, "{}: an input of {} bytes took {} bytes of memory; expected less than {}",
         target.name, bytes.size(), peak_bytes() - before, kBytesMax);
}

class FuzzReplayTest : public ::testing::TestWithParam<FuzzTarget> {};

TEST_P(FuzzReplayTest, TheCorpusIsReadOrRejected) {
  const auto contents = corpus(GetParam().name);
  ASSERT_FALSE(contents.empty());
  for (const auto& bytes : contents) run_in_limits(GetParam(), bytes);
}

TEST_P(FuzzReplayTest, TheMutatedCorpusIsReadOrRejected) {
  const auto contents = corpus(GetParam().name);
  expect_property(3000, [&] { run_in_limits(GetParam(), mutated(contents)); });
}

INSTANTIATE_TEST_SUITE_P(Targets, FuzzReplayTest, ::testing::ValuesIn(fuzz_targets()),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace accel::testing::fuzz_replay_test
