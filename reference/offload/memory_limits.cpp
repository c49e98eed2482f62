#include "reference/offload/memory_limits.hpp"

#include <ATen/Context.h>
#include <ATen/DeviceAccelerator.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <fstream>

#include "reference/core/errors.hpp"
#include "reference/core/letter_case.hpp"

namespace accel {
namespace {

// from_chars accepts neither leading spaces nor a plus sign.
std::optional<int> whole_number(std::string_view text) {
  int number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  return error == std::errc() && end == text.data() + text.size() && number >= 0 ? std::optional(number) : std::nullopt;
}

struct SizeUnit {
  std::string_view name;
  double bytes;
};
// Compared as suffixes; the order does not matter, because no unit is a suffix of another.
constexpr std::array kSizeUnits{SizeUnit{"GIB", 1 << 30}, SizeUnit{"MIB", 1 << 20}, SizeUnit{"KIB", 1 << 10},
                                SizeUnit{"GB", 1e9},      SizeUnit{"MB", 1e6},      SizeUnit{"KB", 1e3}};

std::string_view without_spaces(std::string_view text) {
  while (!text.empty() && text.front() == ' ') text.remove_prefix(1);
  while (!text.empty() && text.back() == ' ') text.remove_suffix(1);
  return text;
}

std::optional<std::int64_t> bytes_of_size(std::string_view size) {
  const auto upper = upper_case(std::string(size));
  for (const auto& unit : kSizeUnits) {
    if (!upper.ends_with(unit.name)) continue;
    const auto number = without_spaces(size.substr(0, size.size() - unit.name.size()));
    double value = 0;
    const auto [end, error] = std::from_chars(number.data(), number.data() + number.size(), value);
    const auto bytes = value * unit.bytes;
    // Written so that NaN is rejected, too; the bound keeps the conversion to int64 defined.
    if (error != std::errc() || end != number.data() + number.size() || !(bytes >= 0 && bytes < 9.2e18))
      return std::nullopt;
    // As in Python: "8Gb" are gigabits. Binary units have no such form.
    const bool is_bits = unit.name.size() == 2 && size.back() == 'b';
    return static_cast<std::int64_t>(bytes) / (is_bits ? 8 : 1);
  }
  return std::nullopt;
}

std::optional<std::int64_t> number_in(const std::string& path) {
  std::ifstream file(path);
  std::int64_t number = 0;
  return file >> number ? std::optional(number) : std::nullopt;
}

// Reads the line "MemAvailable:   123 kB". In a container /proc/meminfo shows the host's memory, so the control group's
// limit (cgroup v2) is applied; without a limit, memory.max contains "max" and number_in returns nothing.
std::int64_t available_memory() {
  std::ifstream file("/proc/meminfo");
  std::int64_t available = 0;
  for (std::string word; file >> word;) {
    if (word == "MemAvailable:" && file >> available) available *= 1024;
  }
  const auto limit = number_in("/sys/fs/cgroup/memory.max"), used = number_in("/sys/fs/cgroup/memory.current");
  return limit && used ? std::clamp<std::int64_t>(*limit - *used, 0, available) : available;
}

}  // namespace

MapDevice::MapDevice(int gpu) : place_(gpu) {
  check_argument(gpu >= 0 && gpu < kCpu, "device {}: expected the number of a GPU, \"cpu\" or \"disk\"", gpu);
}

// The spellings that Python's device maps accept, including torch's "cuda:0".
MapDevice::MapDevice(std::string_view name) : place_(name == "cpu" ? kCpu : name == "disk" ? kDisk : -1) {
  if (place_ >= 0) return;
  if (name == "cuda") name = "0";
  if (name.starts_with("cuda:")) name.remove_prefix(5);
  // -1 is a marker for the check below, never a value after construction.
  place_ = whole_number(name).value_or(-1);
  check_argument(place_ >= 0 && place_ < kCpu, "device '{}': expected the number of a GPU, \"cpu\" or \"disk\"", name);
}

std::string MapDevice::name() const { return is_cpu() ? "cpu" : is_disk() ? "disk" : std::to_string(place_); }

std::int64_t convert_file_size_to_int(std::string_view size) {
  const auto bytes = bytes_of_size(size);
  check_argument(bytes.has_value(), "size '{}': expected a number and GB, MB, KB, GiB, MiB or KiB, like 5.0GB", size);
  return *bytes;
}

MaxMemory get_max_memory(std::optional<MaxMemory> max_memory) {
  if (max_memory) {
    for (const auto& [device, size] : *max_memory)
      check_argument(size.bytes >= 0, "max_memory of device {}: got {} bytes; expected 0 or more", device.name(),
                     size.bytes);
    return *std::move(max_memory);
  }
  MaxMemory free;
  // Only CUDA devices count; the build's accelerator may be of another kind.
  const int num_gpus = at::globalContext().hasCUDA() ? at::accelerator::deviceCount() : 0;
  for (int gpu = 0; gpu < num_gpus; ++gpu)
    free.emplace(gpu, at::accelerator::getMemoryInfo(static_cast<c10::DeviceIndex>(gpu)).first);
  free.emplace("cpu", available_memory());
  return free;
}

}  // namespace accel
