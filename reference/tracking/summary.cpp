#include "reference/tracking/summary.hpp"

#include <fmt/ranges.h>

#include <string_view>
#include <vector>

#include "reference/core/errors.hpp"
#include "reference/tracking/value_text.hpp"

namespace accel::tracking {
namespace {

constexpr int kTypeString = 7;                        // types.proto, DT_STRING
constexpr int kHparamString = 1, kHparamFloat64 = 3;  // hparams/api.proto, DataType
constexpr int kStatusSuccess = 1;                     // hparams/api.proto, Status

Message summary_of(const Message& value) { return Message().message(1, value); }

Message plugin_metadata(std::string_view plugin, const Message& content) {
  Message data;
  data.text(1, plugin);
  if (!content.bytes().empty()) data.message(2, content);
  return Message().message(1, data);
}

Message hparams_summary(std::string_view tag, const Message& content) {
  return summary_of(Message().text(1, tag).message(9, plugin_metadata("hparams", content)));
}

}  // namespace

Message scalar_summary(const std::string& tag, double value) {
  return summary_of(Message().text(1, tag).real32(2, static_cast<float>(value)));
}

Message text_summary(const std::string& tag, const std::string& text) {
  const auto shape = Message().message(2, Message().number(1, 1));
  const auto tensor = Message().number(1, kTypeString).message(2, shape).text(8, text);
  return summary_of(
      Message().text(1, tag + "/text_summary").message(8, tensor).message(9, plugin_metadata("text", Message())));
}

Message image_summary(const std::string& tag, const EncodedImage& image) {
  const auto content =
      Message().number(1, image.height).number(2, image.width).number(3, image.channels).text(4, image.png);
  return summary_of(Message().text(1, tag).message(4, content));
}

std::array<Message, 3> hparams_summaries(const Value::Dict& hparams) {
  Message experiment, start;
  for (const auto& [name, value] : hparams) {
    if (value.is_null()) continue;
    const bool is_text = value.is<std::string>();
    const auto content = is_text ? Message().text(3, value.as<std::string>()) : Message().real(2, *number_of(value));
    start.message(1, Message().text(1, name).message(2, content));
    experiment.message(4, Message().text(1, name).number(4, is_text ? kHparamString : kHparamFloat64));
  }
  const auto end = Message().number(1, kStatusSuccess);
  return {hparams_summary("_hparams_/experiment", Message().message(2, experiment)),
          hparams_summary("_hparams_/session_start_info", Message().message(3, start)),
          hparams_summary("_hparams_/session_end_info", Message().message(4, end))};
}

void check_hparams(const Value::Dict& hparams) {
  std::vector<std::string> wrong;
  for (const auto& [name, value] : hparams) {
    if (!value.is_null() && !value.is<std::string>() && !number_of(value))
      wrong.push_back(fmt::format("'{}' is a {}", name, value.type_name()));
  }
  check_argument(wrong.empty(),
                 "the run's configuration: {}; tensorboard takes numbers, strings, bools and null; name the parts of a "
                 "list or dict one by one",
                 fmt::join(wrong, ", "));
}

}  // namespace accel::tracking
