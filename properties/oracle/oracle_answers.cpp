// The C++ side of the comparison with Python:
//   oracle-answers KIND REQUESTS.jsonl ANSWERS.jsonl
//   sim-run --ranks N [--backend gloo] -- oracle-answers KIND REQUESTS.jsonl FOLDER
// Writes one answer per line. The second form is for kinds that run on ranks, each of which writes
// FOLDER/rank<r>.jsonl. An exception in the first form is an answer too: {"failure": why}.
#include <fmt/format.h>

#include <fstream>
#include <iostream>
#include <map>

#include "properties/gen/metric_values.hpp"
#include "properties/gen/optimizer_runs.hpp"
#include "properties/gen/tokenizer_values.hpp"
#include "properties/oracle/answers.hpp"
#include "reference/core/errors.hpp"
#include "reference/run.hpp"
#include "reference/state/rank_context.hpp"

namespace accel::testing {
namespace {

using Answer = Json (*)(const Json& request);
using RankAnswer = OrderedJson (*)(RankContext& rank, const std::string& request);

Json metric_answer(const Json& request) {
  const auto rank = make_single_rank();
  const RankScope scope(*rank);
  return {{"value", metric_value(request)}};
}

const std::map<std::string, Answer> kAnswers{{"checkpoint-files", checkpoint_file_answer},
                                             {"device-maps", device_map_answer},
                                             {"hooks", hook_answer},
                                             {"metrics", metric_answer},
                                             {"models", model_answer},
                                             {"optimizer-operators", operators_of_step},
                                             {"optimizer-runs", run_optimizer},
                                             {"pipelines", pipeline_answer},
                                             {"schedules", schedule_answer},
                                             {"tokenizers", tokenizer_values},
                                             {"tracked-runs", tracked_run_answer}};
const std::map<std::string, RankAnswer> kRankAnswers{{"checkpoints", checkpoint_answer},
                                                     {"context-parallel", context_parallel_answer},
                                                     {"ddp-trainings", ddp_training_answer},
                                                     {"loader-programs", loader_program_answer},
                                                     {"mixtures", mixture_answer},
                                                     {"parallel-layers", parallel_layer_answer},
                                                     {"pipeline-runs", pipeline_run_answer},
                                                     {"plans", plan_answer},
                                                     {"random-numbers", random_number_answer}};

// Flushes every line, so that the answers before a crash are kept.
int answer_lines(Answer answer, const std::string& requests, const std::string& answers) {
  std::ifstream in(requests);
  std::ofstream out(answers);
  for (std::string line; std::getline(in, line);) {
    Json result;
    try {
      result = answer(Json::parse(line));
    } catch (const std::exception& error) {
      result = {{"failure", error.what()}};
    }
    out << result.dump() << std::endl;
  }
  return out.good() ? 0 : 1;
}

int answer_on_this_rank(RankAnswer answer, const std::string& requests, const std::string& folder) {
  auto& rank = current_rank();
  std::ifstream in(requests);
  std::ofstream out(fmt::format("{}/rank{}.jsonl", folder, rank.rank));
  for (std::string line; std::getline(in, line);) out << answer(rank, line).dump() << std::endl;
  check_state(out.good(), "{} cannot be written", folder);
  // A rank that ended early would be a lost peer for those that still write.
  rank.world.barrier();
  return 0;
}

int wrong_usage() {
  std::cerr << "usage: oracle-answers KIND REQUESTS.jsonl ANSWERS, where KIND is one of";
  for (const auto& [kind, answer] : kAnswers) std::cerr << " " << kind;
  for (const auto& [kind, answer] : kRankAnswers) std::cerr << " " << kind;
  std::cerr << std::endl;
  return 2;
}

int answer_requests(int argc, char** argv) {
  if (argc != 4) return wrong_usage();
  if (const auto found = kAnswers.find(argv[1]); found != kAnswers.end())
    return answer_lines(found->second, argv[2], argv[3]);
  const auto found = kRankAnswers.find(argv[1]);
  if (found == kRankAnswers.end()) return wrong_usage();
  return run(argc, argv, [&](int, char**) { return answer_on_this_rank(found->second, argv[2], argv[3]); });
}

}  // namespace
}  // namespace accel::testing

int main(int argc, char** argv) { return accel::testing::answer_requests(argc, argv); }
