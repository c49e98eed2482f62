// A simple model predicts what every rank sees in random programs: read, skip, break, evaluate, gather, seed, save,
// load, load on another number of ranks, fail on one rank. Simulated ranks and Gloo have to agree with it. Single
// features have properties of their own; this one finds what only their combinations do.
#include "properties/gen/loader_program.hpp"
#include "reference/accelerator/accelerator.hpp"
#include "reference/state/rng_sync.hpp"
#include "tests/support/property.hpp"
#include "tests/support/run_ranks.hpp"
#include "tests/support/temporary_folder.hpp"

namespace accel::testing::state_machine_laws {
namespace {

using namespace loader_program;

using Seen = std::vector<std::vector<std::string>>;

// One process of one rank: it lives until the program continues on other ranks, or fails.
class Life {
 public:
  Life(RankContext& rank, const Setup& setup)
      : rank_(rank),
        accelerator_({.dataloader_config = {.use_seedable_sampler = true, .data_seed = kDataSeed}}, rank),
        train_(accelerator_.prepare(
            DataLoader(TensorDataset(at::arange(setup.length)),
                       {.batch_size = setup.batch_size, .shuffle = true, .num_workers = setup.workers}))),
        eval_(accelerator_.prepare(DataLoader(TensorDataset(at::arange(setup.eval_length)), {.batch_size = 2}))) {
    set_seed(kFirstSeed, {.device_specific = true});
  }

  // Returns what the rank sees in this step.
  std::string run(const Step& step, const std::string& folder) {
    switch (step.kind) {
      case Kind::kNext:
        if (pass_) {
          ++*pass_;
        } else {
          pass_.emplace(train_.begin());
        }
        return current();
      case Kind::kSkip: {
        pass_.reset();
        auto rest = skip_first_batches(train_, step.number);
        pass_.emplace(rest.begin());
        return current();
      }
      case Kind::kBreak: pass_.reset(); break;
      case Kind::kEvaluate: {
        Ids all;
        for (auto& [ids] : eval_) {
          const auto gathered = ids_of(accelerator_.gather_for_metrics(ids));
          all.insert(all.end(), gathered.begin(), gathered.end());
        }
        return fmt::format("evaluated {}", all);
      }
      case Kind::kGather: {
        const auto all = pass_ ? ids_of(accelerator_.gather_for_metrics(std::get<0>(**pass_))) : Ids();
        const auto numbers =
            step.draws ? ids_of(accelerator_.gather(at::full({1}, draw_int64(default_generator()), at::kLong))) : Ids();
        return fmt::format("gathered {}, numbers {}", all, numbers);
      }
      case Kind::kSetSeed: set_seed(static_cast<std::uint64_t>(step.number), {.device_specific = true}); break;
      case Kind::kSave: accelerator_.save_state(folder); break;
      case Kind::kLoad: load(folder); break;
      case Kind::kThrow:
        check_state(rank_.rank != step.number, "{}", Command::failure_of(step));
        rank_.world.barrier();
        break;
      default: break;
    }
    return kNames[static_cast<int>(step.kind)];
  }

  void load(const std::string& folder) {
    pass_.reset();
    accelerator_.load_state(folder);
  }

 private:
  using Loader = decltype(std::declval<Accelerator&>().prepare(
      DataLoader(std::declval<TensorDataset<at::Tensor>>(), DataLoaderOptions())));

  std::string current() {
    if (*pass_ == std::default_sentinel) {
      pass_.reset();
      return "end";
    }
    return text_of_batch(ids_of(std::get<0>(**pass_)), accelerator_.gradient_state().end_of_dataloader());
  }

  RankContext& rank_;
  Accelerator accelerator_;
  Loader train_, eval_;
  std::optional<decltype(std::declval<Loader&>().begin())> pass_;
};

// Runs the steps and returns what each rank saw in each. `forgets_to_load`: a planted bug of the program.
Seen run(Backend backend, const Setup& setup, const std::vector<Step>& steps, bool forgets_to_load = false) {
  const TemporaryFolder folder;
  Seen seen(steps.size());
  int ranks = setup.ranks;
  std::string saved;
  for (std::size_t begin = 0; begin < steps.size();) {
    const auto ends_life = [](const Step& step) { return step.kind == Kind::kLoadOn || step.kind == Kind::kThrow; };
    const auto last = std::find_if(steps.begin() + static_cast<std::ptrdiff_t>(begin), steps.end(), ends_life);
    const auto end = static_cast<std::size_t>(last - steps.begin());
    const auto from = saved;
    const auto folder_of = [&](std::size_t index) { return folder.path(fmt::format("save{}", index)); };
    for (auto index = begin; index < end; ++index) seen[index].resize(ranks);
    if (last != steps.end()) seen[end].assign(1, "no rank failed");
    try {
      run_ranks(backend, ranks, [&](RankContext& rank) {
        Life life(rank, setup);
        if (!from.empty() && !forgets_to_load) life.load(from);
        auto newest = from;
        for (auto index = begin; index < end; ++index) {
          if (steps[index].kind == Kind::kSave) newest = folder_of(index);
          seen[index][rank.rank] = life.run(steps[index], newest);
        }
        if (last != steps.end() && last->kind == Kind::kThrow) life.run(*last, "");
      });
    } catch (const std::exception& error) {
      if (last == steps.end() || last->kind != Kind::kThrow) throw;
      const auto expected = Command::failure_of(*last);
      seen[end].assign(1, std::string(error.what()).find(expected) == std::string::npos ? error.what() : expected);
    }
    for (auto index = begin; index < end; ++index) {
      if (steps[index].kind == Kind::kSave) saved = folder_of(index);
    }
    if (last != steps.end() && last->kind == Kind::kLoadOn) {
      ranks = static_cast<int>(last->number);
      seen[end].assign(1, kNames[static_cast<int>(last->kind)]);
    }
    begin = end + 1;
  }
  return seen;
}

void check_program(Backend backend, int num_steps, bool forgets_to_load = false) {
  Model model(*any_setup());
  const auto steps = any_steps(model, num_steps);
  predict(steps, model);
  const auto seen = run(backend, model.setup, steps, forgets_to_load);
  for (std::size_t index = 0; index < steps.size(); ++index) {
    RC_LOG(fmt::format("step {}: {}; expected {}", index, seen[index], model.seen[index]));
    // A step that shows nothing is recorded once in the model, and by every rank.
    auto expected = model.seen[index];
    if (expected.size() == 1) expected.resize(seen[index].size(), expected.front());
    RC_ASSERT(seen[index] == expected);
  }
}

TEST(StateMachineLaws, AProgramSeesWhatTheModelPredicts) {
  expect_property(60, [] { check_program(Backend::kSim, 40); });
}

// The model is the same, so simulated ranks and Gloo agree too.
TEST(StateMachineLaws, TheSameOnGloo) {
  expect_property(15, [] { check_program(Backend::kGlooThreads, 25); });
}

TEST(StateMachineLaws, AProgramThatForgetsToLoadIsFound) {
  expect_property_fails("nothing is loaded", 100, [] { check_program(Backend::kSim, 40, /*forgets_to_load=*/true); });
}

}  // namespace
}  // namespace accel::testing::state_machine_laws
