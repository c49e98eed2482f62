// Safetensors files: reading, and rejecting what is damaged. The files are built by hand here, so a mistake in our
// writer cannot hide one in the reader. A header is untrusted: every offset and size in it must be checked.
#include "reference/files/safetensors.hpp"

#include <gmock/gmock.h>

#include "reference/core/errors.hpp"
#include "tests/support/damage.hpp"
#include "tests/support/property.hpp"
#include "tests/support/safetensors_bytes.hpp"
#include "tests/support/temporary_folder.hpp"
#include "tests/support/torch.hpp"

namespace accel {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::NamedTensor;
using ::testing::Pair;
using testing::raw_bytes;
using testing::safetensors_bytes;
using testing::safetensors_of;
using testing::TemporaryFolder;

const std::vector<std::pair<std::string, at::ScalarType>> kDtypes{{"BOOL", at::kBool},
                                                                  {"U8", at::kByte},
                                                                  {"I8", at::kChar},
                                                                  {"I16", at::kShort},
                                                                  {"I32", at::kInt},
                                                                  {"I64", at::kLong},
                                                                  {"U16", at::kUInt16},
                                                                  {"U32", at::kUInt32},
                                                                  {"U64", at::kUInt64},
                                                                  {"F16", at::kHalf},
                                                                  {"BF16", at::kBFloat16},
                                                                  {"F32", at::kFloat},
                                                                  {"F64", at::kDouble},
                                                                  {"C64", at::kComplexFloat},
                                                                  {"F8_E4M3", at::kFloat8_e4m3fn},
                                                                  {"F8_E5M2", at::kFloat8_e5m2},
                                                                  {"F8_E4M3FNUZ", at::kFloat8_e4m3fnuz},
                                                                  {"F8_E5M2FNUZ", at::kFloat8_e5m2fnuz},
                                                                  {"F8_E8M0", at::kFloat8_e8m0fnu}};

NamedTensor random_tensor(const std::string& name) {
  const auto [format, dtype] = testing::pick_from(kDtypes);
  const auto num_dims = *rc::gen::element<std::size_t>(0, 1, 2, 3);
  const auto sizes =
      *rc::gen::container<std::vector<std::int64_t>>(num_dims, rc::gen::element<std::int64_t>(0, 1, 2, 3, 4));
  auto tensor = at::empty(sizes, at::TensorOptions(dtype));
  const auto bytes = *rc::gen::container<std::string>(
      tensor.nbytes(), dtype == at::kBool ? rc::gen::element('\0', '\1') : rc::gen::arbitrary<char>());
  std::copy(bytes.begin(), bytes.end(), static_cast<char*>(tensor.data_ptr()));
  return {name, format, tensor};
}

std::vector<NamedTensor> random_tensors() {
  std::vector<NamedTensor> tensors;
  const auto count = testing::pick(0, 5);
  for (int index = 0; index < count; ++index) tensors.push_back(random_tensor("layer." + std::to_string(index)));
  return tensors;
}

// Every type of the format, with any number of dimensions, also empty ones.
TEST(SafetensorsTest, EveryTensorSurvivesARoundTrip) {
  const TemporaryFolder folder;
  testing::expect_property(200, [&] {
    const auto tensors = random_tensors();
    const SafetensorsFile file(folder.write("any.safetensors", safetensors_of(tensors)));
    RC_ASSERT(file.names().size() == tensors.size());
    for (const auto& [name, format, tensor] : tensors) {
      const auto read = file.tensor(name);
      RC_ASSERT(read.scalar_type() == tensor.scalar_type());
      RC_ASSERT(read.sizes() == tensor.sizes());
      RC_ASSERT(raw_bytes(read) == raw_bytes(tensor));
    }
  });
}

// Data sets read single rows of large tensors. An odd number of bytes before the table makes it unaligned.
TEST(SafetensorsTest, RowsAreReadIndividually) {
  const TemporaryFolder folder;
  const auto table = torch::arange(24, torch::kInt).reshape({6, 2, 2});
  const SafetensorsFile file(
      folder.write("rows", safetensors_of({{"odd", "U8", torch::zeros({3}, torch::kByte)}, {"table", "I32", table}})));
  const auto stored = file.stored("table");  // the data start at byte 3, so no element is aligned
  EXPECT_TRUE(stored.row(4).equal(table[4]));
  EXPECT_TRUE(stored.rows({5, 0, 5}).equal(table.index_select(0, torch::tensor({5, 0, 5}))));
  EXPECT_EQ(stored.rows({}).sizes(), at::IntArrayRef({0, 2, 2}));
  EXPECT_THROW((void)stored.row(6), ArgumentError);
  EXPECT_THROW((void)stored.rows({0, -1}), ArgumentError);
}

// The header's order is arbitrary; the order of the data is the order of saving.
TEST(SafetensorsTest, NamesAreInTheOrderOfTheDataWithoutMetadata) {
  const TemporaryFolder folder;
  const SafetensorsFile file(folder.write(
      "two", safetensors_bytes(R"({"b":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},"__metadata__":{"format":"pt"},)"
                               R"("a":{"dtype":"U8","shape":[],"data_offsets":[2,3]}}  )",
                               "xyz")));
  EXPECT_THAT(file.names(), ElementsAre("b", "a"));
  EXPECT_THAT(file.metadata(), ElementsAre(Pair("format", "pt")));
  EXPECT_EQ(file.tensor("a").item<int>(), 'z');
}

// Source: safetensors 0.8, which reads all of these.
TEST(SafetensorsTest, MetadataMayBeNullAndEntriesMayHaveOtherKeys) {
  const TemporaryFolder folder;
  const auto file_of = [&](const std::string& header) {
    return SafetensorsFile(folder.write("any", safetensors_bytes(header, "x")));
  };
  const std::string entry = R"("dtype":"U8","shape":[1],"data_offsets":[0,1])";
  const auto file = file_of(R"({"__metadata__":null,"a":{)" + entry + "}}");
  EXPECT_TRUE(file.metadata().empty());
  EXPECT_EQ(file.tensor("a").item<int>(), 'x');
  for (const auto* value :
       {"1", "-1.5", "null", "true", R"("text")", "{}", "[]", R"([1,[{"dtype":"F32"}],{"shape":[[2]],"x":{}}])"}) {
    const auto other = fmt::format(R"("x":{})", value);
    for (const auto& keys : {other + "," + entry, entry + "," + other, other + "," + entry + "," + other})
      EXPECT_EQ(file_of(R"({"a":{)" + keys + "}}").tensor("a").item<int>(), 'x') << keys;
  }
}

class DamagedSafetensorsTest : public ::testing::Test {
 protected:
  std::string error_of(const std::string& bytes) {
    try {
      const SafetensorsFile file(folder_.write("bad.safetensors", bytes));
    } catch (const ConfigError& error) {
      EXPECT_THAT(error.what(), HasSubstr("bad.safetensors: "));
      return error.what();
    }
    return "no error";
  }
  std::string error_of_tensor(const std::string& entry, const std::string& data) {
    return error_of(safetensors_bytes(R"({"a":{)" + entry + "}}", data));
  }
  TemporaryFolder folder_;
};

TEST_F(DamagedSafetensorsTest, FileWithoutItsWholeHeaderIsRefused) {
  EXPECT_THAT(error_of("1234567"), HasSubstr("it has 7 bytes; expected at least the 8 bytes"));
  EXPECT_THAT(error_of(safetensors_bytes("{}", "").substr(0, 9)),
              HasSubstr("the file is truncated: the header length is 2 bytes, but the file has 9 bytes"));
  EXPECT_THAT(error_of("\xff\xff\xff\xff\xff\xff\xff\xff{}"), HasSubstr("expected at most 100000000"));
}

TEST_F(DamagedSafetensorsTest, HeaderThatIsNoObjectOfTensorsIsRefused) {
  EXPECT_THAT(error_of(safetensors_bytes("{", "")), HasSubstr("is not valid JSON"));
  EXPECT_THAT(error_of(safetensors_bytes("[]", "")), HasSubstr("is not a JSON object but of type array"));
  EXPECT_THAT(error_of(safetensors_bytes(R"({"__metadata__":{"a":1}})", "")),
              HasSubstr("__metadata__: expected an object whose values are strings"));
  EXPECT_THAT(error_of_tensor(R"("dtype":"U8","shape":[-1],"data_offsets":[0,0])", ""),
              HasSubstr("tensor 'a': expected an entry with dtype, shape and two data_offsets"));
  EXPECT_THAT(error_of_tensor(R"("dtype":"U8","shape":[1])", "x"),
              HasSubstr("tensor 'a': expected an entry with dtype, shape and two data_offsets"));
  for (const auto* header : {R"({"a":null})", R"({"__metadata__":{"a":null}})", R"({"__metadata__":[null]})", "null"})
    EXPECT_THAT(error_of(safetensors_bytes(header, "")), HasSubstr("expected a")) << header;
  EXPECT_THAT(error_of_tensor(R"("dtype":"U8","x":)" + std::string(200, '[') + std::string(200, ']'), ""),
              HasSubstr("tensor 'a': values nested more than 126 deep"));
  EXPECT_THAT(error_of_tensor(R"("dtype":"U9","shape":[1],"data_offsets":[0,1])", "x"),
              HasSubstr("tensor 'a': unknown dtype U9; expected one of U64, I64, "));
}

// nlohmann::json takes a zero byte for the end of the text and skips a byte order mark; the reference refuses both.
TEST_F(DamagedSafetensorsTest, TextAroundTheJsonIsRefused) {
  const std::string entry = R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}})";
  EXPECT_THAT(error_of(safetensors_bytes(entry + std::string("\0\0", 2), "x")),
              HasSubstr("byte 61 of the file is zero; expected JSON"));
  EXPECT_THAT(error_of(safetensors_bytes(entry + std::string("\0{", 2), "x")), HasSubstr("is zero"));
  EXPECT_THAT(error_of(safetensors_bytes("\xef\xbb\xbf" + entry, "x")),
              HasSubstr("begins with a byte order mark; expected JSON"));
  EXPECT_EQ(error_of(safetensors_bytes(" " + entry + " \n\t", "x")), "no error");
}

