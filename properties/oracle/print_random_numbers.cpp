// Random numbers of every kind, for the comparison with Python:
//   print-random-numbers REQUESTS.jsonl FOLDER          one process, or one rank of a launcher
//   print-random-numbers REQUESTS.jsonl FOLDER RANKS    as many simulated ranks
// Every rank writes FOLDER/rank<r>.jsonl: one object per request, from names to numbers, floats as hexadecimal.
#include <fmt/format.h>

#include <fstream>
#include <iostream>
#include <nlohmann/json.hpp>

#include "properties/gen/random_numbers.hpp"
#include "reference/run.hpp"
#include "sim/backend/simulate.hpp"

namespace accel::testing {
namespace {

using Json = nlohmann::ordered_json;

RandomNumbersRequest parse(const Json& json) {
  RandomNumbersRequest request{.seed = json.at("seed"), .device_specific = json.at("device_specific"), .count = json.at("count"),
                               .use_seedable_sampler = json.at("use_seedable_sampler")};
  if (!json.at("data_seed").is_null()) request.data_seed = json.at("data_seed").get<std::int64_t>();
  return request;
}

void append(Json& list, const at::Tensor& numbers) {
  if (numbers.is_floating_point()) {
    for (const double* number = numbers.const_data_ptr<double>(); const auto index : c10::irange(numbers.numel())) list.push_back(fmt::format("{:a}", number[index]));
  } else {
    for (const std::int64_t* number = numbers.const_data_ptr<std::int64_t>(); const auto index : c10::irange(numbers.numel())) list.push_back(number[index]);
  }
}

void write_numbers(RankContext& rank, const std::string& requests, const std::string& folder) {
  std::ifstream in(requests);
  std::ofstream out(fmt::format("{}/rank{}.jsonl", folder, rank.rank));
  for (std::string line; std::getline(in, line);) {
    Json answer = Json::object();
    for (const auto& [name, tensors] : random_numbers(rank, parse(Json::parse(line)))) {
      auto& list = answer[name] = Json::array();
      for (const auto& numbers : tensors) append(list, numbers.contiguous());
    }
    out << answer.dump() << std::endl;
  }
  rank.world.barrier();
}

int main_of_rank(int argc, char** argv) {
  if (argc != 3) {
    std::cerr << "usage: " << argv[0] << " REQUESTS.jsonl FOLDER [RANKS]" << std::endl;
    return 2;
  }
  write_numbers(current_rank(), argv[1], argv[2]);
  return 0;
}

}  // namespace
}  // namespace accel::testing

int main(int argc, char** argv) {
  using namespace accel;
  if (argc != 4) return accel::run(argc, argv, testing::main_of_rank);
  sim::simulate({.num_ranks = std::stoi(argv[3])}, [&](RankContext& rank) { testing::write_numbers(rank, argv[1], argv[2]); });
  return 0;
}
