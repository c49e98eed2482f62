#include "reference/tracking/event_file.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <utility>

#include "reference/tracking/growing_file.hpp"

namespace accel::tracking {
namespace {

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
constexpr std::string_view kWriter = "tensorboard.summary.writer.event_file_writer";  // what it stands in for

std::string little_endian(std::uint64_t value, int num_bytes) {
  std::string bytes;
  for (int byte = 0; byte < num_bytes; ++byte) bytes += static_cast<char>(value >> (8 * byte));
  return bytes;
}

std::string host_name() {
  std::array<char, 256> name{};
  return gethostname(name.data(), name.size() - 1) == 0 ? name.data() : "localhost";
}

// TensorBoard's writer counts files of the process. Here the count is of those in the folder: nothing is process-wide.
std::string unused_path(Files& files, const std::string& folder, double seconds, const std::string& suffix) {
  for (int count = 0;; ++count) {
    auto path = fmt::format("{}/events.out.tfevents.{:010d}.{}.{}.{}{}", folder, static_cast<std::int64_t>(seconds),
                            host_name(), getpid(), count, suffix);
    if (!read_if_there(files, path)) return path;
  }
}

}  // namespace

std::uint32_t crc32c(std::string_view bytes) {
  std::uint32_t remainder = ~0U;
  for (const char letter : bytes)
    remainder = (remainder >> 8) ^ kTable[(remainder ^ static_cast<unsigned char>(letter)) & 0xff];
  return ~remainder;
}

std::uint32_t masked_crc32c(std::string_view bytes) {
  const auto crc = crc32c(bytes);
  return ((crc >> 15) | (crc << 17)) + 0xa282ead8U;
}

std::string framed_record(std::string_view bytes) {
  const auto length = little_endian(bytes.size(), 8);
  return length + little_endian(masked_crc32c(length), 4) + std::string(bytes) + little_endian(masked_crc32c(bytes), 4);
}

double system_seconds() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

EventFile::EventFile(Files& files, const std::string& folder, Options options) : options_(std::move(options)) {
  files.make_folder(folder);
  path_ = unused_path(files, folder, options_.clock(), options_.filename_suffix);
  file_ = files.create(path_);
  pending_ += framed_record(
      Message().real(1, options_.clock()).text(3, kVersion).message(10, Message().text(1, kWriter)).bytes());
  if (options_.purge_step) write_purge();
  flush();
}

Message EventFile::timed_event(std::optional<std::int64_t> step) const {
  auto event = Message().real(1, options_.clock());
  if (step.value_or(0) != 0) event.number(2, *step);
  return event;
}

void EventFile::write_purge() {
  constexpr int kSessionStart = 1;  // event.proto, SessionLog.SessionStatus
  pending_ += framed_record(timed_event(options_.purge_step).text(3, kVersion).bytes());
  pending_ += framed_record(timed_event(options_.purge_step).message(7, Message().number(1, kSessionStart)).bytes());
}

void EventFile::add(const Message& summary, std::optional<std::int64_t> step) {
  pending_ += framed_record(timed_event(step).message(5, summary).bytes());
}

void EventFile::flush() {
  if (!pending_.empty()) file_->append(std::exchange(pending_, {}));
}

void EventFile::close() {
  flush();
  file_->close();
}

}  // namespace accel::tracking
