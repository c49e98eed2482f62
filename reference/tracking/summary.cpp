// The enumerations of fields are those of tensorboard/compat/proto: summary.proto, tensor.proto, tensor_shape.proto,
// and plugins/hparams.
#include "reference/tracking/summary.hpp"

#include <ATen/ATen.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <protozero/pbf_builder.hpp>
#include <vector>

#include "reference/core/errors.hpp"
#include "reference/tracking/value_text.hpp"

namespace accel::tracking {
namespace {

// Integer types other than uint8 are ambiguous (0 to 1 or 0 to 255), so they are rejected.
void check_images(const at::Tensor& images) {
  check_argument(
      images.defined() && images.dim() == 4 && images.numel() > 0 && (images.size(1) == 1 || images.size(1) == 3),
      "log_images: expected images of shape (count, 1 or 3, height, width), got {}",
      images.defined() ? fmt::format("({})", fmt::join(images.sizes().vec(), ", ")) : "no tensor");
  check_argument(images.scalar_type() == at::kByte || images.is_floating_point(),
                 "log_images: expected uint8, or floating-point in [0, 1], got {}",
                 c10::toString(images.scalar_type()));
}

// Source: torch/utils/tensorboard/summary.py, image. NaN becomes black here; in NumPy the conversion is undefined.
at::Tensor as_bytes(const at::Tensor& images) {
  if (images.scalar_type() == at::kByte) return images;
  return (images.to(at::kFloat) * 255).nan_to_num(0, 255, 0).clamp(0, 255).to(at::kByte);
}

using protozero::pbf_builder;
using Tag = protozero::pbf_tag_type;
enum class Summary : Tag { kValue = 1 };
enum class SummaryValue : Tag { kTag = 1, kSimpleValue = 2, kImage = 4, kTensor = 8, kMetadata = 9 };
enum class Image : Tag { kHeight = 1, kWidth = 2, kColorspace = 3, kEncodedImageString = 4 };
enum class Metadata : Tag { kPluginData = 1 };
enum class PluginData : Tag { kPluginName = 1, kContent = 2 };
enum class Tensor : Tag { kDtype = 1, kTensorShape = 2, kStringVal = 8 };
enum class TensorShape : Tag { kDim = 2 };
enum class Dim : Tag { kSize = 1 };
enum class HparamsPlugin : Tag { kExperiment = 2, kSessionStartInfo = 3, kSessionEndInfo = 4 };
enum class Experiment : Tag { kHparamInfos = 4 };
enum class HparamInfo : Tag { kName = 1, kType = 4 };
enum class SessionStart : Tag { kHparams = 1 };
enum class SessionEnd : Tag { kStatus = 1 };
enum class Entry : Tag { kKey = 1, kValue = 2 };
enum class ProtobufValue : Tag { kNumberValue = 2, kStringValue = 3 };

constexpr int kTypeString = 7;                        // types.proto, DT_STRING
constexpr int kHparamString = 1, kHparamFloat64 = 3;  // hparams/api.proto, DataType
constexpr int kStatusSuccess = 1;                     // hparams/api.proto, Status

// A Summary with one value, whose other fields `add_content` adds.
template <typename AddContent>
std::string summary_of(const std::string& tag, const AddContent& add_content) {
  std::string bytes;
  {
    pbf_builder<Summary> summary(bytes);
    pbf_builder<SummaryValue> value(summary, Summary::kValue);
    value.add_string(SummaryValue::kTag, tag);
    add_content(value);
  }  // the length of `value` is written when it is destroyed
  return bytes;
}

// Tells TensorBoard which dashboard shows the value. An empty content must be omitted, as protobuf does.
void add_plugin(pbf_builder<SummaryValue>& value, const std::string& plugin, const std::string& content) {
  pbf_builder<Metadata> metadata(value, SummaryValue::kMetadata);
  pbf_builder<PluginData> data(metadata, Metadata::kPluginData);
  data.add_string(PluginData::kPluginName, plugin);
  if (!content.empty()) data.add_bytes(PluginData::kContent, content);
}

std::string hparams_summary(const std::string& tag, HparamsPlugin field, const std::string& message) {
  std::string content;
  pbf_builder<HparamsPlugin>(content).add_message(field, message);
  return summary_of(tag, [&](auto& value) { add_plugin(value, "hparams", content); });
}

void add_hparam(pbf_builder<SessionStart>& start, const std::string& name, const Value& hparam) {
  pbf_builder<Entry> entry(start, SessionStart::kHparams);
  entry.add_string(Entry::kKey, name);
  pbf_builder<ProtobufValue> value(entry, Entry::kValue);
  if (hparam.is<std::string>())
    value.add_string(ProtobufValue::kStringValue, hparam.as<std::string>());
  else
    value.add_double(ProtobufValue::kNumberValue, *number_of(hparam));
}

}  // namespace

GridPlan plan_grid(std::int64_t num_images) {
  const auto columns = std::min<std::int64_t>(num_images, 8);
  return {.rows = (num_images + columns - 1) / columns, .columns = columns};
}

// Gray images are expanded to three channels first, as in torch/utils/tensorboard/_utils.py, make_grid.
at::Tensor image_grid(const at::Tensor& images) {
  check_images(images);
  const auto pixels = as_bytes(images.detach()).cpu().expand({-1, 3, -1, -1});
  const auto height = pixels.size(2), width = pixels.size(3);
  const auto plan = plan_grid(pixels.size(0));
  auto picture = at::zeros({plan.rows * height, plan.columns * width, 3}, at::kByte);
  for (std::int64_t image = 0; image < pixels.size(0); ++image) {
    picture.narrow(0, plan.row(image) * height, height)
        .narrow(1, plan.column(image) * width, width)
        .copy_(pixels[image].permute({1, 2, 0}));
  }
  return picture;
}

std::string scalar_summary(const std::string& tag, double value) {
  return summary_of(tag, [&](auto& part) { part.add_float(SummaryValue::kSimpleValue, static_cast<float>(value)); });
}

// Source: torch/utils/tensorboard/summary.py, text: the suffix "/text_summary" and the plugin name "text" are
// what TensorBoard's text dashboard looks for.
std::string text_summary(const std::string& tag, const std::string& text) {
  return summary_of(tag + "/text_summary", [&](auto& value) {
    {
      pbf_builder<Tensor> tensor(value, SummaryValue::kTensor);
      tensor.add_enum(Tensor::kDtype, kTypeString);
      {
        pbf_builder<TensorShape> shape(tensor, Tensor::kTensorShape);
        pbf_builder<Dim>(shape, TensorShape::kDim).add_int64(Dim::kSize, 1);
      }
      tensor.add_bytes(Tensor::kStringVal, text);
    }
    add_plugin(value, "text", "");
  });
}

std::string image_summary(const std::string& tag, const EncodedImage& image) {
  return summary_of(tag, [&](auto& value) {
    pbf_builder<Image> content(value, SummaryValue::kImage);
    content.add_int64(Image::kHeight, image.height);
    content.add_int64(Image::kWidth, image.width);
    content.add_int64(Image::kColorspace, image.channels);
    content.add_bytes(Image::kEncodedImageString, image.png);
  });
}

// Source: torch/utils/tensorboard/summary.py, hparams. A bool becomes a number, because the Python code tests for
// int first.
std::array<std::string, 3> hparams_summaries(const Value::Dict& hparams) {
  std::string experiment_bytes, start_bytes, end_bytes;
  pbf_builder<Experiment> experiment(experiment_bytes);
  pbf_builder<SessionStart> start(start_bytes);
  for (const auto& [name, value] : hparams) {
    if (value.is_null()) continue;
    add_hparam(start, name, value);
    pbf_builder<HparamInfo> info(experiment, Experiment::kHparamInfos);
    info.add_string(HparamInfo::kName, name);
    info.add_enum(HparamInfo::kType, value.is<std::string>() ? kHparamString : kHparamFloat64);
  }
  pbf_builder<SessionEnd>(end_bytes).add_enum(SessionEnd::kStatus, kStatusSuccess);
  return {hparams_summary("_hparams_/experiment", HparamsPlugin::kExperiment, experiment_bytes),
          hparams_summary("_hparams_/session_start_info", HparamsPlugin::kSessionStartInfo, start_bytes),
          hparams_summary("_hparams_/session_end_info", HparamsPlugin::kSessionEndInfo, end_bytes)};
}

// All wrong values are listed at once. Source: torch/utils/tensorboard/summary.py, hparams, which raises
// ValueError for the first one.
void check_hparams(const Value::Dict& hparams) {
  std::vector<std::string> wrong;
  for (const auto& [name, value] : hparams) {
    if (!value.is_null() && !value.is<std::string>() && !number_of(value))
      wrong.push_back(fmt::format("'{}' is a {}", name, value.type_name()));
  }
  check_argument(
      wrong.empty(),
      "the run's configuration: {}; tensorboard accepts numbers, strings, bools and null; pass the entries of a "
      "list or dict as separate values",
      fmt::join(wrong, ", "));
}

}  // namespace accel::tracking
