// Datasets in Parquet and Arrow files. Arrow's writers write the files; entry i of a column is a function of i, so that
// the expected values need no reader.
#include "reference/sources/parquet/parquet_dataset.hpp"

#include <gmock/gmock.h>

#include <filesystem>
#include <fstream>
#include <thread>

#include "reference/core/errors.hpp"
#include "reference/core/integers.hpp"
#include "reference/data/dataset.hpp"
#include "tests/reference/sources/parquet/columnar_files.hpp"
#include "tests/support/message_of.hpp"
#include "tests/support/property.hpp"
#include "tests/support/temporary_folder.hpp"
#include "tests/support/torch.hpp"

namespace accel {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;
using namespace testing;  // NOLINT: of accel, for the writers of files

static_assert(BatchedDataset<ParquetDataset> && Tree<ParquetSample>);

using Arrays = std::vector<std::pair<std::string, std::shared_ptr<arrow::Array>>>;

std::string name_of_row(std::int64_t i) { return "row " + std::string(i % 7, 'x') + std::to_string(i); }

// Rows [begin, end) of the table that most tests use. "pixels" has rows of (2, 3).
std::shared_ptr<arrow::Table> rows_of_table(std::int64_t begin, std::int64_t end) {
  const auto count = end - begin;
  const auto numbers = values_of<arrow::Int64Builder>(arrow::int64(), count, [&](auto i) { return 10 * (begin + i); });
  const auto names =
      values_of<arrow::StringBuilder>(arrow::utf8(), count, [&](auto i) { return name_of_row(begin + i); });
  const auto flags =
      values_of<arrow::BooleanBuilder>(arrow::boolean(), count, [&](auto i) { return (begin + i) % 3 == 0; });
  const auto leaves =
      values_of<arrow::FloatBuilder>(arrow::float32(), 6 * count, [&](auto i) { return float(6 * begin + i); });
  const auto lists = check(arrow::FixedSizeListArray::FromArrays(leaves, 3));
  return table_of({{"number", numbers},
                   {"name", names},
                   {"flag", flags},
                   {"pixels", check(arrow::FixedSizeListArray::FromArrays(lists, 2))}});
}

void expect_rows(const ParquetBatch& batch, const std::vector<std::int64_t>& indices) {
  const auto rows = torch::tensor(indices, torch::kLong);
  EXPECT_TRUE(batch.tensors.at("number").equal(10 * rows));
  EXPECT_TRUE(batch.tensors.at("flag").equal(rows % 3 == 0));
  EXPECT_TRUE(
      batch.tensors.at("pixels").equal((6 * rows.view({-1, 1, 1}) + torch::arange(6).view({2, 3})).to(torch::kFloat)));
  ASSERT_EQ(batch.strings.at("name").size(), indices.size());
  for (std::size_t i = 0; i < indices.size(); ++i) EXPECT_EQ(batch.strings.at("name")[i], name_of_row(indices[i]));
}

std::string name_of(const Format& format) {
  const std::map<Container, std::string> names{
      {Container::kParquet, "Parquet"}, {Container::kArrowFile, "File"}, {Container::kArrowStream, "Stream"}};
  return names.at(format.container) + "_" + arrow::util::Codec::GetCodecAsString(format.compression);
}

class ParquetDatasetTest : public ::testing::TestWithParam<Format> {
 protected:
  std::string write(const std::string& name, const arrow::Table& table, std::int64_t rows = 4) {
    const auto path = folder_.path(name);
    write_table(table, path, GetParam(), rows);
    return path;
  }
  std::string write(const std::string& name, const Arrays& columns) { return write(name, *table_of(columns)); }
  TemporaryFolder folder_;
};
INSTANTIATE_TEST_SUITE_P(Formats, ParquetDatasetTest,
                         ::testing::Values(Format{}, Format{Container::kParquet, arrow::Compression::SNAPPY},
                                           Format{Container::kParquet, arrow::Compression::ZSTD},
                                           Format{Container::kArrowFile},
                                           Format{Container::kArrowFile, arrow::Compression::LZ4_FRAME},
                                           Format{Container::kArrowStream},
                                           Format{Container::kArrowStream, arrow::Compression::ZSTD}),
                         [](const auto& info) { return name_of(info.param); });

TEST_P(ParquetDatasetTest, AnyRowsInAnyOrderAreThoseThatWereWritten) {
  int number = 0;
  expect_property(20, [&] {
    const auto end = pick<std::int64_t>(1, 40), middle = pick<std::int64_t>(0, end + 1),
               rows = pick<std::int64_t>(1, 15);
    const auto name = std::to_string(number++);
    const ParquetDataset dataset(
        {write(name + "a", *rows_of_table(0, middle), rows), write(name + "b", *rows_of_table(middle, end), rows)},
        {.cached_row_groups = pick(1, 4)});
    RC_ASSERT(dataset.size() == end);
    expect_rows(dataset.get_batch(range(0, end)), range(0, end));
    std::vector<std::int64_t> indices(pick<std::size_t>(0, 9));
    for (auto& index : indices) index = pick<std::int64_t>(0, end);
    expect_rows(dataset.get_batch(indices), indices);
  });
}

TEST_P(ParquetDatasetTest, ASampleIsARowWithoutABatchDimension) {
  const ParquetDataset dataset(write("rows", *rows_of_table(0, 6)));
  const auto sample = dataset.get(5);
  EXPECT_TRUE(sample.tensors.at("number").equal(torch::tensor(50, torch::kLong)));
  EXPECT_EQ(sample.tensors.at("pixels").sizes(), (std::vector<std::int64_t>{2, 3}));
  EXPECT_EQ(sample.strings.at("name"), name_of_row(5));
  EXPECT_EQ(dataset.get_batch({}).tensors.at("pixels").sizes(), (std::vector<std::int64_t>{0, 2, 3}));
  EXPECT_THROW((void)dataset.get(6), ArgumentError);
  EXPECT_THROW((void)dataset.get(-1), ArgumentError);
}

// Arrow's own reading of mapped files would raise SIGBUS.
TEST_P(ParquetDatasetTest, AFileThatWasShortenedIsAnError) {
  for (const std::int64_t num_rows : {8, 20'000}) {
    const auto path = write("rows", *rows_of_table(0, num_rows), num_rows / 2);
    const ParquetDataset dataset(path, {.cached_row_groups = 1});
    expect_rows(dataset.get_batch({num_rows - 1}), {num_rows - 1});
    std::filesystem::resize_file(path, 100);
    EXPECT_THAT(message_of<ConfigError>([&] { (void)dataset.get(0); }),
                HasSubstr(path + ": the file became shorter after it was opened; keep other programs from writing"));
  }
}

TEST_P(ParquetDatasetTest, OnlyChosenColumnsAreRead) {
  const auto path = write("rows", *rows_of_table(0, 6));
  const ParquetDataset dataset(path, {.columns = {"flag", "name"}});
  EXPECT_THAT(dataset.columns(), ElementsAre("flag", "name"));
  const auto batch = dataset.get_batch({3, 1});
  EXPECT_EQ(batch.tensors.size(), 1U);
  EXPECT_TRUE(batch.tensors.at("flag").equal(torch::tensor({true, false})));
  EXPECT_THAT(batch.strings.at("name"), ElementsAre(name_of_row(3), name_of_row(1)));
  EXPECT_EQ(dataset.num_row_groups(), 2);
  EXPECT_THAT(ParquetDataset(path).columns(), ElementsAre("number", "name", "flag", "pixels"));
}

TEST_P(ParquetDatasetTest, FilesMayHaveTheirColumnsInAnotherOrder) {
  const auto numbers = values_of<arrow::Int64Builder>(arrow::int64(), 2, [](auto i) { return i; });
  const auto tens = values_of<arrow::Int64Builder>(arrow::int64(), 2, [](auto i) { return 10 * i; });
  const ParquetDataset dataset({write("a", Arrays{{"number", numbers}, {"ten", tens}}),
                                write("b", Arrays{{"more", tens}, {"ten", tens}, {"number", numbers}})});
  const auto batch = dataset.get_batch({0, 1, 2, 3});
  EXPECT_TRUE(batch.tensors.at("number").equal(torch::tensor({0, 1, 0, 1}, torch::kLong)));
  EXPECT_TRUE(batch.tensors.at("ten").equal(torch::tensor({0, 10, 0, 10}, torch::kLong)));
}

template <typename Builder>
std::shared_ptr<arrow::Array> three_numbers(const std::shared_ptr<arrow::DataType>& type) {
  return values_of<Builder>(type, 3, [](auto i) { return static_cast<typename Builder::value_type>(i); });
}

TEST_P(ParquetDatasetTest, NumbersKeepTheirDtype) {
  const ParquetDataset dataset(
      write("numbers", Arrays{{"int8", three_numbers<arrow::Int8Builder>(arrow::int8())},
                              {"int16", three_numbers<arrow::Int16Builder>(arrow::int16())},
                              {"int32", three_numbers<arrow::Int32Builder>(arrow::int32())},
                              {"uint8", three_numbers<arrow::UInt8Builder>(arrow::uint8())},
                              {"uint16", three_numbers<arrow::UInt16Builder>(arrow::uint16())},
                              {"uint32", three_numbers<arrow::UInt32Builder>(arrow::uint32())},
                              {"uint64", three_numbers<arrow::UInt64Builder>(arrow::uint64())},
                              {"double", three_numbers<arrow::DoubleBuilder>(arrow::float64())}}));
  const std::map<std::string, at::ScalarType> dtypes{
      {"int8", at::kChar},     {"int16", at::kShort},   {"int32", at::kInt},     {"uint8", at::kByte},
      {"uint16", at::kUInt16}, {"uint32", at::kUInt32}, {"uint64", at::kUInt64}, {"double", at::kDouble}};
  const auto batch = dataset.get_batch({2, 0});
  for (const auto& [name, dtype] : dtypes) {
    EXPECT_EQ(batch.tensors.at(name).scalar_type(), dtype) << name;
    EXPECT_TRUE(batch.tensors.at(name).to(torch::kLong).equal(torch::tensor({2, 0}, torch::kLong))) << name;
  }
}

// 0x3e00 is 1.5 in float16.
TEST_P(ParquetDatasetTest, HalvesAndBytesKeepTheirBits) {
  const auto halves =
      values_of<arrow::HalfFloatBuilder>(arrow::float16(), 2, [](auto) { return std::uint16_t(0x3e00); });
  const auto bytes = values_of<arrow::BinaryBuilder>(arrow::binary(), 2, [](auto) { return std::string("\0\xff", 2); });
  const auto texts = values_of<arrow::LargeStringBuilder>(arrow::large_utf8(), 2, [](auto i) { return i ? "b" : ""; });
  const auto batch =
      ParquetDataset(write("a", Arrays{{"half", halves}, {"bytes", bytes}, {"text", texts}})).get_batch({1, 0});
  EXPECT_TRUE(batch.tensors.at("half").equal(torch::full({2}, 1.5, torch::kHalf)));
  EXPECT_THAT(batch.strings.at("bytes"), ElementsAre(std::string("\0\xff", 2), std::string("\0\xff", 2)));
  EXPECT_THAT(batch.strings.at("text"), ElementsAre("b", ""));
}

// Parquet counts an empty list as a null.
TEST_P(ParquetDatasetTest, EmptyListsAreAnUnsupportedType) {
  const auto none = values_of<arrow::FloatBuilder>(arrow::float32(), 0, [](auto) { return 0.0F; });
  const auto lists = std::make_shared<arrow::FixedSizeListArray>(arrow::fixed_size_list(arrow::float32(), 0), 6, none);
  const auto path = write("lists", Arrays{{"list", lists}});
  EXPECT_THAT(message_of<ConfigError>([&] { const ParquetDataset dataset(path); }),
              AllOf(HasSubstr(path + ", column 'list': the type fixed_size_list"), HasSubstr("is unsupported")));
}

// Parquet stores a dictionary of numbers as numbers.
TEST_P(ParquetDatasetTest, EachUnsupportedTypeIsNamed) {
  using namespace arrow;
  for (const auto& type : {decimal128(5, 2), date32(), time32(TimeUnit::SECOND), list(float32()), large_list(utf8()),
                           map(utf8(), int64()), struct_({field("x", int64())}), null(), fixed_size_binary(4),
                           dictionary(int8(), int64()), fixed_size_list(utf8(), 2)}) {
    if (type->id() == Type::DICTIONARY && GetParam().container == Container::kParquet) continue;
    const auto path = write(
        "typed", Arrays{{"good", three_numbers<Int64Builder>(int64())}, {"column", check(MakeArrayOfNull(type, 3))}});
    EXPECT_THAT(message_of<ConfigError>([&] { const ParquetDataset dataset(path); }),
                AllOf(HasSubstr(path + ", column 'column': the type "), HasSubstr(" is unsupported; expected bool")))
        << type->ToString();
    EXPECT_EQ(ParquetDataset(path, {.columns = {"good"}}).size(), 3);
  }
}

// As pandas writes categories.
TEST_P(ParquetDatasetTest, DictionariesOfTextAreStrings) {
  const auto indices = values_of<arrow::Int8Builder>(arrow::int8(), 9, [](auto i) { return i % 2; });
  const auto words = values_of<arrow::StringBuilder>(arrow::utf8(), 2, [](auto i) { return i == 1 ? "odd" : "even"; });
  const auto names = check(arrow::DictionaryArray::FromArrays(indices, words));
  const ParquetDataset dataset(write("categories", Arrays{{"name", names}}));
  EXPECT_THAT(dataset.get_batch({8, 5, 0}).strings.at("name"), ElementsAre("even", "odd", "even"));
}

TEST_P(ParquetDatasetTest, AllProblemsOfAllFilesAreOneError) {
  const auto numbers = three_numbers<arrow::Int64Builder>(arrow::int64());
  const auto times = three_numbers<arrow::Int64Builder>(arrow::int64());
  const auto first = write("first", Arrays{{"a", numbers}, {"b", numbers}, {"c", numbers}});
  const auto second = write("second", Arrays{{"a", three_numbers<arrow::Int32Builder>(arrow::int32())},
                                             {"b", check(times->View(arrow::timestamp(arrow::TimeUnit::SECOND)))}});
  const auto third = folder_.write("third", "a,b\n");
  EXPECT_THAT(message_of<ConfigError>([&] {
                ParquetDataset({first, second, third, folder_.path("fourth")});
              }),
              AllOf(HasSubstr(second + ", column 'a': rows of Int []; expected rows of Long [] as in the first file"),
                    HasSubstr("\n" + second + ", column 'b': the type timestamp["), HasSubstr("] is unsupported"),
                    HasSubstr("\n" + second + ", column 'c': absent; the columns are a, b"),
                    HasSubstr("\n" + third + ": neither a Parquet nor an Arrow file"),
                    HasSubstr("\n" + folder_.path("fourth") + ": "), Not(HasSubstr(first))));
  EXPECT_THAT(message_of<ConfigError>([&] {
                ParquetDataset(write("twice", Arrays{{"a", numbers}, {"a", numbers}}));
              }),
              HasSubstr("/twice, column 'a': the name of several columns"));
  EXPECT_THROW(ParquetDataset(std::vector<std::string>{}), ArgumentError);
  EXPECT_THROW(ParquetDataset(first, {.cached_row_groups = 0}), ArgumentError);
}

// Parquet records the number of nulls; in Arrow they are found when the batch is read.
TEST_P(ParquetDatasetTest, NullsAreErrors) {
  const auto append = [](arrow::ArrayBuilder& builder, std::int64_t i) {
    check(i == 5 ? builder.AppendNull() : builder.AppendEmptyValue());
  };
  const auto lists = arrow::fixed_size_list(arrow::float32(), 2);
  const auto leaves = array_of(arrow::float32(), 12, append);
  const auto path = write(
      "nulls",
      Arrays{{"number", array_of(arrow::int64(), 6, append)},
             {"list", check(arrow::FixedSizeListArray::FromArrays(leaves, 2))},
             {"good", array_of(arrow::int64(), 6, [](auto& builder, auto) { check(builder.AppendEmptyValue()); })}});
  EXPECT_EQ(ParquetDataset(path, {.columns = {"good"}}).get_batch({5, 0}).tensors.at("good").size(0), 2);
  EXPECT_THAT(message_of<ConfigError>([&] { (void)ParquetDataset(path, {.columns = {"number"}}).get(5); }),
              AllOf(HasSubstr(path + ", column 'number'"), HasSubstr(": 1 nulls; expected none")));
  EXPECT_THAT(message_of<ConfigError>([&] { (void)ParquetDataset(path, {.columns = {"list"}}).get(2); }),
              AllOf(HasSubstr(path + ", column 'list'"), HasSubstr(": 1 nulls; expected none")));
}

// Four readers take all rows, each in an order of its own, with fewer cached row groups than readers.
TEST_P(ParquetDatasetTest, ThreadsReadTheSameRows) {
  const ParquetDataset dataset(write("rows", *rows_of_table(0, 60)), {.cached_row_groups = 2});
  std::vector<std::thread> threads;
  for (std::int64_t thread = 0; thread < 4; ++thread) {
    threads.emplace_back([&, thread, copy = dataset] {
      for (std::int64_t i = 0; i < 60; ++i) {
        const auto row = (i * 7 + thread * 13) % 60;
        expect_rows(copy.get_batch({row, 59 - row}), {row, 59 - row});
      }
    });
  }
  for (auto& thread : threads) thread.join();
}

// --- damaged files ---------------------------------------------------------------------------------------------------

std::string bytes_of(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
}

// Reads everything. Returns the message of the ConfigError, or "" if the file was readable.
std::string error_of_reading(const std::string& path) {
  return message_of<ConfigError>([&] {
    const ParquetDataset dataset(path);
    for (std::int64_t begin = 0; begin < std::min<std::int64_t>(dataset.size(), 1000); begin += 100)
      (void)dataset.get_batch(range(begin, std::min(begin + 100, dataset.size())));
  });
}

// An Arrow stream may end after any batch.
TEST_P(ParquetDatasetTest, ATruncatedFileIsAnErrorThatNamesIt) {
  const auto bytes = bytes_of(write("rows", *rows_of_table(0, 6)));
  const auto is_stream = GetParam().container == Container::kArrowStream;
  for (std::size_t size = 0; size + 1 < bytes.size(); size += 7) {
    const auto path = folder_.write("part", bytes.substr(0, size));
    const auto error = error_of_reading(path);
    EXPECT_THAT(error, HasSubstr(is_stream && error.empty() ? "" : path)) << size;
  }
}

// Arrow stops at the end mark of the first stream, so that the rows of the second would be missing silently.
TEST_P(ParquetDatasetTest, DataAfterAStreamAreReported) {
  if (GetParam().container != Container::kArrowStream) return;
  const auto indices = values_of<arrow::Int8Builder>(arrow::int8(), 9, [](auto i) { return i % 2; });
  const auto words = values_of<arrow::StringBuilder>(arrow::utf8(), 2, [](auto i) { return i == 1 ? "odd" : "even"; });
  for (const auto& bytes :
       {bytes_of(write("rows", *rows_of_table(0, 6))),
        bytes_of(write("words", Arrays{{"word", check(arrow::DictionaryArray::FromArrays(indices, words))}}))}) {
    const auto error = HasSubstr(
        fmt::format("the stream ends at byte {}, but the file has {} bytes; if it is several streams in one file, "
                    "write one stream of their rows",
                    bytes.size(), 2 * bytes.size()));
    EXPECT_THAT(error_of_reading(folder_.write("two", bytes + bytes)), error);
    EXPECT_THAT(error_of_reading(folder_.write("more", bytes + "\n")), HasSubstr("the stream ends at byte"));
    EXPECT_EQ(error_of_reading(folder_.write("one", bytes)), "");
  }
}

// The last footer describes places in the second file, which are applied to the first.
TEST_P(ParquetDatasetTest, ConcatenatedFilesAreReported) {
  if (GetParam().container == Container::kArrowStream) return;
  const auto one = bytes_of(write("one", *rows_of_table(0, 6))),
             other = bytes_of(write("other", *rows_of_table(6, 20)));
  for (const auto& [a, b] : {std::pair{one, one}, {one, other}, {other, one}}) {
    const auto path = folder_.write("both", a + b);
    EXPECT_EQ(error_of_reading(path),
              fmt::format("{}: several files in one: another one begins at byte {}; read them as separate files", path,
                          a.size()));
  }
}

TEST_P(ParquetDatasetTest, ColumnsThatTheFirstFileLacksAreNamedInAWarning) {
  const auto numbers = three_numbers<arrow::Int64Builder>(arrow::int64());
  const auto first = write("first", Arrays{{"a", numbers}}),
             second = write("second", Arrays{{"b", numbers}, {"a", numbers}, {"c", numbers}});
  ::testing::internal::CaptureStderr();
  EXPECT_THAT(ParquetDataset({first, second}).columns(), ElementsAre("a"));
  EXPECT_THAT(ParquetDataset({first, second}, {.columns = {"a"}}).columns(), ElementsAre("a"));
  EXPECT_EQ(::testing::internal::GetCapturedStderr(),
            "accel: warning: " + second +
                ": skips b, c, which the first file lacks; choose columns, or read the files separately\n");
}

TEST_P(ParquetDatasetTest, AFileWithWrongBytesIsReadOrRejectedByItsName) {
  const auto bytes = bytes_of(write("rows", *rows_of_table(0, 6)));
  int rejected = 0;
  expect_property(300, [&] {
    auto damaged = bytes;
    for (int count = pick(1, 4); count > 0; --count)
      damaged[pick<std::size_t>(0, bytes.size())] = static_cast<char>(pick(0, 256));
    const auto path = folder_.write("damaged", damaged);
    const auto error = error_of_reading(path);
    RC_ASSERT(error.empty() || error.find(path) != std::string::npos);
    rejected += error.empty() ? 0 : 1;
  });
  EXPECT_GT(rejected, 30);
}

}  // namespace
}  // namespace accel
