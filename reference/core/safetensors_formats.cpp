#include "reference/core/safetensors_formats.hpp"

#include <algorithm>

namespace accel {
namespace {

template <typename Is>
const SafetensorsFormat* find(Is&& is) {
  const auto& formats = safetensors_formats();
  const auto found = std::find_if(formats.begin(), formats.end(), is);
  return found == formats.end() ? nullptr : &*found;
}

}  // namespace

const std::vector<SafetensorsFormat>& safetensors_formats() {
  static const std::vector<SafetensorsFormat> kFormats{{"U64", 64, at::kUInt64},
                                                       {"I64", 64, at::kLong},
                                                       {"F64", 64, at::kDouble},
                                                       {"C64", 64, at::kComplexFloat},
                                                       {"F32", 32, at::kFloat},
                                                       {"U32", 32, at::kUInt32},
                                                       {"I32", 32, at::kInt},
                                                       {"BF16", 16, at::kBFloat16},
                                                       {"F16", 16, at::kHalf},
                                                       {"U16", 16, at::kUInt16},
                                                       {"I16", 16, at::kShort},
                                                       {"F8_E5M2FNUZ", 8, at::kFloat8_e5m2fnuz},
                                                       {"F8_E4M3FNUZ", 8, at::kFloat8_e4m3fnuz},
                                                       {"F8_E8M0", 8, at::kFloat8_e8m0fnu},
                                                       {"F8_E4M3", 8, at::kFloat8_e4m3fn},
                                                       {"F8_E5M2", 8, at::kFloat8_e5m2},
                                                       {"I8", 8, at::kChar},
                                                       {"U8", 8, at::kByte},
                                                       {"F6_E3M2", 6, std::nullopt},
                                                       {"F6_E2M3", 6, std::nullopt},
                                                       {"F4", 4, std::nullopt},
                                                       {"BOOL", 8, at::kBool}};
  return kFormats;
}

const SafetensorsFormat* safetensors_format(std::string_view name) {
  return find([&](const auto& format) { return format.name == name; });
}

const SafetensorsFormat* safetensors_format(at::ScalarType dtype) {
  return find([&](const auto& format) { return format.dtype == dtype; });
}

}  // namespace accel
