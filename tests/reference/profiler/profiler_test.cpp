// Tests of the profiler: the schedule of its cycles, its table of averages, and what it records. Simulated ranks
// are threads of one process, so each must record its own operators; a real process is recorded by Kineto.
#include "reference/profiler/profiler.hpp"

#include <gmock/gmock.h>

#include <nlohmann/json.hpp>

#include "reference/state/rank_context.hpp"
#include "tests/reference/tracking/event_reader.hpp"
#include "tests/support/message_of.hpp"
#include "tests/support/run_ranks.hpp"
#include "tests/support/temporary_folder.hpp"
#include "tests/support/torch.hpp"

namespace accel {
namespace {

using profiler::profile_action;
using profiler::ProfileAction;
using profiler::ProfileEvent;
using testing::Backend;
using testing::collect_ranks;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::IsSupersetOf;
using testing::message_of;
using testing::run_ranks;
using testing::TemporaryFolder;

// The actions of the first steps as letters.
std::string actions_of(const ProfileSchedule& schedule, int num_steps) {
  std::string text;
  for (int step = 0; step < num_steps; ++step) text += ".wrs"[static_cast<int>(profile_action(schedule, step))];
  return text;
}

// One letter for each step: "." waits, "w" warms up, "r" records, "s" records and then hands the result over.
TEST(ProfileScheduleTest, CyclesWaitWarmUpAndRecord) {
  EXPECT_EQ(actions_of({.wait = 1, .warmup = 2, .active = 3}, 13), ".wwrrs.wwrrs.");
  EXPECT_EQ(actions_of({.wait = 1, .warmup = 1, .active = 1, .repeat = 2, .skip_first = 2}, 10), "...ws.ws..");
  // Without a schedule every step is a recording of its own.
  EXPECT_EQ(actions_of({}, 3), "sss");
}

// Kineto allows one recording at a time: each pair of actions must map to the right calls in the right order.
TEST(ProfileScheduleTest, ATransitionStopsARecordingBeforeTheNextStarts) {
  using enum ProfileAction;
  const auto transition = profiler::profile_transition;
  EXPECT_EQ(transition(kNone, kRecord), (profiler::ProfileTransition{.prepare = true, .start = true}));
  EXPECT_EQ(transition(kNone, kWarmup), (profiler::ProfileTransition{.prepare = true}));
  EXPECT_EQ(transition(kWarmup, kRecordAndSave), (profiler::ProfileTransition{.start = true}));
  EXPECT_EQ(transition(kRecord, kRecordAndSave), profiler::ProfileTransition{});
  EXPECT_EQ(transition(kRecordAndSave, kRecord),
            (profiler::ProfileTransition{.stop = true, .ready = true, .prepare = true, .start = true}));
  EXPECT_EQ(transition(kRecordAndSave, kWarmup),
            (profiler::ProfileTransition{.stop = true, .ready = true, .prepare = true}));
  EXPECT_EQ(transition(kRecordAndSave, kNone), (profiler::ProfileTransition{.stop = true, .ready = true}));
}

// The nested events make the total of `outer` 100 ns, of which 50 ns belong to the two calls of `inner`.
TEST(KeyAveragesTest, SelfTimeAndBytesExcludeTheCalledOperators) {
  const std::vector<ProfileEvent> events{
      {.name = "outer", .thread = 1, .start_ns = 0, .duration_ns = 100},
      {.name = "inner", .thread = 1, .start_ns = 10, .duration_ns = 30, .flops = 7},
      {.name = "inner", .thread = 1, .start_ns = 50, .duration_ns = 20},
      // Allocated within `inner`, and partly freed within `outer`.
      {.name = "[memory]", .thread = 1, .start_ns = 15, .cpu_bytes = 64},
      {.name = "[memory]", .thread = 1, .start_ns = 90, .cpu_bytes = -16},
      {.name = "other", .thread = 2, .start_ns = 20, .duration_ns = 5},
      // A kernel runs on a GPU at the same time, so it is nested in nothing.
      {.name = "kernel", .thread = 1, .start_ns = 12, .duration_ns = 1000, .on_device = true}};
  const auto rows = key_averages(events);
  ASSERT_EQ(rows.size(), 4U);
  const auto& [inner, kernel, other, outer] = std::tie(rows[0], rows[1], rows[2], rows[3]);
  EXPECT_EQ(inner.count, 2);
  EXPECT_EQ(inner.cpu_time_total_ns, 50);
  EXPECT_EQ(inner.self_cpu_memory_usage, 64);
  EXPECT_EQ(inner.flops, 7);
  EXPECT_EQ(outer.cpu_time_total_ns, 100);
  EXPECT_EQ(outer.self_cpu_time_total_ns, 50);
  EXPECT_EQ(outer.cpu_memory_usage, 48);
  EXPECT_EQ(outer.self_cpu_memory_usage, -16);
  EXPECT_EQ(other.self_cpu_time_total_ns, 5);
  EXPECT_EQ(kernel.device_time_total_ns, 1000);
  EXPECT_EQ(kernel.cpu_time_total_ns, 0);
}

// Some operators of one training step. The size differs between ranks, to tell their events apart.
void work(std::int64_t size) {
  const auto weight = torch::ones({size, size}, torch::requires_grad());
  torch::mm(weight, weight).sum().backward();
}

// The recorded events with this name.
std::vector<ProfileEvent> events_named(const Profiler& profiler, const std::string& name) {
  std::vector<ProfileEvent> found;
  for (const auto& event : profiler.events()) {
    if (event.name == name) found.push_back(event);
  }
  return found;
}

// The ranks compute with matrices of different sizes, so a foreign event would have the wrong shape.
TEST(ProfilerTest, EverySimulatedRankRecordsItsOwnOperators) {
  const TemporaryFolder folder;
  run_ranks(Backend::kSim, 3, [&](RankContext& rank) {
    Profiler profiler(
        rank, {.record_shapes = true, .profile_memory = true, .with_flops = true, .output_trace_dir = folder.path()});
    rank.world.barrier();
    work(4 + rank.rank);
    rank.world.barrier();
    work(4 + rank.rank);
    profiler.finish();
  });
  EXPECT_THAT(folder.files(), ElementsAre("profile_0.json", "profile_1.json", "profile_2.json"));
  for (int rank = 0; rank < 3; ++rank) {
    const auto trace =
        nlohmann::json::parse(testing::read_file(folder.path("profile_" + std::to_string(rank) + ".json")));
    EXPECT_EQ(trace["distributedInfo"]["rank"], rank);
    int num_products = 0;
    std::int64_t bytes = 0;
    for (const auto& event : trace["traceEvents"]) {
      if (event["name"] == "[memory]") bytes += event["args"]["Bytes"].get<std::int64_t>();
      // The matrix product, whose shapes and operations are known.
      if (event["name"] != "aten::mm") continue;
      ++num_products;
      const int size = 4 + rank;
      EXPECT_EQ(event["args"]["Input Dims"], (nlohmann::json{{size, size}, {size, size}}));
      EXPECT_EQ(event["args"]["flops"], 2 * size * size * size);
      EXPECT_GE(event["dur"], 0.0);
    }
    EXPECT_EQ(num_products, 6) << "two steps: forward, and two in backward";
    // Allocations are positive and releases negative, so they add up to what is still held.
    EXPECT_EQ(bytes, 0) << "what was allocated was freed";
  }
}

// Tools such as Perfetto read this format, so the file must be valid and contain what Kineto measured.
TEST(ProfilerTest, AProcessIsRecordedByKinetoAndReadsAsAChromeTrace) {
  const TemporaryFolder folder;
  const auto context = make_single_rank();
  const RankScope scope(*context);
  Profiler profiler(*context,
                    {.activities = {"cpu"}, .record_shapes = true, .output_trace_dir = folder.path("deep/er")});
  work(5);
  profiler.finish();
  profiler.finish();
  // Calling finish() twice must not record or write anything again.
  EXPECT_EQ(events_named(profiler, "aten::mm").size(), 3U);
  EXPECT_THAT(events_named(profiler, "aten::mm")[0].input_shapes, ElementsAre(ElementsAre(5, 5), ElementsAre(5, 5)));
  const auto trace = nlohmann::json::parse(testing::read_file(folder.path("deep/er/profile_0.json")));
  int num_products = 0;
  for (const auto& event : trace["traceEvents"]) num_products += event.value("name", "") == "aten::mm" ? 1 : 0;
  EXPECT_EQ(num_products, 3);
  profiler.export_chrome_trace(folder.path("copy.json"));
  EXPECT_EQ(testing::read_file(folder.path("copy.json")), testing::read_file(folder.path("deep/er/profile_0.json")));
  EXPECT_THAT(profiler.key_averages().table(), HasSubstr("aten::mm"));
}

// The user's function gets each recording when it is complete, for both ways of recording.
TEST(ProfilerTest, EachScheduledCycleIsHandedOverOnItsOwn) {
  for (const auto* backend : {"none", "sim"}) {
    const auto context = make_single_rank();
    context->backend = backend;
    const RankScope scope(*context);
    std::vector<std::size_t> products;
    std::vector<std::int64_t> steps;
    Profiler profiler(
        *context, {.activities = {"cpu"},
                   .schedule_option = ProfileSchedule{.wait = 1, .warmup = 1, .active = 2, .repeat = 2},
                   .on_trace_ready = [&](Profiler& ready) {
                     products.push_back(events_named(ready, "aten::mm").size());
                     steps.push_back(ready.step_num());
                     EXPECT_EQ(events_named(ready, "ProfilerStep#" + std::to_string(ready.step_num() - 1)).size(), 1U);
                   }});
    for (int step = 0; step < 10; ++step) {
      // Step n makes n + 1 products, so the counts show which steps were recorded.
      for (int time = 0; time <= step; ++time) torch::mm(torch::ones({2, 2}), torch::ones({2, 2}));
      profiler.step();
    }
    profiler.finish();
    // Of each cycle of four steps, one waits, one warms up and two are recorded.
    EXPECT_THAT(products, ElementsAre(3 + 4, 7 + 8)) << backend;
    EXPECT_THAT(steps, ElementsAre(4, 8)) << backend;
  }
}

// Kineto's state is global. A training that is stopped early must not leave it half started.
TEST(ProfilerTest, EndingInAWarmUpOrAnOpenScopeDoesNotAffectTheNextProfiler) {
  for (const auto* backend : {"none", "sim"}) {
    const auto context = make_single_rank();
    context->backend = backend;
    const RankScope scope(*context);
    {
      Profiler warming(*context, {.activities = {"cpu"}, .schedule_option = ProfileSchedule{.warmup = 3}});
      warming.finish();
      EXPECT_THAT(warming.events(), IsEmpty());
      EXPECT_THAT(message_of<StateError>([&] { warming.export_chrome_trace("x.json"); }),
                  HasSubstr("nothing was recorded in 1 steps"));
    }
    // Destroyed without finish(), as after an exception.
    { const Profiler abandoned(*context, {.activities = {"cpu"}}); }
    Profiler profiler(*context, {.activities = {"cpu"}});
    work(3);
    profiler.finish();
    EXPECT_EQ(events_named(profiler, "aten::mm").size(), 3U) << backend;
  }
}

// A second one would stop the first. After the first has finished, another may begin.
TEST(ProfilerTest, OnlyOneProfilerRecordsTheProcessAtATime) {
  const auto context = make_single_rank();
  Profiler first(*context, {.activities = {"cpu"}});
  EXPECT_THAT(message_of<StateError>([&] { Profiler(*context, {.activities = {"cpu"}}); }),
              HasSubstr("one profiler per process"));
  first.finish();
  Profiler(*context, {.activities = {"cpu"}}).finish();
}

// Activities that this build lacks, and a schedule that records nothing.
TEST(ProfilerTest, AllProblemsAreOneErrorOnEveryRank) {
  const auto messages = collect_ranks(Backend::kSim, 2, [](RankContext& rank) {
    return message_of<ConfigError>([&] {
      Profiler(rank,
               {.activities = {"xpu", "cuda"}, .schedule_option = ProfileSchedule{.active = 0}, .with_stack = true});
    });
  });
  for (const auto& message : messages) {
    for (const auto* part : {"'xpu'", "active 0", "with_stack", "simulated ranks run on the CPU"})
      EXPECT_THAT(message, HasSubstr(part));
  }
}

}  // namespace
}  // namespace accel
