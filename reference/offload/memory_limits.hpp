#pragma once

#include <compare>
#include <concepts>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>

/// How much memory each place has for a model's weights.
///
///     const auto limits = accel::get_max_memory(accel::MaxMemory{{0, "20GiB"}, {"cpu", "60GB"}});
///
/// Thread rule: values. Source: accelerate/utils/modeling.py.
namespace accel {

/// Where weights stay: the number of a GPU, "cpu" or "disk". In that order.
class MapDevice {
 public:
  MapDevice(int gpu);  // NOLINT(google-explicit-constructor): a device map reads as Python's
  /// "cpu", "disk", "cuda", "cuda:0" or "0"; throws ArgumentError for another.
  MapDevice(std::string_view name);                                          // NOLINT(google-explicit-constructor)
  MapDevice(const std::string& name) : MapDevice(std::string_view(name)) {}  // NOLINT(google-explicit-constructor)
  MapDevice(const char* name) : MapDevice(std::string_view(name)) {}         // NOLINT(google-explicit-constructor)

  [[nodiscard]] bool is_gpu() const { return place_ < kCpu; }
  [[nodiscard]] bool is_cpu() const { return place_ == kCpu; }
  [[nodiscard]] bool is_disk() const { return place_ == kDisk; }
  [[nodiscard]] int gpu() const { return place_; }
  /// "0", "cpu", "disk".
  [[nodiscard]] std::string name() const;
  friend auto operator<=>(const MapDevice&, const MapDevice&) = default;

 private:
  static constexpr int kCpu = 1 << 20, kDisk = kCpu + 1;
  int place_;
};

/// Bytes of "10GB" (powers of 1000) or "1GiB" (of 1024): a number and GB, MB, KB, GiB, MiB or KiB, in any case. A unit
/// that ends in a small b means bits: "8Gb" is 1 GB. Throws ArgumentError if it is none.
std::int64_t convert_file_size_to_int(std::string_view size);

/// A number of bytes, or a text of `convert_file_size_to_int`.
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

/// What is given, checked; else what is free now on each GPU and in main memory, of which a control group may allow
/// less than there is. A device that is given but not there is no error: plans are made for other machines too. Throws
/// ArgumentError for a negative number.
MaxMemory get_max_memory(std::optional<MaxMemory> max_memory = std::nullopt);

}  // namespace accel
