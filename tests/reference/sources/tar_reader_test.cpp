// Archives that tools other than WebDataset's write. What the reader does not support must be an error with file,
// member and byte, since the samples of a stream that ends early or lacks a member look like any others.
#include "reference/sources/tar_reader.hpp"

#include <gmock/gmock.h>
#include <zlib.h>

#include <fstream>

#include "reference/core/errors.hpp"
#include "reference/sources/tar_shards.hpp"
#include "tests/support/message_of.hpp"
#include "tests/support/tar_bytes.hpp"
#include "tests/support/temporary_folder.hpp"

namespace accel {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::tar_end;
using testing::tar_header;
using testing::tar_member;

class TarReaderTest : public ::testing::Test {
 protected:
  // The keys of all samples.
  static std::vector<std::string> keys_of(TarShards shards) {
    std::vector<std::string> keys;
    while (auto sample = shards.next()) keys.push_back(sample->at("__key__"));
    return keys;
  }
  static std::string error_in(const std::string& path) {
    return testing::message_of<ConfigError>([&] { (void)keys_of(TarShards(path)); });
  }
  std::string write(const std::string& name, const std::string& members) {
    return folder_.write(name, members + tar_end());
  }
  std::string gzip(const std::string& bytes) {
    auto* to = gzopen(folder_.path("gzip").c_str(), "wb");
    gzwrite(to, bytes.data(), static_cast<unsigned>(bytes.size()));
    gzclose(to);
    std::ifstream from(folder_.path("gzip"), std::ios::binary);
    return {std::istreambuf_iterator<char>(from), {}};
  }
  testing::TemporaryFolder folder_;
};

// Data of the types that GNU tar adds, and of unknown ones, follow their headers.
TEST_F(TarReaderTest, OtherTypesOfMembersAreSkippedOrReported) {
  const auto member = [](const std::string& name, char type) {
    return tar_header(name, 3, type) + testing::padded_to_block("abc");
  };
  const auto path = write("incremental.tar", tar_header("label.1", 0, 'V') + member("folder/", 'D') +
                                                 member("x.jpg", '7') + tar_header("old.folder/", 0, '\0'));
  EXPECT_THAT(keys_of(TarShards(path)), ElementsAre("x"));
  EXPECT_THAT(error_in(write("volume.tar", member("x.jpg", 'M'))),
              HasSubstr("a part of a file that began in another volume"));
  EXPECT_THAT(error_in(write("unknown.tar", member("x.jpg", 'Q'))), HasSubstr("a member of the unknown type 'Q'"));
  EXPECT_THAT(error_in(write("name.tar", tar_header("././@LongLink", 2, 'L') + testing::padded_to_block("x"))),
              HasSubstr("the file is truncated or damaged: it ends after an extension"));
}

// A global path or size would rename or cut all members. Others, such as git's comment, concern no member.
TEST_F(TarReaderTest, GlobalPaxRecordsThatConcernMembersAreReported) {
  const auto global = [](const std::string& record) {
    return tar_header("pax_global_header", record.size(), 'g') + testing::padded_to_block(record);
  };
  EXPECT_THAT(
      keys_of(TarShards(write("git.tar", global(testing::pax_record("comment", "1f3a")) + tar_member("x.a", "")))),
      ElementsAre("x"));
  for (const auto* key : {"path", "size", "linkpath"})
    EXPECT_THAT(error_in(write("global.tar", global(testing::pax_record(key, "1")) + tar_member("x.a", "y"))),
                HasSubstr(fmt::format("a global pax record '{}' is unsupported", key)));
}

// tar reads the first archive only, unless --ignore-zeros is given.
TEST_F(TarReaderTest, DataAfterTheEndMarkAreReported) {
  const auto x = tar_member("x.a", "x") + tar_end();
  EXPECT_THAT(
      error_in(folder_.write("two.tar", x + tar_member("y.a", "y") + tar_end())),
      HasSubstr(
          "two.tar: member 2 '' (byte 1024): the archive continues after its end mark, at byte 2048; expected zeros; "
          "if it is several archives in one file, create one archive of their members"));
  EXPECT_THAT(error_in(folder_.write("some.tar", x + std::string(9000, '\0') + "x")),
              HasSubstr("at byte 10752; expected"));
  EXPECT_EQ(error_in(folder_.write("padded.tar", x + std::string(9000, '\0'))), "");
}

TEST_F(TarReaderTest, OtherCompressionsAreNamed) {
  EXPECT_THAT(error_in(folder_.write("a.tar.zst", "\x28\xb5\x2f\xfd" + tar_end())),
              HasSubstr("a.tar.zst: a zstd file; expected a tar archive, plain or compressed by gzip"));
  EXPECT_THAT(error_in(folder_.write("a.tar.bz2", "BZh91AY&SY" + tar_end())), HasSubstr("a bzip2 file"));
}

// `cat a.tar.gz b` is not the same as one compressed archive, but parts of one may be compressed separately.
TEST_F(TarReaderTest, GzipFilesOfSeveralMembersAreReadCompletely) {
  const auto x = tar_member("x.a", std::string(100000, 'x')), y = tar_member("y.a", "y");
  const auto first = gzip(x), second = gzip(y + tar_end());
  EXPECT_THAT(keys_of(TarShards(folder_.write("both", first + second + std::string(3000, '\0')))),
              ElementsAre("x", "y"));
  EXPECT_THAT(
      error_in(folder_.write("tail", first + second + "tail")),
      HasSubstr(
          "tail: the file is truncated or damaged: reading stopped at byte 102912: other data follow the gzip data"));
  EXPECT_THAT(error_in(folder_.write("cut", first + second.substr(0, 20))), HasSubstr("unexpected end of file"));
}

}  // namespace
}  // namespace accel
