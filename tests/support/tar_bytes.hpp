#pragma once

#include <fmt/format.h>

#include <cstring>
#include <string>

/// Builds tar archives by hand, so that the reader is not tested with its own writer.
namespace accel::testing {

enum class LongName { kGnu, kPax, kPrefix };

inline std::string padded_to_block(std::string bytes) {
  bytes.resize((bytes.size() + 511) / 512 * 512);
  return bytes;
}

inline std::string tar_header(const std::string& name, std::size_t size, char type, const std::string& prefix = "",
                              const std::string& link = "") {
  std::string block(512, '\0');
  const auto put = [&](std::size_t place, const std::string& text) { block.replace(place, text.size(), text); };
  put(0, name.substr(0, 100));
  put(100, "0000644");
  put(124, fmt::format("{:011o}", size));
  put(148, std::string(8, ' '));
  block[156] = type;
  put(157, link);
  put(257, std::string("ustar\0", 6) + "00");
  put(345, prefix);
  std::size_t sum = 0;
  for (const char byte : block) sum += static_cast<unsigned char>(byte);
  put(148, fmt::format("{:06o}", sum) + std::string("\0 ", 2));
  return block;
}

inline std::string pax_record(const std::string& key, const std::string& value) {
  const auto rest = " " + key + "=" + value + "\n";
  auto length = rest.size() + 1;
  while (std::to_string(length).size() + rest.size() != length) ++length;
  return std::to_string(length) + rest;
}

inline std::string tar_member(const std::string& name, const std::string& data, LongName how = LongName::kGnu) {
  std::string bytes, prefix, short_name = name;
  if (name.size() > 100 && how == LongName::kPrefix) {
    const auto slash = name.rfind('/');
    prefix = name.substr(0, slash);
    short_name = name.substr(slash + 1);
  } else if (name.size() > 100) {
    const auto extension = how == LongName::kGnu ? name + '\0' : pax_record("path", name);
    bytes =
        tar_header("././@LongLink", extension.size(), how == LongName::kGnu ? 'L' : 'x') + padded_to_block(extension);
  }
  return bytes + tar_header(short_name, data.size(), '0', prefix) + padded_to_block(data);
}

inline std::string tar_end() { return std::string(1024, '\0'); }

}  // namespace accel::testing
