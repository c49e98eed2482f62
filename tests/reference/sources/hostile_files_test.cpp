// Files that change while they are open, and small files that describe much: each reader must throw an error that names
// the file, within a time linear in the size of the file.
#include <gmock/gmock.h>
#include <zlib.h>

#include <filesystem>
#include <fstream>

#include "reference/core/errors.hpp"
#include "reference/files/files.hpp"
#include "reference/sources/csv_dataset.hpp"
#include "reference/sources/idx.hpp"
#include "reference/sources/image.hpp"
#include "reference/sources/safetensors_dataset.hpp"
#include "reference/sources/sequential_file.hpp"
#include "reference/sources/tar_reader.hpp"
#include "reference/sources/text_lines.hpp"
#include "reference/sources/tokenizer/tokenizer.hpp"
#include "tests/support/cpu_time.hpp"
#include "tests/support/message_of.hpp"
#include "tests/support/safetensors_bytes.hpp"
#include "tests/support/tar_bytes.hpp"
#include "tests/support/temporary_folder.hpp"
#include "tests/support/torch.hpp"

namespace accel {
namespace {

using testing::cpu_seconds;
using ::testing::HasSubstr;
using testing::message_of;

// What a linear reader needs for these files on a slow machine; quadratic ones needed 8 to 50 s.
#ifdef ACCEL_SANITIZED
constexpr double kSecondsMax = 20;
#else
constexpr double kSecondsMax = 4;
#endif

class HostileFilesTest : public ::testing::Test {
 protected:
  // The error of reading after the file was cut to each of some sizes: beyond a page, inside a page, to nothing.
  template <typename Read>
  void expect_shortened(const std::string& path, Read&& read) {
    const auto size = std::filesystem::file_size(path);
    for (const auto left : {size - 1, size / 2, std::uintmax_t{0}}) {
      std::filesystem::resize_file(path, left);
      EXPECT_THAT(message_of<FileError>(read), HasSubstr(path + ": the file became shorter after it was opened; keep "
                                                                "other programs from writing to it"))
          << left;
    }
  }

  std::string safetensors(const std::string& header) {
    return folder_.write("hostile.safetensors", testing::safetensors_bytes(header, ""));
  }

