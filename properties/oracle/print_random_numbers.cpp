// Random numbers of every kind, for the comparison with Python:
//   sim-run --ranks N [--backend gloo] -- print-random-numbers REQUESTS.jsonl FOLDER
// Every rank writes FOLDER/rank<r>.jsonl: one object per request, from names to numbers, floats as hexadecimal.
#include <fmt/format.h>

#include <fstream>
#include <iostream>
#include <nlohmann/json.hpp>

#include "properties/gen/random_numbers.hpp"
#include "reference/core/errors.hpp"
#include "reference/run.hpp"

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

void write_numbers(RankContext& rank, const std::string& requests, const std::string& folder) {
  std::ifstream in(requests);
  std::ofstream out(fmt::format("{}/rank{}.jsonl", folder, rank.rank));
  for (std::string line; std::getline(in, line);) {
    Json answer = Json::object();
    for (const auto& [name, tensors] : random_numbers(rank, parse_random_numbers_request(line))) answer[name] = listed(tensors);
    out << answer.dump() << std::endl;
  }
  check_state(out.good(), "{} cannot be written", folder);
  rank.world.barrier();
}

int main_of_rank(int argc, char** argv) {
  if (argc != 3) {
    std::cerr << "usage: " << argv[0] << " REQUESTS.jsonl FOLDER" << std::endl;
    return 2;
  }
  write_numbers(current_rank(), argv[1], argv[2]);
  return 0;
}

}  // namespace
}  // namespace accel::testing

int main(int argc, char** argv) { return accel::run(argc, argv, accel::testing::main_of_rank); }
