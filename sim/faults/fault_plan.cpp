// Random choices of faults. Every choice is a separate Philox counter, so a plan can be shrunk (a fault
// removed) without changing the remaining faults.
#include "sim/faults/fault_plan.hpp"

#include <algorithm>
#include <numeric>

#include "reference/core/errors.hpp"
#include "sim/faults/fault_parameters.hpp"

namespace accel::sim {
namespace {

constexpr std::int64_t kLastDrawn = 8;  // small, so that a run of 12 steps reaches every drawn step and collective

// The counter holds everything that identifies the draw; `what` uses the low 8 bits of its word, `rank` the rest.
std::uint64_t draw(const Fault& fault, Draw what, std::uint64_t hit = 0, int rank = 0) {
  const auto low = [](std::uint64_t value) { return static_cast<std::uint32_t>(value); };
  const auto place = static_cast<std::uint32_t>(what) | static_cast<std::uint32_t>(rank) << 8;
  const auto bits =
      philox4x32({low(hit), low(hit >> 32), place, fault.stream}, {low(fault.seed), low(fault.seed >> 32)});
  return std::uint64_t{bits[1]} << 32 | bits[0];
}

// Maps bits to 0..count-1 by multiplication, which unlike a remainder has no noticeable bias.
std::int64_t below(std::int64_t count, std::uint64_t bits) {
  return static_cast<std::int64_t>(static_cast<unsigned __int128>(bits) * static_cast<std::uint64_t>(count) >> 64);
}

// Maps bits to [0, 1): the top 53 bits, the precision of a double.
double fraction(std::uint64_t bits) { return static_cast<double>(bits >> 11) * 0x1p-53; }

// Draws one side of a partition: at least one rank and at most half of them, by a partial Fisher-Yates shuffle.
std::vector<int> draw_side(const Fault& fault, int num_ranks) {
  std::vector<int> ranks(static_cast<std::size_t>(num_ranks));
  std::iota(ranks.begin(), ranks.end(), 0);
  const auto end = ranks.begin() + 1 + below(num_ranks / 2, draw(fault, Draw::kSideSize));
  for (auto place = ranks.begin(); place != end; ++place) {
    const auto number = static_cast<std::uint64_t>(place - ranks.begin());
    std::iter_swap(place, place + below(ranks.end() - place, draw(fault, Draw::kSide, number)));
  }
  ranks.erase(end, ranks.end());
  std::sort(ranks.begin(), ranks.end());
  return ranks;
}

// An absent rank means any rank, except for kinds that strike every rank (`every_rank`).
void plan_place(Fault& fault, int num_ranks) {
  const auto& rule = rule_of(fault.kind);
  check_argument(num_ranks >= 2 || !rule.needs_two_ranks(), "{} requires at least two ranks; the run has {}", rule.name,
                 num_ranks);
  const bool is_open = fault.rank ? *fault.rank == kAnyRank : !rule.every_rank;
  if (rule.has(FaultRule::kRank) && is_open) fault.rank = static_cast<int>(below(num_ranks, draw(fault, Draw::kRank)));
  if (rule.has(FaultRule::kLink) && !fault.link) {
    const auto from = static_cast<int>(below(num_ranks, draw(fault, Draw::kLink)));
    fault.link = NetworkLink{from, (from + num_ranks - 1) % num_ranks};  // Gloo's ring sends downwards
  }
  if (rule.has(FaultRule::kRanks) && !fault.ranks) fault.ranks = draw_side(fault, num_ranks);
}

// Fills in an absent parameter. A store that is away has no delay, so its `seconds` stay absent.
struct FillIn {
  Fault& fault;
  const FaultParameter& parameter;

  void operator()(const NumberForm& form) const {
    const bool has_none = parameter.parameter == FaultRule::kSeconds && fault.away;
    if (!(fault.*form.member) && !has_none) fault.*form.member = rule_of(fault.kind).default_of(parameter.parameter);
  }
  void operator()(const CountForm& form) const {
    if (!(fault.*form.member) && form.draw) fault.*form.member = below(form.drawn_below, draw(fault, *form.draw));
  }
  template <typename Enum>
  void operator()(const ChoiceForm<Enum>& form) const {
    const auto drawn = form.draw ? below(std::ssize(form.names), draw(fault, *form.draw)) : 0;
    if (!(fault.*form.member)) fault.*form.member = static_cast<Enum>(drawn);
  }
  void operator()(const TextForm&) const {}
  void operator()(const FlagForm&) const {}
};

// Each parameter has its own draw number, so a value that the file gives does not change the draws of the others.
void plan_amounts(Fault& fault) {
  for (const auto& parameter : kFaultParameters) {
    if (rule_of(fault.kind).has(parameter.parameter)) std::visit(FillIn{fault, parameter}, parameter.form);
  }
}

}  // namespace

std::vector<Fault> plan_faults(std::vector<Fault> faults, int num_ranks) {
  for (auto& fault : faults) {
    plan_place(fault, num_ranks);
    const auto drawn = rule_of(fault.kind).drawn;
    if (drawn && !fault.when) fault.when = When{*drawn, 1 + below(kLastDrawn, draw(fault, Draw::kWhen))};
    plan_amounts(fault);
  }
  return faults;
}

// Drawn per rank and hit, not from a running stream: the result does not depend on which thread asks first.
bool strikes(const Fault& fault, int rank, std::uint64_t hit) {
  return !fault.probability || fraction(draw(fault, Draw::kStrikes, hit, rank)) < *fault.probability;
}

double jitter_seconds(const Fault& fault, int rank, std::uint64_t hit) {
  return 2 * fault.seconds.value() * fraction(draw(fault, Draw::kJitter, hit, rank));
}

std::int64_t drawn_bytes(const Fault& fault, std::int64_t size) { return below(size + 1, draw(fault, Draw::kBytes)); }

}  // namespace accel::sim
