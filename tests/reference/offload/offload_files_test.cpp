// Files of offloaded weights, in the layout of accelerate/utils/offload.py: one .dat file per tensor and an index.
#include "reference/offload/offload_files.hpp"

#include <gmock/gmock.h>

#include <filesystem>

#include "reference/core/errors.hpp"
#include "reference/files/safetensors.hpp"
#include "tests/support/crash_disk.hpp"
#include "tests/support/message_of.hpp"
#include "tests/support/temporary_folder.hpp"
#include "tests/support/torch.hpp"

namespace accel {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::message_of;
using testing::TemporaryFolder;

// The index that accelerate.utils.offload_state_dict writes for the same tensors.
constexpr const char* kIndex = R"({
  "a.weight": {
    "dtype": "float32",
    "shape": [
      2,
      3
    ]
  },
  "b": {
    "dtype": "bfloat16",
    "shape": [
      2
    ]
  },
  "c": {
    "dtype": "int64",
    "shape": []
  },
  "d": {
    "dtype": "bool",
    "shape": [
      3
    ]
  }
})";

// Tensors of several dtypes, among them bfloat16, which NumPy lacks.
NamedTensors tensors() {
  return {{"a.weight", torch::arange(6, torch::kFloat).reshape({2, 3})},
          {"b", torch::tensor({1.5, -2.0}, torch::kBFloat16)},
          {"c", torch::tensor(7, torch::kLong)},
          {"d", torch::tensor({true, false, true})}};
}

// Tensors are replaced one by one: an index that lists all of them would mix two saves.
TEST(OffloadFilesTest, AnInterruptedSaveOverAnotherOneMixesNothing) {
  const auto model = [](double value) {
    return NamedTensors{{"a", torch::full({2}, value)}, {"b", torch::full({2}, value)}};
  };
  testing::CrashDisk first;
  offload_state_dict(first, "o", model(1));
  testing::CrashDisk whole(first.content());
  offload_state_dict(whole, "o", model(2));
  for (std::size_t cut = 0; cut <= whole.num_operations(); ++cut) {
    testing::CrashDisk disk(first.content(), cut);
    try {
      offload_state_dict(disk, "o", model(2));
    } catch (const testing::PowerLost&) {
    }
    const TemporaryFolder folder;
    testing::put(disk.content(), folder);
    std::set<double> values;
    for (const auto& [name, weight] : read_offload_index(folder.path("o")))
      values.insert(weight.load()[0].item<double>());
    EXPECT_LE(values.size(), 1U);
  }
}

// Folders can be used by both.
TEST(OffloadFilesTest, FilesEqualAcceleratesByteForByte) {
  const TemporaryFolder folder;
  PosixFiles files;
  offload_state_dict(files, folder.path("o"), tensors());
  EXPECT_EQ(files.read(folder.path("o/index.json")), kIndex);
  // NumPy has no bfloat16, so Accelerate stores its bits as int16.
  EXPECT_EQ(files.read(folder.path("o/b.dat")), std::string("\xc0\x3f\x00\xc0", 4));
  EXPECT_EQ(files.read(folder.path("o/c.dat")), std::string("\x07\0\0\0\0\0\0\0", 8));
  EXPECT_EQ(files.read(folder.path("o/d.dat")), std::string("\1\0\1", 3));
  const OffloadedWeightsLoader weights({.state_dict = {{"d", torch::zeros(1)}}, .save_folder = folder.path("o")});
  for (const auto& [name, tensor] : tensors()) {
    if (name == "d") continue;
    EXPECT_TRUE(weights.load(name).equal(tensor)) << name;
  }
  EXPECT_EQ(weights.load("d").numel(), 1) << "memory comes first";
  EXPECT_EQ(weights.size(), 4u);
  EXPECT_THROW((void)weights.load("e"), ArgumentError);
}

TEST(OffloadFilesTest, AFileThatWasShortenedIsAnError) {
  const TemporaryFolder folder;
  PosixFiles files;
  offload_state_dict(files, folder.path("o"), {{"x", torch::ones(3)}});
  const auto weights = read_offload_index(folder.path("o"));
  std::filesystem::resize_file(folder.path("o/x.dat"), 8);
  EXPECT_THAT(testing::message_of<CheckpointError>([&] { (void)weights.at("x").load(); }),
              ::testing::HasSubstr(folder.path("o/x.dat") + ": has 8 bytes, but had 12 when the index was read"));
}

// Large models are written in several calls.
TEST(OffloadFilesTest, AnIndexKeepsItsEarlierEntries) {
  const TemporaryFolder folder;
  PosixFiles files;
  offload_state_dict(files, folder.path("o"), {{"x", torch::ones(2)}});
  offload_state_dict(files, folder.path("o"), {{"y", torch::ones(3)}});
  EXPECT_EQ(read_offload_index(folder.path("o")).size(), 2u);
}

// The index names the dtype of the model, which may differ from that of the file.
TEST(OffloadFilesTest, TheDtypeOfTheIndexTakesPrecedence) {
  const TemporaryFolder folder;
  PosixFiles files;
  files.make_folder(folder.path("o"));
  write_safetensors(files, folder.path("w.safetensors"), {{"w", torch::tensor({1.5, -2.0}, torch::kHalf)}});
  write_atomically(files, folder.path("o/index.json"),
                   R"({"w": {"dtype": "float32", "safetensors_file": ")" + folder.path("w.safetensors") + R"("}})");
  const auto weights = read_offload_index(folder.path("o"));
  EXPECT_EQ(weights.at("w").dtype, torch::kFloat);
  const auto loaded = weights.at("w").load();
  EXPECT_EQ(loaded.scalar_type(), torch::kFloat);
  EXPECT_TRUE(loaded.equal(torch::tensor({1.5f, -2.0f})));
}

// One file is missing and another is too long.
TEST(OffloadFilesTest, AllProblemsAreReportedAtOnce) {
  const TemporaryFolder folder;
  PosixFiles files;
  offload_state_dict(files, folder.path("o"), tensors());
  files.remove(folder.path("o/b.dat"));
  files.create(folder.path("o/c.dat"))->append("x");
  EXPECT_THAT(message_of<CheckpointError>([&] { read_offload_index(folder.path("o")); }),
              AllOf(HasSubstr("b.dat: file is missing"), HasSubstr("c.dat: has 1 bytes"), HasSubstr("needs 8")));
  for (const auto* index : {"[]", "{", R"({"a": 3})", R"({"a": {"dtype": "float99", "shape": []}})",
                            R"({"a": {"dtype": "int8", "shape": ["x"]}})", R"({"a": {"dtype": "int8"}})"}) {
    write_atomically(files, folder.path("o/index.json"), index);
    EXPECT_THROW(read_offload_index(folder.path("o")), CheckpointError) << index;
  }
}

}  // namespace
}  // namespace accel
