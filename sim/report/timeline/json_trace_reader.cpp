#include <map>
#include <nlohmann/json.hpp>
#include <utility>

#include "reference/core/errors.hpp"
#include "sim/report/timeline/trace_reader.hpp"

namespace accel::sim::report {
namespace {

using Json = nlohmann::json;

// A conversion of a floating-point number would be undefined outside the range.
std::int64_t integer(const Json& value) {
  if (!value.is_number_integer()) throw Error(fmt::format("{} is not an integer", value.dump()));
  return value;
}

TraceSlice slice_of(const Json& event) {
  TraceSlice slice{
      .category = event.value("cat", ""), .name = event.at("name"), .begin = event.at("ts").get<double>() * 1e-6};
  slice.end = slice.begin + event.at("dur").get<double>() * 1e-6;
  if (const auto arguments = event.find("args"); arguments != event.end()) {
    if (const auto bytes = arguments->find("bytes"); bytes != arguments->end()) slice.bytes = integer(*bytes);
    slice.call = arguments->value("call", "");
  }
  return slice;
}

}  // namespace

void read_json_trace(std::string_view text, const TakeSlice& take) {
  std::map<std::int64_t, std::string> processes;
  std::map<std::pair<std::int64_t, std::int64_t>, std::string> tracks;  // by process and thread
  const auto trace = Json::parse(text);
  for (const auto& event : trace.at("traceEvents")) {
    const auto process = integer(event.at("pid"));
    const std::string phase = event.at("ph"), name = event.at("name");
    if (phase == "M" && name == "process_name") processes[process] = event.at("args").at("name");
    if (phase == "M" && name == "thread_name")
      tracks[{process, integer(event.at("tid"))}] = event.at("args").at("name");
    if (phase != "X") continue;
    auto slice = slice_of(event);
    slice.process = processes.at(process);
    slice.track = tracks.at({process, integer(event.at("tid"))});
    take(slice);
  }
}

}  // namespace accel::sim::report
