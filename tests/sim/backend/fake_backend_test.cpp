// FakeBackend's results are those of simulated ranks that all hold the same tensors.
#include <gmock/gmock.h>
#include <torch/torch.h>

#include "reference/core/errors.hpp"
#include "sim/backend/first_rank.hpp"
#include "sim/backend/simulate.hpp"

namespace accel::testing::fake_backend {
namespace {

constexpr int kRanks = 4;

using Program = std::function<at::Tensor(const Group& group)>;

// What rank 0 computes in a group of ranks 0 and 2, or of all.
at::Tensor with_peers(const Program& program, const std::vector<int>& ranks) {
  at::Tensor result;
  sim::simulate({.num_ranks = kRanks}, [&](RankContext& rank) {
    const auto group = rank.new_group(ranks);
    if (std::find(ranks.begin(), ranks.end(), rank.rank) == ranks.end()) return;
    const auto own = program(group);
    if (rank.rank == 0) result = own;
  });
  return result;
}

at::Tensor alone(const Program& program, const std::vector<int>& ranks) {
  at::Tensor result;
  sim::run_first_rank({.num_ranks = kRanks}, [&](RankContext& rank) { result = program(rank.new_group(ranks)); });
  return result;
}

at::Tensor numbers() { return torch::arange(8, torch::kFloat).view({4, 2}); }

// Of no meaning on ranks other than the root.
at::Tensor reduced(const Group& group, int root) {
  std::vector<at::Tensor> values{numbers()};
  group.process_group()->reduce(values, {.rootRank = root})->wait();
  return group.rank() == root ? values[0] : at::Tensor(torch::zeros({1}));
}

const std::pair<const char*, Program> kPrograms[] = {
    {"all_reduce",
     [](const Group& group) {
       auto values = numbers();
       group.all_reduce(values).wait();
       return values;
     }},
    {"all_reduce mean",
     [](const Group& group) {
       auto values = numbers();
       group.all_reduce(values, ReduceOp::kMean).wait();
       return values;
     }},
    {"all_reduce max",
     [](const Group& group) {
       auto values = numbers();
       group.all_reduce(values, ReduceOp::kMax).wait();
       return values;
     }},
    {"broadcast",
     [](const Group& group) {
       auto values = numbers();
       group.broadcast(values, 1).wait();
       return values;
     }},
    {"all_gather", [](const Group& group) { return group.all_gather(numbers()); }},
    {"all_gather_into",  // from its own slice
     [](const Group& group) {
       auto values = torch::zeros({8 * group.size()});
       values.narrow(0, 0, 8).copy_(numbers().flatten());
       group.all_gather_into(values, values.narrow(0, 0, 8)).wait();
       return values;
     }},
    {"reduce_scatter",
     [](const Group& group) {
       auto values = torch::zeros({8 / group.size()});
       group.reduce_scatter(values, numbers().flatten()).wait();
       return values;
     }},
    {"all_to_all",
     [](const Group& group) {
       auto values = torch::zeros({4, 2});
       group.all_to_all(values, numbers()).wait();
       return values;
     }},
    {"all_reduce_coalesced",
     [](const Group& group) {
       std::vector<at::Tensor> values{numbers(), numbers() + 1};
       group.process_group()->allreduce_coalesced(values)->wait();
       return torch::cat(values);
     }},
    {"reduce to rank 0", [](const Group& group) { return reduced(group, 0); }},
    {"reduce to another", [](const Group& group) { return reduced(group, 1); }},
    {"all_gather of tensors",
     [](const Group& group) {
       std::vector<at::Tensor> input{numbers()};
       std::vector<std::vector<at::Tensor>> outputs{std::vector<at::Tensor>(group.size())};
       for (auto& output : outputs[0]) output = torch::zeros({4, 2});
       group.process_group()->allgather(outputs, input)->wait();
       return torch::cat(outputs[0]);
     }},
    {"gather",
     [](const Group& group) {
       std::vector<at::Tensor> input{numbers()};
       std::vector<std::vector<at::Tensor>> outputs(group.rank() == 0 ? 1 : 0);
       for (auto& list : outputs)
         for (int rank = 0; rank < group.size(); ++rank) list.push_back(torch::zeros({4, 2}));
       group.process_group()->gather(outputs, input, {.rootRank = 0})->wait();
       return outputs.empty() ? at::Tensor() : torch::cat(outputs[0]);
     }},
    {"scatter",
     [](const Group& group) {
       std::vector<at::Tensor> output{torch::zeros({4, 2})};
       std::vector<std::vector<at::Tensor>> inputs(group.rank() == 0 ? 1 : 0);
       for (auto& list : inputs)
         for (int rank = 0; rank < group.size(); ++rank) list.push_back(numbers() + rank);
       group.process_group()->scatter(output, inputs, {.rootRank = 0})->wait();
       return output[0];
     }},
    {"reduce_scatter of tensors",
     [](const Group& group) {
       std::vector<at::Tensor> output{torch::zeros({4, 2})};
       std::vector<std::vector<at::Tensor>> inputs(1);
       for (int rank = 0; rank < group.size(); ++rank) inputs[0].push_back(numbers() + rank);
       group.process_group()->reduce_scatter(output, inputs)->wait();
       return output[0];
     }},
    {"ring",  // sends before it receives, and after
     [](const Group& group) {
       const auto next = (group.rank() + 1) % group.size(), before = (group.rank() + group.size() - 1) % group.size();
       auto first = numbers(), second = numbers() + 1, received = torch::zeros({4, 2}), late = torch::zeros({4, 2});
       auto sending = group.send(first, next);
       group.recv(received, before).wait();
       auto receiving = group.recv(late, before);
       auto sending_second = group.send(second, next);
       receiving.wait();
       sending.wait();
       sending_second.wait();
       return received * 100 + late;
     }},
};

TEST(FakeBackendTest, ResultsAreThoseOfRanksWithEqualTensors) {
  for (const auto& [name, program] : kPrograms) {
    for (const auto& ranks : {std::vector<int>{0, 1, 2, 3}, std::vector<int>{0, 2}})
      EXPECT_TRUE(at::equal(alone(program, ranks), with_peers(program, ranks))) << name << " of " << ranks.size();
  }
}

TEST(FakeBackendTest, RowsGoToEveryRankInItsNumbers) {
  const Program program = [](const Group& group) {
    auto values = torch::zeros({12, 2});
    std::vector<std::int64_t> to_each{3, 0, 1, 0}, from_each{3, 3, 3, 3};
    group.all_to_all(values, numbers(), from_each, to_each).wait();
    return values;
  };
  const auto expected = numbers().narrow(0, 0, 3).repeat({4, 1});
  EXPECT_TRUE(at::equal(alone(program, {0, 1, 2, 3}), expected));
}

// Tokens go to experts on all ranks, and the results return in the numbers in which the tokens left.
TEST(FakeBackendTest, RowsReturnInTheNumbersThatTheRankExpects) {
  const Program program = [](const Group& group) {
    auto values = torch::full({12, 2}, -1.0);
    std::vector<std::int64_t> to_each{3, 1, 0, 0}, from_each{5, 0, 1, 6};
    group.all_to_all(values, numbers(), from_each, to_each).wait();
    return values;
  };
  const auto rows = numbers().narrow(0, 0, 3);
  const auto expected = torch::cat({rows, rows.narrow(0, 0, 2), rows.narrow(0, 0, 1), rows, rows});
  EXPECT_TRUE(at::equal(alone(program, {0, 1, 2, 3}), expected));
}

TEST(FakeBackendTest, RowsOfARankThatSendsItselfNoneAreZero) {
  const Program program = [](const Group& group) {
    auto values = torch::full({4, 2}, -1.0);
    std::vector<std::int64_t> to_each{0, 4, 0, 0}, from_each{1, 1, 1, 1};
    group.all_to_all(values, numbers(), from_each, to_each).wait();
    return values;
  };
  EXPECT_TRUE(at::equal(alone(program, {0, 1, 2, 3}), torch::zeros({4, 2})));
}

// Tensors that exist at a time, whatever is in the account of a model.
TEST(FirstRankTest, ThePeakOfItsMemoryIsThatOfItsTensors) {
  const auto trace = sim::run_first_rank({.num_ranks = 4}, [](RankContext&) {
    for (int count = 0; count < 3; ++count) {
      const auto kept = torch::zeros({1 << 18});
      const auto more = torch::zeros({1 << 19});
    }
    const auto later = torch::zeros({1 << 18});
  });
  EXPECT_EQ(trace.peak_memory_bytes, 3 << 20);
}

TEST(FirstRankTest, ItsErrorIsRethrown) {
  EXPECT_THROW(sim::run_first_rank({.num_ranks = 4}, [](RankContext&) { throw StateError("stop"); }), StateError);
}

}  // namespace
}  // namespace accel::testing::fake_backend