  testing::TemporaryFolder folder_;
};

class ShortenedFilesTest : public HostileFilesTest, public ::testing::WithParamInterface<std::int64_t> {};

TEST_P(ShortenedFilesTest, SafetensorsRowsAreAnError) {
  const auto rows = at::arange(GetParam() * 4, at::kFloat).view({GetParam(), 4});
  const auto path = folder_.write("rows.safetensors", testing::safetensors_of({{"rows", "F32", rows}}));
  const SafetensorsTable table(path);
  const SafetensorsFile file(path);
  const auto last = GetParam() - 1;
  EXPECT_TRUE(table.get(last).at("rows").equal(rows[last]));
  expect_shortened(path, [&] { (void)table.get(last); });
  std::filesystem::remove(path);
  folder_.write("rows.safetensors", testing::safetensors_of({{"rows", "F32", rows}}));
  const SafetensorsTable again(path);
  const SafetensorsFile complete(path);
  expect_shortened(path, [&] { (void)again.get_batch({0, last}); });
  EXPECT_THAT(message_of<FileError>([&] { (void)complete.tensor("rows"); }), HasSubstr("became shorter"));
}

TEST_P(ShortenedFilesTest, CsvRecordsAreAnError) {
  std::string text = "a,b\n";
  for (std::int64_t i = 0; i < GetParam(); ++i) text += "1,2\n";
  const auto path = folder_.write("table.csv", text);
  const CsvDataset texts(path);
  const CsvTensors numbers(path);
  expect_shortened(path, [&] { (void)texts.get(GetParam() - 1); });
  EXPECT_THAT(message_of<FileError>([&] {
                (void)numbers.get_batch({0, GetParam() - 1});
              }),
              HasSubstr("became shorter"));
}

TEST_P(ShortenedFilesTest, TextLinesAreAnError) {
  std::string text;
  for (std::int64_t i = 0; i < GetParam(); ++i) text += "line\n";
  const auto path = folder_.write("text", text);
  const TextLines lines(path);
  expect_shortened(path, [&] { (void)lines.get(GetParam() - 1); });
}

TEST_P(ShortenedFilesTest, IdxRowsAreAnError) {
  std::string bytes{0, 0, 8, 1, 0, 0, static_cast<char>(GetParam() >> 8), static_cast<char>(GetParam())};
  const auto path = folder_.write("labels-idx1-ubyte", bytes + std::string(GetParam(), 'x'));
  const auto labels = open_idx(path);
  expect_shortened(path, [&] { (void)labels.row(GetParam() - 1); });
}

INSTANTIATE_TEST_SUITE_P(Rows, ShortenedFilesTest, ::testing::Values(3, 10'000));

// The callback of the JSON library made this quadratic; sorting names by a search for each comparison was slow too.
TEST_F(HostileFilesTest, ManyTensorsAreReadInLinearTime) {
  std::string header;
  for (int i = 0; i < 100'000; ++i)
    header += fmt::format(R"({}"layer.{}":{{"dtype":"U8","shape":[0],"data_offsets":[0,0]}})", i == 0 ? "{" : ",", i);
  const auto path = safetensors(header + "}");
  EXPECT_LT(cpu_seconds([&] { EXPECT_EQ(SafetensorsFile(path).names().size(), 100'000); }), kSecondsMax);
  EXPECT_THAT(message_of<ConfigError>([&] { (void)SafetensorsFile(path).stored("none"); }),
              HasSubstr("and 99,980 more"));
}

TEST_F(HostileFilesTest, AShapeOfManyDimensionsIsRefused) {
  std::string zeros = "0";
  for (int i = 1; i < 100'000; ++i) zeros += ",0";
  const auto path = safetensors(R"({"a":{"dtype":"U8","shape":[)" + zeros + R"(],"data_offsets":[0,0]}})");
  EXPECT_LT(cpu_seconds([&] {
              EXPECT_THAT(message_of<ConfigError>([&] { (void)SafetensorsFile(path).tensor("a"); }),
                          HasSubstr(path + ": tensor 'a': the shape has more than 64 dimensions"));
            }),
            kSecondsMax);
}

// 20 million brackets, nested and side by side, at each place of a header.
TEST_F(HostileFilesTest, BracketsInAHeaderAreRefusedAtOnce) {
  const std::string nested(20'000'000, '[');
  std::string pairs = "[]";
  while (pairs.size() < 10'000'000) pairs += "," + pairs;
  for (const auto& brackets : {nested, pairs}) {
    for (const auto* before : {"", "[", R"({"a":)", R"({"a":[)", R"({"a":{"shape":[)", R"({"__metadata__":{"a":[)"}) {
      const auto path = safetensors(before + brackets);
      EXPECT_LT(cpu_seconds([&] { EXPECT_THROW((void)SafetensorsFile(path), ConfigError); }), 1) << before;
    }
    const auto path = folder_.write("tokenizer.json", brackets);
    EXPECT_LT(cpu_seconds([&] { EXPECT_THROW((void)Tokenizer::from_file(path), ConfigError); }), kSecondsMax);
  }
}

TEST_F(HostileFilesTest, ManyCsvColumnsAreReadInLinearTime) {
  std::string names = "c0", values = "0";
  for (int i = 1; i < 200'000; ++i) {
    names += fmt::format(",c{}", i);
    values += ",0";
  }
  const auto path = folder_.write("wide.csv", names + "\n" + values + "\n");
  EXPECT_LT(cpu_seconds([&] { EXPECT_EQ(CsvTensors(path).get(0).numel(), 200'000); }), kSecondsMax);
  EXPECT_THAT(message_of<ConfigError>([&] { CsvTensors(path, {.columns = {"none"}}); }), HasSubstr("and 199,980 more"));
}

TEST_F(HostileFilesTest, AFieldOfManyQuotesIsReadInLinearTime) {
  const auto path = folder_.write("quotes.csv", "a\n\"" + std::string(20'000'000, '"') + "\"\n");
  EXPECT_LT(cpu_seconds([&] { EXPECT_EQ(CsvDataset(path).get(0).at("a"), std::string(10'000'000, '"')); }),
            kSecondsMax);
}

// Records around the end of the part of the file that is in memory, at every offset.
TEST_F(HostileFilesTest, RecordsAtTheEndOfAWindowAreReadCompletely) {
  for (int shift = 0; shift < 12; ++shift) {
    const std::string first((1 << 20) - 4 - shift, 'x');
    const auto path = folder_.write("window.csv", "a,b\r\n" + first + ",1\r\n\r\n\"\"\"\",\"\r\n\"\r\n3,4");
    const CsvDataset records(path);
    ASSERT_EQ(records.size(), 3) << shift;
    EXPECT_EQ(records.get(0).at("a"), first);
    EXPECT_EQ(records.get(1), (CsvDataset::Sample{{"a", "\""}, {"b", "\r\n"}}));
    EXPECT_EQ(records.get(2), (CsvDataset::Sample{{"a", "3"}, {"b", "4"}}));
    const TextLines lines(path);
    ASSERT_EQ(lines.size(), 6);
    EXPECT_EQ(lines.get(1), first + ",1");
    EXPECT_EQ(lines.get(5), "3,4");
  }
}

// 128 MiB of zeros in 128 kB, as the member of an archive, a text and an array.
TEST_F(HostileFilesTest, AGzipFileThatExpandsTooFarIsRefused) {
  const auto path = folder_.path("bomb.gz");
  const auto write = [&](const std::string& begin) {
    auto* file = gzopen(path.c_str(), "wb");
    gzwrite(file, begin.data(), static_cast<unsigned>(begin.size()));
    const std::string zeros(1 << 20, '\0');
    for (int i = 0; i < 128; ++i) gzwrite(file, zeros.data(), static_cast<unsigned>(zeros.size()));
    gzclose(file);
  };
  const auto expected = HasSubstr(path + ": the gzip data expand to more than ");
  write(testing::tar_header("a.bin", 1 << 27, '0'));
  EXPECT_THAT(message_of<ConfigError>([&] {
                TarReader reader(path);
                (void)reader.next();
                (void)reader.data();
              }),
              expected);
  EXPECT_THAT(message_of<ConfigError>([&] {
                TarReader reader(path);
                while (reader.next()) {
                }
              }),
              expected);
  EXPECT_THAT(message_of<ConfigError>([&] { (void)read_all(path); }), expected);
  write({0, 0, 8, 1, 0x08, 0, 0, 0});
  EXPECT_THAT(message_of<ConfigError>([&] { (void)open_idx(path); }), HasSubstr(path));
}

}  // namespace
}  // namespace accel
