#include "properties/gen/loader_part.hpp"

#include <nlohmann/json.hpp>
#include <optional>
#include <tuple>

#include "reference/accelerator/accelerator.hpp"
#include "reference/state/rng_sync.hpp"

namespace accel::testing::loader_program {
namespace {

// The loaders and the Accelerator of one rank.
class RunningPart {
 public:
  RunningPart(RankContext& rank, const Setup& setup)
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
        check_state(rank_.rank != step.number, "{}", failure_of(step));
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

}  // namespace

void run_part(RankContext& rank, const Part& part, const std::function<void(std::size_t step, std::string seen)>& see) {
  RunningPart running(rank, part.setup);
  if (!part.from.empty() && part.loads) running.load(part.from);
  auto newest = part.from;
  for (std::size_t index = 0; index < part.steps.size(); ++index) {
    const auto number = part.first + index;
    if (part.steps[index].kind == Kind::kSave) newest = part.folder_of(number);
    see(number, running.run(part.steps[index], newest));
  }
}

std::string to_json(const Part& part) {
  auto steps = nlohmann::json::array();
  for (const auto& step : part.steps) steps.push_back({static_cast<int>(step.kind), step.number, step.draws});
  const auto& setup = part.setup;
  return nlohmann::json{{"setup", {setup.ranks, setup.workers, setup.length, setup.batch_size, setup.eval_length}},
                        {"first", part.first},
                        {"steps", steps},
                        {"from", part.from},
                        {"folder", part.folder},
                        {"loads", part.loads}}
      .dump();
}

Part part_from_json(const std::string& json) {
  const auto read = nlohmann::json::parse(json);
  const auto& setup = read.at("setup");
  Part part{.setup = {.ranks = setup.at(0),
                      .workers = setup.at(1),
                      .length = setup.at(2),
                      .batch_size = setup.at(3),
                      .eval_length = setup.at(4)},
            .first = read.at("first"),
            .steps = {},
            .from = read.at("from"),
            .folder = read.at("folder"),
            .loads = read.at("loads")};
  for (const auto& step : read.at("steps"))
    part.steps.push_back({.kind = static_cast<Kind>(step.at(0).get<int>()), .number = step.at(1), .draws = step.at(2)});
  return part;
}

}  // namespace accel::testing::loader_program
