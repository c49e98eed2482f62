// The checks of `accel test`, run by every rank. A rank that throws between two collectives leaves the others waiting,
// so checks compare gathered values, which are equal on all ranks, wherever possible.

#include <ATen/ops/allclose.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/full.h>
#include <ATen/ops/rand.h>
#include <fmt/ranges.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>

#include <algorithm>
#include <iterator>
#include <numeric>

#include "reference/accelerator/accelerator.hpp"
#include "reference/config/environment.hpp"
#include "reference/core/errors.hpp"
#include "reference/state/rng_sync.hpp"
#include "sim/programs/accel/commands.hpp"
#include "sim/programs/accel/line_training.hpp"
#include "sim/programs/rehearsal/exit_code.hpp"

namespace accel::programs {
namespace {

using Integers = std::vector<std::int64_t>;

template <typename... Args>
void expect(bool holds, fmt::format_string<Args...> format, Args&&... args) {
  if (!holds) throw Error(fmt::format(format, std::forward<Args>(args)...));
}

Integers integers_below(std::int64_t end) {
  Integers numbers(static_cast<std::size_t>(end));
  std::iota(numbers.begin(), numbers.end(), 0);
  return numbers;
}

Integers integers_of(const at::Tensor& tensor) {
  const auto flat = tensor.detach().cpu().to(at::kLong).flatten().contiguous();
  const auto* const begin = flat.const_data_ptr<std::int64_t>();
  return {begin, begin + flat.numel()};
}

void expect_numbers(const Integers& got, const Integers& expected, const std::string& what) {
  expect(got == expected, "{}: expected [{}], got [{}]", what, fmt::join(expected, ", "), fmt::join(got, ", "));
}

at::Tensor number(const Accelerator& accelerator, std::int64_t value) {
  return at::full({1}, value, at::TensorOptions(at::kLong).device(accelerator.device()));
}

// Returns the number of ranks on which `says_yes` holds. Collective.
std::int64_t count_ranks(const Accelerator& accelerator, bool says_yes) {
  return integers_of(accelerator.reduce(number(accelerator, says_yes ? 1 : 0))).front();
}

// --- process control -------------------------------------------------------------------------------------------------

// Guards run their function on a subset of ranks; counting over all ranks finds both missing and extra runs.
void check_processes(Accelerator& accelerator) {
  expect_numbers(integers_of(accelerator.gather(number(accelerator, accelerator.process_index()))),
                 integers_below(accelerator.num_processes()), "ranks in the order of gather");
  const auto runs = [&](auto&& guard) {
    bool ran = false;
    guard([&] { ran = true; });
    return count_ranks(accelerator, ran);
  };
  expect(runs([&](auto f) { accelerator.on_main_process(f); }) == 1, "on_main_process did not run on exactly one rank");
  expect(runs([&](auto f) { accelerator.on_last_process(f); }) == 1, "on_last_process did not run on exactly one rank");
  for (int index = 0; index < accelerator.num_processes(); ++index) {
    expect(runs([&](auto f) { accelerator.on_process(index, f); }) == 1,
           "on_process({}) did not run on exactly one rank", index);
  }
  expect(runs([&](auto f) { accelerator.on_local_main_process(f); }) >= 1, "on_local_main_process ran on no rank");
  { const auto first = accelerator.main_process_first(); }
  { const auto first = accelerator.local_main_process_first(); }
  accelerator.wait_for_everyone();
}

// Lengths below, equal to and above the number of ranks: a split must neither lose nor repeat items in any of these.
void check_split(Accelerator& accelerator) {
  const auto world = accelerator.num_processes();
  // Ranks that share a batch get the same part, so only the first of them counts.
  const auto places = gather_object(Integers{accelerator.data_parallel_rank()});
  const auto is_first =
      std::ranges::find(places, accelerator.data_parallel_rank()) == places.begin() + accelerator.process_index();
  const auto gathered = [&](const Integers& part) { return gather_object(is_first ? part : Integers()); };
  for (const std::int64_t items :
       {std::int64_t(0), std::int64_t(1), std::int64_t(world), std::int64_t(3 * world + 1)}) {
    const auto all = integers_below(items);
    expect_numbers(gathered(accelerator.split_between_processes(all)), all,
                   fmt::format("split_between_processes of a list of {}", items));
    if (items == 0) continue;
    const auto rows = at::arange(items);
    expect_numbers(gathered(integers_of(accelerator.split_between_processes(rows))), all,
                   fmt::format("split_between_processes of {} rows", items));
    const auto parts = gather_object(std::vector{
        static_cast<std::int64_t>(accelerator.split_between_processes(all, {.apply_padding = true}).size())});
    expect(std::all_of(parts.begin(), parts.end(), [&](auto size) { return size == parts.front(); }),
           "split_between_processes with padding: sizes [{}] differ", fmt::join(parts, ", "));
  }
}

// Set on the last rank only, because a trigger on rank 0 would also pass if nothing were communicated.
void check_trigger(Accelerator& accelerator) {
  expect(!accelerator.check_trigger(), "check_trigger returned true before any rank called set_trigger");
  if (accelerator.is_last_process()) accelerator.set_trigger();
  expect(accelerator.check_trigger(), "check_trigger returned false after the last rank called set_trigger");
  expect(!accelerator.check_trigger(),
         "check_trigger returned true a second time; expected the first call to reset it");
}

// --- collectives -----------------------------------------------------------------------------------------------------

// Every rank contributes a value or length that depends on its rank, so that a swapped or dropped contribution shows.
void check_collectives(Accelerator& accelerator) {
  const std::int64_t world = accelerator.num_processes(), rank = accelerator.process_index();
  const auto own = number(accelerator, rank + 1);
  expect_numbers(integers_of(accelerator.reduce(own)), {world * (world + 1) / 2}, "reduce by sum");
  const auto mean = accelerator.reduce(own.to(at::kFloat), "mean").item<double>();
  expect(std::abs(mean - static_cast<double>(world + 1) / 2) < 1e-5, "reduce by mean: expected {}, got {}",
         static_cast<double>(world + 1) / 2, mean);
  auto from_last = number(accelerator, rank);
  expect_numbers(integers_of(accelerator.broadcast(from_last, static_cast<int>(world - 1))), {world - 1},
                 "broadcast from the last rank");
  const auto ragged = at::full({rank + 1}, rank, at::TensorOptions(at::kLong).device(accelerator.device()));
  const auto padded = accelerator.gather(accelerator.pad_across_processes(ragged, {.pad_index = -1}));
  Integers expected, names_expected;
  for (std::int64_t other = 0; other < world; ++other) {
    for (std::int64_t at = 0; at < world; ++at) expected.push_back(at <= other ? other : -1);
    names_expected.insert(names_expected.end(), static_cast<std::size_t>(other), other);
  }
  expect_numbers(integers_of(padded), expected, "gather of rows of different lengths, padded");
  expect_numbers(gather_object(Integers(static_cast<std::size_t>(rank), rank)), names_expected,
                 "gather_object of lists of different lengths");
  std::vector<std::string> words{fmt::format("from {}", rank)};
  expect(broadcast_object_list(words).front() == "from 0", "broadcast_object_list: got '{}'", words.front());
}

// --- random streams --------------------------------------------------------------------------------------------------

// Draws are compared as integers, since text or tolerance could hide a difference in the last bits.
void check_random(Accelerator& accelerator) {
  const auto draw = [] { return static_cast<std::int64_t>(at::rand({1}, at::kDouble).item<double>() * 1e15); };
  const auto draws = [&] { return gather_object(Integers{draw()}); };
  const auto num_different = [](Integers values) {
    std::sort(values.begin(), values.end());
    return std::unique(values.begin(), values.end()) - values.begin();
  };
  set_seed(7);
  const auto same = draws();
  expect(num_different(same) == 1, "set_seed: ranks draw different numbers");
  set_seed(7);
  expect(draws() == same, "set_seed: the same seed gives different numbers");
  set_seed(7, {.device_specific = true});
  // Tensor-parallel ranks compute the same and draw the same.
  const auto& seed_index = accelerator.context().seed_index;
  const auto seeds = gather_object(Integers{seed_index.value_or(accelerator.process_index())});
  expect(num_different(draws()) == num_different(seeds), "set_seed with device_specific: ranks draw the same numbers");
  synchronize_rng_state("torch");
  expect(num_different(draws()) == 1, "synchronize_rng_state: ranks draw different numbers");
}

// --- loaders ---------------------------------------------------------------------------------------------------------

// A stream of unknown length.
class Numbers {
 public:
  explicit Numbers(std::int64_t size) : size_(size) {}
  void reset() { next_ = 0; }
  std::optional<at::Tensor> next() {
    return next_ < size_ ? std::optional(at::full({}, next_++, at::kLong)) : std::nullopt;
  }

