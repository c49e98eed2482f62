#pragma once

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <iostream>
#include <optional>
#include <source_location>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "sim/backend/simulate.hpp"
#include "tests/support/message_of.hpp"
#include "tests/support/property.hpp"
#include "tests/support/torch.hpp"

/// Plants bugs at many places of a program and checks their diagnoses.
namespace accel::testing::planted_bugs {

using Kind = Diagnosis::Kind;
using Clock = std::chrono::steady_clock;
using Shape = std::vector<std::int64_t>;

// The place where a bug is planted.
struct Place {
  int num_ranks = 3, culprit = 0, position = 0, length = 1;  // position is in [0, length)
  Shape shape = {1};

  [[nodiscard]] std::vector<int> others() const {
    std::vector<int> ranks;
    for (int rank = 0; rank < num_ranks; ++rank) {
      if (rank != culprit) ranks.push_back(rank);
    }
    return ranks;
  }
};

inline Place any_place() {
  Place place;
  place.num_ranks = pick(3, 9);
  place.culprit = pick(0, place.num_ranks);
  place.length = pick(1, 6);
  place.position = pick(0, place.length);
  place.shape = {pick<std::int64_t>(1, 5)};
  if (pick(0, 2) == 1) place.shape.push_back(pick<std::int64_t>(2, 200));
  RC_LOG(fmt::format("{} ranks, rank {} at step {} of {}, shape [{}]", place.num_ranks, place.culprit, place.position,
                     place.length, fmt::join(place.shape, ", ")));
  return place;
}

// Records the calls of the program and the time of the last one. Write `watch.at(watch.usual), call();` on one
// line, so that the recorded line is the line of the call.
struct Watch {
  std::atomic<std::source_location> usual, planted;
  std::atomic<bool> is_done{false};
  std::atomic<Clock::rep> last_call{0};

  void at(std::atomic<std::source_location>& call, std::source_location where = std::source_location::current()) {
    call = where;
    last_call = Clock::now().time_since_epoch().count();
  }
};

// Returns the call as a diagnosis prints it, relative to the source root, or "" for none.
inline std::string name_of(const std::source_location& call) {
  if (call.line() == 0) return "";
  const std::string_view file = call.file_name();
  return fmt::format("{}:{}", file.substr(file.rfind("properties/")), call.line());
}

struct Expected {
  Kind kind = Kind::kDesync;
  std::vector<int> ranks = {};
  std::string op = "all_reduce";
  std::string group = "world";
  std::optional<std::uint64_t> sequence = std::nullopt;
  std::optional<std::vector<Shape>> shapes = std::nullopt;
  std::source_location where = {};
  std::optional<std::uint64_t> apart_at = std::nullopt;  // sequence number of first_difference
  // Some of the sides of first_difference: ranks and their call.
  std::vector<std::pair<std::vector<int>, std::source_location>> sides = {};
};

inline void check_first_difference(const Diagnosis& diagnosis, const Expected& expected) {
  if (!expected.apart_at && expected.sides.empty()) return;
  RC_ASSERT(diagnosis.first_difference.has_value());
  const auto& difference = *diagnosis.first_difference;
  if (expected.apart_at) RC_ASSERT(difference.sequence == *expected.apart_at);
  for (const auto& [ranks, call] : expected.sides) {
    const auto where = name_of(call);
    RC_ASSERT(std::any_of(difference.sides.begin(), difference.sides.end(), [&, &ranks = ranks](const auto& side) {
      return side.ranks == ranks && side.where == where;
    }));
  }
}

inline void check(const sim::SimulationReport& report, const Expected& expected) {
  RC_ASSERT(report.error != nullptr);
  RC_LOG(message_of(report.error));
  RC_ASSERT(report.diagnosis.has_value());
  const auto& diagnosis = *report.diagnosis;
  RC_ASSERT(diagnosis.kind == expected.kind);
  RC_ASSERT(diagnosis.ranks == expected.ranks);
  RC_ASSERT(diagnosis.op == expected.op);
  RC_ASSERT(diagnosis.group == expected.group);
  if (expected.sequence) RC_ASSERT(diagnosis.sequence == *expected.sequence);
  if (expected.shapes) RC_ASSERT(diagnosis.shapes == *expected.shapes);
  RC_ASSERT(diagnosis.where == name_of(expected.where));
  RC_ASSERT(message_of(report.error).find(describe_ranks(expected.ranks)) != std::string::npos);
  check_first_difference(diagnosis, expected);
}

using Body = std::function<void(const Place&, RankContext&, Watch&)>;

// Runs `body` at many places. Each run must be diagnosed as expected, and at once: five seconds is far below the
// time-out of the group, so a diagnosis that waits for the time-out fails.
inline void expect_diagnosed(const Body& body, const std::function<Expected(const Place&, const Watch&)>& expected,
                             int cases = 25) {
  double slowest_ms = 0;
  expect_property(cases, [&] {
    const auto place = any_place();
    Watch watch;
    const auto report =
        sim::rehearse({.num_ranks = place.num_ranks}, [&](RankContext& rank) { body(place, rank, watch); });
    const auto last_call = Clock::time_point(Clock::duration(watch.last_call.load()));
    slowest_ms = std::max(slowest_ms, std::chrono::duration<double, std::milli>(Clock::now() - last_call).count());
    check(report, expected(place, watch));
  });
  std::cout << "from the last call to the end of all ranks: at most " << slowest_ms << " ms\n";
  EXPECT_LT(slowest_ms, 5000);
}

inline at::Tensor tensor_of(const Place& place) { return at::ones(place.shape); }

inline bool is_here(const Place& place, const RankContext& rank, int step) {
  return rank.rank == place.culprit && step == place.position;
}

inline void usual_sum(const Place& place, RankContext& rank, Watch& watch) {
  auto tensor = tensor_of(place);
  watch.at(watch.usual), rank.world.all_reduce(tensor).wait();
}

inline void planted_sum(at::Tensor tensor, RankContext& rank, Watch& watch) {
  watch.at(watch.planted), rank.world.all_reduce(tensor).wait();
}

}  // namespace accel::testing::planted_bugs
