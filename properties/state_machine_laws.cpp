// A simple model predicts what every rank sees in random programs: read, skip, break, evaluate, gather, seed, save,
// load, load on another number of ranks, fail on one rank. Simulated ranks, Gloo between threads and Gloo between
// processes have to agree with it. Single features have properties of their own; this one finds what only their
// combinations do.
#include <fstream>

#include "properties/gen/loader_program.hpp"
#include "tests/programs/support/run_command.hpp"
#include "tests/support/property.hpp"
#include "tests/support/run_ranks.hpp"
#include "tests/support/temporary_folder.hpp"

namespace accel::testing::state_machine_laws {
namespace {

using namespace loader_program;

using Seen = std::vector<std::vector<std::string>>;  // by step and rank

// Runs a part on a number of ranks and stores what each rank sees. Throws if a rank fails.
using PartRunner = std::function<void(const Part& part, int ranks, Seen& seen)>;

PartRunner on(Backend backend) {
  return [backend](const Part& part, int ranks, Seen& seen) {
    run_ranks(backend, ranks, [&](RankContext& rank) {
      run_part(rank, part, [&](std::size_t step, std::string text) { seen[step][rank.rank] = std::move(text); });
    });
  };
}

void run_on_gloo_processes(const Part& part, int ranks, Seen& seen) {
  const TemporaryFolder folder;
  const auto run =
      run_command({bin("sim-run"), "--ranks", std::to_string(ranks), "--backend", "gloo", "--", bin("oracle-answers"),
                   "loader-programs", folder.write("requests.jsonl", to_json(part) + "\n"), folder.path()},
                  {.limit = std::chrono::minutes(2)});
  for (int rank = 0; rank < ranks; ++rank) {
    std::ifstream lines(part.seen_path(rank));
    std::string line;
    for (auto step = part.first; std::getline(lines, line); ++step) seen.at(step).at(rank) = line;
  }
  if (run.exit_code != 0) throw std::runtime_error(run.error);
}

// Runs the steps and returns what each rank saw in each. `loads`: false is a planted bug of the program.
Seen run(const PartRunner& run_on_ranks, const Setup& setup, const std::vector<Step>& steps, bool loads = true) {
  const TemporaryFolder folder;
  Seen seen(steps.size());
  int ranks = setup.ranks;
  std::string saved;
  for (std::size_t begin = 0; begin < steps.size();) {
    const auto ends_part = [](const Step& step) { return step.kind == Kind::kLoadOn || step.kind == Kind::kThrow; };
    const auto last = std::find_if(steps.begin() + static_cast<std::ptrdiff_t>(begin), steps.end(), ends_part);
    const bool throws = last != steps.end() && last->kind == Kind::kThrow;
    const auto end = static_cast<std::size_t>(last - steps.begin());
    const Part part{.setup = setup,
                    .first = begin,
                    .steps = {steps.begin() + static_cast<std::ptrdiff_t>(begin), throws ? last + 1 : last},
                    .from = saved,
                    .folder = folder.path(),
                    .loads = loads};
    for (auto index = begin; index < std::min(end + 1, steps.size()); ++index) seen[index].resize(ranks);
    try {
      run_on_ranks(part, ranks, seen);
      if (throws) seen[end].assign(1, "no rank failed");
    } catch (const std::exception& error) {
      if (!throws) throw;
      const auto expected = failure_of(*last);
      seen[end].assign(1, std::string(error.what()).find(expected) == std::string::npos ? error.what() : expected);
    }
    for (auto index = begin; index < end; ++index) {
      if (steps[index].kind == Kind::kSave) saved = part.folder_of(index);
    }
    if (last != steps.end() && last->kind == Kind::kLoadOn) {
      ranks = static_cast<int>(last->number);
      seen[end].assign(1, kNames[static_cast<int>(last->kind)]);
    }
    begin = end + 1;
  }
  return seen;
}

void check_program(const PartRunner& run_on_ranks, int num_steps, bool loads = true) {
  Model model(*any_setup());
  const auto steps = any_steps(model, num_steps);
  predict(steps, model);
  const auto seen = run(run_on_ranks, model.setup, steps, loads);
  for (std::size_t index = 0; index < steps.size(); ++index) {
    RC_LOG(fmt::format("step {}: {}; expected {}", index, seen[index], model.seen[index]));
    // A step that shows nothing is recorded once in the model, and by every rank.
    auto expected = model.seen[index];
    if (expected.size() == 1) expected.resize(seen[index].size(), expected.front());
    RC_ASSERT(seen[index] == expected);
  }
}

TEST(StateMachineLaws, AProgramSeesWhatTheModelPredicts) {
  expect_property(60, [] { check_program(on(Backend::kSim), 40); });
}

// The model is the same, so simulated ranks and Gloo agree too.
TEST(StateMachineLaws, TheSameOnGloo) {
  expect_property(15, [] { check_program(on(Backend::kGlooThreads), 25); });
}

TEST(StateMachineLaws, TheSameOnGlooProcesses) {
  expect_property(8, [] { check_program(&run_on_gloo_processes, 25); });
}

TEST(StateMachineLaws, AProgramThatForgetsToLoadIsFound) {
  expect_property_fails("nothing is loaded", 100, [] { check_program(on(Backend::kSim), 40, /*loads=*/false); });
}

}  // namespace
}  // namespace accel::testing::state_machine_laws
