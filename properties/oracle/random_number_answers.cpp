// Answers with the random numbers of every kind, by name. Floats are hexadecimal, so that no digit is lost.
#include <fmt/format.h>

#include "properties/gen/random_numbers.hpp"
#include "properties/oracle/answers.hpp"

namespace accel::testing {
namespace {

template <typename Number, typename Format>
void append(OrderedJson& list, const at::Tensor& numbers, Format&& format) {
  const auto* data = numbers.const_data_ptr<Number>();
  for (std::int64_t index = 0; index < numbers.numel(); ++index) list.push_back(format(data[index]));
}

OrderedJson listed(const std::vector<at::Tensor>& tensors) {
  auto list = OrderedJson::array();
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

}  // namespace

OrderedJson random_number_answer(RankContext& rank, const std::string& request) {
  OrderedJson answer = OrderedJson::object();
  for (const auto& [name, tensors] : random_numbers(rank, parse_random_numbers_request(request)))
    answer[name] = listed(tensors);
  return answer;
}

}  // namespace accel::testing
