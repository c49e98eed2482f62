// Whether N ranks compute what one rank computes from the same batches, up to rounding.
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "sim/programs/check/check.hpp"
#include "sim/programs/check/parting.hpp"
#include "sim/programs/check/runs.hpp"

namespace accel::programs {
namespace {

using Json = nlohmann::ordered_json;
using Numbers = std::vector<double>;

constexpr std::size_t kMaxUpdates = 5;  // rounding errors grow with every update
constexpr double kTolerance = 2e-3;     // relative
constexpr std::size_t kShownQuantities = 12;

Numbers numbers_in(const std::string& text) {
  const auto json = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  return json.is_array() ? json.get<Numbers>() : Numbers{};
}

double norm_of(const Numbers& norms) {
  double sum = 0;
  for (const auto norm : norms) sum += norm * norm;
  return std::sqrt(sum);
}

bool are_close(double a, double b, double tolerance = kTolerance) {
  return std::abs(a - b) <= tolerance * std::max(std::abs(a), std::abs(b)) + 1e-6;
}

// The samples of each training micro-batch.
std::vector<std::vector<std::string>> training_batches(const std::vector<LoaderPass>& passes) {
  std::vector<std::vector<std::string>> batches;
  std::string loader;
  for (const auto& pass : passes) {
    if (!pass.trains || (!loader.empty() && pass.loader != loader)) continue;
    loader = pass.loader;
    batches.insert(batches.end(), pass.batches.begin(), pass.batches.end());
  }
  return batches;
}

// The samples that all ranks together read for each training micro-batch, sorted.
std::vector<std::vector<std::string>> shared_batches(const ProgramRun& run) {
  std::vector<std::vector<std::string>> all;
  for (const auto& rank : run.recording) {
    const auto own = training_batches(passes_of(rank));
    all.resize(std::max(all.size(), own.size()));
    for (std::size_t index = 0; index < own.size(); ++index)
      all[index].insert(all[index].end(), own[index].begin(), own[index].end());
  }
  for (auto& batch : all) std::sort(batch.begin(), batch.end());
  return all;
}

// What is compared of a run before its micro-batch `end`, in the order of the program. Values of several ranks that are
// equal on all by design are those of rank 0; a loss is the mean.
struct Quantity {
  std::string kind, name;
  std::size_t micro_batch = 0, update = 0;
  Numbers values;
  std::string where;
};

// Of the micro-batch with this number, over all ranks.
double mean_loss(const Recording& recording, std::size_t micro_batch) {
  double sum = 0;
  for (const auto& rank : recording) {
    std::size_t place = 0;
    const auto found = std::find_if(rank.begin(), rank.end(),
                                    [&](const auto& seen) { return seen.kind == "loss" && place++ == micro_batch; });
    if (found != rank.end()) sum += std::strtod(found->value.c_str(), nullptr);
  }
  return sum / static_cast<double>(recording.size());
}

// Null for what is not compared.
std::optional<Quantity> quantity_of(const Observation& seen) {
  Quantity quantity{.kind = seen.kind, .name = seen.name, .values = {}, .where = {}};
  if (seen.kind == "learning rate") {
    quantity.values = numbers_in(seen.value);
    quantity.where = seen.detail;
  } else if (seen.kind == "stepped gradient" || seen.kind == "weights") {
    quantity.values = {norm_of(numbers_in(seen.detail))};
  } else if (seen.kind == "clip") {
    const auto facts = Json::parse(seen.detail, nullptr, /*allow_exceptions=*/false);
    if (!facts.is_object()) return std::nullopt;
    quantity.kind = "gradient before clipping";
    quantity.values = {norm_of(facts["norms"].get<Numbers>())};
    quantity.where = facts.value("where", "");
  } else {
    return std::nullopt;
  }
  return quantity;
}

std::vector<Quantity> quantities_of(const ProgramRun& run, std::size_t end) {
  std::vector<Quantity> quantities;
  std::size_t losses = 0, updates = 0;
  for (const auto& seen : run.recording.front()) {
    auto quantity = quantity_of(seen);
    if (seen.kind == "loss") {
      if (losses == end || updates == kMaxUpdates) break;
      quantity = Quantity{.kind = "loss", .name = {}, .values = {mean_loss(run.recording, losses)}, .where = {}};
      ++losses;
    }
    if (!quantity || losses == 0) continue;
    quantity->micro_batch = losses - 1;
    quantity->update = updates;
    if (seen.kind == "weights") ++updates;
    quantities.push_back(std::move(*quantity));
  }
  return quantities;
}

std::string ratio_of(double ours, double one, int num_ranks) {
  if (one == 0 || ours == 0) return "";
  const auto ratio = ours / one;
  const auto is_near = [&](double expected) { return std::abs(ratio / expected - 1) < 0.05; };
  if (is_near(num_ranks))
    return fmt::format(", {} times as much: it is summed over the ranks instead of averaged", num_ranks);
  if (is_near(1.0 / num_ranks))
    return fmt::format(", 1/{} of it: it is divided by the number of ranks once too often", num_ranks);
  return "";
}

std::string describe(const Quantity& ours, const Quantity& one, int num_ranks) {
  const auto text = [](const Numbers& values) { return fmt::format("{:.6g}", fmt::join(values, ", ")); };
  const auto what = ours.kind == "stepped gradient" ? std::string("the norm of the gradient that the optimizer uses")
                    : ours.kind == "weights"        ? std::string("the norm of the weights")
                    : ours.kind == "gradient before clipping" ? std::string("the norm of the gradient before clipping")
                                                              : "the " + ours.kind;
  return fmt::format(
      "micro-batch {}, update {}: {} is {} on {} ranks and {} on one{}", ours.micro_batch, ours.update, what,
      text(ours.values), num_ranks, text(one.values),
      ours.values.size() == 1 && one.values.size() == 1 ? ratio_of(ours.values[0], one.values[0], num_ranks) : "");
}

// --- what one run alone shows ----------------------------------------------------------------------------------------

// Gradients that differ between ranks when they are clipped, although the ranks hold replicas.
std::optional<CheckResult> problem_of_clipping(const Recording& recording) {
  std::vector<std::vector<const Observation*>> clips(recording.size());
  std::set<std::string> begins;
  for (std::size_t rank = 0; rank < recording.size(); ++rank) {
    for (const auto& seen : recording[rank]) {
      if (seen.kind == "clip") clips[rank].push_back(&seen);
      if (seen.kind == "initial parameters" && seen.name == "optimizer 0") begins.insert(seen.value);
    }
  }
  if (begins.size() != 1) return std::nullopt;
  for (std::size_t rank = 1; rank < clips.size(); ++rank) {
    for (std::size_t place = 0; place < std::min(clips[rank].size(), clips.front().size()); ++place) {
      const auto& own = *clips[rank][place];
      if (own.value == clips.front()[place]->value || own.value.empty()) continue;
      const auto facts = Json::parse(own.detail, nullptr, false);
      const auto where = facts.is_object() ? facts.value("where", "") : "";
      return CheckResult{
          .verdict = Verdict::kFail,
          .text = fmt::format("{} clips gradients that differ between ranks 0 and {}: they are not averaged yet",
                              own.name, rank),
          .where = where};
    }
  }
  return std::nullopt;
}

// Several backward passes for one update, whose losses are means that nothing has divided.
std::optional<CheckResult> problem_of_accumulation(const RankRecording& rank) {
  std::size_t losses = 0, undivided = 0;
  std::string operation;
  for (const auto& seen : rank) {
    if (seen.kind == "loss graph") {
      ++losses;
      static const std::set<std::string, std::less<>> kMeans{"NllLossBackward0",
                                                             "NllLoss2DBackward0",
                                                             "MseLossBackward0",
                                                             "MeanBackward0",
                                                             "BinaryCrossEntropyWithLogitsBackward0",
                                                             "BinaryCrossEntropyBackward0",
                                                             "SmoothL1LossBackward0",
                                                             "HuberLossBackward0",
                                                             "KlDivBackward0"};
      if (kMeans.contains(seen.value)) ++undivided;
      operation = seen.value;
    }
    if (seen.kind != "weights") continue;
    if (losses > 1 && undivided == losses) {
      return CheckResult{
          .verdict = Verdict::kFail,
          .text =
              fmt::format("{} micro-batches are accumulated for an update, and their losses ({}) are not divided: the "
                          "gradient is {} times that of one batch; divide each loss by {}",
                          losses, operation, losses, losses)};
    }
    losses = undivided = 0;
  }
  return std::nullopt;
}

// The learning rates of a run, one per update of its first optimizer.
Numbers learning_rates(const RankRecording& rank) {
  Numbers rates;
  for (const auto& seen : rank) {
    if (seen.kind != "learning rate" || seen.name != "optimizer 0") continue;
    if (const auto values = numbers_in(seen.value); !values.empty()) rates.push_back(values.front());
  }
  return rates;
}

// N ranks make 1/N of the updates of one rank, and a schedule must be as far after the same part of the training.
std::optional<CheckResult> problem_of_schedule(const ProgramRun& ours, const ProgramRun& one) {
  const auto many = learning_rates(ours.recording.front()), single = learning_rates(one.recording.front());
  if (many.size() < 4 || single.size() < 4) return std::nullopt;
  const auto at = [](const Numbers& rates, double part) {
    const auto largest = *std::max_element(rates.begin(), rates.end());
    const auto rate = rates[static_cast<std::size_t>(part * static_cast<double>(rates.size() - 1))];
    return largest == 0 ? 0 : rate / largest;
  };
  for (const double part : {0.5, 0.75}) {
    const auto own = at(many, part), other = at(single, part);
    if (std::abs(own - other) <= 0.2) continue;
    const bool is_faster = own < other;
    return CheckResult{
        .verdict = is_faster ? Verdict::kFail : Verdict::kFinding,
        .text = fmt::format("after {:.0f} % of the training the learning rate is {:.3g} of its largest on {} ranks "
                            "and {:.3g} on one: "
                            "the schedule steps {}",
                            part * 100, own, ours.recording.size(), other,
                            is_faster ? "too often, or its length is that of one rank's part of the data"
                                      : "once per update of all ranks, which are fewer than those of one rank")};
  }
  return std::nullopt;
}

// The largest number of ranks, of those that were asked for, that divides the batches of training.
int ranks_that_share_a_batch(Runs& runs) {
  std::optional<std::int64_t> batch_size;
  for (const auto& pass : runs.passes().front()) {
    if (pass.trains) batch_size = pass.batch_size;
  }
  if (!batch_size) throw CannotJudge{"no loader with batches was observed in training"};
  int ranks = runs.num_ranks();
  while (ranks > 1 && *batch_size % ranks != 0) --ranks;
  if (ranks == 1) throw CannotJudge{fmt::format("a batch of {} cannot be divided among ranks", *batch_size)};
  return ranks;
}

// The runs that do the same work, on `ranks` ranks and on one.
std::pair<const ProgramRun*, const ProgramRun*> runs_of_same_work(Runs& runs, int ranks) {
  const auto run_on = [&](int num_ranks) {
    const auto& run = runs.get({.ranks = num_ranks, .same_work = true});
    if (!run.has_ended_well())
      throw CannotJudge{
          fmt::format("it does not run with one batch divided among {} ranks: {}", num_ranks, failure_of(run))};
    return &run;
  };
  const auto* const many = run_on(ranks);
  const auto* const one = run_on(1);
  const auto states = generator_states_of(one->recording.front());
  if (std::any_of(states.begin(), states.end(), [](const auto& state) { return state.is_drawn; }))
    throw CannotJudge{"the program draws random numbers in training, besides dropout, which differ from rank to rank"};
  return {many, one};
}

bool has_batch_norm(const RankRecording& rank) {
  return std::any_of(rank.begin(), rank.end(), [](const auto& seen) {
    return seen.kind == "last buffer" && seen.detail.find("BatchNorm") != std::string::npos &&
           seen.detail != "SyncBatchNorm";
  });
}

std::optional<CheckResult> difference_of(const Quantity& ours, const Quantity& one, int ranks, bool has_norm) {
  if (ours.kind != one.kind || ours.name != one.name) {
    return CheckResult{.verdict = Verdict::kFail,
                       .text = fmt::format("after micro-batch {}: {} ranks come to the {}, one rank to the {}: they "
                                           "accumulate different numbers of micro-batches",
                                           ours.micro_batch, ranks, ours.kind, one.kind)};
  }
  if (std::equal(ours.values.begin(), ours.values.end(), one.values.begin(), one.values.end(),
                 [](double a, double b) { return are_close(a, b); }))
    return std::nullopt;
  if (ours.kind == "learning rate") {
    return CheckResult{
        .verdict = Verdict::kFinding,
        .text = fmt::format("the learning rate follows the number of ranks: it is {:.4g} on {} ranks and "
                            "{:.4g} on one, with the same batches; --one-rank-args can give that of one rank",
                            fmt::join(ours.values, ", "), ranks, fmt::join(one.values, ", ")),
        .where = ours.where};
  }
  const auto text = describe(ours, one, ranks);
  if (!has_norm) return CheckResult{.verdict = Verdict::kFail, .text = text, .where = ours.where};
  return CheckResult{.verdict = Verdict::kFinding,
                     .text = text + "; its batch norm uses the batch of each rank alone",
                     .where = ours.where};
}

// The quantities up to `place`, for a person.
std::vector<sim::ComparedQuantity> compared(const std::vector<Quantity>& ours, const std::vector<Quantity>& one,
                                            std::size_t place) {
  const auto text = [](const Quantity& quantity) { return fmt::format("{:.6g}", fmt::join(quantity.values, ", ")); };
  std::vector<sim::ComparedQuantity> rows;
  for (std::size_t row = place < kShownQuantities ? 0 : place - kShownQuantities; row <= place; ++row) {
    const auto& own = ours[row];
    rows.push_back({own.micro_batch, own.update, own.name.empty() ? own.kind : own.kind + " of " + own.name, text(own),
                    text(one[row])});
  }
  return rows;
}

CheckResult compare_with_one_rank(Runs& runs) {
  const int ranks = ranks_that_share_a_batch(runs);
  const auto [many, one] = runs_of_same_work(runs, ranks);
  const auto our_batches = shared_batches(*many), their_batches = shared_batches(*one);
  const auto equal = static_cast<std::size_t>(
      std::mismatch(our_batches.begin(), our_batches.end(), their_batches.begin(), their_batches.end()).first -
      our_batches.begin());
  if (equal == 0)
    throw CannotJudge{fmt::format("{} ranks and one rank do not read the same samples in the first step", ranks)};
  const auto ours = quantities_of(*many, equal), theirs = quantities_of(*one, equal);
  const bool has_norm = has_batch_norm(runs.base().recording.front());
  for (std::size_t place = 0; place < std::min(ours.size(), theirs.size()); ++place) {
    if (auto difference = difference_of(ours[place], theirs[place], ranks, has_norm)) {
      difference->quantities = compared(ours, theirs, place);
      return *difference;
    }
  }
  return {
      .text = fmt::format(
          "{} ranks compute the losses, gradients and weights of one rank with the same batches, in {} micro-batches",
          ranks, std::min(equal, ours.empty() ? 0 : ours.back().micro_batch + 1))};
}

}  // namespace

CheckResult judge_world_size(Runs& runs) {
  if (runs.num_ranks() == 1) throw CannotJudge{"there is one rank"};
  const auto& base = runs.base();
  if (auto problem = problem_of_clipping(base.recording)) return *problem;
  if (auto problem = problem_of_accumulation(base.recording.front())) return *problem;
  const auto& one = runs.get({.ranks = 1});
  const auto schedule = one.has_ended_well() ? problem_of_schedule(base, one) : std::nullopt;
  if (schedule && schedule->verdict == Verdict::kFail) return *schedule;
  if (passing_difference(base.recording))
    throw CannotJudge{"the ranks' parameters differ between updates, see the check replicas"};
  if (judge_determinism(runs).verdict == Verdict::kFail)
    throw CannotJudge{"runs differ from each other, see the check deterministic"};
  auto result = compare_with_one_rank(runs);
  return result.verdict == Verdict::kPass && schedule ? *schedule : result;
}

}  // namespace accel::programs
