// Weights in several files, in the layout of the Hugging Face hub: the plan (which tensor in which file), the
// index, and reading. The files and the index must be those of Python's packages byte for byte.
#include "reference/checkpoint/weights_files.hpp"

#include <gmock/gmock.h>

#include <filesystem>

#include "properties/gen/value_json.hpp"
#include "reference/checkpoint/torch_file.hpp"
#include "reference/checkpoint/weights_plan.hpp"
#include "reference/core/errors.hpp"
#include "reference/files/safetensors.hpp"
#include "tests/reference/checkpoint/recorded.hpp"
#include "tests/support/any_tensor.hpp"
#include "tests/support/crash_disk.hpp"
#include "tests/support/message_of.hpp"
#include "tests/support/temporary_folder.hpp"
#include "tests/support/torch.hpp"

namespace accel {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::message_of;
using ::testing::Pair;
using testing::pick;
using testing::recorded;
using testing::TemporaryFolder;
using ::testing::UnorderedElementsAre;

std::vector<std::vector<std::string>> tensors_of(const WeightsPlan& plan) {
  std::vector<std::vector<std::string>> tensors;
  for (const auto& file : plan.files) tensors.push_back(file.tensors);
  return tensors;
}

// As Accelerate does: a new file begins when the next tensor does not fit, even if later ones would.
TEST(WeightsPlanTest, FilesAreFilledInOrder) {
  const auto plan =
      plan_weights_files({{"0.weight", 64}, {"0.bias", 16}, {"1.weight", 32}, {"1.bias", 8}}, {.max_shard_bytes = 60});
  EXPECT_THAT(tensors_of(plan), ElementsAre(ElementsAre("0.weight"), ElementsAre("0.bias", "1.weight", "1.bias")));
  EXPECT_EQ(plan.files[1].name, "model-00002-of-00002.safetensors");
  EXPECT_EQ(plan.index_file, "model.safetensors.index.json");
  EXPECT_EQ(plan.total_bytes, 120);
}

// huggingface_hub gives a tensor above the limit a file of its own and continues to fill the current one.
TEST(WeightsPlanTest, ALargeTensorIsPlacedBeforeTheOpenFile) {
  const auto plan =
      plan_weights_files({{"a", 10}, {"large", 100}, {"b", 10}}, {.max_shard_bytes = 50, .safe_serialization = false});
  EXPECT_THAT(tensors_of(plan), ElementsAre(ElementsAre("large"), ElementsAre("a", "b")));
  EXPECT_EQ(plan.files[0].name, "pytorch_model-00001-of-00002.bin");
  EXPECT_EQ(plan.index_file, "pytorch_model.bin.index.json");
}

// In two files they would be stored twice and no longer be tied after loading.
TEST(WeightsPlanTest, TensorsThatShareMemoryStayTogetherAndCountOnce) {
  const auto plan =
      plan_weights_files({{"a", 10, 0}, {"b", 45, 1}, {"a again", 10, 0}, {"c", 5, 2}}, {.max_shard_bytes = 50});
  EXPECT_THAT(tensors_of(plan), ElementsAre(ElementsAre("a", "a again"), ElementsAre("b", "c")));
  EXPECT_EQ(plan.total_bytes, 60);
}

// Python looks for the plain name first.
TEST(WeightsPlanTest, OneFileHasNoIndex) {
  EXPECT_THAT(tensors_of(plan_weights_files({})), ElementsAre(IsEmpty()));
  const auto plan = plan_weights_files({{"a", 1}});
  EXPECT_EQ(plan.files[0].name, "model.safetensors");
  EXPECT_EQ(plan.index_file, "");
  EXPECT_THROW(plan_weights_files({}, {.max_shard_bytes = 0}), ArgumentError);
}

// Except for a single tensor that is larger than the limit.
TEST(WeightsPlanTest, EveryTensorIsInOneFileAndNoFileIsTooLarge) {
  testing::expect_property(300, [] {
    std::vector<SavedTensor> tensors;
    std::map<std::string, std::int64_t> bytes;
    for (int i = 0, count = pick(1, 20); i < count; ++i)
      tensors.push_back({std::to_string(i), bytes[std::to_string(i)] = pick(0, 40)});
    const auto plan = plan_weights_files(tensors, {.max_shard_bytes = 30});
    std::size_t num_placed = 0;
    for (const auto& file : plan.files) {
      std::int64_t total = 0;
      for (const auto& name : file.tensors) total += bytes.at(name);
      num_placed += file.tensors.size();
      RC_ASSERT(total <= 30 || file.tensors.size() == 1);
      RC_ASSERT(is_weights_file(file.name, true) && !is_weights_file(file.name, false));
    }
    RC_ASSERT(num_placed == tensors.size());
  });
}

// Decimal units, as in huggingface_hub; GiB is not accepted there either.
TEST(ParseSizeTest, SizesAreParsedLikeTheHubs) {
  EXPECT_EQ(parse_size("10GB"), 10'000'000'000);
  EXPECT_EQ(parse_size(" 0.5 kb "), 500);
  EXPECT_EQ(parse_size("+1e2MB"), 100'000'000);
  for (const auto* text : {"", "B", "GB", "10", "10GiB", "xGB", "-1GB", "1GBx", "nanGB", "infTB", "1e30TB"})
    EXPECT_THROW(parse_size(text), ArgumentError) << text;
}

// Tools compare index files by their hashes.
TEST(WeightsIndexTest, BytesEqualPythons) {
  const auto path = recorded("model_0.02KB/model.safetensors.index.json");
  const auto bytes = PosixFiles().read(path);
  const auto map = read_weights_index(bytes, path);
  std::int64_t total = 0;
  for (const auto& [name, weight] : read_weights(path)) total += static_cast<std::int64_t>(weight.load().nbytes());
  EXPECT_EQ(weights_index(map, total), bytes);
}

// An index comes from the internet, and "../x" in it must not read files elsewhere.
TEST(WeightsIndexTest, PathsOutsideTheFolderAreRejected) {
  const auto refusal = [](const std::string& bytes) {
    return message_of<CheckpointError>([&] { read_weights_index(bytes, "i.json"); });
  };
  EXPECT_THAT(refusal(R"({"weight_map":{"a":"../x","b":"/x","c":3,"d":""}})"),
              AllOf(HasSubstr("'a' is in \"../x\""), HasSubstr("'b'"), HasSubstr("'c'"), HasSubstr("'d'")));
  EXPECT_THAT(refusal("{"), HasSubstr("i.json: not valid JSON"));
  EXPECT_THAT(refusal("[]"), HasSubstr("expected a JSON object"));
  EXPECT_THAT(refusal(R"({"weight_map":[]})"), HasSubstr("weight_map: expected an object"));
  EXPECT_THAT(refusal(std::string(100000, '[')), HasSubstr("more than 32 deep"));
  EXPECT_THAT(read_weights_index(R"({"a":"x"})", "i.json"), ElementsAre(Pair("a", "x")));
}

class WeightsFilesTest : public ::testing::Test {
 protected:
  std::map<std::string, std::string> write(const NamedTensors& tensors, const WeightsPlanOptions& options) {
    return write_weights(files_, folder_.path("m"), tensors, options);
  }
  [[nodiscard]] std::vector<std::string> names() const {
    std::vector<std::string> names;
    for (const auto& entry : std::filesystem::directory_iterator(folder_.path("m")))
      names.push_back(entry.path().filename().string());
    return names;
  }
  std::string refusal(const std::string& path) {
    return message_of<CheckpointError>([&] {
      for (const auto& [name, weight] : read_weights(path)) weight.load();
    });
  }
  PosixFiles files_;
  TemporaryFolder folder_;
};

// Models with tied and empty tensors, in files of any size and both formats.
TEST_F(WeightsFilesTest, EveryModelSurvivesARoundTrip) {
  testing::expect_property(60, [&] {
    const bool safe_serialization = pick(0, 2) == 1;
    NamedTensors tensors;
    for (int i = 0, count = pick(0, 8); i < count; ++i) {
      const bool is_tied = i > 0 && pick(0, 4) == 0;
      tensors.emplace_back(std::to_string(i),
                           is_tied ? tensors[0].second
                                   : testing::any_tensor(safe_serialization ? testing::kSafetensorsDtypes
                                                                            : testing::torch_file_dtypes()));
    }
    const auto same_as = write(tensors, {.max_shard_bytes = pick(1, 200), .safe_serialization = safe_serialization});
    // A file of the other format from an earlier round would be read first.
    if (!safe_serialization) std::filesystem::remove(folder_.path("m/model.safetensors"));
    const auto weights = read_weights(folder_.path("m"));
    // Tied tensors are stored once, under the first name.
    RC_ASSERT(weights.size() + same_as.size() == tensors.size());
    for (const auto& [name, tensor] : tensors) {
      const auto& weight = weights.at(same_as.contains(name) ? same_as.at(name) : name);
      RC_ASSERT(weight.dtype == tensor.scalar_type() && weight.sizes == tensor.sizes().vec());
      RC_ASSERT(testing::is_same_tensor(weight.load(), tensor));
    }
    std::filesystem::remove_all(folder_.path("m"));
  });
}

// Every dtype, names that JSON has to escape, and an empty tensor, in one file and in many.
TEST_F(WeightsFilesTest, FilesEqualAccelerates) {
  NamedTensors tensors;
  const auto state = read_torch_file(recorded("model.bin"));
  const auto in_order = read_weights(recorded("model.bin"));
  // The order of Python's state dict, which a Value does not keep.
  for (const auto* name : {"uint8",
                           "int8",
                           "int16",
                           "int32",
                           "int64",
                           "uint16",
                           "uint32",
                           "uint64",
                           "float16",
                           "bfloat16",
                           "float32",
                           "float64",
                           "complex64",
                           "float8_e4m3fn",
                           "float8_e5m2",
                           "float8_e4m3fnuz",
                           "float8_e5m2fnuz",
                           "float8_e8m0fnu",
                           "mask",
                           "\xc3\xa9 \"\\\n\x7f\xf0\x9f\x98\x80",
                           "empty"}) {
    tensors.emplace_back(name, state.at(name).as<at::Tensor>());
  }
  ASSERT_EQ(tensors.size(), in_order.size());
  // Accelerate wrote the recorded files with these two limits.
  for (const auto* size : {"10GB", "0.02KB"}) {
    write(tensors, {.max_shard_bytes = parse_size(size)});
    const auto theirs = recorded(std::string("model_") + size);
    std::size_t num_files = 0;
    for (const auto& entry : std::filesystem::directory_iterator(theirs)) {
      const auto name = entry.path().filename().string();
      EXPECT_EQ(files_.read(folder_.path("m/" + name)), files_.read(entry.path().string())) << name;
      ++num_files;
    }
    EXPECT_EQ(names().size(), num_files);
  }
}

// Old shards next to a new index would double the size of a folder and confuse readers. Other files must stay.
TEST_F(WeightsFilesTest, ShardsOfAnEarlierSaveAreRemoved) {
  const NamedTensors two{{"a", torch::zeros({4})}, {"b", torch::ones({4})}};
  files_.make_folder(folder_.path("m"));
  for (const auto* name : {"m/notes.txt", "m/model-card.safetensors", "m/pytorch_model.bin"})
    // Names that look similar to those of shards.
    folder_.write(name, "kept");
  write(two, {.max_shard_bytes = 16});
  write(two, {});
  EXPECT_THAT(names(),
              UnorderedElementsAre("model.safetensors", "notes.txt", "model-card.safetensors", "pytorch_model.bin"));
  write(two, {.max_shard_bytes = 16});
  EXPECT_THAT(names(), UnorderedElementsAre("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors",
                                            "model.safetensors.index.json", "notes.txt", "model-card.safetensors",
                                            "pytorch_model.bin"));
  write(two, {.max_shard_bytes = 16, .safe_serialization = false});
  EXPECT_EQ(names().size(), 8u) << "the single file of its kind is gone";
}

// A save over an older one, of any number of files each, that is interrupted at every operation, also twice: a reader
// gets the old model or the new one. At the end only the files of the new one are there, under their usual names.
TEST_F(WeightsFilesTest, ASaveOverAnotherOneThatIsInterruptedMixesNothing) {
  testing::expect_property(10, [] {
    const auto model = [](double value, int count) {
      NamedTensors tensors;
      for (int i = 0; i < count; ++i)
        tensors.emplace_back(std::string(1, static_cast<char>('a' + i)), torch::full({4}, value));
      return tensors;
    };
    const int count = testing::pick(1, 5);
    const bool safe_serialization = testing::pick(0, 2) == 0;
    const auto options = [&] {
      return WeightsPlanOptions{.max_shard_bytes = testing::pick(1, 4) * 16, .safe_serialization = safe_serialization};
    };
    const auto before = options(), after = testing::pick(0, 2) == 0 ? before : options();
    const auto value_in = [&](const testing::CrashDisk::Content& disk) {
      const TemporaryFolder folder;
      testing::put(disk, folder);
      std::set<double> values;
      const auto weights = read_weights(folder.path("m"));
      for (const auto& [name, weight] : weights) values.insert(weight.load()[0].item<double>());
      RC_ASSERT(weights.size() == static_cast<std::size_t>(count) && values.size() == 1U);
      return *values.begin();
    };
    testing::CrashDisk first;
    write_weights(first, "m", model(1, count), before);
    testing::CrashDisk whole(first.content());
    write_weights(whole, "m", model(2, count), after);
    testing::CrashDisk fresh;
    write_weights(fresh, "m", model(2, count), after);
    RC_ASSERT(whole.content() == fresh.content());
    for (std::size_t cut = 0; cut <= whole.num_operations(); ++cut) {
      testing::CrashDisk disk(first.content(), cut);
      try {
        write_weights(disk, "m", model(2, count), after);
      } catch (const testing::PowerLost&) {
      }
      RC_ASSERT(value_in(disk.content()) == 1 || value_in(disk.content()) == 2);
      const auto found = disk.after_power_loss([](std::size_t end) { return testing::pick<std::size_t>(0, end + 1); });
      const auto value = value_in(found);
      RC_ASSERT(value == 1 || value == 2);
      // The next process saves, and is interrupted as well.
      testing::CrashDisk next(found, testing::pick<std::size_t>(0, whole.num_operations()));
      try {
        write_weights(next, "m", model(3, count), after);
      } catch (const testing::PowerLost&) {
      }
      RC_ASSERT(value_in(next.content()) == value || value_in(next.content()) == 3);
      testing::CrashDisk last(next.content());
      write_weights(last, "m", model(2, count), after);
      std::set<std::string> names, expected;
      for (const auto& [path, bytes] : last.content()) names.insert(path);
      for (const auto& [path, bytes] : fresh.content()) expected.insert(path);
      RC_ASSERT(value_in(last.content()) == 2);
      for (const auto& name : names) RC_ASSERT(expected.contains(name) || name.ends_with(".tmp"));
    }
  });
}

// A missing file, one with other tensors, and a truncated one.
TEST_F(WeightsFilesTest, AllProblemsAreReportedAtOnce) {
  write({{"a", torch::zeros({4})}, {"b", torch::ones({4})}, {"c", torch::ones({4})}}, {.max_shard_bytes = 16});
  files_.remove(folder_.path("m/model-00001-of-00003.safetensors"));
  write_safetensors(files_, folder_.path("m/model-00002-of-00003.safetensors"), {{"x", torch::zeros({1})}});
  folder_.write("m/model-00003-of-00003.safetensors", "short");
  EXPECT_THAT(refusal(folder_.path("m")),
              AllOf(HasSubstr("model.safetensors.index.json: the files do not match the index"),
                    HasSubstr("model-00001-of-00003.safetensors: cannot be opened"),
                    HasSubstr("model-00002-of-00003.safetensors lacks tensor 'b'"),
                    HasSubstr("model-00002-of-00003.safetensors contains tensor 'x'"),
                    HasSubstr("model-00003-of-00003.safetensors: not a safetensors file: it has 5 bytes")));
}

// Taking any one of several models would be a guess.
TEST_F(WeightsFilesTest, FoldersWithoutExactlyOneModelAreRejected) {
  EXPECT_THAT(refusal(folder_.path()),
              HasSubstr("contains no weights; expected model.safetensors, pytorch_model.bin or an index"));
  folder_.write("a.index.json", "{}");
  folder_.write("b.index.json", "{}");
  EXPECT_THAT(refusal(folder_.path()), HasSubstr("contains several indices"));
  EXPECT_THAT(refusal(folder_.path("absent")), HasSubstr("absent: cannot be opened"));
  // A file of another kind: its entries are no weights.
  write_torch_file(files_, folder_.path("optimizer.bin"), Value::Dict{{"epoch", 3}, {"a", torch::zeros({1})}});
  EXPECT_THAT(refusal(folder_.path("optimizer.bin")), HasSubstr("these entries are not: epoch"));
}

// Weights are loaded one by one, so opening a folder must not read all of it to verify checksums.
TEST_F(WeightsFilesTest, DamagedRecordsAreReportedWhenTheyAreLoaded) {
  write({{"a", torch::zeros({400})}, {"b", torch::ones({400})}}, {.safe_serialization = false});
  auto bytes = files_.read(folder_.path("m/pytorch_model.bin"));
  // One byte within the 400 zeros of tensor a.
  bytes[bytes.find(std::string(1600, '\0')) + 40] = 1;
  folder_.write("m/pytorch_model.bin", bytes);
  const auto weights = read_weights(folder_.path("m"));
  EXPECT_TRUE(weights.at("b").load().equal(torch::ones({400})));
  EXPECT_THAT(message_of<CheckpointError>([&] { (void)weights.at("a").load(); }),
              HasSubstr("pytorch_model.bin: damaged: record data/0"));
}

}  // namespace
}  // namespace accel