 private:
  std::int64_t size_, next_ = 0;
};

struct LoaderMode {
  bool stream, splits, dispatches, shuffles, even;
  [[nodiscard]] std::string text() const {
    return fmt::format("loader of a {}{}{}{}{}", stream ? "stream" : "dataset", splits ? ", split_batches" : "",
                       dispatches ? ", dispatch_batches" : "", shuffles ? ", shuffled" : "", even ? "" : ", uneven");
  }
};

const at::Tensor& samples_of(const at::Tensor& batch) { return batch; }
const at::Tensor& samples_of(const std::tuple<at::Tensor>& batch) { return std::get<0>(batch); }

// Without even batches ranks have different numbers of steps, so gathering in the loop would hang; samples are then
// collected after it.
template <typename Loader>
void expect_every_sample_once(Accelerator& accelerator, const Loader& loader, const LoaderMode& mode,
                              std::int64_t size) {
  auto batches = accelerator.prepare(loader);
  const bool gathers = mode.even || mode.dispatches;
  Integers seen, own;
  std::int64_t steps = 0;
  for (auto& batch : batches) {
    const auto& samples = samples_of(batch);
    expect(samples.device() == accelerator.device(), "{}: a batch is not on the rank's device", mode.text());
    if (gathers)
      for (const auto sample : integers_of(accelerator.gather_for_metrics(samples))) seen.push_back(sample);
    else
      for (const auto sample : integers_of(samples)) own.push_back(sample);
    ++steps;
  }
  if (!gathers) seen = gather_object(own);
  const auto all_steps = gather_object(Integers{steps});
  const bool are_equal = std::all_of(all_steps.begin(), all_steps.end(), [&](auto other) { return other == steps; });
  expect(are_equal || !gathers, "{}: ranks have different numbers of batches: [{}]", mode.text(),
         fmt::join(all_steps, ", "));
  if (mode.shuffles || !gathers) std::sort(seen.begin(), seen.end());
  // Ranks that divide a layer or a sequence among them read the same samples; gather_for_metrics drops the copies.
  const int num_copies = gathers ? 1 : accelerator.num_processes() / accelerator.data_parallel_size();
  Integers expected;
  for (const auto sample : integers_below(size)) expected.insert(expected.end(), num_copies, sample);
  expect_numbers(seen, expected, mode.text());
}

// All combinations of the loader's modes; streams can neither be shuffled nor be uneven. 9 * world + 2 samples leave a
// short tail for every number of ranks.
void check_loaders(Accelerator& accelerator) {
  const std::int64_t world = accelerator.num_processes(), size = 9 * world + 2;
  for (int bits = 0; bits < 32; ++bits) {
    const LoaderMode mode{.stream = (bits & 1) != 0,
                          .splits = (bits & 2) != 0,
                          .dispatches = (bits & 4) != 0,
                          .shuffles = (bits & 8) != 0,
                          .even = (bits & 16) == 0};
    if (mode.stream && (mode.shuffles || !mode.even)) continue;
    Accelerator own(
        {.dataloader_config = {
             .split_batches = mode.splits, .dispatch_batches = mode.dispatches, .even_batches = mode.even}});
    set_seed(11);
    const DataLoaderOptions options{.batch_size = mode.splits ? 4 * world : 4, .shuffle = mode.shuffles};
    if (mode.stream)
      expect_every_sample_once(own, DataLoader(Numbers(size), options), mode, size);
    else
      expect_every_sample_once(own, DataLoader(TensorDataset(at::arange(size)), options), mode, size);
  }
}

// --- training --------------------------------------------------------------------------------------------------------

constexpr std::int64_t kBatches = 12;

struct TrainingMode {
  std::string mixed_precision;
  bool splits = false;
  int accumulation = 1;
  [[nodiscard]] std::string text() const {
    return fmt::format("training in {}{}{}", mixed_precision == "no" ? "fp32" : mixed_precision,
                       splits ? ", split_batches" : "", accumulation > 1 ? ", accumulated" : "");
  }
};

// fp16 and bf16 are only checked for progress and equal ranks: their rounding differs from one process by design.
void check_training(const TrainingMode& mode) {
  Accelerator accelerator({.mixed_precision = mode.mixed_precision,
                           .gradient_accumulation_steps = mode.accumulation,
                           .dataloader_config = {.split_batches = mode.splits}});
  const int world = accelerator.num_processes(), num_batches = accelerator.data_parallel_size(),
            per_step = accelerator.gradient_accumulation_steps();  // the environment may override the option
  const auto x = points(kBatch * num_batches * per_step * ((kBatches + per_step - 1) / per_step));
  auto line = make_line();
  torch::optim::SGD sgd(line->parameters(), kRate);
  auto [model, optimizer, batches] = accelerator.prepare(
      line, sgd, DataLoader(TensorDataset(x), {.batch_size = mode.splits ? kBatch * num_batches : kBatch}));
  const auto loss_of = [&](const at::Tensor& input) {
    return (model(input).to(at::kFloat) - (2 * input + 3)).square().mean();
  };
  const auto loss_of_all = [&] {
    const c10::NoGradGuard no_grad;
    return loss_of(x.to(accelerator.device())).template item<double>();
  };
  const double first = loss_of_all();
  for (auto& [input] : batches) {
    const auto window = accelerator.accumulate(model);
    accelerator.backward(loss_of(input));
    optimizer.step();
    optimizer.zero_grad();
  }
  const double last = loss_of_all();
  std::vector<at::Tensor> parameters, of_ranks;
  {
    const auto whole = accelerator.gathered_parameters(model);
    for (const auto& parameter : model.parameters()) parameters.push_back(parameter.detach().clone());
  }
  // All gathers come before the first expect, which may throw on a single rank.
  for (const auto& parameter : parameters) of_ranks.push_back(accelerator.gather(parameter.reshape({1, -1})));
  for (const auto& rows : of_ranks) {
    for (int rank = 1; rank < world; ++rank)
      expect(rows[rank].equal(rows[0]), "{}: the parameters of rank {} differ from those of rank 0", mode.text(), rank);
  }
  expect(last < first, "{}: the loss rose from {} to {}", mode.text(), first, last);
  // DeepSpeed clips gradients to norm 1.0 by default, and the training on one process does not clip.
  if (mode.mixed_precision != "no" || deepspeed_requested()) return;
  const auto alone = train_alone(accelerator, x, per_step);
  for (std::size_t index = 0; index < alone.size(); ++index) {
    // Sums over ranks and over rows round in a different order. One process sums in the same order, so bits must match.
    const bool is_same_order = world == 1 && per_step == 1;
    const bool is_equal = is_same_order ? parameters[index].equal(alone[index])
                                        : at::allclose(parameters[index], alone[index], 1e-4, 1e-5);
    expect(is_equal, "{}: parameter {} is {}, but {} on one process", mode.text(), index,
           parameters[index].item<double>(), alone[index].item<double>());
  }
}

// --- the list of checks ----------------------------------------------------------------------------------------------

struct SelfCheck {
  const char* name;
  std::function<void(Accelerator&)> run;
  bool trains = false;
};

const SelfCheck kSelfChecks[] = {
    {"process control", check_processes},
    {"split between processes", check_split},
    {"trigger", check_trigger},
    {"gather, reduce, broadcast, pad, objects", check_collectives},
    {"random streams", check_random},
    {"loaders in all modes", check_loaders},
    {"training equals one process", [](Accelerator&) { check_training({.mixed_precision = "no"}); }, true},
    {"training equals one process, split_batches",
     [](Accelerator&) { check_training({.mixed_precision = "no", .splits = true}); }, true},
    {"training equals one process, gradients accumulated",
     [](Accelerator&) { check_training({.mixed_precision = "no", .accumulation = 3}); }, true},
    {"training in bf16", [](Accelerator&) { check_training({.mixed_precision = "bf16"}); }, true},
    {"training in fp16", [](Accelerator&) { check_training({.mixed_precision = "fp16"}); }, true}};

// Returns the error of this rank, "" if the check passed.
std::string outcome_of(const SelfCheck& check, Accelerator& accelerator) {
  try {
    check.run(accelerator);
    return "";
  } catch (const CommError&) {
    throw;  // collectives are out of step now, so no further check can run
  } catch (const std::exception& error) {
    return error.what();
  }
}

// The model of the training checks is one linear layer, which is not made for ranks that divide layers or sequences.
bool applies(const SelfCheck& check, const Accelerator& accelerator) {
  return !check.trains || accelerator.data_parallel_size() == accelerator.num_processes();
}

// Prints the result of a check. Returns whether it passed on every rank; all ranks return the same.
// The outcomes of all ranks are gathered, so that a failure on any rank is printed with its rank.
bool run_check(const SelfCheck& check, Accelerator& accelerator) {
  const auto outcomes = gather_object(std::vector{outcome_of(check, accelerator)});
  bool is_well = true;
  for (std::size_t rank = 0; rank < outcomes.size(); ++rank) {
    if (outcomes[rank].empty()) continue;
    is_well = false;
    accelerator.on_main_process([&] {
      accelerator.context().print(fmt::format("{}: FAILED on rank {}: {}\n", check.name, rank, outcomes[rank]));
    });
  }
  if (is_well) accelerator.on_main_process([&] { accelerator.context().print(fmt::format("{}: ok\n", check.name)); });
  return is_well;
}

}  // namespace

int run_self_test(int /*argc*/, char** /*argv*/) {
  Accelerator accelerator;
  std::vector<SelfCheck> checks;
  std::copy_if(std::begin(kSelfChecks), std::end(kSelfChecks), std::back_inserter(checks),
               [&](const SelfCheck& check) { return applies(check, accelerator); });
  const auto count = checks.size();
  const auto num_failed = std::count_if(checks.begin(), checks.end(),
                                        [&](const SelfCheck& check) { return !run_check(check, accelerator); });
  accelerator.on_main_process([&] {
    const auto& context = accelerator.context();
    if (const auto num_left_out = std::size(kSelfChecks) - count; num_left_out > 0)
      context.print(fmt::format(
          "{} checks of training left out: their model is not made for ranks that divide layers or sequences "
          "(tensor, context or expert parallelism); `sim-run prove -- PROGRAM` checks a program's layouts\n",
          num_left_out));
    context.print(fmt::format("{} of {} checks passed on {} rank{}, backend {}, device {}\n",
                              count - static_cast<std::size_t>(num_failed), count, context.world_size,
                              context.world_size > 1 ? "s" : "", context.backend, context.device.str()));
  });
  return num_failed == 0 ? kSuccess : kFailure;
}

}  // namespace accel::programs
