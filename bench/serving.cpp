#include "bench/serving.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <istream>
#include <nlohmann/json.hpp>
#include <ostream>
#include <string>

#include "bench/record.hpp"

namespace accel::bench {
namespace {

std::string answer(const Rows& rows, const std::string& request) {
  if (request == "rows") {
    auto list = nlohmann::json::array();
    for (const auto& row : rows) {
      if (row.compared) list.push_back({{"name", row.name}, {"unit", row.unit}});
    }
    return list.dump();
  }
  if (request == "origin") return record_of_run({}, "").dump();
  const auto row = std::find_if(rows.begin(), rows.end(), [&](const auto& each) { return each.name == request; });
  if (row == rows.end()) return fmt::format("error: there is no row '{}'", request);
  try {
    return fmt::format("{}", row->measure());
  } catch (const std::exception& error) {
    std::string message = error.what();
    std::replace(message.begin(), message.end(), '\n', ' ');
    return "error: " + message;
  }
}

}  // namespace

void answer_requests(const Rows& rows, std::istream& in, std::ostream& out) {
  for (std::string request; std::getline(in, request);) out << answer(rows, request) << std::endl;
}

}  // namespace accel::bench
