// Tests of the CSV reader against RFC 4180 and against tables that the tests write themselves. Random tables must
// be read back exactly, and damaged files must give an error with the place, never a crash.
#include "reference/sources/csv_dataset.hpp"

#include <gmock/gmock.h>

#include "reference/core/errors.hpp"
#include "reference/data/dataset.hpp"
#include "tests/support/damage.hpp"
#include "tests/support/property.hpp"
#include "tests/support/temporary_folder.hpp"
#include "tests/support/torch.hpp"

namespace accel {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::Pair;

static_assert(MapDataset<CsvDataset> && BatchedDataset<CsvTensors> && BatchedDataset<LabelledCsvTensors>);

using Table = std::vector<std::vector<std::string>>;

// All records of a file.
Table table_of(const CsvFile& file) {
  Table table;
  for (std::int64_t index = 0; index < file.size(); ++index) table.push_back(file.fields(index));
  return table;
}

class CsvTest : public ::testing::Test {
 protected:
  std::string write(const std::string& text) { return folder_.write("table.csv", text); }
  Table read(const std::string& text, const CsvOptions& options = {.header = false}) {
    return table_of(CsvFile({write(text)}, options));
  }
  template <typename Read>
  std::string error_of(Read&& read) {
    try {
      read();
    } catch (const ConfigError& error) {
      return error.what();
    }
    return "no error";
  }
  std::string error_in(const std::string& text) {
    return error_of([&] { CsvFile({write(text)}); });
  }
  testing::TemporaryFolder folder_;
};

// The field in quotes, with its own quotes doubled.
std::string quoted(const std::string& text) {
  std::string result = "\"";
  for (const char letter : text) result += letter == '"' ? "\"\"" : std::string(1, letter);
  return result + '"';
}

// Quotes fields where it is required, and sometimes where it is not.
std::string written(const Table& table, char delimiter) {
  std::string text;
  for (const auto& record : table) {
    for (std::size_t column = 0; column < record.size(); ++column) {
      const auto& field = record[column];
      const bool must = field.find_first_of(std::string("\"\r\n") + delimiter) != std::string::npos ||
                        (record.size() == 1 && field.empty());
      text +=
          (column > 0 ? std::string(1, delimiter) : "") + (must || *rc::gen::arbitrary<bool>() ? quoted(field) : field);
    }
    text += *rc::gen::elementOf(std::vector<std::string>{"\n", "\r\n"});
  }
  if (!text.empty() && *rc::gen::arbitrary<bool>())
    text.erase(text.ends_with("\r\n") ? text.size() - 2 : text.size() - 1);
  return text;
}

// Fields of delimiters, quotes, line ends and a few letters.
Table any_table() {
  const auto num_columns = testing::pick(1, 5);
  const auto field =
      rc::gen::resize(6, rc::gen::container<std::string>(rc::gen::elementOf(std::string("ab,;\"\n\r \xff"))));
  return *rc::gen::container<Table>(rc::gen::container<std::vector<std::string>>(num_columns, field));
}

// People rename files, and a message about fields in binary data would not help.
TEST_F(CsvTest, ParquetAndArrowFilesAreNamed) {
  EXPECT_THAT(error_in("PAR1\x15\x04,\nPAR1"),
              HasSubstr("a Parquet or Arrow file; expected text; read it with ParquetDataset"));
  EXPECT_THAT(error_in("ARROW1,\xff,ARROW1"), HasSubstr("<accel/parquet.hpp>"));
  EXPECT_THAT(read("PAR1,b\n1,2\n"), ElementsAre(ElementsAre("PAR1", "b"), ElementsAre("1", "2")));
}

// For each of the usual delimiters.
TEST_F(CsvTest, AnyTableIsReadBackAsItWasWritten) {
  testing::expect_property(300, [&] {
    const auto table = any_table();
    const auto delimiter = *rc::gen::element(',', ';', '\t');
    RC_ASSERT(read(written(table, delimiter), {.delimiter = delimiter, .header = false}) == table);
  });
}

// So a reader cannot split the file at line ends first.
TEST_F(CsvTest, FieldsInQuotesHoldDelimitersLineEndsAndQuotes) {
  EXPECT_THAT(read("\"a,\"\"b\"\"\",\"c\r\nd\"\r\n\"\",e"),
              ElementsAre(ElementsAre("a,\"b\"", "c\r\nd"), ElementsAre("", "e")));
}

// Old Macintosh programs end lines with \r; Python on Windows with newline=None makes \r\r\n of \r\n.
TEST_F(CsvTest, LinesMayEndInACarriageReturnAlone) {
  const CsvDataset dataset(write("a,b\r1,2\r3,4\r"));
  EXPECT_EQ(dataset.columns(), (std::vector<std::string>{"a", "b"}));
  EXPECT_EQ(dataset.size(), 2);
  EXPECT_THAT(dataset.get(1), ElementsAre(Pair("a", "3"), Pair("b", "4")));
  EXPECT_THAT(read("a,\"\r\"\r\rb,\r"), ElementsAre(ElementsAre("a", "\r"), ElementsAre("b", "")));
  EXPECT_THAT(read("a,b\r\r\n1,2\r\r\n3,4"),
              ElementsAre(ElementsAre("a", "b"), ElementsAre("1", "2"), ElementsAre("3", "4")));
  EXPECT_TRUE(CsvTensors(write("a\r1\r2")).get(1).equal(torch::tensor({2.0F})));
}

// A \r inside a field that is not quoted, or two files of different programs in one.
TEST_F(CsvTest, LineEndsOfTwoKindsAreReportedWithTheirPlace) {
  const std::string rule = "; expected one kind of line end; quote a \\r inside a field, or convert the line ends";
  EXPECT_THAT(error_in("text\na\rb\nc\n"),
              EndsWith("table.csv: record 1 (byte 5): ends in \\r alone, and the records before it in \\n" + rule));
  EXPECT_THAT(error_in("a,b\r1,2\r3,4\n"),
              EndsWith("record 2 (byte 8): ends in \\n, and the records before it in \\r alone" + rule));
  EXPECT_EQ(error_in("a\r\nb\nc"), "no error");
}

// Spreadsheets write semicolons where the comma is the decimal point. Python's csv silently reads one column.
TEST_F(CsvTest, AnotherDelimiterIsSuspectedInAWarning) {
  ::testing::internal::CaptureStderr();
  EXPECT_EQ(CsvDataset(write("a;b\n1;2\n")).columns().size(), 1U);
  EXPECT_EQ(CsvDataset(write("a;b\n1;2\n"), {.delimiter = ';'}).columns().size(), 2U);
  EXPECT_EQ(read("1\t2\n").front().size(), 1U);
  EXPECT_EQ(read("\"1;2\"\n").front().size(), 1U);
  EXPECT_EQ(CsvDataset(write("text;\nx\n")).size(), 1);
  const auto path = folder_.path("table.csv");
  EXPECT_EQ(
      ::testing::internal::GetCapturedStderr(),
      "accel: warning: " + path +
          ": has one column, 'a;b', with the delimiter ','; set CsvOptions::delimiter if ';' separates columns\n"
          "accel: warning: " +
          path +
          ": has one column, '1\t2', with the delimiter ','; set CsvOptions::delimiter if '\t' separates columns\n");
}

// Zeros are left where a program stopped before it wrote its data.
TEST_F(CsvTest, ZeroBytesAreReportedWithTheirPlace) {
  EXPECT_THAT(error_in("a\n1\n" + std::string(4, '\0')),
              EndsWith("record 2 (byte 4): byte 4 is zero; expected text; write or copy the file again"));
}

// Spreadsheet programs write the mark, and it would become part of the first name.
TEST_F(CsvTest, ByteOrderMarkAndEmptyLinesAreSkipped) {
  EXPECT_THAT(read("\xef\xbb\xbf\na,b\n\r\n\nc,d\n\n"), ElementsAre(ElementsAre("a", "b"), ElementsAre("c", "d")));
  EXPECT_EQ(CsvFile({write("\xef\xbb\xbfname\nx\n")}).columns().front(), "name");
}

TEST_F(CsvTest, SamplesAreMapsByTheHeadersNames) {
  const CsvDataset dataset(write("name,age\nAda,36\n\"Hopper, Grace\",85\n"));
  EXPECT_EQ(dataset.size(), 2);
  EXPECT_THAT(dataset.get(1), ElementsAre(Pair("age", "85"), Pair("name", "Hopper, Grace")));
}

// The third file has its columns in another order: concatenating it by position would mix up the columns.
TEST_F(CsvTest, FilesWithTheSameHeaderAreConcatenated) {
  const auto a = folder_.write("a.csv", "x,y\n1,2\n"), b = folder_.write("b.csv", "x,y\n3,4"),
             c = folder_.write("c.csv", "y,x\n5,6\n");
  const CsvTensors table({a, b});
  EXPECT_TRUE(table.get_batch({1, 0}).equal(torch::tensor({{3.0F, 4.0F}, {1.0F, 2.0F}})));
  EXPECT_THAT(error_of([&] {
                CsvFile({a, c});
              }),
              AllOf(HasSubstr(c + ": the columns are y, x"), HasSubstr("expected those of " + a + ": x, y")));
}

// 1e-60 is too small for float32 and becomes zero there, but is kept in float64.
TEST_F(CsvTest, ChosenColumnsAreNumbersOfTheDtype) {
  const auto path = write("a,b,c\n 1.5 ,+2,1e-60\n-0.25,nan,7\n");
  EXPECT_TRUE(CsvTensors(path, {.columns = {"c", "a"}}).get(0).equal(torch::tensor({0.0F, 1.5F})));
  EXPECT_TRUE(CsvTensors(path, {.columns = {"c"}, .dtype = torch::kDouble})
                  .get(0)
                  .equal(torch::tensor({1e-60}, torch::kDouble)));
  EXPECT_TRUE(CsvTensors(path, {.columns = {"b"}}).get(1).isnan().item<bool>());
  EXPECT_THROW(CsvTensors(path, {.dtype = torch::kInt}), ArgumentError);
}

// 17 digits identify a double, so exactly the same value must come back.
TEST_F(CsvTest, NumbersAreTheNearestToTheirText) {
  testing::expect_property(300, [&] {
    const auto value = *rc::gen::arbitrary<double>();
    const auto path = write(fmt::format("x\n{:.17g}\n", value));
    RC_ASSERT(CsvTensors(path, {.dtype = torch::kDouble}).get(0).item<double>() == value);
    const auto narrow = static_cast<float>(value);
    if (std::isinf(narrow)) return;
    RC_ASSERT(CsvTensors(write(fmt::format("x\n{:.9g}\n", narrow))).get(0).item<float>() == narrow);
  });
}

// 2^53 + 1 cannot be represented as a double, so the label must be parsed as an integer.
TEST_F(CsvTest, LabelsAreSeparateFromTheValues) {
  const LabelledCsvTensors dataset(write("x,kind,y\n1,9007199254740993,2\n3,0,4\n"), {.label = "kind"});
  const auto [values, label] = dataset.get(0);
  EXPECT_TRUE(values.equal(torch::tensor({1.0F, 2.0F})));
  EXPECT_TRUE(label.equal(torch::tensor(std::int64_t{9007199254740993})));
  const auto [batch, labels] = dataset.get_batch({1, 0});
  EXPECT_TRUE(batch.equal(torch::tensor({{3.0F, 4.0F}, {1.0F, 2.0F}})));
  EXPECT_EQ(labels.sizes(), at::IntArrayRef({2}));
}

TEST_F(CsvTest, WrongNumberOfFieldsIsToldWithItsPlace) {
  EXPECT_THAT(error_in("a,b\n1,2\n\n3\n"),
              EndsWith("table.csv: record 2 (byte 9): the record has 1 fields; expected 2"));
  EXPECT_THAT(error_in("a,b\n1,2,3\n"), EndsWith("table.csv: record 1 (byte 4): the record has 3 fields; expected 2"));
}

TEST_F(CsvTest, MisplacedQuotesAreToldWithTheirPlace) {
  const std::string rule = "; expected quotes only around a complete field, and \"\" for a quote inside it";
  EXPECT_THAT(error_in("a,b\n1,\"2\n3,4\n"),
              EndsWith("record 1 (byte 4): a quoted field is not closed (byte 6)" + rule));
  EXPECT_THAT(error_in("a,b\n1,2\"\n"),
              EndsWith("record 1 (byte 4): a quote inside an unquoted field (byte 7)" + rule));
  EXPECT_THAT(error_in("a,b\n\"1\"2,3\n"), EndsWith("record 1 (byte 4): text after a closing quote (byte 7)" + rule));
  EXPECT_THAT(error_in("\"a"), EndsWith("the header (byte 0): a quoted field is not closed (byte 0)" + rule));
}

// Samples are maps by name, so one of two equal names would be lost.
TEST_F(CsvTest, HeaderMustNameEachColumnOnce) {
  EXPECT_THAT(error_in("a,a\n"), HasSubstr("the header contains 'a' twice"));
  EXPECT_THAT(error_in(""), HasSubstr("the file has no records; expected a header"));
  EXPECT_THAT(error_of([&] { CsvTensors(write("a,b\n"), {.columns = {"c"}}); }),
              HasSubstr("no column 'c'; its columns are a, b"));
}

TEST_F(CsvTest, AFieldThatIsNoNumberIsReportedWithFileRecordOffsetAndColumn) {
  const auto path = write("a,b\n1,2\n3,1.5\n4,\n5,1e99\n6,7 8\n");
  EXPECT_THAT(error_of([&] { (void)CsvTensors(path, {.dtype = torch::kLong}).get(1); }),
              HasSubstr("table.csv: record 2 (byte 8), column 'b': '1.5' is not a number that fits Long; correct"));
  const CsvTensors table(path);
  EXPECT_TRUE(table.get(1).equal(torch::tensor({3.0F, 1.5F})));
  EXPECT_THAT(error_of([&] { (void)table.get(2); }),
              HasSubstr("record 3 (byte 14), column 'b': '' is not a number that fits Float"));
  EXPECT_THAT(error_of([&] { (void)table.get(3); }), HasSubstr("'1e99' is not a number that fits Float"));
  EXPECT_THAT(error_of([&] { (void)table.get(4); }), HasSubstr("'7 8' is not a number"));
}

// Damage inside a field cannot be noticed and changes the data; everything else must be a ConfigError with the
// file's name.
TEST_F(CsvTest, AnyDamageIsRejectedOrOnlyChangesValues) {
  testing::expect_property(500, [&] {
    const auto path = write(testing::damaged("h," + written(any_table(), ',')));
    testing::read_or_reject(path, [&] { (void)table_of(CsvFile({path})); });
    testing::read_or_reject(path, [&] {
      const CsvTensors table(path, {.csv = {.header = false}});
      for (std::int64_t index = 0; index < table.size(); ++index) (void)table.get(index);
    });
  });
}

}  // namespace
}  // namespace accel
