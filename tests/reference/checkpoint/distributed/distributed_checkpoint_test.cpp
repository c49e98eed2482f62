// Folders of torch.distributed.checkpoint: one that Python wrote, round trips over any sharding, and damaged or hostile
// folders, of which all problems are reported.
#include "reference/checkpoint/distributed/distributed_checkpoint.hpp"

#include <gmock/gmock.h>

#include <filesystem>

#include "reference/checkpoint/distributed/distributed_files.hpp"
#include "reference/core/errors.hpp"
#include "tests/reference/checkpoint/recorded.hpp"
#include "tests/support/any_tensor.hpp"
#include "tests/support/message_of.hpp"
#include "tests/support/temporary_folder.hpp"
#include "tests/support/torch.hpp"
#include "tests/support/torch_file_bytes.hpp"

namespace accel {
namespace {

using namespace std::string_literals;
using namespace checkpoint;
using ::testing::AllOf;
using testing::any_tensor;
using testing::archive_of;
using ::testing::ElementsAre;
using testing::expect_property;
using ::testing::HasSubstr;
using testing::is_same_tensor;
using testing::message_of;
using testing::pick;
using testing::recorded;
using testing::TemporaryFolder;

class DistributedCheckpointTest : public ::testing::Test {
 protected:
  /// Writes a folder from ranks that each hold some items.
  void write(const std::vector<std::vector<DistributedItem>>& ranks) {
    std::vector<std::vector<ItemDescription>> descriptions;
    for (const auto& items : ranks) descriptions.push_back(described(items));
    const auto plan = plan_distributed_files(descriptions);
    files_.make_folder(path_);
    for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
      std::vector<DistributedItem> written;
      for (const auto index : plan.items[rank]) written.push_back(ranks[rank][index]);
      write_items(files_, path_ + "/" + distributed_file(rank), written);
    }
    write(plan.metadata);
  }
  void write(const DistributedMetadata& metadata) { write_metadata_file(write_metadata(metadata)); }
  void write_metadata_file(const std::string& bytes) {
    files_.make_folder(path_);
    write_atomically(files_, path_ + "/.metadata", bytes);
  }
  DistributedMetadata metadata() { return read_metadata(files_.read(path_ + "/.metadata"), "m"); }
  /// The error of opening and reading everything.
  std::string problem() {
    return message_of<CheckpointError>([&] { static_cast<void>(DistributedCheckpoint(path_).state_dict()); });
  }
  /// Two rows of three on each of two ranks, and a number.
  void write_small() {
    const auto rows = at::arange(12, at::kFloat).view({4, 3});
    write({{{{"w"}, {4, 3}, {{0, 0}, {2, 3}}, rows.narrow(0, 0, 2)}, {.path = {"n"}, .value = 5}},
           {{{"w"}, {4, 3}, {{2, 0}, {2, 3}}, rows.narrow(0, 2, 2)}, {.path = {"n"}, .value = 5}}});
  }

