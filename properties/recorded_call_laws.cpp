// Real ranks record what the simulator compares, and their calls that differ have the simulator's diagnosis.
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include <algorithm>

#include "backends/recorded/recorded_backend.hpp"
#include "properties/gen/collective_call.hpp"
#include "reference/recorder/job_reader.hpp"
#include "reference/recorder/rank_recorder.hpp"
#include "sim/backend/simulate.hpp"
#include "sim/backend/torch_tensors.hpp"
#include "tests/support/message_of.hpp"
#include "tests/support/property.hpp"
#include "tests/support/run_ranks.hpp"

namespace accel::testing::recorded_call_laws {
namespace {

using recorder::CallFacts;
using recorder::JobRecord;
using recorder::RankRecorder;

at::Tensor any_tensor() {
  const auto dtype = pick_from({at::kFloat, at::kDouble, at::kInt, at::kLong, at::kBool, at::kBFloat16});
  std::vector<std::int64_t> sizes(pick(0, 5));
  for (auto& size : sizes) size = pick(0, 4);
  auto tensor = at::ones(sizes, dtype);
  if (tensor.dim() >= 2 && one_in(3)) tensor = tensor.transpose(0, 1);
  if (tensor.dim() >= 1 && tensor.numel() > 0 && one_in(6)) tensor = tensor.to_sparse();
  return tensor;
}

CollectiveArgs any_args() {
  CollectiveArgs args{.collective = static_cast<Collective>(pick(0, static_cast<int>(Collective::kSend)))};
  const auto count = pick(1, 4);
  for (int item = 0; item < count; ++item) {
    args.inputs.push_back(any_tensor());
    args.outputs.push_back(any_tensor());
  }
  args.reduce_op = static_cast<c10d::ReduceOp::RedOpType>(pick(0, 8));
  args.root = pick(0, 3);
  return args;
}

// Each of three ranks of one process records its calls as a group of the job.
class RecordedJob {
 public:
  explicit RecordedJob(int num_ranks) : record_(JobRecord::create({.world_size = num_ranks, .num_local = num_ranks})) {
    std::vector<int> members(num_ranks);
    for (int rank = 0; rank < num_ranks; ++rank) members[rank] = rank;
    for (int rank = 0; rank < num_ranks; ++rank) {
      ranks_.push_back(std::make_unique<RankRecorder>(record_, rank));
      ranks_.back()->add_group("world", members);
    }
  }
  RankRecorder& operator[](int rank) { return *ranks_[rank]; }
  [[nodiscard]] Call call(int rank, const RankRecorder::Begun& begun) const {
    return recorder::call_at(record_->rank(rank), begun.position).value();
  }
  [[nodiscard]] const std::shared_ptr<JobRecord>& record() const { return record_; }

 private:
  std::shared_ptr<JobRecord> record_;
  std::vector<std::unique_ptr<RankRecorder>> ranks_;
};

TEST(RecordedCallLaws, TheRecordIsTheCallOfTheSimulator) {
  RecordedJob job(1);
  expect_property(500, [&] {
    const auto args = any_args();
    const auto facts = recorder::facts_of(args);
    RC_PRE(!facts.is_cut);
    const auto expected = sim::call_of(args), recorded = job.call(0, job[0].begin_collective(0, facts));
    RC_LOG(describe(expected));
    RC_ASSERT(describe(recorded) == describe(expected));
    RC_ASSERT(agree(recorded, expected));
    RC_ASSERT(recorded.bytes == expected.bytes);
  });
}

// Also of calls with more shapes than the record has room for.
TEST(RecordedCallLaws, TwoRanksAgreeIfTheirCallsDo) {
  RecordedJob job(2);
  expect_property(500, [&] {
    auto one = any_args(), other = one_in(2) ? any_args() : one;
    if (one_in(2)) other.collective = one.collective;
    if (one_in(3)) other.inputs = one.inputs;
    const auto first = job[0].begin_collective(0, recorder::facts_of(one));
    RC_ASSERT(job[0].agrees(0, first));
    const auto second = job[1].begin_collective(0, recorder::facts_of(other));
    const bool agreed = agree(sim::call_of(one), sim::call_of(other));
    RC_ASSERT(job[1].agrees(0, second) == agreed);
    RC_ASSERT(job[0].agrees(0, first) == agreed);
  });
}

// Performs calls that agree, and then one of two, by rank. Returns each rank's error; "" for a rank without one.
std::vector<std::string> diagnoses(int num_ranks, int num_agreed, const CollectiveCall& usual,
                                   const CollectiveCall& other, const std::vector<bool>& differs) {
  std::vector<std::string> texts(num_ranks);
  const auto body = [&](RankContext& rank) {
    for (int call = 0; call < num_agreed; ++call) perform(usual, rank);
    try {
      perform(differs[rank.rank] ? other : usual, rank);
    } catch (const std::exception& error) {
      texts[rank.rank] = error.what();
    }
  };
  try {
    run_ranks(Backend::kGlooThreads, num_ranks, body);
  } catch (const std::exception&) {  // the barrier at the end of the program
  }
  return texts;
}

bool is_rooted(Op op) { return op == Op::kBroadcast || op == Op::kReduce || op == Op::kGather || op == Op::kScatter; }

TEST(RecordedCallLaws, CallsThatDifferHaveTheDiagnosisOfTheSimulator) {
  expect_property(30, [] {
    const int num_ranks = pick(2, 6), num_agreed = pick(0, 3);
    const auto usual = *collective_call(num_ranks, 200), other = *collective_call(num_ranks, 200);
    RC_PRE(usual.op != Op::kSendRecv && other.op != Op::kSendRecv);
    std::vector<bool> differs(num_ranks);
    for (int rank = 0; rank < num_ranks; ++rank) differs[rank] = one_in(3);
    RC_PRE(std::count(differs.begin(), differs.end(), true) % num_ranks != 0);
    const auto report = sim::rehearse({.num_ranks = num_ranks}, [&](RankContext& rank) {
      for (int call = 0; call < num_agreed; ++call) perform(usual, rank);
      perform(differs[rank.rank] ? other : usual, rank);
    });
    RC_PRE(report.diagnosis.has_value());
    RC_LOG(report.diagnosis->text);
    const auto texts = diagnoses(num_ranks, num_agreed, usual, other, differs);
    for (int rank = 0; rank < num_ranks; ++rank) RC_LOG(fmt::format("rank {}: {}", rank, texts[rank]));
    for (int rank = 0; rank < num_ranks; ++rank) {
      const bool may_complete = is_rooted(differs[rank] ? other.op : usual.op);
      RC_ASSERT(texts[rank] == report.diagnosis->text || (may_complete && texts[rank].empty()));
    }
    RC_ASSERT(std::any_of(texts.begin(), texts.end(), [](auto& text) { return !text.empty(); }));
  });
}

}  // namespace
}  // namespace accel::testing::recorded_call_laws
