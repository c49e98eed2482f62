// The simulator accepts the tensors that Gloo accepts, no more and no less: every collective of a process group with
// every dtype and every form of memory, on real Gloo and on simulated ranks.
#include <ATen/ATen.h>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <utility>
#include <vector>

#include "reference/comm/group.hpp"
#include "tests/support/run_ranks.hpp"

namespace accel::testing::backend_rules_test {
namespace {

using Tensors = std::vector<at::Tensor>;
using Lists = std::vector<Tensors>;
using ::testing::HasSubstr;

constexpr int kRanks = 2, kRows = 4, kColumns = 6;
const std::vector<at::ScalarType> kDtypes{
    at::kByte,          at::kChar,        at::kShort,           at::kInt,
    at::kLong,          at::kUInt16,      at::kUInt32,          at::kUInt64,
    at::kHalf,          at::kBFloat16,    at::kFloat,           at::kDouble,
    at::kBool,          at::kComplexHalf, at::kComplexFloat,    at::kComplexDouble,
    at::kFloat8_e4m3fn, at::kFloat8_e5m2, at::kFloat8_e4m3fnuz, at::kFloat8_e5m2fnuz};

enum class Form { kContiguous, kPermuted, kGaps, kGapsBetweenRows };
constexpr Form kForms[] = {Form::kPermuted, Form::kGaps, Form::kGapsBetweenRows};

std::string name_of(Form form) {
  switch (form) {
    case Form::kContiguous: return "contiguous";
    case Form::kPermuted: return "permuted";
    case Form::kGaps: return "with gaps";
    case Form::kGapsBetweenRows: return "with gaps between rows";
  }
  return "";
}

std::vector<std::int64_t> strides_of(Form form, std::int64_t rows) {
  switch (form) {
    case Form::kContiguous: return {kColumns, 1};
    case Form::kPermuted: return {1, rows};
    case Form::kGaps: return {2 * kColumns, 2};
    case Form::kGapsBetweenRows: return {kColumns + 3, 1};
  }
  return {};
}

// The tensors of a call. What the case is about has its form and dtype; all others are contiguous.
struct Maker {
  at::ScalarType dtype;
  Form form;
  int rank;

  [[nodiscard]] at::Tensor tested(std::int64_t rows = kRows) const { return make(rows, form); }
  [[nodiscard]] at::Tensor other(std::int64_t rows = kRows) const { return make(rows, Form::kContiguous); }

