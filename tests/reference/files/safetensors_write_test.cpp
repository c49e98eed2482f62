// Writing safetensors files: the bytes must be those of the Python package's writer, because checksums of files are
// compared.
#include <gmock/gmock.h>

#include "reference/core/errors.hpp"
#include "reference/files/safetensors.hpp"
#include "tests/support/any_tensor.hpp"
#include "tests/support/crash_disk.hpp"
#include "tests/support/message_of.hpp"
#include "tests/support/safetensors_bytes.hpp"
#include "tests/support/temporary_folder.hpp"
#include "tests/support/torch.hpp"

namespace accel {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::message_of;
using ::testing::Pair;
using testing::TemporaryFolder;

std::string written(const NamedTensors& tensors, const std::map<std::string, std::string>& metadata = {}) {
  testing::CrashDisk disk;
  write_safetensors(disk, "file", tensors, metadata);
  return disk.content().at("file");
}

TEST(SafetensorsWriteTest, EveryTensorSurvivesARoundTrip) {
  const TemporaryFolder folder;
  testing::expect_property(200, [&] {
    NamedTensors tensors;
    for (int i = 0, count = testing::pick(0, 6); i < count; ++i)
      tensors.emplace_back("layer." + std::to_string(i), testing::any_tensor(testing::kSafetensorsDtypes));
    const SafetensorsFile file(folder.write("any", written(tensors, {{"format", "pt"}})));
    RC_ASSERT(file.names().size() == tensors.size());
    RC_ASSERT(file.metadata() == (std::map<std::string, std::string>{{"format", "pt"}}));
    for (const auto& [name, tensor] : tensors) RC_ASSERT(testing::is_same_tensor(file.tensor(name), tensor));
  });
}

// The expected bytes come from safetensors 0.8.0.
TEST(SafetensorsWriteTest, BytesEqualThePythonPackages) {
  EXPECT_EQ(written({}), testing::safetensors_bytes("{}      ", ""));
  EXPECT_EQ(written({}, {{"format", "pt"}}), testing::safetensors_bytes(R"({"__metadata__":{"format":"pt"}})", ""));
  EXPECT_EQ(written({{"b", torch::zeros({0, 3})}, {"a", torch::zeros({0})}, {"c", torch::ones({1})}}),
            testing::safetensors_bytes(R"({"a":{"dtype":"F32","shape":[0],"data_offsets":[0,0]},)"
                                       R"("b":{"dtype":"F32","shape":[0,3],"data_offsets":[0,0]},)"
                                       R"("c":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}      )",
                                       std::string("\0\0\x80?", 4)));
  EXPECT_EQ(written({{"a\"\\\n\x01\x7f\xc3\xa9\xf0\x9f\x98\x80/", torch::zeros({})}}, {{"format", "pt"}}),
            testing::safetensors_bytes(
                "{\"__metadata__\":{\"format\":\"pt\"},\"a\\\"\\\\\\n\\u0001\x7f\xc3\xa9\xf0\x9f\x98\x80/\":"
                "{\"dtype\":\"F32\",\"shape\":[],\"data_offsets\":[0,4]}}",
                std::string(4, '\0')));
}

// Wide elements first keeps every element aligned within the file.
TEST(SafetensorsWriteTest, TensorsAreSortedByElementSizeAndName) {
  const TemporaryFolder folder;
  const SafetensorsFile file(folder.write("x", written({{"a", torch::zeros({1}, torch::kBool)},
                                                        {"d", torch::zeros({1}, torch::kHalf)},
                                                        {"c", torch::zeros({1})},
                                                        {"b", torch::zeros({1})},
                                                        {"e", torch::zeros({1}, torch::kLong)}})));
  EXPECT_THAT(file.names(), ElementsAre("e", "b", "c", "d", "a"));
}

// The old file must stay if the new one cannot be written.
TEST(SafetensorsWriteTest, UnsupportedTensorsAreRejectedBeforeWriting) {
  testing::CrashDisk disk;
  const auto refusal = [&](const NamedTensors& tensors) {
    return message_of<ArgumentError>([&] { write_safetensors(disk, "x.safetensors", tensors); });
  };
  const auto one = torch::zeros({1});
  EXPECT_THAT(refusal({{"a", one}, {"a", one}}),
              HasSubstr("x.safetensors: two entries of a safetensors file would have the name 'a'"));
  EXPECT_THAT(refusal({{"__metadata__", one}}), HasSubstr("'__metadata__'"));
  EXPECT_THAT(refusal({{"a", one.to(torch::kComplexDouble)}}), HasSubstr("tensor 'a' has dtype ComplexDouble"));
  EXPECT_THAT(refusal({{"a", torch::empty({1}, torch::kMeta)}}),
              HasSubstr("is undefined, sparse or on the meta device"));
  EXPECT_THAT(refusal({{"\xff", one}}), HasSubstr("not valid UTF-8"));
  EXPECT_EQ(disk.num_operations(), 0u);
}

// Views that show other elements or another order are different tensors and must all be saved.
TEST(NamedTensorsTest, OfTensorsWithTheSameElementsTheFirstIsKept) {
  const auto whole = torch::arange(6.0).reshape({2, 3});
  const auto [tensors, same_as] = deduplicate_shared({{"embedding", whole},
                                                      {"head", whole},
                                                      {"row", whole[1]},
                                                      {"turned", whole.t()},
                                                      {"empty", whole.narrow(0, 0, 0)},
                                                      {"alias", whole.view({2, 3})},
                                                      {"copy", whole.clone()},
                                                      {"empty too", torch::zeros({0})}});
  EXPECT_THAT(same_as, ElementsAre(Pair("alias", "embedding"), Pair("head", "embedding")));
  std::vector<std::string> names;
  for (const auto& [name, tensor] : tensors) names.push_back(name);
  EXPECT_THAT(names, ElementsAre("embedding", "row", "turned", "empty", "copy", "empty too"));
}

}  // namespace
}  // namespace accel
