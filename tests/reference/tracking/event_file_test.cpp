// Tests of TensorBoard's event files. A reader in event_reader.hpp, written only for these tests, decodes what the
// library writes: a second implementation of the format finds errors that the first one makes on both sides.
#include "reference/tracking/event_file.hpp"

#include <gmock/gmock.h>

#include "reference/tracking/summary.hpp"
#include "tests/reference/tracking/event_reader.hpp"
#include "tests/support/temporary_folder.hpp"

namespace accel::tracking {
namespace {

using ::testing::ElementsAre;
using ::testing::MatchesRegex;
using testing::read_events;
using testing::read_records;
using testing::TemporaryFolder;

// The examples of RFC 3720, section B.4.
TEST(Crc32cTest, MatchesTheExamplesOfTheStandard) {
  EXPECT_EQ(crc32c(std::string(32, '\0')), 0x8a9136aaU);
  EXPECT_EQ(crc32c(std::string(32, '\xff')), 0x62a8ab43U);
  EXPECT_EQ(crc32c("123456789"), 0xe3069283U);
  EXPECT_EQ(crc32c(""), 0U);
}

// An empty record and one with zero bytes included. The reader rejects a single changed bit.
TEST(EventFileTest, RecordsHaveLengthsAndChecksumsThatAReaderAccepts) {
  std::string bytes;
  const std::vector<std::string> written{"", "a", std::string(1000, '\xfe'), std::string("\0\n", 2)};
  for (const auto& record : written) bytes += framed_record(record);
  EXPECT_EQ(read_records(bytes), written);
  bytes[20] ^= 1;  // in the second record's length
  EXPECT_THROW(read_records(bytes), std::runtime_error);
}

// TensorBoard finds files by ".tfevents." in their names and sorts them by the time in it.
TEST(EventFileTest, BeginsWithTheVersionAndHasTheNameThatTensorBoardExpects) {
  const TemporaryFolder folder;
  PosixFiles files;
  EventFile file(files, folder.path("run"), {.filename_suffix = ".x", .clock = [] { return 1234.75; }});
  EXPECT_THAT(file.path(), MatchesRegex(".*/run/events\\.out\\.tfevents\\.0000001234\\..+\\.[0-9]+\\.0\\.x"));
  const auto events = read_events(file.path());
  ASSERT_EQ(events.size(), 1U);
  EXPECT_EQ(events[0].real(1), 1234.75);
  EXPECT_EQ(events[0].text(3), "brain.Event:2");
}

// Two runs that start within the same second must not write into the same file.
TEST(EventFileTest, AnotherFileOfTheSameSecondGetsAnotherName) {
  const TemporaryFolder folder;
  PosixFiles files;
  const EventFile::Options options{.clock = [] { return 5.0; }};
  EventFile first(files, folder.path(), options), second(files, folder.path(), options);
  EXPECT_NE(first.path(), second.path());
  EXPECT_EQ(read_events(first.path()).size(), 1U);
}

// TensorBoard shows a training while it runs.
TEST(EventFileTest, FlushedEventsAreReadableWhileTheFileIsOpen) {
  const TemporaryFolder folder;
  PosixFiles files;
  EventFile file(files, folder.path(), {});
  file.add(scalar_summary("loss", 0.25), {.step = 7});
  EXPECT_EQ(read_events(file.path()).size(), 1U);
  file.flush();
  const auto events = read_events(file.path());
  ASSERT_EQ(events.size(), 2U);
  EXPECT_EQ(events[1].number(2), 7U);
  const auto value = events[1].message(5).message(1);
  EXPECT_EQ(value.text(1), "loss");
  EXPECT_EQ(value.real32(2), 0.25F);
}

// A process that is killed leaves such a file.
TEST(EventFileTest, ATruncatedFileReadsUpToItsLastCompleteRecord) {
  const TemporaryFolder folder;
  PosixFiles files;
  EventFile file(files, folder.path(), {});
  file.add(scalar_summary("loss", 1), {.step = 1});
  file.flush();
  const auto whole = testing::read_file(file.path());
  file.add(scalar_summary("loss", 2), {.step = 2});
  file.flush();
  const auto bytes = testing::read_file(file.path());
  ASSERT_EQ(bytes.substr(0, whole.size()), whole);  // earlier bytes are not rewritten
  for (auto size = whole.size(); size < bytes.size(); ++size)
    EXPECT_EQ(read_records(bytes.substr(0, size)).size(), 2U) << size;
}

// A resumed run repeats some steps; without the purge, TensorBoard would show them twice.
TEST(EventFileTest, PurgeHidesWhatEarlierRunsLoggedFromAStepOn) {
  const TemporaryFolder folder;
  PosixFiles files;
  const EventFile file(files, folder.path(), {.purge_step = 40});
  const auto events = read_events(file.path());
  ASSERT_EQ(events.size(), 3U);
  EXPECT_EQ(events[1].number(2), 40U);
  EXPECT_EQ(events[2].number(2), 40U);
  EXPECT_EQ(events[2].message(7).number(1), 1U);  // SessionLog.START
}

}  // namespace
}  // namespace accel::tracking
