// Runs of optimizers, for the comparison with Python: print-optimizer-runs REQUESTS.jsonl ANSWERS.jsonl, a line for a line.
#include <fstream>
#include <iostream>

#include "properties/gen/optimizer_runs.hpp"

int main(int argc, char** argv) {
  if (argc != 3) {
    std::cerr << "usage: " << argv[0] << " REQUESTS.jsonl ANSWERS.jsonl" << std::endl;
    return 2;
  }
  std::ifstream in(argv[1]);
  std::ofstream out(argv[2]);
  for (std::string line; std::getline(in, line);) {
    nlohmann::json answer;
    try {
      answer = accel::testing::run_optimizer(nlohmann::json::parse(line));
    } catch (const std::exception& error) {
      answer = {{"failure", error.what()}};
    }
    out << answer.dump() << std::endl;
  }
  return out.good() ? 0 : 1;
}