  TemporaryFolder folder_;
  std::string path_ = folder_.path("saved");
  PosixFiles files_;
};

TEST_F(DistributedCheckpointTest, AFileThatWasShortenedIsAnError) {
  write_small();
  const DistributedCheckpoint saved(path_);
  EXPECT_EQ(saved.load("w").size(0), 4);
  const auto file = path_ + "/" + distributed_file(0);
  for (const auto size : {std::filesystem::file_size(file) / 2, std::uintmax_t{0}}) {
    std::filesystem::resize_file(file, size);
    EXPECT_THAT(message_of<FileError>([&] { (void)saved.load("w"); }),
                HasSubstr(file + ": the file became shorter after it was opened"));
  }
}

TEST_F(DistributedCheckpointTest, AFolderThatPythonWroteIsRead) {
  const DistributedCheckpoint saved(recorded("distributed"));
  const Value expected =
      Value::Dict{{"model", Value::Dict{{"0.weight", at::arange(6, at::kFloat).view({3, 2})},
                                        {"0.bias", at::arange(3, at::kShort).view({1, 3})},
                                        {"count", at::scalar_tensor(7, at::kLong)}}},
                  {"groups", Value::List{Value::Dict{{"lr", 0.5}, {"betas", Value::List{0.9, 0.99}}}}},
                  {"note", Value()}};
  EXPECT_EQ(saved.state_dict(), expected);
  EXPECT_EQ(saved.metadata().tensors.at("model.0.weight").chunks.size(), 2U);
  EXPECT_EQ(read_distributed_checkpoint(recorded("distributed")).size(), 3U);
  EXPECT_TRUE(saved.load("model.0.weight", {{1, 1}, {2, 1}}).equal(at::tensor({3.0F, 5.0F}).view({2, 1})));
}

// Each rank holds a range of the elements, as in FSDP's flat parameters.
TEST_F(DistributedCheckpointTest, AnyNumberOfRanksReadsWhatAnyNumberOfRanksWrote) {
  expect_property(100, [&] {
    std::map<std::string, at::Tensor> tensors;
    std::vector<std::vector<DistributedItem>> ranks(pick<std::size_t>(1, 5));
    for (int i = 0; i < pick(1, 4); ++i) {
      const auto name = std::to_string(i) + ".weight";
      const auto tensor = tensors[name] = any_tensor(testing::torch_file_dtypes());
      const auto flat = tensor.contiguous().view({-1});
      std::int64_t begin = 0;
      for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
        const auto end = rank + 1 == ranks.size() ? flat.numel() : pick<std::int64_t>(begin, flat.numel() + 1);
        for (const auto& box : boxes_of_range(tensor.sizes().vec(), begin, end)) {
          const auto count = numel_of(box.sizes);
          ranks[rank].push_back(
              {{"model", name}, tensor.sizes().vec(), box, flat.narrow(0, begin, count).view(box.sizes)});
          begin += count;
        }
      }
    }
    write(ranks);
    const DistributedCheckpoint saved(path_);
    for (const auto& [name, tensor] : tensors) {
      RC_ASSERT(is_same_tensor(saved.load("model." + name), tensor));
      Box box;
      auto part = tensor;
      for (std::int64_t i = 0; i < tensor.dim(); ++i) {
        box.offsets.push_back(pick<std::int64_t>(0, tensor.size(i) + 1));
        box.sizes.push_back(pick<std::int64_t>(0, tensor.size(i) - box.offsets.back() + 1));
        part = part.narrow(i, box.offsets.back(), box.sizes.back());
      }
      RC_ASSERT(is_same_tensor(saved.load("model." + name, box), part));
    }
    for (const auto& [name, weight] : distributed_weights(path_))
      RC_ASSERT(is_same_tensor(weight.load(), tensors.at(name)));
  });
}

TEST_F(DistributedCheckpointTest, AStateDictIsReadAsItWasWritten) {
  const Value state = Value::Dict{
      {"optimizer",
       Value::Dict{
           {"state", Value::Dict{{"0.weight", Value::Dict{{"step", at::scalar_tensor(3)}, {"m", at::ones({2, 2})}}}}},
           {"param_groups", Value::List{Value::Dict{{"lr", 0.1}, {"params", Value::List{"0.weight"}}},
                                        Value::Dict{{"lr", 0.2}, {"params", Value::List{}}}}}}},
      {"mixed", Value::List{1, at::ones({2}), Value::List{2, 3}}},
      {"note", Value()}};
  write_distributed_checkpoint(files_, path_, state);
  EXPECT_EQ(DistributedCheckpoint(path_).state_dict(), state);
  EXPECT_THAT(files_.list(path_), ElementsAre(".metadata", "__0_0.distcp", "accel_manifest.json"));
  const auto objects = DistributedCheckpoint(path_).metadata().objects;
  EXPECT_TRUE(objects.contains("optimizer.param_groups.0.params"));
  EXPECT_TRUE(objects.contains("mixed.2"));
  // A state that cannot be written leaves the folder unchanged.
  EXPECT_NE(message_of<ArgumentError>([&] {
              write_distributed_checkpoint(files_, path_, Value::Dict{{"sparse", at::ones({2, 2}).to_sparse()}});
            }),
            "");
  EXPECT_EQ(DistributedCheckpoint(path_).state_dict(), state);
}

TEST_F(DistributedCheckpointTest, TwoItemsWithOneNameAreAnError) {
  const Value state = Value::Dict{{"a.b", at::ones({2})}, {"a", Value::Dict{{"b", at::zeros({2})}}}};
  EXPECT_EQ(message_of<ArgumentError>([&] { write_distributed_checkpoint(files_, path_, state); }),
            "two items have the name 'a.b', from different keys; rename a key with a dot");
}

