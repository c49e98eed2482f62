// Tests of reading samples from tar files, in the layout of WebDataset: consecutive members with the same key are
// one sample. Random archives are read by any number of readers; damage must be reported with file, member and
// byte.
#include "reference/sources/tar_shards.hpp"

#include <gmock/gmock.h>
#include <zlib.h>

#include <fstream>

#include "reference/core/errors.hpp"
#include "reference/data/transformed.hpp"
#include "tests/support/damage.hpp"
#include "tests/support/property.hpp"
#include "tests/support/tar_bytes.hpp"
#include "tests/support/temporary_folder.hpp"
#include "tests/support/torch.hpp"

namespace accel {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using testing::LongName;
using ::testing::Pair;
using ::testing::StartsWith;
using testing::tar_end;
using testing::tar_header;
using testing::tar_member;

static_assert(StreamDataset<TarShards> && !MapDataset<TarShards>);

using Sample = TarShards::Sample;

// All samples that are left in the pass.
std::vector<Sample> rest_of(TarShards& shards) {
  std::vector<Sample> samples;
  while (auto sample = shards.next()) samples.push_back(std::move(*sample));
  return samples;
}

// The keys of a new pass.
std::vector<std::string> keys_of(TarShards shards) {
  std::vector<std::string> keys;
  while (auto sample = shards.next()) keys.push_back(sample->at("__key__"));
  return keys;
}

class TarShardsTest : public ::testing::Test {
 protected:
  std::string write(const std::string& name, const std::string& members) {
    return folder_.write(name, members + tar_end());
  }
  std::string write_gzip(const std::string& name, const std::string& bytes) {
    auto* file = gzopen(folder_.path(name).c_str(), "wb");
    gzwrite(file, bytes.data(), static_cast<unsigned>(bytes.size()));
    gzclose(file);
    return folder_.path(name);
  }
  // The error when reading the file, which must also be found when skipping.
  std::string error_in(const std::string& path) {
    TarShards shards(path);
    try {
      while (shards.next()) {
      }
    } catch (const ConfigError& error) {
      const std::string text = error.what();  // skipping must find it too, at the same place
      EXPECT_THAT(error_of_skipping(path), StartsWith(text.substr(0, text.find("): "))));
      return error.what();
    }
    return "no error";
  }
  std::string error_of_skipping(const std::string& path) {
    TarShards shards(path);
    try {
      while (shards.skip(1) == 1) {
      }
    } catch (const ConfigError& error) {
      return error.what();
    }
    return "no error";
  }
  testing::TemporaryFolder folder_;
};

// Samples "<shard>-<index>" with some members each, and what a reader must return for them.
struct Shard {
  std::string bytes;
  std::vector<Sample> samples;
};

Shard any_shard(int number) {
  Shard shard;
  const auto num_samples = testing::pick(0, 4);
  for (int index = 0; index < num_samples; ++index) {
    const auto folder = *rc::gen::element<std::string>("", "a/", "a.b/", std::string(120, 'f') + "/");
    const auto key = folder + std::to_string(number) + "-" + std::to_string(index);
    Sample sample{{"__key__", key}};
    // Each member may be missing. Sizes lie around the block size of 512 bytes.
    for (const std::string extension : {"jpg", "cls", "seg.png"}) {
      if (*rc::gen::arbitrary<bool>()) continue;
      sample[extension] =
          *rc::gen::container<std::string>(*rc::gen::element(0, 1, 511, 512, 513, 1500), rc::gen::arbitrary<char>());
      shard.bytes += tar_member(key + "." + extension, sample[extension],
                                // Three ways in which tar stores names above 100 characters.
                                testing::pick_from({LongName::kGnu, LongName::kPax, LongName::kPrefix}));
    }
    if (sample.size() > 1) shard.samples.push_back(sample);
  }
  return shard;
}

TEST_F(TarShardsTest, TheReadersOfAnEpochReadEverySampleExactlyOnce) {
  testing::expect_property(100, [&] {
    const auto num_files = testing::pick(1, 7);
    std::vector<std::string> paths;
    std::vector<Sample> expected, seen;
    for (int number = 0; number < num_files; ++number) {
      auto shard = any_shard(number);
      // Plain and compressed files may be mixed.
      const bool zip = *rc::gen::arbitrary<bool>();
      const auto name = std::to_string(number) + ".tar";
      paths.push_back(zip ? write_gzip(name + ".gz", shard.bytes + tar_end()) : write(name, shard.bytes));
      for (auto& sample : shard.samples) sample["__url__"] = paths.back();
      expected.insert(expected.end(), shard.samples.begin(), shard.samples.end());
    }
    const auto shuffled = *rc::gen::arbitrary<bool>();
    TarShards all(paths, {.shuffle_shards_seed = shuffled ? std::optional<std::uint64_t>(3) : std::nullopt});
    all.set_epoch(testing::pick(0, 3));
    const auto num_ranks = testing::pick(1, 5), num_workers = testing::pick(1, 4);
    std::int64_t num_shards = 0;
    for (int rank = 0; rank < num_ranks; ++rank) {
      for (int worker = 0; worker < num_workers; ++worker) {
        // Divided twice, among ranks and among the workers of each rank.
        auto part = all.shard(num_ranks, rank).shard(num_workers, worker);
        num_shards += part.num_shards();
        const auto samples = rest_of(part);
        seen.insert(seen.end(), samples.begin(), samples.end());
      }
    }
    std::sort(expected.begin(), expected.end());
    std::sort(seen.begin(), seen.end());
    RC_ASSERT(seen == expected);
    RC_ASSERT(num_shards == num_files);
  });
}

// A resumed epoch skips the samples that were read. Skipping does not unpack them, but must count in the same way.
TEST_F(TarShardsTest, SkippingSamplesEqualsReadingThem) {
  testing::expect_property(50, [&] {
    std::vector<std::string> paths;
    for (int number = 0; number < 3; ++number) paths.push_back(write(std::to_string(number), any_shard(number).bytes));
    TarShards whole(paths), skipped(paths);
    const auto samples = rest_of(whole);
    const auto num_skipped = testing::pick<std::int64_t>(0, 12);
    const auto num_samples = static_cast<std::int64_t>(samples.size());
    RC_ASSERT(skipped.skip(num_skipped) == std::min(num_skipped, num_samples));
    RC_ASSERT(rest_of(skipped) ==
              std::vector<Sample>(samples.begin() + std::min(num_skipped, num_samples), samples.end()));
  });
}

// "README" has no extension and ".hidden" no key, so WebDataset ignores them. The extension is everything after the
// first dot.
TEST_F(TarShardsTest, ConsecutiveMembersOfOneKeyAreASample) {
  const auto path = write("a.tar", tar_header("dir/", 0, '5') + tar_member("dir/x.JPG", "image") +
                                       tar_member("dir/x.seg.png", "mask") + tar_member("README", "no sample") +
                                       tar_member(".hidden", "none") + tar_member("dir/y.cls", "7"));
  TarShards shards(path);
  EXPECT_THAT(rest_of(shards),
              ElementsAre(ElementsAre(Pair("__key__", "dir/x"), Pair("__url__", path), Pair("jpg", "image"),
                                      Pair("seg.png", "mask")),
                          ElementsAre(Pair("__key__", "dir/y"), Pair("__url__", path), Pair("cls", "7"))));
}

// WebDataset would return x twice, each time with half of its members.
TEST_F(TarShardsTest, AKeyThatReturnsIsReported) {
  EXPECT_THAT(
      error_in(write("a.tar", tar_member("x.jpg", "") + tar_member("y.jpg", "") + tar_member("x.cls", "") +
                                  tar_member("y.cls", ""))),
      EndsWith("a.tar: member 3 'x.cls' (byte 1024): sample 'x' returns after other samples; expected the members "
               "of a sample next to each other; sort the archive by name"));
  EXPECT_THAT(error_in(write("b.tar", tar_member("x.jpg", "") + tar_member("y.jpg", "") + tar_member("README", "") +
                                          tar_member("x.jpg", ""))),
              HasSubstr("member 4 'x.jpg' (byte 1536): sample 'x' returns"));
  EXPECT_THAT(
      keys_of(TarShards(write("c.tar", tar_member("x.jpg", "") + tar_member("a/x.jpg", "") + tar_member("X.jpg", "")))),
      ElementsAre("x", "a/x", "X"));
}

// GNU tar writes a hard link for the second name of a file. Its bytes are elsewhere in the archive.
TEST_F(TarShardsTest, LinksOfSamplesAreReported) {
  const auto link = [](const std::string& name, const std::string& target, char type) {
    return tar_header(name, 0, type, "", target);
  };
  EXPECT_THAT(
      error_in(write("hard.tar", tar_member("x.jpg", "data") + link("y.jpg", "x.jpg", '1'))),
      EndsWith(
          "hard.tar: member 2 'y.jpg' (byte 1024): a hard link to 'x.jpg'; expected a file; create the archive with "
          "tar --hard-dereference"));
  EXPECT_THAT(
      error_in(write("symbolic.tar", link("y.jpg", "/data/x.jpg", '2'))),
      EndsWith(
          "member 1 'y.jpg' (byte 0): a symbolic link to '/data/x.jpg'; expected a file; create the archive with tar "
          "--dereference"));
  const auto long_target = std::string(150, 't') + ".jpg";
  EXPECT_THAT(error_in(write("gnu.tar", tar_header("././@LongLink", 155, 'K') + testing::padded_to_block(long_target) +
                                            link("y.jpg", long_target.substr(0, 100), '2'))),
              HasSubstr("a symbolic link to '" + long_target + "'"));
  const auto record = testing::pax_record("linkpath", long_target);
  EXPECT_THAT(error_in(write("pax.tar", tar_header("pax", record.size(), 'x') + testing::padded_to_block(record) +
                                            link("y.jpg", "", '1'))),
              HasSubstr("a hard link to '" + long_target + "'"));
  EXPECT_THAT(error_in(write("pipe.tar", tar_header("y.jpg", 0, '6'))),
              HasSubstr("a pipe or a device; expected a file"));
  EXPECT_THAT(keys_of(TarShards(write("other.tar", link("README", "x", '2') + tar_member("x.jpg", "")))),
              ElementsAre("x"));
}

// As in WebDataset, but not silently; "__meta__" is its name for data about the archive.
TEST_F(TarShardsTest, MembersThatAreSkippedAreNamedInAWarning) {
  const auto path =
      write("a.tar", tar_header("dir/", 0, '5') + tar_member("dir/._x.jpg", "mac") + tar_member("dir/x.jpg", "") +
                         tar_member("README", "") + tar_member("__meta__/y.json", "") + tar_member("__index__", ""));
  ::testing::internal::CaptureStderr();
  TarShards shards(path);
  EXPECT_THAT(keys_of(shards), ElementsAre("dir/x"));
  EXPECT_EQ(keys_of(shards.shard(1, 0)).size(), 1U);
  EXPECT_EQ(::testing::internal::GetCapturedStderr(),
            "accel: warning: " + path +
                ": skips 'dir/._x.jpg' and other members that belong to no sample: their names have no "
                "extension, begin with a dot, or are in __...__\n");
}

// Two files may end and begin with the same key; these are two samples.
TEST_F(TarShardsTest, AFileEndsItsLastSample) {
  EXPECT_THAT(
      keys_of(TarShards({write("a", tar_member("x.a", "")), write("b", ""), write("c", tar_member("x.b", ""))})),
      ElementsAre("x", "x"));
}

// Each worker of a loader gets a copy, which must not start in the middle of the epoch.
TEST_F(TarShardsTest, EveryPassAndEveryCopyBeginsAtTheStart) {
  TarShards shards(write("a", tar_member("x.a", "") + tar_member("y.a", "")));
  EXPECT_EQ(shards.next()->at("__key__"), "x");
  auto copy = shards;
  EXPECT_EQ(shards.next()->at("__key__"), "y");
  EXPECT_EQ(copy.next()->at("__key__"), "x");
  EXPECT_FALSE(shards.next().has_value());
  EXPECT_FALSE(shards.next().has_value());
  shards.reset();
  EXPECT_EQ(shards.next()->at("__key__"), "x");
}

// All ranks and workers have to find the same order without communicating.
TEST_F(TarShardsTest, TheOrderOfFilesDependsOnlyOnSeedAndEpoch) {
  for (int number = 0; number < 8; ++number)
    write(fmt::format("train-{:02}.tar", number), tar_member(std::to_string(number) + ".a", ""));
  const auto order = [&](std::optional<std::uint64_t> seed, std::int64_t epoch) {
    TarShards shards(folder_.path("train-{00..07}.tar"), {.shuffle_shards_seed = seed});
    shards.set_epoch(epoch);
    return keys_of(shards);
  };
  EXPECT_THAT(order(std::nullopt, 3), ElementsAre("0", "1", "2", "3", "4", "5", "6", "7"));
  EXPECT_EQ(order(7, 2), order(7, 2));
  EXPECT_NE(order(7, 2), order(7, 3));
  std::vector<std::string> expected;
  // The order is a permutation seeded with the sum of seed and epoch, here 7 + 2.
  const auto generator = at::make_generator<at::CPUGeneratorImpl>(std::uint64_t{9});
  for (const auto& file : torch::randperm(8, generator).unbind()) expected.push_back(std::to_string(file.item<int>()));
  EXPECT_EQ(order(7, 2), expected);
}

// All of them in one message, so that the user does not have to start once for each missing file.
TEST_F(TarShardsTest, MissingShardsAreAllNamed) {
  write("1.tar", "");
  try {
    TarShards shards(folder_.path("{0..2}.tar"));
    FAIL() << "expected a ConfigError";
  } catch (const ConfigError& error) {
    EXPECT_THAT(error.what(), AllOf(HasSubstr("2 of 3 shards"), HasSubstr("0.tar"), HasSubstr("2.tar")));
  }
}

// A flipped bit, files cut in data and in headers, a missing end, impossible sizes, and duplicate members.
TEST_F(TarShardsTest, DamageIsReportedWithFileMemberAndOffset) {
  const auto x = tar_member("x.a", std::string(600, 'x')), y = tar_member("y.a", "yy");
  auto flipped = x + y;
  // One bit in the header of the second member.
  flipped[x.size() + 3] ^= 1;
  EXPECT_THAT(error_in(write("flip.tar", flipped)),
              EndsWith("flip.tar: member 2 '' (byte 1536): damaged: the checksum of the header does not match; copy or "
                       "download the archive again"));
  EXPECT_THAT(error_in(folder_.write("cut.tar", x.substr(0, 900))),
              HasSubstr("cut.tar: member 1 'x.a' (byte 0): the file is truncated or damaged"));
  EXPECT_THAT(error_in(folder_.write("half.tar", (x + y).substr(0, x.size() + 100))),
              HasSubstr("half.tar: member 2 '' (byte 1536): the file is truncated or damaged"));
  EXPECT_THAT(
      error_in(folder_.write("end.tar", x + y)),
      HasSubstr("end.tar: member 3 '' (byte 2560): the file is truncated or damaged: it ends inside a header or "
                "without an end mark"));
  EXPECT_THAT(error_in(write("past.tar", tar_header("big.a", 1LL << 32, '0') + "few")),
              HasSubstr("past.tar: member 1 'big.a' (byte 0): the file is truncated"));
  EXPECT_THAT(
      error_in(write("two.tar", y + y)),
      EndsWith("two.tar: member 2 'y.a' (byte 1024): sample 'y' has more than one 'a'; expected unique extensions"));
  EXPECT_THAT(error_in(write("name.tar", tar_header("././@LongLink", 1 << 30, 'L'))),
              HasSubstr("damaged: an extension has 1073741824 bytes"));
  EXPECT_THAT(error_in(write("sparse.tar", tar_header("x.a", 0, 'S'))),
              HasSubstr("member 1 'x.a' (byte 0): sparse files are unsupported"));
}

// The offset is that in the unpacked data, as tar's own tools report it.
TEST_F(TarShardsTest, DamagedGzipIsReportedWithFileMemberAndOffset) {
  const auto path =
      write_gzip("a.tar.gz", tar_member("x.a", "xx") + tar_member("y.a", std::string(200000, 'y')) + tar_end());
  std::filesystem::resize_file(path, std::filesystem::file_size(path) - 40);
  const auto error = error_of_skipping(path);
  EXPECT_THAT(error,
              AllOf(HasSubstr("a.tar.gz: the file is truncated or damaged"), HasSubstr("member 2 'y.a' (byte 1024)")));
}

// Plain or compressed archives, damaged at random.
TEST_F(TarShardsTest, AnyDamageIsRejectedOrOnlyChangesValues) {
  testing::expect_property(500, [&] {
    auto bytes = any_shard(0).bytes + tar_end();
    if (*rc::gen::arbitrary<bool>()) {
      std::ifstream in(write_gzip("whole", bytes), std::ios::binary);
      bytes = {std::istreambuf_iterator<char>(in), {}};
    }
    const auto path = folder_.write("damaged", testing::damaged(bytes));
    TarShards shards(path);
    testing::read_or_reject(path, [&] { (void)rest_of(shards); });
  });
}

// Sizes of 8 GiB and more do not fit the 11 octal digits of the header. GNU tar then writes a binary number, and
// POSIX tar a pax header.
TEST_F(TarShardsTest, SizesBeyondOctalDigitsAndPaxSizesAreRead) {
  auto header = tar_header("x.a", 0, '0');
  // The size 3 as a binary number, marked by the first bit.
  header.replace(124, 12, std::string("\x80\0\0\0\0\0\0\0\0\0\0\x03", 12));
  // The checksum is computed with spaces in its own place.
  header.replace(148, 8, std::string(8, ' '));
  std::size_t sum = 0;
  for (const char byte : header) sum += static_cast<unsigned char>(byte);
  header.replace(148, 6, fmt::format("{:06o}", sum));
  const auto size = testing::pax_record("size", "2");
  TarShards shards(write("sizes", header + testing::padded_to_block("abc") + tar_header("pax", size.size(), 'x') +
                                      testing::padded_to_block(size) + tar_header("y.a", 0, '0') +
                                      testing::padded_to_block("de")));
  EXPECT_EQ(shards.next()->at("a"), "abc");
  EXPECT_EQ(shards.next()->at("a"), "de");
}

// transformed() must keep the parts that readers need: the number of shards and the place in an epoch.
TEST_F(TarShardsTest, TransformedShardsAreShardsToo) {
  TarShards shards({write("a", tar_member("x.cls", "3\n")), write("b", tar_member("y.cls", " 4")),
                    write("c", tar_member("z.cls", "x"))});
  auto numbers =
      transformed(shards, [](const Sample& sample) { return decode_integer(sample.at("cls"), sample.at("__key__")); });
  EXPECT_EQ(numbers.num_shards(), 3);
  // The second of three parts.
  auto second = numbers.shard(3, 1);
  second.reset();
  EXPECT_EQ(second.next(), 4);
  EXPECT_FALSE(second.next().has_value());
  numbers.reset();
  EXPECT_EQ(numbers.next(), 3);
  EXPECT_EQ(numbers.skip(1), 1);
  try {
    numbers.next();
    FAIL() << "expected a ConfigError";
  } catch (const ConfigError& error) {
    EXPECT_STREQ(error.what(), "z: 'x' is not a 64-bit integer; expected decimal digits such as 7 or -7");
  }
}

// The same notation as in WebDataset and in shells; leading zeros set the width.
TEST(BraceExpansionTest, GroupsAreRangesAndLists) {
  EXPECT_THAT(expand_braces("a-{08..11}.tar"), ElementsAre("a-08.tar", "a-09.tar", "a-10.tar", "a-11.tar"));
  // As braceexpand, the wider bound determines the width.
  EXPECT_THAT(expand_braces("{98..100}"), ElementsAre("98", "99", "100"));
  EXPECT_THAT(expand_braces("{098..100}"), ElementsAre("098", "099", "100"));
  EXPECT_EQ(expand_braces("{00..100}").front(), "000");
  EXPECT_THAT(expand_braces("{9..010}"), ElementsAre("009", "010"));
  EXPECT_THAT(expand_braces("{0..1}"), ElementsAre("0", "1"));
  EXPECT_THAT(expand_braces("{a,b}/{1..2}"), ElementsAre("a/1", "a/2", "b/1", "b/2"));
  EXPECT_THAT(expand_braces("plain.tar"), ElementsAre("plain.tar"));
  // Not closed, descending, a single item, a range of letters, nested, and not opened.
  for (const auto* pattern : {"{1..2", "{2..1}", "{1}", "{a..b}", "{a,{b,c}}", "a}", "{1..2}}"})
    EXPECT_THROW(expand_braces(pattern), ArgumentError) << pattern;
}

}  // namespace
}  // namespace accel
