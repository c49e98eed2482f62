// Fault files: what they may hold, how problems are reported, and that writing and reading them are inverse. Fault
// files are kept with the runs that they broke, so they must stay readable.
#include "sim/faults/fault_file.hpp"

#include <gmock/gmock.h>

#include <limits>

#include "reference/core/errors.hpp"
#include "sim/faults/fault_plan.hpp"
#include "tests/sim/faults/any_faults.hpp"
#include "tests/support/damage.hpp"
#include "tests/support/property.hpp"

namespace accel::sim {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

std::vector<Fault> parse(const std::string& text, int num_ranks = 8) {
  return parse_faults(text, "faults.yaml", num_ranks);
}

// Parses a file with a single fault.
Fault parse_one(const std::string& entry, int num_ranks = 8) {
  return parse("faults:\n  - " + entry + "\n", num_ranks).at(0);
}

std::string problems_of(const std::string& text, int num_ranks = 8) {
  try {
    parse(text, num_ranks);
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "";
}

std::string problem_of(const std::string& entry, int num_ranks = 8) {
  return problems_of("faults:\n  - " + entry + "\n", num_ranks);
}

// One line per kind of parameter, so every field of Fault is compared with a known value.
TEST(FaultFileTest, AFileGivesItsFaultsInOrder) {
  const auto faults = parse(
      "seed: 7\n"
      "faults:\n"
      "  - {kind: rank_crash_before_optimizer_step, rank: 3, when: {step: 5}}\n"
      "  - {kind: slow_rank, rank: any, factor: 4.5}\n"
      "  - {kind: message_delay, link: [0, 1], seconds: 0.2, probability: 0.01}\n"
      "  - {kind: message_loss, when: {collective: 0}}\n"
      "  - {kind: partition, ranks: [5, 2], one_way: true}\n"
      "  - {kind: torn_write, rank: 1, bytes: 17, file: optimizer}\n"
      "  - {kind: wrong_call, what: reduce_op}\n"
      "  - {kind: nan_gradient, value: inf}\n"
      "  - {kind: store_slow, away: true}\n"
      "  - {kind: bit_flip, bit: 30, stream: 77}\n"
      "  - {kind: disk_full, after_bytes: 1000}\n");
  using Unit = When::Unit;
  const auto fault = [](FaultKind kind, std::uint32_t stream) {
    return Fault{.kind = kind, .seed = 7, .stream = stream};
  };
  auto expected = std::vector{fault(FaultKind::kRankCrashBeforeOptimizerStep, 0),
                              fault(FaultKind::kSlowRank, 1),
                              fault(FaultKind::kMessageDelay, 2),
                              fault(FaultKind::kMessageLoss, 3),
                              fault(FaultKind::kPartition, 4),
                              fault(FaultKind::kTornWrite, 5),
                              fault(FaultKind::kWrongCall, 6),
                              fault(FaultKind::kNanGradient, 7),
                              fault(FaultKind::kStoreSlow, 8),
                              fault(FaultKind::kBitFlip, 77),
                              fault(FaultKind::kDiskFull, 10)};
  expected[0].rank = 3, expected[0].when = When{Unit::kStep, 5};
  expected[1].rank = kAnyRank, expected[1].factor = 4.5;
  expected[2].link = NetworkLink{0, 1}, expected[2].seconds = 0.2, expected[2].probability = 0.01;
  expected[3].when = When{Unit::kCollective, 0};
  expected[4].ranks = {2, 5}, expected[4].one_way = true;
  expected[5].rank = 1, expected[5].bytes = 17, expected[5].file = "optimizer";
  expected[6].what = WrongCall::kReduceOp;
  expected[7].value = BadValue::kInf;
  expected[8].away = true;
  expected[9].bit = 30;
  expected[10].after_bytes = 1000;
  EXPECT_EQ(faults, expected);
}

// All parameters but the kind are optional: absent ones are drawn from the seed.
TEST(FaultFileTest, EveryKindIsValidAlone) {
  for (const auto& rule : kFaultRules) {
    const auto fault = parse_one("{kind: " + std::string(rule.name) + "}");
    EXPECT_EQ(rule_of(fault.kind).name, rule.name);
  }
}

// An empty list is a decision, an empty file probably a mistake.
TEST(FaultFileTest, NoFaultsAreAFileToo) {
  EXPECT_THAT(parse("faults: []\n"), IsEmpty());
  EXPECT_EQ(problems_of(""), "faults.yaml: faults: missing; it is required");
}

// A user fixes the file once instead of once for each problem.
TEST(FaultFileTest, AllProblemsAreInOneErrorWithTheirLines) {
  const auto message = problems_of(
      "seed: -1\n"
      "faults:\n"
      "  - {kind: rank_pause, rank: 8, seconds: -1}\n"
      "  - {kind: power_cut}\n"
      "  - {rank: 1}\n"
      "  - {kind: slow_link, link: [3, 3], factor: 0.5}\n"
      "sed: 1\n");
  EXPECT_THAT(message,
              AllOf(HasSubstr("faults.yaml:1: seed: expected 0 or more, got '-1'"),
                    HasSubstr("faults.yaml:3: faults[0].rank: expected any, or a rank of 0..7, got '8'"),
                    HasSubstr("faults.yaml:3: faults[0].seconds: expected a number of 0 or more, got '-1'"),
                    HasSubstr("faults.yaml:5: faults[2].kind: missing"),
                    HasSubstr("faults.yaml:6: faults[3].link: expected [from, to], two ranks of 0..7, got [3, 3]"),
                    HasSubstr("faults.yaml:6: faults[3].factor: expected a number of 1 or more, got '0.5'"),
                    HasSubstr("faults.yaml:7: sed: unknown key; known: faults, seed")));
}

// The names of the kinds are long and easily misspelled.
TEST(FaultFileTest, AnUnknownKindIsAnsweredWithTheKnownOnes) {
  const auto message = problem_of("{kind: power_cut}");
  EXPECT_THAT(message, HasSubstr("faults.yaml:2: faults[0].kind: expected one of rank_crash_before_collective, "));
  for (const auto& rule : kFaultRules) EXPECT_THAT(message, HasSubstr(std::string(rule.name)));
  EXPECT_THAT(message, HasSubstr(", got 'power_cut'"));
}

// A parameter that is silently ignored would make a fault look weaker than the user intended.
TEST(FaultFileTest, AParameterOfAnotherKindIsRejected) {
  EXPECT_THAT(problem_of("{kind: rank_hang, seconds: 1}"),
              HasSubstr("faults[0].seconds: unknown key; known: kind, rank, stream, when"));
  EXPECT_THAT(problem_of("{kind: message_loss, rank: 1}"),
              HasSubstr("faults[0].rank: unknown key; known: kind, link, stream, when"));
  EXPECT_THAT(problem_of("{kind: jitter, when: {step: 1}}"),
              HasSubstr("faults[0].when: unknown key; known: kind, rank, seconds, stream"));
}

// A hook belongs to a step, so a collective cannot say when it throws.
TEST(FaultFileTest, AWhenIsOneStepOrOneCollectiveWhereThatMakesSense) {
  EXPECT_EQ(parse_one("{kind: rank_hang, when: {collective: 3}}").when, (When{When::Unit::kCollective, 3}));
  EXPECT_THAT(problem_of("{kind: hook_exception, when: {collective: 3}}"),
              AllOf(HasSubstr("faults[0].when.collective: unknown key; known: step"),
                    HasSubstr("faults[0].when: expected {step: N}, one key, got 0")));
  for (const auto* entry : {"{kind: rank_hang, when: {}}", "{kind: rank_hang, when: {step: 1, collective: 1}}"}) {
    EXPECT_THAT(problem_of(entry), HasSubstr("faults[0].when: expected {step: N} or {collective: N}")) << entry;
  }
  EXPECT_THAT(problem_of("{kind: rank_hang, when: {step: -1}}"),
              HasSubstr("faults[0].when.step: expected 0 or more, got '-1'"));
  EXPECT_THAT(problem_of("{kind: rank_hang, when: 5}"),
              HasSubstr("faults[0].when: expected a mapping of keys to values"));
}

// A fault on a rank that does not exist would never occur, and the run would seem to survive it.
TEST(FaultFileTest, RanksMustExistInTheRun) {
  EXPECT_EQ(parse_one("{kind: rank_hang, rank: 3}", 4).rank, 3);
  for (const auto* entry :
       {"{kind: rank_hang, rank: 4}", "{kind: rank_hang, rank: -1}", "{kind: rank_hang, rank: 1.0}",
        "{kind: rank_hang, rank: [1]}", "{kind: slow_link, link: [0, 4]}", "{kind: slow_link, link: [0]}",
        "{kind: slow_link, link: [0, 1, 2]}", "{kind: slow_link, link: any}", "{kind: partition, ranks: [4]}",
        "{kind: partition, ranks: []}", "{kind: partition, ranks: [1, 1]}", "{kind: partition, ranks: [0, 1, 2, 3]}"}) {
    EXPECT_THAT(problem_of(entry, 4), HasSubstr("0..3")) << entry;
  }
}

TEST(FaultFileTest, ALinkNeedsTwoRanks) {
  for (const auto* kind : {"message_delay", "message_loss", "connection_reset", "partition", "slow_link"}) {
    EXPECT_THAT(problem_of("{kind: " + std::string(kind) + "}", 1),
                HasSubstr(std::string(kind) + " requires at least two ranks; the run has 1"));
  }
  EXPECT_EQ(problem_of("{kind: rank_hang}", 1), "");
}

// One entry for each kind of parameter, with a value of the wrong type or out of range.
TEST(FaultFileTest, ImpossibleAmountsAreRejected) {
  for (const auto* entry :
       {"{kind: slow_rank, factor: .inf}", "{kind: message_delay, probability: 1.5}",
        "{kind: message_delay, seconds: .nan}", "{kind: bit_flip, bit: -1}", "{kind: torn_write, bytes: 0.5}",
        "{kind: disk_full, after_bytes: many}", "{kind: wrong_call, what: root}", "{kind: nan_gradient, value: 7}",
        "{kind: rank_hang, stream: 4294967296}", "{kind: partition, one_way: maybe}"}) {
    EXPECT_THAT(problem_of(entry), HasSubstr(": expected ")) << entry;
  }
  EXPECT_THAT(problem_of("{kind: store_slow, away: true, seconds: 1}"),
              HasSubstr("faults[0].seconds: a store that is away has no delay"));
}

// Faults with the same stream would draw the same random numbers and always occur together.
TEST(FaultFileTest, TwoFaultsWithOneStreamAreRejected) {
  EXPECT_THAT(problems_of("faults:\n  - {kind: rank_hang, stream: 1}\n  - {kind: jitter}\n"),
              HasSubstr("faults.yaml:3: faults[1].stream: 1 is already used by faults[0]"));
  EXPECT_EQ(problems_of("faults:\n  - {kind: rank_hang, stream: 1}\n  - {kind: jitter, stream: 0}\n"), "");
}

// A found failure is written to a file, and replaying it depends on every value.
TEST(FaultFileTest, AWrittenFileReadsBackUnchanged) {
  testing::expect_property(1000, [] {
    const auto num_ranks = testing::pick(2, 65);
    auto faults = testing::any_faults(num_ranks);
    // Half of the cases are planned, which fills in all drawn values. Both forms must survive a round trip.
    if (*rc::gen::arbitrary<bool>()) faults = plan_faults(faults, num_ranks);
    const auto text = to_yaml(faults);
    RC_LOG() << text;
    RC_ASSERT(parse(text, num_ranks) == faults);
  });
}

// Fault files are written by hand; any slip must end in a message, not in a crash.
TEST(FaultFileTest, ADamagedFileIsReadOrRejectedByItsName) {
  int num_read = 0, num_rejected = 0;
  testing::expect_property(3000, [&] {
    auto text = to_yaml(plan_faults(testing::any_faults(8), 8));
    for (int i = 0, count = testing::pick(1, 4); i < count && !text.empty(); ++i) text = testing::damaged(text);
    RC_LOG() << text;
    ++(testing::read_or_reject("faults.yaml", [&] { parse(text); }) ? num_read : num_rejected);
  });
  EXPECT_GT(num_read, 10);
  // Both outcomes must occur, or the damage is too small or too large to test anything.
  EXPECT_GT(num_rejected, 100);
}

// Shrinking removes faults from the list. If a fault's numbers depended on its position, the failure would vanish.
TEST(FaultFileTest, AFaultThatMovesInTheListKeepsItsStream) {
  const auto plan =
      plan_faults(parse("seed: 3\nfaults:\n  - {kind: jitter}\n  - {kind: rank_hang}\n  - {kind: message_delay}\n"), 8);
  const std::vector<Fault> shrunk{plan[2]};
  const auto replayed = parse(to_yaml(shrunk));
  EXPECT_EQ(replayed, shrunk);
  for (std::uint64_t hit = 0; hit < 1000; ++hit) ASSERT_EQ(strikes(replayed[0], 1, hit), strikes(plan[2], 1, hit));
}

// People read and edit this text, so its exact form is tested.
TEST(FaultFileTest, TheYamlOfAPlanIsOneLineAFault) {
  const auto plan = plan_faults(parse("seed: 7\nfaults:\n  - {kind: slow_rank, rank: 2}\n  - {kind: partition, ranks: "
                                      "[1, 0], when: {step: 5}, one_way: true}\n"),
                                8);
  EXPECT_EQ(to_yaml(plan),
            "seed: 7\n"
            "faults:\n"
            "  - {kind: slow_rank, rank: 2, factor: 4}\n"
            "  - {kind: partition, ranks: [0, 1], when: {step: 5}, one_way: true}\n");
}

// A file has one seed; writing would change what one of the faults draws.
TEST(FaultFileTest, FaultsOfTwoSeedsCannotShareAFile) {
  EXPECT_THROW(to_yaml({Fault{.kind = FaultKind::kJitter, .seed = 1}, Fault{.kind = FaultKind::kJitter, .seed = 2}}),
               ArgumentError);
}

// These texts appear in reports and errors.
TEST(FaultFileTest, ADescriptionNamesKindPlaceAndTime) {
  const auto text = [](const std::string& entry) { return describe(parse_one(entry)); };
  EXPECT_EQ(text("{kind: rank_crash_before_optimizer_step, rank: 3, when: {step: 5}}"),
            "rank_crash_before_optimizer_step on rank 3 at step 5");
  EXPECT_EQ(text("{kind: message_delay, link: [0, 1], seconds: 0.2, probability: 0.01}"),
            "message_delay on link 0 -> 1, seconds 0.2, probability 0.01");
  EXPECT_EQ(text("{kind: rank_hang, rank: any, when: {collective: 17}}"), "rank_hang on any rank at collective 17");
  EXPECT_EQ(text("{kind: partition, ranks: [0, 2], one_way: true}"),
            "partition of ranks 0, 2 from the others, one_way true");
}

}  // namespace
}  // namespace accel::sim
