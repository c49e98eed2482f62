#pragma once

#include <fmt/format.h>

#include <fstream>
#include <iostream>
#include <nlohmann/json.hpp>

#include "reference/core/errors.hpp"
#include "reference/run.hpp"
#include "reference/state/rank_context.hpp"

/// A user's program that live.py compares with Python, rank by rank:
///   sim-run --ranks N [--backend gloo] -- PROGRAM REQUESTS.jsonl FOLDER
/// Every rank writes FOLDER/rank<r>.jsonl: one object per request, `answer(rank, line)`.
namespace accel::testing {

template <typename Answer>
int answer_requests(int argc, char** argv, Answer answer) {
  return accel::run(argc, argv, [&](int argc, char** argv) {
    if (argc != 3) {
      std::cerr << "usage: " << argv[0] << " REQUESTS.jsonl FOLDER" << std::endl;
      return 2;
    }
    auto& rank = current_rank();
    std::ifstream in(argv[1]);
    std::ofstream out(fmt::format("{}/rank{}.jsonl", argv[2], rank.rank));
    for (std::string line; std::getline(in, line);) out << answer(rank, line).dump() << std::endl;
    check_state(out.good(), "{} cannot be written", argv[2]);
    rank.world.barrier();
    return 0;
  });
}

}  // namespace accel::testing