 private:
  [[nodiscard]] at::Tensor make(std::int64_t rows, Form own_form) const {
    const auto values = (at::arange(rows * kColumns, at::kFloat).view({rows, kColumns}).remainder(5) + rank).to(dtype);
    // With room around it: Gloo writes beyond some tensors that are not contiguous.
    constexpr std::int64_t kRoom = 512;
    auto tensor = at::zeros({3 * kRoom}, dtype).as_strided(values.sizes(), strides_of(own_form, rows), kRoom);
    tensor.copy_(values);
    return tensor;
  }
};

struct Case {
  const char* name;
  const char* collective;  // as errors name it
  /// Returns the tensors that hold the rank's results.
  std::function<Tensors(c10d::ProcessGroup&, const Maker&)> run;
};

Tensors finished(const c10::intrusive_ptr<c10d::Work>& work, Tensors results) {
  work->wait();
  return results;
}

Tensors joined(const Lists& lists) {
  Tensors all;
  for (const auto& list : lists) all.insert(all.end(), list.begin(), list.end());
  return all;
}

template <typename Options>
Options with(c10d::ReduceOp::RedOpType op) {
  Options options;
  options.reduceOp = op;
  return options;
}

std::vector<Case> reductions(c10d::ReduceOp::RedOpType op) {
  return {
      {"all_reduce", "all_reduce",
       [op](auto& group, const Maker& make) {
         Tensors tensors{make.tested()};
         return finished(group.allreduce(tensors, with<c10d::AllreduceOptions>(op)), tensors);
       }},
      {"all_reduce_coalesced", "all_reduce_coalesced",
       [op](auto& group, const Maker& make) {
         Tensors tensors{make.tested(), make.tested()};
         return finished(group.allreduce_coalesced(tensors, with<c10d::AllreduceCoalescedOptions>(op)), tensors);
       }},
      {"reduce", "reduce",
       [op](auto& group, const Maker& make) {
         Tensors tensors{make.tested()};
         const auto work = group.reduce(tensors, with<c10d::ReduceOptions>(op));
         return finished(work, make.rank == 0 ? tensors : Tensors());  // partial sums elsewhere
       }},
      {"reduce_scatter: input", "reduce_scatter",
       [op](auto& group, const Maker& make) {
         Tensors outputs{make.other()};
         Lists inputs{{make.tested(), make.tested()}};
         return finished(group.reduce_scatter(outputs, inputs, with<c10d::ReduceScatterOptions>(op)), outputs);
       }},
      {"reduce_scatter: output", "reduce_scatter",
       [op](auto& group, const Maker& make) {
         Tensors outputs{make.tested()};
         Lists inputs{{make.other(), make.other()}};
         return finished(group.reduce_scatter(outputs, inputs, with<c10d::ReduceScatterOptions>(op)), outputs);
       }},
      {"reduce_scatter_tensor: input", "reduce_scatter_tensor",
       [op](auto& group, const Maker& make) {
         auto input = make.tested(), output = make.other(kRows / 2);
         return finished(group._reduce_scatter_base(output, input, with<c10d::ReduceScatterOptions>(op)), {output});
       }},
      {"reduce_scatter_tensor: output", "reduce_scatter_tensor",
       [op](auto& group, const Maker& make) {
         auto input = make.other(2 * kRows), output = make.tested();
         return finished(group._reduce_scatter_base(output, input, with<c10d::ReduceScatterOptions>(op)), {output});
       }},
      {"reduce_scatter_tensor_coalesced: input", "reduce_scatter_tensor",
       [op](auto& group, const Maker& make) {
         Tensors inputs{make.tested()}, outputs{make.other(kRows / 2)};
         return finished(group.reduce_scatter_tensor_coalesced(outputs, inputs, with<c10d::ReduceScatterOptions>(op)),
                         outputs);
       }},
      {"reduce_scatter_tensor_coalesced: output", "reduce_scatter_tensor",
       [op](auto& group, const Maker& make) {
         Tensors inputs{make.other(2 * kRows)}, outputs{make.tested()};
         return finished(group.reduce_scatter_tensor_coalesced(outputs, inputs, with<c10d::ReduceScatterOptions>(op)),
                         outputs);
       }},
  };
}

std::vector<Case> moves() {
  return {
      {"broadcast", "broadcast",
       [](auto& group, const Maker& make) {
         Tensors tensors{make.tested()};
         return finished(group.broadcast(tensors, c10d::BroadcastOptions()), tensors);
       }},
      {"all_gather: input", "all_gather",
       [](auto& group, const Maker& make) {
         Tensors inputs{make.tested()};
         Lists outputs{{make.other(), make.other()}};
         return finished(group.allgather(outputs, inputs), joined(outputs));
       }},
      {"all_gather: output", "all_gather",
       [](auto& group, const Maker& make) {
         Tensors inputs{make.other()};
         Lists outputs{{make.tested(), make.tested()}};
         return finished(group.allgather(outputs, inputs), joined(outputs));
       }},
      {"all_gather_into_tensor: input", "all_gather_into_tensor",
       [](auto& group, const Maker& make) {
         auto input = make.tested(), output = make.other(2 * kRows);
         return finished(group._allgather_base(output, input), {output});
       }},
      {"all_gather_into_tensor: output", "all_gather_into_tensor",
       [](auto& group, const Maker& make) {
         auto input = make.other(kRows / 2), output = make.tested();
         return finished(group._allgather_base(output, input), {output});
       }},
      {"all_gather_coalesced: input", "all_gather_coalesced",
       [](auto& group, const Maker& make) {
         Tensors inputs{make.tested()};
         Lists outputs{{make.other()}, {make.other()}};
         return finished(group.allgather_coalesced(outputs, inputs), joined(outputs));
       }},
      {"all_gather_coalesced: output", "all_gather_coalesced",
       [](auto& group, const Maker& make) {
         Tensors inputs{make.other()};
         Lists outputs{{make.tested()}, {make.tested()}};
         return finished(group.allgather_coalesced(outputs, inputs), joined(outputs));
       }},
      {"all_gather_into_tensor_coalesced: input", "all_gather_into_tensor_coalesced",
       [](auto& group, const Maker& make) {
         Tensors inputs{make.tested()}, outputs{make.other(2 * kRows)};
         return finished(group.allgather_into_tensor_coalesced(outputs, inputs), outputs);
       }},
      {"all_gather_into_tensor_coalesced: output", "all_gather_into_tensor_coalesced",
       [](auto& group, const Maker& make) {
         Tensors inputs{make.other(kRows / 2)}, outputs{make.tested()};
         return finished(group.allgather_into_tensor_coalesced(outputs, inputs), outputs);
       }},
      {"gather: input", "gather",
       [](auto& group, const Maker& make) {
         Tensors inputs{make.tested()};
         Lists outputs = make.rank == 0 ? Lists{{make.other(), make.other()}} : Lists();
         return finished(group.gather(outputs, inputs), joined(outputs));
       }},
      {"gather: output", "gather",
       [](auto& group, const Maker& make) {
         Tensors inputs{make.other()};
         Lists outputs = make.rank == 0 ? Lists{{make.tested(), make.tested()}} : Lists();
         return finished(group.gather(outputs, inputs), joined(outputs));
       }},
      {"scatter: input", "scatter",
       [](auto& group, const Maker& make) {
         Tensors outputs{make.other()};
         Lists inputs = make.rank == 0 ? Lists{{make.tested(), make.tested()}} : Lists();
         return finished(group.scatter(outputs, inputs), outputs);
       }},
      {"scatter: output", "scatter",
       [](auto& group, const Maker& make) {
         Tensors outputs{make.tested()};
         Lists inputs = make.rank == 0 ? Lists{{make.other(), make.other()}} : Lists();
         return finished(group.scatter(outputs, inputs), outputs);
       }},
      {"all_to_all_single: input", "all_to_all_single",
       [](auto& group, const Maker& make) {
         auto input = make.tested(), output = make.other();
         std::vector<std::int64_t> splits;
         return finished(group.alltoall_base(output, input, splits, splits), {output});
       }},
      {"all_to_all_single: output", "all_to_all_single",
       [](auto& group, const Maker& make) {
         auto input = make.other(), output = make.tested();
         std::vector<std::int64_t> splits;
         return finished(group.alltoall_base(output, input, splits, splits), {output});
       }},
      {"all_to_all", "all_to_all",
       [](auto& group, const Maker& make) {
         Tensors inputs{make.tested(), make.tested()}, outputs{make.other(), make.other()};
         return finished(group.alltoall(outputs, inputs), outputs);
       }},
      {"all_to_all: output", "all_to_all",
       [](auto& group, const Maker& make) {
         Tensors inputs{make.other(), make.other()}, outputs{make.tested(), make.tested()};
         return finished(group.alltoall(outputs, inputs), outputs);
       }},
      {"all_to_all: in place", "all_to_all",
       [](auto& group, const Maker& make) {
         Tensors tensors{make.tested(), make.tested()};
         return finished(group.alltoall(tensors, tensors), tensors);
       }},
      {"all_to_all: parts of different shapes", "all_to_all",
       [](auto& group, const Maker& make) {
         Tensors inputs{make.tested(), make.tested(kRows + 1)}, outputs{make.other(), make.other(kRows + 1)};
         return finished(group.alltoall(outputs, inputs), outputs);
       }},
      {"send", "send",
       [](auto& group, const Maker& make) {
         Tensors tensors{make.rank == 0 ? make.tested() : make.other()};
         return finished(make.rank == 0 ? group.send(tensors, 1, 0) : group.recv(tensors, 0, 0), tensors);
       }},
      {"recv", "recv",
       [](auto& group, const Maker& make) {
         Tensors tensors{make.rank == 0 ? make.other() : make.tested()};
         return finished(make.rank == 0 ? group.send(tensors, 1, 0) : group.recv(tensors, 0, 0), tensors);
       }},
  };
}

struct Outcome {
  std::vector<Tensors> results = std::vector<Tensors>(kRanks);
  std::vector<std::string> errors = std::vector<std::string>(kRanks);  // empty: the rank's call succeeded
  [[nodiscard]] std::string error() const { return errors[0].empty() ? errors[1] : errors[0]; }
};

// A call per dtype in one group: a dtype is refused on every rank, before anything is sent.
std::vector<Outcome> outcomes_of(Backend backend, const Case& one, const std::vector<at::ScalarType>& dtypes,
                                 Form form) {
  std::vector<Outcome> outcomes(dtypes.size());
  const auto run = [&](RankContext& rank) {
    for (std::size_t place = 0; place < dtypes.size(); ++place) {
      try {
        for (const auto& tensor : one.run(*rank.world.process_group(), {dtypes[place], form, rank.rank}))
          outcomes[place].results[rank.rank].push_back(tensor.contiguous());
      } catch (const std::exception& error) {
        outcomes[place].errors[rank.rank] = error.what();
      }
    }
  };
  try {
    run_ranks(backend, kRanks, run, std::chrono::seconds(3));
  } catch (const std::exception& error) {  // for example a rank waits for one that has refused its tensors
    outcomes.back().errors.front() += error.what();
  }
  return outcomes;
}

bool have_equal_bytes(const Outcome& one, const Outcome& other) {
  for (int rank = 0; rank < kRanks; ++rank) {
    for (std::size_t place = 0; place < one.results[rank].size(); ++place) {
      if (!one.results[rank][place].view(at::kByte).equal(other.results[rank][place].view(at::kByte))) return false;
    }
  }
  return true;
}

// Gloo is right if the form of the memory does not change what it computes.
void expect_the_same(const Case& one, const std::vector<at::ScalarType>& dtypes, Form form) {
  const auto real = outcomes_of(Backend::kGlooThreads, one, dtypes, form),
             simulated = outcomes_of(Backend::kSim, one, dtypes, form),
             contiguous = outcomes_of(Backend::kGlooThreads, one, dtypes, Form::kContiguous);
  for (std::size_t place = 0; place < dtypes.size(); ++place) {
    SCOPED_TRACE(fmt::format("{}, {} {}", one.name, c10::toString(dtypes[place]), name_of(form)));
    if (real[place].error().empty() && have_equal_bytes(real[place], contiguous[place])) {
      EXPECT_EQ(simulated[place].error(), "");
      EXPECT_TRUE(have_equal_bytes(simulated[place], real[place]));
    } else {
      EXPECT_THAT(simulated[place].error(), HasSubstr(fmt::format("{}: ", one.collective)))
          << "Gloo: " << (real[place].error().empty() ? "wrong values" : real[place].error());
    }
  }
}

TEST(BackendRulesTest, DtypesThatAreMoved) {
  for (const auto& one : moves()) expect_the_same(one, kDtypes, Form::kContiguous);
}

TEST(BackendRulesTest, DtypesThatAreReduced) {
  using c10d::ReduceOp;
  for (const auto op : {ReduceOp::SUM, ReduceOp::AVG, ReduceOp::PRODUCT, ReduceOp::MAX, ReduceOp::BAND}) {
    SCOPED_TRACE(fmt::format("reduction {}", static_cast<int>(op)));
    for (const auto& one : reductions(op)) {
      expect_the_same(one, kDtypes, Form::kContiguous);
    }
  }
}

TEST(BackendRulesTest, FormsOfMemory) {
  for (const auto form : kForms) {
    for (const auto& one : moves()) expect_the_same(one, {at::kFloat}, form);
    for (const auto& one : reductions(c10d::ReduceOp::SUM)) expect_the_same(one, {at::kFloat}, form);
    for (const auto& one : reductions(c10d::ReduceOp::AVG)) expect_the_same(one, {at::kComplexFloat}, form);
  }
}

// ProcessGroupGloo has no connection of a rank to itself: "Pair is not connected".
TEST(BackendRulesTest, MessagesToOneself) {
  const std::pair<const char*, bool> messages[] = {{"send", true}, {"recv", false}};
  for (const auto& [name, is_send] : messages) {
    const Case one{name, name, [is_send = is_send](auto& group, const Maker& make) {
                     Tensors tensors{make.tested()};
                     return finished(is_send ? group.send(tensors, make.rank, 0) : group.recv(tensors, make.rank, 0),
                                     tensors);
                   }};
    const auto real = outcomes_of(Backend::kGlooTcpThreads, one, {at::kFloat}, Form::kContiguous),
               simulated = outcomes_of(Backend::kSim, one, {at::kFloat}, Form::kContiguous);
    for (int rank = 0; rank < kRanks; ++rank) {
      EXPECT_NE(real.front().errors[rank], "") << name;
      EXPECT_THAT(simulated.front().errors[rank],
                  HasSubstr(fmt::format("{}: rank {} is the caller itself, which Gloo does not support", name, rank)));
    }
  }
}

}  // namespace
}  // namespace accel::testing::backend_rules_test