// JSON parsers keep one of two equal keys silently.
TEST_F(DamagedSafetensorsTest, ADuplicateNameIsRejected) {
  const std::string tensor = R"("a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]})";
  EXPECT_THAT(error_of(safetensors_bytes("{" + tensor + "," + tensor + "}", "x")),
              HasSubstr("contains the key 'a' twice"));
}

// Every size and offset in the header is checked against the length of the file.
TEST_F(DamagedSafetensorsTest, DataThatDoNotFitTheHeaderAreRejected) {
  EXPECT_THAT(error_of_tensor(R"("dtype":"F32","shape":[2],"data_offsets":[0,4])", "1234"),
              HasSubstr("4 bytes of data do not match dtype F32 and shape [2]; expected 8 bytes"));
  EXPECT_THAT(error_of_tensor(R"("dtype":"F32","shape":[4611686018427387904,4],"data_offsets":[0,0])", ""),
              HasSubstr("0 bytes of data do not match"));
  EXPECT_THAT(error_of_tensor(R"("dtype":"U8","shape":[4],"data_offsets":[0,4])", "123"),
              HasSubstr("its tensors need 4: the file is truncated"));
  EXPECT_THAT(error_of_tensor(R"("dtype":"U8","shape":[4],"data_offsets":[0,4])", "12345"),
              HasSubstr("the file is too long"));
}

