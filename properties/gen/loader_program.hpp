#pragma once

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <rapidcheck/state.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <numeric>
#include <optional>
#include <ostream>
#include <string>
#include <vector>

#include "properties/gen/loader_part.hpp"
#include "properties/gen/loader_sizes.hpp"
#include "reference/data/samplers/sampler.hpp"
#include "reference/rank_local/random.hpp"

/// Random programs that use a loader and an Accelerator, and a model that predicts what each rank sees in each step.
///
/// Example:
///
///     Model model(*any_setup());
///     const auto steps = any_steps(model, 40);   // inside a property
///     predict(steps, model);                     // model.seen[step][rank] is a line of text
namespace accel::testing::loader_program {

// --- the model -------------------------------------------------------------------------------------------------------

// The random numbers of rank r are those of a generator with seed + r, after some draws.
struct Random {
  std::uint64_t seed = kFirstSeed;
  int num_drawn = 0;
};

struct Model {
  struct Place {
    std::int64_t epoch = 0;
    std::optional<std::int64_t> num_read = {};  ///< samples of the epoch that were handed out, over all ranks
  };
  struct Saved {
    Place place;
    std::optional<Random> random;
    int ranks = 1;
  };

  Setup setup;
  int ranks = 1;
  Place place;
  std::optional<std::int64_t> open;         ///< a pass is open; the first sample of its current step
  bool is_loaded = false;                   ///< the next pass continues at the place
  std::optional<Random> random = Random();  ///< unknown on ranks that loaded another number of ranks' state
  std::optional<Saved> saved;
  std::vector<std::vector<std::string>> seen;  ///< what the program sees, by step and rank

  explicit Model(const Setup& of) : setup(of), ranks(of.ranks) {}
  [[nodiscard]] std::int64_t step_size() const { return setup.batch_size * ranks; }
  [[nodiscard]] std::int64_t position() const { return is_loaded ? place.num_read.value_or(0) : 0; }
};

inline Ids order_of(const Model& model) {
  SeedableRandomSampler sampler(model.setup.length, kDataSeed);
  sampler.set_epoch(model.place.epoch);
  auto order = sampler.begin_pass();
  for (auto more = sampler.continue_pass(); !more.empty(); more = sampler.continue_pass())
    order.insert(order.end(), more.begin(), more.end());
  return order;
}

// Hands out the next batch after `begin` samples, or ends the pass.
inline void hand_out(Model& model, std::int64_t begin) {
  auto& seen = model.seen.back();
  const auto length = model.setup.length;
  model.open.reset();
  if (begin >= length) {
    model.place = {.epoch = model.place.epoch + 1};
    seen.assign(model.ranks, "end");
    return;
  }
  const auto order = order_of(model);
  for (int rank = 0; rank < model.ranks; ++rank) {
    Ids ids;
    for (std::int64_t row = 0; row < model.setup.batch_size; ++row) {
      const auto position = begin + rank * model.setup.batch_size + row;
      // The last step is padded with the start of the order, except on a single rank.
      if (model.ranks > 1 || position < length) ids.push_back(order[position % length]);
    }
    seen.push_back(text_of_batch(ids, begin + model.step_size() >= length));
  }
  model.open = begin;
  model.place.num_read = std::min(begin + model.step_size(), length);
}

// Begins a pass, which draws the seed of the loader's workers unless it continues another one.
inline void begin_pass(Model& model, std::int64_t num_skipped) {
  const auto begin = model.position() + num_skipped * model.step_size();
  if (!(model.is_loaded && model.place.num_read) && model.random) ++model.random->num_drawn;
  model.is_loaded = false;
  hand_out(model, begin);
}

inline void restore(Model& model, int ranks) {
  if (model.saved) {
    model.place = model.saved->place;
    model.random = ranks == model.saved->ranks ? model.saved->random : std::nullopt;
  } else {
    model.place = {};
    model.random = Random();
  }
  model.ranks = ranks;
  model.open.reset();
  model.is_loaded = true;
}

inline std::int64_t next_number(const Random& random, int rank) {
  const auto generator = make_generator(random.seed + static_cast<std::uint64_t>(rank));
  for (int draw = 0; draw < random.num_drawn; ++draw) draw_int64(generator);
  return draw_int64(generator);
}

// --- the commands ----------------------------------------------------------------------------------------------------

struct Nothing {};  // the model predicts the run, so no system is changed step by step

using AnyCommand = rc::state::Command<Model, Nothing>;

struct Command : AnyCommand {
  explicit Command(Step of) : step(of) {}
  const Step step;

  void checkPreconditions(const Model& model) const override {
    if (step.kind == Kind::kBreak) RC_PRE(model.open.has_value());
    if (step.kind == Kind::kLoad || step.kind == Kind::kLoadOn) RC_PRE(model.saved.has_value());
    if (step.kind == Kind::kThrow) RC_PRE(step.number < model.ranks);
    if (step.kind == Kind::kGather) RC_PRE(!step.draws || model.random.has_value());
    // At least one batch remains.
    if (step.kind == Kind::kSkip) RC_PRE(model.position() + step.number * model.step_size() < model.setup.length);
  }

