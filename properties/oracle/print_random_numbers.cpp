// Random numbers of every kind, for the comparison with Python:
//   sim-run --ranks N [--backend gloo] -- print-random-numbers REQUESTS.jsonl FOLDER
// Every rank writes FOLDER/rank<r>.jsonl: one object per request, from names to numbers, floats as hexadecimal.
#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "properties/gen/random_numbers.hpp"
#include "properties/oracle/answer_requests.hpp"

namespace accel::testing {
namespace {

using Json = nlohmann::ordered_json;

template <typename Number, typename Format>
void append(Json& list, const at::Tensor& numbers, Format&& format) {
  const auto* data = numbers.const_data_ptr<Number>();
  for (std::int64_t index = 0; index < numbers.numel(); ++index) list.push_back(format(data[index]));
}

Json listed(const std::vector<at::Tensor>& tensors) {
  auto list = Json::array();
  for (const auto& tensor : tensors) {
    const auto numbers = tensor.contiguous();
    if (numbers.is_floating_point()) {
      append<double>(list, numbers, [](double number) { return fmt::format("{:a}", number); });
    } else {
      append<std::int64_t>(list, numbers, [](std::int64_t number) { return number; });
    }
  }
  return list;
}

Json numbers(RankContext& rank, const std::string& request) {
  Json answer = Json::object();
  for (const auto& [name, tensors] : random_numbers(rank, parse_random_numbers_request(request))) answer[name] = listed(tensors);
  return answer;
}

}  // namespace
}  // namespace accel::testing

int main(int argc, char** argv) { return accel::testing::answer_requests(argc, argv, accel::testing::numbers); }
