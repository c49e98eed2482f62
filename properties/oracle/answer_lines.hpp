#pragma once

#include <fstream>
#include <iostream>
#include <nlohmann/json.hpp>

/// A program that live.py compares with Python, in one process: PROGRAM REQUESTS.jsonl ANSWERS.jsonl, a line for a line.
/// `answer(request)` is JSON; an exception is an answer too: {"failure": why}. See answer_requests.hpp for one that runs on ranks.
namespace accel::testing {

template <typename Answer>
int answer_lines(int argc, char** argv, Answer answer) {
  if (argc != 3) {
    std::cerr << "usage: " << argv[0] << " REQUESTS.jsonl ANSWERS.jsonl" << std::endl;
    return 2;
  }
  std::ifstream in(argv[1]);
  std::ofstream out(argv[2]);
  for (std::string line; std::getline(in, line);) {
    nlohmann::json result;
    try {
      result = answer(nlohmann::json::parse(line));
    } catch (const std::exception& error) {
      result = {{"failure", error.what()}};
    }
    out << result.dump() << std::endl;
  }
  return out.good() ? 0 : 1;
}

}  // namespace accel::testing
