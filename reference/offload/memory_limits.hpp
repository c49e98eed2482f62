#pragma once

#include <compare>
#include <concepts>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>

/// How much memory each device has for a model's weights.
///
///     const auto limits = accel::get_max_memory(accel::MaxMemory{{0, "20GiB"}, {"cpu", "60GB"}});
///
/// Thread rule: values. Source: accelerate/utils/modeling.py.
namespace accel {

/// A place for weights: the number of a GPU, "cpu" or "disk". Ordered in this way.
class MapDevice {
 public:
  MapDevice(int gpu);  // NOLINT(google-explicit-constructor): a device map reads as Python's
  /// Accepts "cpu", "disk", "cuda", "cuda:0" and "0"; throws ArgumentError for anything else.
  MapDevice(std::string_view name);                                          // NOLINT(google-explicit-constructor)
  MapDevice(const std::string& name) : MapDevice(std::string_view(name)) {}  // NOLINT(google-explicit-constructor)
  MapDevice(const char* name) : MapDevice(std::string_view(name)) {}         // NOLINT(google-explicit-constructor)

  [[nodiscard]] bool is_gpu() const { return place_ < kCpu; }
  [[nodiscard]] bool is_cpu() const { return place_ == kCpu; }
  [[nodiscard]] bool is_disk() const { return place_ == kDisk; }
  [[nodiscard]] int gpu() const { return place_; }
  /// Returns "0", "cpu" or "disk".
  [[nodiscard]] std::string name() const;
  friend auto operator<=>(const MapDevice&, const MapDevice&) = default;

 private:
  static constexpr int kCpu = 1 << 20, kDisk = kCpu + 1;
  int place_;
};

/// Parses "10GB" (powers of 1000) or "1GiB" (powers of 1024): a number and GB, MB, KB, GiB, MiB or KiB in any case. A
/// unit that ends in a lower-case b means bits: "8Gb" is 1 GB. Throws ArgumentError for other texts.
std::int64_t convert_file_size_to_int(std::string_view size);

/// A number of bytes, or a text that `convert_file_size_to_int` accepts.
struct ByteSize {
  template <std::integral Integer>
  ByteSize(Integer count) : bytes(static_cast<std::int64_t>(count)) {}        // NOLINT(google-explicit-constructor)
  ByteSize(std::string_view size) : bytes(convert_file_size_to_int(size)) {}  // NOLINT(google-explicit-constructor)
  ByteSize(const std::string& size) : ByteSize(std::string_view(size)) {}     // NOLINT(google-explicit-constructor)
  ByteSize(const char* size) : ByteSize(std::string_view(size)) {}            // NOLINT(google-explicit-constructor)
  std::int64_t bytes;
  friend bool operator==(const ByteSize&, const ByteSize&) = default;
};

using MaxMemory = std::map<MapDevice, ByteSize>;

/// Returns `max_memory` after checking it; if absent, the free memory of each GPU and of the machine, within the limit
/// of the control group. A device that does not exist here is not an error, since plans are also made for other
/// machines. Throws ArgumentError for a negative number.
MaxMemory get_max_memory(std::optional<MaxMemory> max_memory = std::nullopt);

}  // namespace accel
