// TensorBoard event files: TFRecord framing around protobuf messages.
#include "reference/tracking/event_file.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <protozero/pbf_builder.hpp>
#include <utility>

#include "reference/tracking/appendable_file.hpp"

namespace accel::tracking {
namespace {

// Fields of tensorboard/compat/proto/event.proto.
enum class Event : protozero::pbf_tag_type {
  kWallTime = 1,
  kStep = 2,
  kFileVersion = 3,
  kSummary = 5,
  kSessionLog = 7,
  kSourceMetadata = 10
};
enum class SessionLog : protozero::pbf_tag_type { kStatus = 1 };
enum class SourceMetadata : protozero::pbf_tag_type { kWriter = 1 };

// 0x82f63b78 is the reflected polynomial of CRC-32C.
constexpr std::array<std::uint32_t, 256> kTable = [] {
  std::array<std::uint32_t, 256> table{};
  for (std::uint32_t byte = 0; byte < 256; ++byte) {
    std::uint32_t remainder = byte;
    for (int bit = 0; bit < 8; ++bit) remainder = (remainder >> 1) ^ ((remainder & 1) != 0 ? 0x82f63b78U : 0U);
    table[byte] = remainder;
  }
  return table;
}();

constexpr std::string_view kVersion = "brain.Event:2";
constexpr std::string_view kWriter = "tensorboard.summary.writer.event_file_writer";  // as written by TensorBoard

std::string little_endian(std::uint64_t value, int num_bytes) {
  std::string bytes;
  for (int byte = 0; byte < num_bytes; ++byte) bytes += static_cast<char>(value >> (8 * byte));
  return bytes;
}

std::string host_name() {
  std::array<char, 256> name{};
  return gethostname(name.data(), name.size() - 1) == 0 ? name.data() : "localhost";
}

// TensorBoard's writer numbers the files of a process. Ranks may share a process, so this one uses the first number
// that is free in the folder.
std::string unused_path(Files& files, const std::string& folder, double seconds, const std::string& suffix) {
  for (int count = 0;; ++count) {
    auto path = fmt::format("{}/events.out.tfevents.{:010d}.{}.{}.{}{}", folder, static_cast<std::int64_t>(seconds),
                            host_name(), getpid(), count, suffix);
    if (!read_if_exists(files, path)) return path;
  }
}

// Protobuf omits fields with the default value, so step 0 is not written.
template <typename AddContent>
std::string event_record(double wall_time, std::optional<std::int64_t> step, const AddContent& add_content) {
  std::string bytes;
  protozero::pbf_builder<Event> event(bytes);
  event.add_double(Event::kWallTime, wall_time);
  if (step.value_or(0) != 0) event.add_int64(Event::kStep, *step);
  add_content(event);
  return framed_record(bytes);
}

}  // namespace

std::uint32_t crc32c(std::string_view bytes) {
  std::uint32_t remainder = ~0U;
  for (const char letter : bytes)
    remainder = (remainder >> 8) ^ kTable[(remainder ^ static_cast<unsigned char>(letter)) & 0xff];
  return ~remainder;
}

// Source: tensorflow/core/lib/hash/crc32c.h, Mask.
std::uint32_t masked_crc32c(std::string_view bytes) {
  const auto crc = crc32c(bytes);
  return ((crc >> 15) | (crc << 17)) + 0xa282ead8U;
}

// The length has its own checksum, so that a reader never trusts a damaged length.
std::string framed_record(std::string_view bytes) {
  const auto length = little_endian(bytes.size(), 8);
  return length + little_endian(masked_crc32c(length), 4) + std::string(bytes) + little_endian(masked_crc32c(bytes), 4);
}

double system_seconds() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

// Every event file starts with a version record. It is flushed immediately so that the run appears at once.
EventFile::EventFile(Files& files, const std::string& folder, Options options) : options_(std::move(options)) {
  files.make_folder(folder);
  path_ = unused_path(files, folder, options_.clock(), options_.filename_suffix);
  file_ = files.create(path_);
  pending_ += event_record(options_.clock(), std::nullopt, [](auto& event) {
    event.add_string(Event::kFileVersion, kVersion.data(), kVersion.size());
    protozero::pbf_builder<SourceMetadata>(event, Event::kSourceMetadata)
        .add_string(SourceMetadata::kWriter, kWriter.data(), kWriter.size());
  });
  if (options_.purge_step) write_purge();
  flush();
}

// Source: torch/utils/tensorboard/writer.py, SummaryWriter._get_file_writer with purge_step: a version event and
// a session start at that step, which make TensorBoard hide older events with the same or a later step.
void EventFile::write_purge() {
  constexpr int kSessionStart = 1;  // event.proto, SessionLog.SessionStatus
  pending_ += event_record(options_.clock(), options_.purge_step, [](auto& event) {
    event.add_string(Event::kFileVersion, kVersion.data(), kVersion.size());
  });
  pending_ += event_record(options_.clock(), options_.purge_step, [](auto& event) {
    protozero::pbf_builder<SessionLog>(event, Event::kSessionLog).add_enum(SessionLog::kStatus, kSessionStart);
  });
}

void EventFile::add(const std::string& summary, const EventTime& time) {
  pending_ += event_record(time.walltime ? *time.walltime : options_.clock(), time.step,
                           [&](auto& event) { event.add_message(Event::kSummary, summary); });
}

// The buffer holds complete records only, so a crash between two calls leaves a readable file.
void EventFile::flush() {
  if (!pending_.empty()) file_->append(std::exchange(pending_, {}));
}

void EventFile::close() {
  flush();
  file_->close();
}

}  // namespace accel::tracking