// The format forbids both, because holes can hide data that a scanner does not see.
TEST_F(DamagedSafetensorsTest, HolesAndOverlapsAreRejected) {
  EXPECT_THAT(error_of_tensor(R"("dtype":"U8","shape":[1],"data_offsets":[1,2])", "xy"),
              HasSubstr("expected to start at 0"));
  const auto two = [](int begin) {
    return fmt::format(R"({{"a":{{"dtype":"U8","shape":[2],"data_offsets":[0,2]}},)"
                       R"("b":{{"dtype":"U8","shape":[2],"data_offsets":[{},{}]}}}})",
                       begin, begin + 2);
  };
  for (const int begin : {1, 3})
    EXPECT_THAT(error_of(safetensors_bytes(two(begin), "12345")), HasSubstr("tensor 'b': data_offsets"));
  EXPECT_EQ(error_of(safetensors_bytes(two(2), "1234")), "no error");
}

// LibTorch has no type of four bits. Other tensors of the file remain usable.
TEST_F(DamagedSafetensorsTest, ATensorOfHalfBytesIsAnErrorOnlyWhenItIsRead) {
  const SafetensorsFile file(
      folder_.write("half", safetensors_bytes(R"({"a":{"dtype":"F4","shape":[3,2],"data_offsets":[0,3]}})", "123")));
  EXPECT_THROW((void)file.tensor("a"), ConfigError);
  EXPECT_THAT(error_of_tensor(R"("dtype":"F4","shape":[3],"data_offsets":[0,2])", "12"),
              HasSubstr("do not match dtype F4"));
}

// Usually the name has another prefix.
TEST_F(DamagedSafetensorsTest, AMissingTensorIsReportedWithTheExistingOnes) {
  const SafetensorsFile file(folder_.write("one", safetensors_of({{"weight", "F32", torch::zeros({2})}})));
  try {
    (void)file.tensor("bias");
    FAIL() << "expected a ConfigError";
  } catch (const ConfigError& error) {
    EXPECT_THAT(error.what(), AllOf(HasSubstr("no tensor 'bias'"), HasSubstr("weight")));
  }
}

// A changed byte within the data is valid and changes a value; the format has no checksum.
TEST_F(DamagedSafetensorsTest, AnyDamageIsRejectedOrOnlyChangesValues) {
  testing::expect_property(500, [&] {
    const auto path =
        folder_.write("damaged", testing::damaged(safetensors_of({random_tensor("a"), random_tensor("b")})));
    testing::read_or_reject(path, [&] {
      const SafetensorsFile file(path);
      for (const auto& name : file.names()) (void)file.tensor(name);
    });
  });
}

}  // namespace
}  // namespace accel
