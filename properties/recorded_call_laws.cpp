// Real ranks record what the simulator compares, and their calls that differ have the simulator's diagnosis.
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include <algorithm>
#include <numeric>
#include <optional>
#include <tuple>

#include "backends/recorded/recorded_backend.hpp"
#include "properties/gen/collective_call.hpp"
#include "reference/recorder/exchange.hpp"
#include "reference/recorder/job_reader.hpp"
#include "reference/recorder/message.hpp"
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
  const auto count = pick(1, 8);
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
    if (one_in(4)) {  // only the last tensors differ, which are beyond the room of the record if there are many
      other = one;
      other.inputs.back() = any_tensor();
      other.outputs.back() = any_tensor();
    }
    const auto first = job[0].begin_collective(0, recorder::facts_of(one));
    RC_ASSERT(job[0].agrees(0, first));
    const auto second = job[1].begin_collective(0, recorder::facts_of(other));
    const bool agreed = agree(sim::call_of(one), sim::call_of(other));
    RC_ASSERT(job[1].agrees(0, second) == agreed);
    RC_ASSERT(job[0].agrees(0, first) == agreed);
  });
}

// The parts of an all-to-all of any ranks, of which a few say something else than their peers.
std::vector<CollectiveArgs> any_all_to_alls(int num_ranks) {
  const bool is_list = one_in(3);
  std::vector<CollectiveArgs> ranks(num_ranks);
  std::vector<std::vector<std::int64_t>> rows(num_ranks, std::vector<std::int64_t>(num_ranks));
  for (auto& of_rank : rows) {
    for (auto& count : of_rank) count = pick(0, 4);
  }
  const auto other = [](std::int64_t number) { return one_in(12) ? pick(0, 4) : number; };
  for (int rank = 0; rank < num_ranks; ++rank) {
    auto& args = ranks[rank];
    args.collective = is_list ? Collective::kAllToAll : Collective::kAllToAllSingle;
    for (int peer = 0; peer < num_ranks; ++peer) {
      args.input_splits.push_back(other(rows[rank][peer]));
      args.output_splits.push_back(other(rows[peer][rank]));
    }
    const auto width = other(2);
    const auto add = [&](auto& splits, auto& tensors) {
      if (!is_list) return tensors.push_back(at::ones({std::accumulate(splits.begin(), splits.end(), 0l), width}));
      for (const auto count : splits)
        tensors.push_back(at::ones(one_in(12) ? std::vector{width, count} : std::vector{count, width}));
      splits.clear();
    };
    add(args.input_splits, args.inputs);
    add(args.output_splits, args.outputs);
  }
  return ranks;
}

TEST(RecordedCallLaws, PartsThatDifferAreThoseOfTheSimulator) {
  expect_property(300, [&] {
    const int num_ranks = pick(1, 5);
    RecordedJob job(num_ranks);
    const auto ranks = any_all_to_alls(num_ranks);
    std::vector<sim::BuffersOf<at::Tensor>> buffers;
    for (const auto& args : ranks)
      buffers.push_back({args.inputs, args.outputs, args.input_splits, args.output_splits});
    std::vector<sim::BuffersOf<at::Tensor>*> pointers;
    for (auto& one : buffers) pointers.push_back(&one);
    auto expected = sim::split_mismatches<at::Tensor>(ranks[0].collective, pointers);
    // Of these, Gloo notices only other numbers of elements.
    std::erase_if(expected, [&](const SplitMismatch& one) {
      const auto &from = ranks[one.from], &to = ranks[one.to];
      if (from.collective == Collective::kAllToAll) return one.sent == one.expected;
      return from.input_splits[one.to] * from.inputs[0].size(1) == to.output_splits[one.from] * to.outputs[0].size(1);
    });
    bool all_agree = true;
    for (int rank = 0; rank < num_ranks; ++rank) {
      const auto parts = recorder::parts_of(ranks[rank], num_ranks);
      const auto call = job[rank].begin_collective(0, recorder::facts_of(ranks[rank]), &*parts);
      all_agree = job[rank].agrees(0, call) && all_agree;
    }
    RC_ASSERT(all_agree == expected.empty());
    const auto recorded = recorder::split_mismatches(*job.record(), "world", 0);
    RC_ASSERT(std::ranges::equal(recorded, expected, [](auto& a, auto& b) {
      return std::tie(a.from, a.to, a.sent, a.expected) == std::tie(b.from, b.to, b.sent, b.expected);
    }));
  });
}

// One end of a message, and another end that may differ: found by the second, and never without a reason.
TEST(RecordedCallLaws, MessagesThatDifferAreFound) {
  expect_property(300, [&] {
    RecordedJob job(2);
    const auto first = pick(0, 2);
    const auto sent = any_tensor(), received = one_in(2) ? any_tensor() : sent;
    RC_PRE(!sent.is_sparse() && !received.is_sparse());
    for (int before = pick(0, 3); before-- > 0;) {
      const CollectiveArgs send{.collective = Collective::kSend, .inputs = {at::ones({before + 1})}},
          receive{.collective = Collective::kRecv, .outputs = {at::ones({before + 1})}};
      job[0].begin_message(0, recorder::facts_of(send), /*peer=*/1, /*tag=*/0);
      job[1].begin_message(0, recorder::facts_of(receive), /*peer=*/0, /*tag=*/0);
    }
    const int tag = one_in(4) ? 3 : 0;
    const CollectiveArgs send{.collective = Collective::kSend, .inputs = {sent}},
        receive{.collective = Collective::kRecv, .outputs = {received}};
    std::optional<Diagnosis> found;
    for (const int rank : {first, 1 - first}) {
      RC_ASSERT(!found);
      const auto call = job[rank].begin_message(0, recorder::facts_of(rank == 0 ? send : receive), 1 - rank, tag);
      found = recorder::message_difference(*job.record(), rank, call.position);
    }
    const bool differ = sent.scalar_type() != received.scalar_type() || sent.numel() != received.numel();
    RC_ASSERT(found.has_value() == (differ && tag == 0));
    if (found) RC_ASSERT(found->ranks == std::vector{1});
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