// What is equal on all ranks is written by the first of them.
TEST_F(DistributedCheckpointTest, EqualItemsAreWrittenOnce) {
  write_small();
  const auto written = metadata();
  EXPECT_EQ(written.objects.at("n").file, "__0_0.distcp");
  std::int64_t length = 0;
  for (const auto& chunk : written.tensors.at("w").chunks) length += chunk.place.length;
  length += written.objects.at("n").length;
  EXPECT_EQ(static_cast<std::int64_t>(files_.read(path_ + "/__0_0.distcp").size() +
                                      files_.read(path_ + "/__1_0.distcp").size()),
            length);
}

// Only the chunks that hold a requested element are opened.
TEST_F(DistributedCheckpointTest, ARankReadsOnlyItsChunks) {
  write_small();
  auto bytes = files_.read(path_ + "/__1_0.distcp");
  std::fill(bytes.begin(), bytes.end(), 'x');
  folder_.write("saved/__1_0.distcp", bytes);
  const DistributedCheckpoint saved(path_);
  EXPECT_TRUE(saved.load("w", {{0, 0}, {2, 3}}).equal(at::arange(6, at::kFloat).view({2, 3})));
  EXPECT_THAT(message_of<CheckpointError>([&] {
                static_cast<void>(saved.load("w", {{1, 0}, {2, 3}}));
              }),
              AllOf(HasSubstr("__1_0.distcp: 'w'"), HasSubstr("not a complete file of torch.save")));
  EXPECT_THAT(message_of<ArgumentError>([&] {
                static_cast<void>(saved.load("w", {{3, 0}, {2, 3}}));
              }),
              HasSubstr("'w' has the sizes [4, 3]; requested [2, 3] at [3, 0]"));
  EXPECT_THAT(message_of<ArgumentError>([&] { static_cast<void>(saved.load("v")); }), HasSubstr("no tensor 'v'"));
}

TEST_F(DistributedCheckpointTest, MissingAndTruncatedFilesAreReportedTogether) {
  write_small();
  const auto bytes = files_.read(path_ + "/__0_0.distcp");
  folder_.write("saved/__0_0.distcp", bytes.substr(0, bytes.size() - 1));
  files_.remove(path_ + "/__1_0.distcp");
  EXPECT_THAT(problem(), AllOf(HasSubstr(path_), HasSubstr("__1_0.distcp is missing"),
                               HasSubstr(fmt::format("__0_0.distcp is truncated: {} bytes, expected {}",
                                                     bytes.size() - 1, bytes.size()))));
  files_.remove(path_ + "/.metadata");
  EXPECT_THAT(problem(), HasSubstr("lacks .metadata; expected a folder of torch.distributed.checkpoint"));
}

TEST_F(DistributedCheckpointTest, AllProblemsOfTheChunksAreReportedTogether) {
  write_small();
  auto changed = metadata();
  const auto good = changed.tensors.at("w");
  changed.tensors["gap"] = {good.dtype, good.sizes, {good.chunks[0]}};
  changed.tensors["twice"] = {good.dtype, good.sizes, {good.chunks[0], good.chunks[1], good.chunks[0]}};
  changed.tensors["small"] = {good.dtype, {3, 3}, good.chunks};
  changed.tensors["huge"] = {good.dtype, {INT64_MAX, 2}, good.chunks};
  changed.objects["n"].file = "../n";
  write(changed);
  EXPECT_THAT(problem(),
              AllOf(HasSubstr(path_ + "/.metadata"), HasSubstr("'gap': lacks 6 of 12 elements"),
                    HasSubstr("'twice': the chunks at [0, 0] of sizes [2, 3] and at [0, 0] of sizes [2, 3] overlap"),
                    HasSubstr("'small': the chunk at [2, 0] of sizes [2, 3] is outside of the sizes [3, 3]"),
                    HasSubstr("'huge' has the sizes [9223372036854775807, 2]"),
                    HasSubstr("'n' is in '../n', which is no file of this folder")));
}

// Before memory for the tensor is allocated.
TEST_F(DistributedCheckpointTest, ATensorThatDoesNotFitInItsFileIsReported) {
  write_small();
  auto changed = metadata();
  const auto place = changed.objects.at("n");
  changed.tensors["large"] = {at::kFloat, {1 << 20, 1 << 20}, {{{{0, 0}, {1 << 20, 1 << 20}}, place}}};
  changed.objects["n"].file = std::string(5000, 'n');
  write(changed);
  EXPECT_THAT(problem(),
              AllOf(HasSubstr(fmt::format("'large': the chunk at [0, 0] has {} bytes in __0_0.distcp, expected "
                                          "4398046511104 or more",
                                          place.length)),
                    HasSubstr("nnn is missing")));
}

