#pragma once

#include <array>
#include <cstdint>
#include <string>

#include "reference/core/value.hpp"
#include "reference/tracking/message.hpp"

namespace accel::tracking {

/// TensorBoard's Summary messages, as SummaryWriter makes them: what an event says under a tag.
///
/// Thread rule: any thread. Source: torch/utils/tensorboard/summary.py; the fields of
/// tensorboard/compat/proto/summary.proto.
Message scalar_summary(const std::string& tag, double value);
Message text_summary(const std::string& tag, const std::string& text);

struct EncodedImage {
  std::int64_t height = 0, width = 0, channels = 3;
  std::string png = {};
};
Message image_summary(const std::string& tag, const EncodedImage& image);

/// The experiment, the session's start, and its end. Nulls are left out; bools are numbers, as they are there.
std::array<Message, 3> hparams_summaries(const Value::Dict& hparams);

/// Throws ArgumentError that names all values that are no null, bool, number, string, or tensor of one element.
void check_hparams(const Value::Dict& hparams);

}  // namespace accel::tracking
