#pragma once

#include <cstdint>
#include <string>

/// Formats numbers for reading: three significant digits and a unit. Thread rule: any thread.
namespace accel::sim::report {

std::string number_text(double value);                            ///< "0.0123", "1,234", "1.2e+09"
std::string seconds_text(double seconds);                         ///< "12.3 ms"
std::string bytes_text(double bytes);                             ///< "1.23 GB", of 1000 MB
std::string count_text(std::int64_t count);                       ///< "1,234,567"
std::string percent_text(double share);                           ///< "93 %", "4.2 %"
std::string plural(std::int64_t count, const std::string& noun);  ///< "1 rank", "2 ranks"

}  // namespace accel::sim::report