  void apply(Model& model) const override {
    auto& seen = model.seen.emplace_back();
    switch (step.kind) {
      case Kind::kNext:
        if (model.open) {
          hand_out(model, *model.place.num_read);
        } else {
          begin_pass(model, 0);
        }
        break;
      case Kind::kSkip: begin_pass(model, step.number); break;
      case Kind::kBreak: model.open.reset(); break;
      case Kind::kEvaluate: {
        Ids all(model.setup.eval_length);
        std::iota(all.begin(), all.end(), std::int64_t{0});
        if (model.random) ++model.random->num_drawn;
        seen.assign(model.ranks, fmt::format("evaluated {}", all));
        break;
      }
      case Kind::kGather: gather(model); break;
      case Kind::kSetSeed: model.random = Random{.seed = static_cast<std::uint64_t>(step.number)}; break;
      case Kind::kSave:
        model.saved = Model::Saved{.place = model.place, .random = model.random, .ranks = model.ranks};
        break;
      case Kind::kLoad: restore(model, model.ranks); break;
      case Kind::kLoadOn: restore(model, static_cast<int>(step.number)); break;
      case Kind::kThrow:
        seen.assign(1, failure_of(step));
        restore(model, model.ranks);
        break;
      case Kind::kCount: break;
    }
    if (model.seen.back().empty()) model.seen.back().assign(1, kNames[static_cast<int>(step.kind)]);
  }

  void show(std::ostream& out) const override {
    out << kNames[static_cast<int>(step.kind)];
    if (step.kind == Kind::kGather) out << (step.draws ? " with numbers" : "");
    if (step.kind == Kind::kSkip || step.kind == Kind::kSetSeed || step.kind == Kind::kLoadOn ||
        step.kind == Kind::kThrow)
      out << " " << step.number;
  }

 private:
  void gather(Model& model) const {
    Ids all, numbers;
    if (model.open) {
      const auto order = order_of(model);
      all.assign(order.begin() + *model.open, order.begin() + *model.place.num_read);
    }
    if (step.draws) {
      for (int rank = 0; rank < model.ranks; ++rank) numbers.push_back(next_number(*model.random, rank));
      ++model.random->num_drawn;
    }
    model.seen.back().assign(model.ranks, fmt::format("gathered {}, numbers {}", all, numbers));
  }
};

inline rc::Gen<std::shared_ptr<const AnyCommand>> any_command(const Model& model) {
  return rc::gen::exec([knows_numbers = model.random.has_value(), ranks = model.ranks] {
    using enum Kind;
    // Many steps read, or no pass would ever get far. Those that are not always possible are drawn more often.
    Step step{.kind = pick_from({kNext,   kNext,     kNext,   kNext,   kNext,    kNext,   kNext, kNext,
                                 kSkip,   kSkip,     kBreak,  kBreak,  kSave,    kSave,   kLoad, kLoad,
                                 kLoadOn, kEvaluate, kGather, kGather, kSetSeed, kLoadOn, kThrow})};
    if (step.kind == Kind::kSkip) step.number = pick<std::int64_t>(1, 3);
    if (step.kind == Kind::kSetSeed) step.number = pick<std::int64_t>(0, 1000);
    if (step.kind == Kind::kLoadOn) step.number = pick<std::int64_t>(1, 4);
    if (step.kind == Kind::kThrow) step.number = pick<std::int64_t>(0, ranks);
    if (step.kind == Kind::kGather) step.draws = knows_numbers;
    return std::shared_ptr<const AnyCommand>(std::make_shared<Command>(step));
  });
}

inline void showValue(const Setup& setup, std::ostream& out) {
  out << fmt::format("{} ranks, {} workers, length {}, batch {}, evaluation of {}", setup.ranks, setup.workers,
                     setup.length, setup.batch_size, setup.eval_length);
}

inline rc::Gen<Setup> any_setup() {
  return rc::gen::exec([] {
    Setup setup{.ranks = pick_ranks(3), .workers = pick(0, 3)};
    setup.batch_size = pick<std::int64_t>(1, 4);
    setup.length = pick<std::int64_t>(1, 4 * setup.batch_size * setup.ranks + 2);
    setup.eval_length = pick<std::int64_t>(1, 3 * setup.ranks + 1);
    return setup;
  });
}

/// Returns a program of up to `num_steps` steps, each of which is possible where it comes.
inline std::vector<Step> any_steps(const Model& model, int num_steps) {
  std::vector<Step> steps;
  for (const auto& command : *rc::gen::resize(num_steps, rc::state::gen::commands(model, &any_command)))
    steps.push_back(static_cast<const Command&>(*command).step);
  return steps;
}

/// Applies the steps to the model.
inline void predict(const std::vector<Step>& steps, Model& model) {
  for (const auto& step : steps) Command(step).apply(model);
}

}  // namespace accel::testing::loader_program
