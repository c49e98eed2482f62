#include "sim/faults/fault_plan.hpp"

#include <algorithm>
#include <numeric>

#include "reference/core/errors.hpp"
#include "sim/faults/philox.hpp"

namespace accel::sim {
namespace {

using enum FaultRule::Parameter;

constexpr std::int64_t kLastDrawn = 8;         // steps and collectives that every run of 12 steps has
constexpr std::int64_t kBitsMax = 1LL << 32;   // half a GiB of payload
constexpr std::int64_t kAfterBytesMax = 4096;  // less than the state of one random generator, which every rank saves

// What a draw decides. The numbers are part of what a seed means: never change one.
enum class Site : std::uint32_t {
  kRank = 0,
  kLink = 1,
  kWhen = 2,
  kSideSize = 3,
  kSide = 4,
  kBit = 5,
  kAfterBytes = 6,
  kWhat = 7,
  kStrikes = 8,
  kJitter = 9,
  kBytes = 10,
};

std::uint64_t draw(const Fault& fault, Site site, std::uint64_t hit = 0, int rank = 0) {
  const auto low = [](std::uint64_t value) { return static_cast<std::uint32_t>(value); };
  const auto place = static_cast<std::uint32_t>(site) | static_cast<std::uint32_t>(rank) << 8;
  const auto bits =
      philox4x32({low(hit), low(hit >> 32), place, fault.stream}, {low(fault.seed), low(fault.seed >> 32)});
  return std::uint64_t{bits[1]} << 32 | bits[0];
}

/// 0..count-1.
std::int64_t below(std::int64_t count, std::uint64_t bits) {
  return static_cast<std::int64_t>(static_cast<unsigned __int128>(bits) * static_cast<std::uint64_t>(count) >> 64);
}

/// [0, 1).
double fraction(std::uint64_t bits) { return static_cast<double>(bits >> 11) * 0x1p-53; }

// At most half of the ranks, and at least one.
std::vector<int> draw_side(const Fault& fault, int num_ranks) {
  std::vector<int> ranks(static_cast<std::size_t>(num_ranks));
  std::iota(ranks.begin(), ranks.end(), 0);
  const auto end = ranks.begin() + 1 + below(num_ranks / 2, draw(fault, Site::kSideSize));
  for (auto place = ranks.begin(); place != end; ++place) {
    const auto number = static_cast<std::uint64_t>(place - ranks.begin());
    std::iter_swap(place, place + below(ranks.end() - place, draw(fault, Site::kSide, number)));
  }
  ranks.erase(end, ranks.end());
  std::sort(ranks.begin(), ranks.end());
  return ranks;
}

template <typename T>
void fill(std::optional<T>& value, const std::optional<T>& usual) {
  if (!value) value = usual;
}

void plan_place(Fault& fault, int num_ranks) {
  const auto& rule = rule_of(fault.kind);
  check_argument(num_ranks >= 2 || !rule.needs_two_ranks(), "{} needs two ranks; the run has {}", rule.name, num_ranks);
  const bool is_open = fault.rank ? *fault.rank == kAnyRank : !rule.every_rank;
  if (rule.has(kRank) && is_open) fault.rank = static_cast<int>(below(num_ranks, draw(fault, Site::kRank)));
  if (rule.has(kLink) && !fault.link) {
    const auto from = static_cast<int>(below(num_ranks, draw(fault, Site::kLink)));
    fault.link = Link{from, (from + num_ranks - 1) % num_ranks};  // Gloo's ring sends downwards
  }
  if (rule.has(kRanks) && !fault.ranks) fault.ranks = draw_side(fault, num_ranks);
}

void plan_amounts(Fault& fault) {
  const auto& rule = rule_of(fault.kind);
  if (!fault.away) fill(fault.seconds, rule.seconds);
  fill(fault.factor, rule.factor);
  fill(fault.probability, rule.probability);
  if (rule.has(kBit) && !fault.bit) fault.bit = below(kBitsMax, draw(fault, Site::kBit));
  if (rule.has(kAfterBytes) && !fault.after_bytes)
    fault.after_bytes = below(kAfterBytesMax, draw(fault, Site::kAfterBytes));
  if (rule.has(kWhat) && !fault.what)
    fault.what = static_cast<WrongCall>(below(std::ssize(kWrongCalls), draw(fault, Site::kWhat)));
  if (rule.has(kValue) && !fault.value) fault.value = BadValue::kNan;
}

}  // namespace

std::vector<Fault> plan_faults(std::vector<Fault> faults, int num_ranks) {
  for (auto& fault : faults) {
    plan_place(fault, num_ranks);
    const auto drawn = rule_of(fault.kind).drawn;
    if (drawn && !fault.when) fault.when = When{*drawn, 1 + below(kLastDrawn, draw(fault, Site::kWhen))};
    plan_amounts(fault);
  }
  return faults;
}

bool strikes(const Fault& fault, int rank, std::uint64_t hit) {
  return !fault.probability || fraction(draw(fault, Site::kStrikes, hit, rank)) < *fault.probability;
}

double jitter_seconds(const Fault& fault, int rank, std::uint64_t hit) {
  return 2 * fault.seconds.value() * fraction(draw(fault, Site::kJitter, hit, rank));
}

std::int64_t drawn_bytes(const Fault& fault, std::int64_t size) { return below(size + 1, draw(fault, Site::kBytes)); }

}  // namespace accel::sim