// Chunks whose content is that of others, and one bit that changed.
TEST_F(DistributedCheckpointTest, ContentThatDoesNotFitTheMetadataIsReported) {
  write_small();
  auto changed = metadata();
  changed.tensors["turned"] = {at::kFloat, {3, 2}, {{{{0, 0}, {3, 2}}, changed.tensors.at("w").chunks[0].place}}};
  changed.tensors["integers"] = {at::kInt, {2, 3}, {changed.tensors.at("w").chunks[0]}};
  changed.tensors["object"] = {at::kFloat, {}, {{{{}, {}}, changed.objects.at("n")}}};
  write(changed);
  EXPECT_THAT(
      message_of<CheckpointError>([&] { static_cast<void>(read_distributed_checkpoint(path_)); }),
      AllOf(HasSubstr("'turned': has the sizes [2, 3], expected [3, 2]"),
            HasSubstr("'integers': has the dtype Float, expected Int"), HasSubstr("'object': expected a tensor")));
  write_small();
  auto bytes = files_.read(path_ + "/__1_0.distcp");
  const auto six = "\0\0\xc0\x40"s;  // 6.0, the first element of the chunk
  bytes[bytes.find(six)] = 1;
  folder_.write("saved/__1_0.distcp", bytes);
  EXPECT_THAT(problem(), AllOf(HasSubstr("__1_0.distcp: 'w'"), HasSubstr("record data/0"), HasSubstr("checksum")));
}

TEST_F(DistributedCheckpointTest, UnpicklingExecutesNothing) {
  const auto refusal = [&](const std::string& pickle) {
    write_metadata_file("\x80\x02" + pickle + ".");
    return problem();
  };
  EXPECT_THAT(refusal("cposix\nsystem\nX\x02\0\0\0ls\x85R"s), HasSubstr("contains an object of posix.system"));
  const auto metadata_class = "ctorch.distributed.checkpoint.metadata\nMetadata\n"s;
  EXPECT_THAT(refusal("cbuiltins\ngetattr\n" + metadata_class + "X\x03\0\0\0mro\x86R"s),
              HasSubstr("a call of builtins.getattr does not create plain data"));
  EXPECT_THAT(refusal(metadata_class), HasSubstr("expected an object of torch.distributed.checkpoint.Metadata"));
  EXPECT_THAT(refusal(metadata_class + ")\x81"), HasSubstr("an object lacks 'storage_data'"));
  // Files of torch.save contain none of these classes.
  const auto file = folder_.write("a.bin", archive_of({{"data.pkl", "\x80\x02" + metadata_class + ")\x81."}}));
  EXPECT_THAT(message_of<CheckpointError>([&] { static_cast<void>(read_torch_file(file)); }),
              HasSubstr("contains an object of torch.distributed.checkpoint.metadata.Metadata"));
}

// Four bytes of the file reference a name of 64 KiB.
TEST_F(DistributedCheckpointTest, ASmallFileDoesNotExpandToMuchMemory) {
  const auto text = [](const std::string& value) {
    const auto size = static_cast<std::uint32_t>(value.size());
    return "X" + std::string(reinterpret_cast<const char*>(&size), sizeof size) + value;
  };
  std::string places = "}(ctorch.distributed.checkpoint.metadata\nMetadataIndex\n)\x81}(";
  places += text("fqn") + text(std::string(1 << 16, 'n')) + "ubq\1";
  places += "ctorch.distributed.checkpoint.filesystem\n_StorageInfo\n)\x81}(" + text("relative_path") + text("file");
  places += text("offset") + "K\0"s + text("length") + "K\0ubq\2"s;
  for (int i = 0; i < 5000; ++i) places += "h\1h\2";
  write_metadata_file("\x80\x02"s + "ctorch.distributed.checkpoint.metadata\nMetadata\n)\x81}" + text("storage_data") +
                      places + "usb.");
  EXPECT_THAT(problem(), HasSubstr("references the same objects too often"));
}

TEST_F(DistributedCheckpointTest, AnOptimizerIsNoModel) {
  write_distributed_checkpoint(files_, path_,
                               Value::Dict{{"optimizer", Value::Dict{{"lr", 0.1}, {"m", at::ones({2})}}}});
  EXPECT_THAT(message_of<CheckpointError>([&] { static_cast<void>(distributed_weights(path_)); }),
              HasSubstr("'optimizer.lr' are not tensors; expected the folder of a model"));
}

}  // namespace
}  // namespace accel
