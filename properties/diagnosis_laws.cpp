// What is planted in a program is found, and named: rank, operation, number, shapes, the program's line.
#include <gtest/gtest.h>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include <algorithm>
#include <chrono>
#include <iostream>
#include <numeric>
#include <thread>

#include "reference/accelerator/accelerator.hpp"
#include "reference/core/call_site.hpp"
#include "sim/backend/simulate.hpp"
#include "tests/support/message_of.hpp"
#include "tests/support/property.hpp"

namespace accel::testing::diagnosis_laws {
namespace {

using sim::Diagnosis;
using Kind = Diagnosis::Kind;
using Clock = std::chrono::steady_clock;
using Shape = std::vector<std::int64_t>;

// Where a bug is planted.
struct Place {
  int num_ranks = 3, culprit = 0, position = 0, length = 1;  // the position is one of `length` steps
  Shape shape = {1};

  [[nodiscard]] std::vector<int> others() const {
    std::vector<int> ranks;
    for (int rank = 0; rank < num_ranks; ++rank) {
      if (rank != culprit) ranks.push_back(rank);
    }
    return ranks;
  }
};

Place any_place() {
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

// Lines of the calls, and when the last of them was made. `watch.at(watch.usual), call();` on one line.
struct Watch {
  std::atomic<unsigned> usual{0}, planted{0};
  std::atomic<bool> is_done{false};
  std::atomic<Clock::rep> last_call{0};

  void at(std::atomic<unsigned>& line, std::source_location where = std::source_location::current()) {
    line = where.line();
    last_call = Clock::now().time_since_epoch().count();
  }
};

std::string name_of(unsigned line) { return line == 0 ? "" : fmt::format("properties/diagnosis_laws.cpp:{}", line); }

struct Expected {
  Kind kind = Kind::kDesync;
  std::vector<int> ranks = {};
  std::string op = "all_reduce";
  std::string group = "world";
  std::optional<std::uint64_t> sequence = std::nullopt;
  std::optional<std::vector<Shape>> shapes = std::nullopt;
  unsigned where = 0;
  std::optional<std::uint64_t> apart_at = std::nullopt;           // of first_difference
  std::vector<std::pair<std::vector<int>, unsigned>> sides = {};  // some of first_difference: ranks and their line
};

void check_first_difference(const Diagnosis& diagnosis, const Expected& expected) {
  if (!expected.apart_at && expected.sides.empty()) return;
  RC_ASSERT(diagnosis.first_difference.has_value());
  const auto& difference = *diagnosis.first_difference;
  if (expected.apart_at) RC_ASSERT(difference.sequence == *expected.apart_at);
  for (const auto& [ranks, line] : expected.sides) {
    const auto where = name_of(line);
    RC_ASSERT(std::any_of(difference.sides.begin(), difference.sides.end(), [&, &ranks = ranks](const auto& side) {
      return side.ranks == ranks && side.where == where;
    }));
  }
}

void check(const sim::SimulationReport& report, const Expected& expected) {
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
  RC_ASSERT(message_of(report.error).find(sim::describe_ranks(expected.ranks)) != std::string::npos);
  check_first_difference(diagnosis, expected);
}

using Body = std::function<void(const Place&, RankContext&, Watch&)>;

// Runs `body` at many places; each time it must be diagnosed as expected, at once.
void expect_diagnosed(const Body& body, const std::function<Expected(const Place&, const Watch&)>& expected,
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

at::Tensor tensor_of(const Place& place) { return at::ones(place.shape); }

bool is_here(const Place& place, const RankContext& rank, int step) {
  return rank.rank == place.culprit && step == place.position;
}

// --- calls that differ -----------------------------------------------------------------------------------------------

using Step = std::function<void(const Place&, RankContext&, Watch&)>;

// At one step the culprit calls something else, which meets the others' call.
void expect_difference(const std::string& op, const Step& usual, const Step& planted) {
  expect_diagnosed(
      [&](const Place& place, RankContext& rank, Watch& watch) {
        for (int step = 0; step < place.length; ++step)
          (is_here(place, rank, step) ? planted : usual)(place, rank, watch);
      },
      [&](const Place& place, const Watch& watch) {
        const auto number = static_cast<std::uint64_t>(place.position);
        return Expected{.ranks = {place.culprit},
                        .op = op,
                        .sequence = number,
                        .shapes = std::vector<Shape>{place.shape},
                        .where = watch.usual,
                        .apart_at = number,
                        .sides = {{place.others(), watch.usual}, {{place.culprit}, watch.planted}}};
      });
}

void usual_sum(const Place& place, RankContext& rank, Watch& watch) {
  auto tensor = tensor_of(place);
  watch.at(watch.usual), rank.world.all_reduce(tensor).wait();
}

void planted_sum(at::Tensor tensor, RankContext& rank, Watch& watch) {
  watch.at(watch.planted), rank.world.all_reduce(tensor).wait();
}

TEST(DiagnosisLaws, WrongOperationIsNamed) {
  expect_difference("all_reduce", usual_sum, [](const Place& place, RankContext& rank, Watch& watch) {
    auto tensor = tensor_of(place);
    watch.at(watch.planted), rank.world.broadcast(tensor).wait();
  });
}

TEST(DiagnosisLaws, WrongReduceOpIsNamed) {
  expect_difference("all_reduce", usual_sum, [](const Place& place, RankContext& rank, Watch& watch) {
    auto tensor = tensor_of(place);
    watch.at(watch.planted), rank.world.all_reduce(tensor, ReduceOp::kMax).wait();
  });
}

TEST(DiagnosisLaws, WrongDtypeIsNamed) {
  expect_difference("all_reduce", usual_sum, [](const Place& place, RankContext& rank, Watch& watch) {
    planted_sum(tensor_of(place).to(at::kDouble), rank, watch);
  });
}

TEST(DiagnosisLaws, WrongSizeIsNamed) {
  expect_difference("all_reduce", usual_sum, [](const Place& place, RankContext& rank, Watch& watch) {
    auto shape = place.shape;
    ++shape[0];
    planted_sum(at::ones(shape), rank, watch);
  });
}

TEST(DiagnosisLaws, WrongShapeOfAsManyElementsIsNamed) {
  expect_difference("all_reduce", usual_sum, [](const Place& place, RankContext& rank, Watch& watch) {
    planted_sum(tensor_of(place).unsqueeze(0), rank, watch);
  });
}

TEST(DiagnosisLaws, WrongRootIsNamed) {
  const auto broadcast_from = [](int root, std::atomic<unsigned> Watch::*line) {
    return [=](const Place& place, RankContext& rank, Watch& watch) {
      auto tensor = tensor_of(place);
      watch.at(watch.*line), rank.world.broadcast(tensor, root).wait();
    };
  };
  // One line for both: the lines' names are then equal as well.
  expect_difference("broadcast", broadcast_from(0, &Watch::usual), broadcast_from(1, &Watch::planted));
}

TEST(DiagnosisLaws, TwoRanksThatDifferAreBothCulprits) {
  expect_diagnosed(
      [](const Place& place, RankContext& rank, Watch& watch) {
        if (rank.rank >= 2) return;
        auto pair = rank.new_group({0, 1});
        auto tensor = tensor_of(place);
        watch.at(watch.usual), pair.all_reduce(tensor, rank.rank == 0 ? ReduceOp::kSum : ReduceOp::kMin).wait();
      },
      [](const Place& place, const Watch& watch) {
        return Expected{.ranks = {0, 1},
                        .group = "group1",
                        .sequence = 0,
                        .shapes = std::vector<Shape>{place.shape},
                        .where = watch.usual};
      });
}

// --- calls that are missing, or too many -----------------------------------------------------------------------------

TEST(DiagnosisLaws, ExtraCollectiveOfOneRankIsNamed) {
  expect_diagnosed(
      [](const Place& place, RankContext& rank, Watch& watch) {
        for (int step = 0; step < place.length; ++step) {
          if (is_here(place, rank, step)) watch.at(watch.planted), rank.world.barrier();
          usual_sum(place, rank, watch);
        }
      },
      [](const Place& place, const Watch& watch) {
        return Expected{.ranks = {place.culprit},
                        .sequence = static_cast<std::uint64_t>(place.position),
                        .shapes = std::vector<Shape>{place.shape},
                        .where = watch.usual,
                        .sides = {{{place.culprit}, watch.planted}}};
      });
}

TEST(DiagnosisLaws, SkippedCollectiveMeetsTheNextOne) {
  expect_diagnosed(
      [](const Place& place, RankContext& rank, Watch& watch) {
        for (int step = 0; step < place.length; ++step) {
          if (!is_here(place, rank, step)) usual_sum(place, rank, watch);
          watch.at(watch.planted), rank.world.barrier();
        }
      },
      [](const Place& place, const Watch& watch) {
        return Expected{.ranks = {place.culprit},
                        .sequence = static_cast<std::uint64_t>(2 * place.position),
                        .shapes = std::vector<Shape>{place.shape},
                        .where = watch.usual,
                        .sides = {{{place.culprit}, watch.planted}}};
      });
}

TEST(DiagnosisLaws, SkippedCollectiveAmongEqualOnesIsPlacedByItsLines) {
  // The calls agree, so that ranks go on one behind the other, until one has ended.
  expect_diagnosed(
      [](const Place& place, RankContext& rank, Watch& watch) {
        for (int step = 0; step < place.length; ++step) {
          if (!is_here(place, rank, step)) usual_sum(place, rank, watch);
          planted_sum(tensor_of(place), rank, watch);
        }
      },
      [](const Place& place, const Watch& watch) {
        return Expected{.kind = Kind::kHang,
                        .ranks = {place.culprit},
                        .sequence = static_cast<std::uint64_t>(2 * place.length - 1),
                        .shapes = std::vector<Shape>{place.shape},
                        .where = watch.planted,
                        .apart_at = static_cast<std::uint64_t>(2 * place.position),
                        .sides = {{place.others(), watch.usual}, {{place.culprit}, watch.planted}}};
      });
}

TEST(DiagnosisLaws, RankThatEndsEarlyIsMissing) {
  expect_diagnosed(
      [](const Place& place, RankContext& rank, Watch& watch) {
        for (int step = 0; step < place.length; ++step) {
          if (is_here(place, rank, step)) return;
          usual_sum(place, rank, watch);
        }
      },
      [](const Place& place, const Watch& watch) {
        const auto number = static_cast<std::uint64_t>(place.position);
        return Expected{.kind = Kind::kHang,
                        .ranks = {place.culprit},
                        .sequence = number,
                        .shapes = std::vector<Shape>{place.shape},
                        .where = watch.usual,
                        .apart_at = number,
                        .sides = {{place.others(), watch.usual}, {{place.culprit}, 0}}};
      });
}

TEST(DiagnosisLaws, CollectiveOfTheMainProcessAloneIsPlaced) {
  expect_diagnosed(
      [](const Place& place, RankContext& rank, Watch& watch) {
        Accelerator accelerator({}, rank);
        for (int step = 0; step < place.length; ++step) {
          if (accelerator.is_main_process() && step == place.position)
            watch.at(watch.planted), accelerator.reduce(tensor_of(place));
          usual_sum(place, rank, watch);
        }
      },
      [](const Place& place, const Watch& watch) {
        std::vector<int> missing(place.num_ranks - 1);
        std::iota(missing.begin(), missing.end(), 1);
        return Expected{.kind = Kind::kHang,
                        .ranks = missing,
                        .sequence = static_cast<std::uint64_t>(place.length),
                        .shapes = std::vector<Shape>{place.shape},
                        .where = watch.usual,
                        .apart_at = static_cast<std::uint64_t>(place.position),
                        .sides = {{missing, watch.usual}, {{0}, watch.planted}}};
      });
}

TEST(DiagnosisLaws, GroupsInOppositeOrderAreAHang) {
  expect_diagnosed(
      [](const Place& place, RankContext& rank, Watch& watch) {
        std::vector<int> everyone(place.num_ranks);
        std::iota(everyone.begin(), everyone.end(), 0);
        auto first = rank.new_group(everyone), second = rank.new_group(everyone);
        for (int step = 0; step < place.length; ++step) {
          if (is_here(place, rank, step)) std::swap(first, second);
          auto tensor = tensor_of(place);
          watch.at(watch.usual), first.all_reduce(tensor).wait();
          watch.at(watch.planted), second.all_reduce(tensor).wait();
        }
      },
      [](const Place& place, const Watch& watch) {
        return Expected{.kind = Kind::kHang,
                        .ranks = {place.culprit},
                        .group = "group1",
                        .sequence = static_cast<std::uint64_t>(place.position),
                        .shapes = std::vector<Shape>{place.shape},
                        .where = watch.usual};
      });
}

TEST(DiagnosisLaws, ReceiveWithoutSendIsNamed) {
  expect_diagnosed(
      [](const Place& place, RankContext& rank, Watch& watch) {
        const int sender = (place.culprit + 1) % place.num_ranks;
        for (int step = 0; step <= place.position; ++step) {
          auto tensor = tensor_of(place);
          if (rank.rank == sender && step < place.position) rank.world.send(tensor, place.culprit).wait();
          if (rank.rank == place.culprit) watch.at(watch.planted), rank.world.recv(tensor, sender).wait();
          if (step < place.position) usual_sum(place, rank, watch);
        }
      },
      [](const Place& place, const Watch& watch) {
        return Expected{.kind = Kind::kHang,
                        .ranks = {(place.culprit + 1) % place.num_ranks},
                        .op = "recv",
                        .sequence = static_cast<std::uint64_t>(place.position),
                        .shapes = std::vector<Shape>{place.shape},
                        .where = watch.planted};
      });
}

TEST(DiagnosisLaws, MessageOfAnotherSizeIsNamed) {
  expect_diagnosed(
      [](const Place& place, RankContext& rank, Watch& watch) {
        const int sender = (place.culprit + 1) % place.num_ranks;
        for (int step = 0; step < place.length; ++step) {
          auto tensor = tensor_of(place), longer = at::ones({tensor.numel() + 1});
          if (rank.rank == sender) rank.world.send(step == place.position ? longer : tensor, place.culprit).wait();
          if (rank.rank == place.culprit) watch.at(watch.planted), rank.world.recv(tensor, sender).wait();
        }
      },
      [](const Place& place, const Watch& watch) {
        return Expected{.ranks = {place.culprit},
                        .op = "recv",
                        .sequence = static_cast<std::uint64_t>(place.position),
                        .shapes = std::vector<Shape>{place.shape},
                        .where = watch.planted};
      });
}

TEST(DiagnosisLaws, SplitsThatDisagreeAreNamed) {
  static constexpr std::int64_t kRows = 2;
  expect_diagnosed(
      [](const Place& place, RankContext& rank, Watch& watch) {
        for (int step = 0; step < place.length; ++step) {
          std::vector<std::int64_t> sent(place.num_ranks, kRows), received(place.num_ranks, kRows);
          if (is_here(place, rank, step)) {
            --sent[(rank.rank + 1) % place.num_ranks];
            ++sent[(rank.rank + 2) % place.num_ranks];
          }
          auto input = at::ones({kRows * place.num_ranks, place.shape[0]}), output = at::empty_like(input);
          const CallSite site((watch.at(watch.usual), std::source_location::current()));
          rank.world.process_group()->alltoall_base(output, input, received, sent)->wait();
        }
      },
      [](const Place& place, const Watch& watch) {
        return Expected{.ranks = {place.culprit},
                        .op = "all_to_all_single",
                        .sequence = static_cast<std::uint64_t>(place.position),
                        .shapes = std::vector<Shape>{{kRows * place.num_ranks, place.shape[0]}},
                        .where = watch.usual};
      });
}

TEST(DiagnosisLaws, RowsOfAnotherWidthAreNamed) {
  expect_diagnosed(
      [](const Place& place, RankContext& rank, Watch& watch) {
        for (int step = 0; step < place.length; ++step) {
          auto input = at::ones({place.num_ranks, is_here(place, rank, step) ? 3 : 1}),
               output = at::empty({place.num_ranks, 1});
          std::vector<std::int64_t> even;
          const CallSite site((watch.at(watch.usual), std::source_location::current()));
          rank.world.process_group()->alltoall_base(output, input, even, even)->wait();
        }
      },
      [](const Place& place, const Watch& watch) {
        return Expected{.ranks = {place.culprit},
                        .op = "all_to_all_single",
                        .sequence = static_cast<std::uint64_t>(place.position),
                        .shapes = std::nullopt,
                        .where = watch.usual};
      });
}

TEST(DiagnosisLaws, AnotherOrderOfElementsInMemoryIsNamed) {
  expect_diagnosed(
      [](const Place& place, RankContext& rank, Watch& watch) {
        for (int step = 0; step < place.length; ++step) {
          auto tensor = is_here(place, rank, step) ? at::ones({3, 2}).t() : at::ones({2, 3});
          auto work =
              (watch.at(is_here(place, rank, step) ? watch.planted : watch.usual), rank.world.all_reduce(tensor));
          work.wait();
        }
      },
      [](const Place& place, const Watch& watch) {
        return Expected{.ranks = {place.culprit},
                        .sequence = static_cast<std::uint64_t>(place.position),
                        .shapes = std::vector<Shape>{{2, 3}},
                        .where = watch.usual};
      });
}

// --- training --------------------------------------------------------------------------------------------------------

struct Training {
  explicit Training(RankContext& rank, const Place& place, AcceleratorOptions options = {})
      : accelerator(std::move(options), rank),
        net(place.shape[0], 1),
        sgd(net->parameters(), 0.01),
        model(accelerator.prepare(net)),
        optimizer(accelerator.prepare(sgd)) {}

  Accelerator accelerator;
  torch::nn::Linear net;
  torch::optim::SGD sgd;
  PreparedModel<torch::nn::LinearImpl> model;
  AcceleratedOptimizer optimizer;
};

TEST(DiagnosisLaws, UnevenBatchesHangInBackward) {
  const auto batches_of_first = [](const Place& place) {
    return 1 + place.culprit % (place.num_ranks - 1);
  };  // so many ranks have one more
  expect_diagnosed(
      [&](const Place& place, RankContext& rank, Watch& watch) {
        Training training(rank, place, {.dataloader_config = {.even_batches = false}});
        const std::int64_t steps = 2 + place.position;
        DataLoader plain(TensorDataset(at::ones({steps * place.num_ranks + batches_of_first(place), place.shape[0]})),
                         {.batch_size = 1});
        auto loader = training.accelerator.prepare(plain);
        for (auto& [x] : loader) {
          const auto loss = training.model(x).mean();
          watch.at(watch.usual), training.accelerator.backward(loss);
          training.optimizer.step();
          training.optimizer.zero_grad();
        }
      },
      [&](const Place& place, const Watch& watch) {
        std::vector<int> missing;
        for (int rank = batches_of_first(place); rank < place.num_ranks; ++rank) missing.push_back(rank);
        return Expected{.kind = Kind::kHang, .ranks = missing, .where = watch.usual};
      });
}

TEST(DiagnosisLaws, ParametersChangedOnOneReplicaAreNamed) {
  expect_diagnosed(
      [](const Place& place, RankContext& rank, Watch& watch) {
        Training training(rank, place);
        for (int step = 0; step < place.length; ++step) {
          const auto loss = training.model(at::ones({2, place.shape[0]})).mean();
          watch.at(watch.usual), training.accelerator.backward(loss);
          const torch::NoGradGuard no_grad;
          if (is_here(place, rank, step)) training.net->weight[0][0].add_(1e-3);
          training.optimizer.step();
          training.optimizer.zero_grad();
        }
      },
      [](const Place& place, const Watch&) {
        return Expected{.ranks = {place.culprit},
                        .op = "optimizer_step",
                        .sequence = static_cast<std::uint64_t>(place.position),
                        .shapes = std::vector<Shape>{{1, place.shape[0]}}};
      });
}

TEST(DiagnosisLaws, ParametersThatDifferWithoutAMajorityNameAllRanks) {
  const auto report = sim::rehearse({.num_ranks = 2}, [](RankContext& rank) {
    Training training(rank, Place{});
    training.accelerator.backward(training.model(at::ones({2, 1})).mean());
    const torch::NoGradGuard no_grad;
    if (rank.rank == 1) training.net->weight[0][0].add_(1e-3);
    training.optimizer.step();
  });
  ASSERT_TRUE(report.diagnosis.has_value());
  EXPECT_EQ(report.diagnosis->ranks, (std::vector<int>{0, 1}));
  EXPECT_NE(report.diagnosis->text.find("ranks 0-1 differ from one another, without a majority, first in parameter"),
            std::string::npos)
      << report.diagnosis->text;
}

// --- buffers under way -----------------------------------------------------------------------------------------------

// At one step the culprit does `wrong` between the call and wait().
void expect_race(const std::function<void(at::Tensor&, RankContext&)>& wrong) {
  expect_diagnosed(
      [&](const Place& place, RankContext& rank, Watch& watch) {
        for (int step = 0; step < place.length; ++step) {
          auto tensor = tensor_of(place);
          auto work = (watch.at(watch.usual), rank.world.all_reduce(tensor));
          if (is_here(place, rank, step)) wrong(tensor, rank);
          work.wait();
        }
      },
      [](const Place& place, const Watch& watch) {
        return Expected{.ranks = {place.culprit},
                        .sequence = static_cast<std::uint64_t>(place.position),
                        .shapes = std::vector<Shape>{place.shape},
                        .where = watch.usual};
      });
}

TEST(DiagnosisLaws, BufferReadBeforeWaitIsNamed) {
  expect_race([](at::Tensor& tensor, RankContext&) { (void)tensor.sum(); });
}

TEST(DiagnosisLaws, BufferReadThroughAViewBeforeWaitIsNamed) {
  expect_race([](at::Tensor& tensor, RankContext&) { (void)tensor.view({-1}).slice(0, 0, 1).clone(); });
}

TEST(DiagnosisLaws, BufferWrittenBeforeWaitIsNamed) {
  expect_race([](at::Tensor& tensor, RankContext&) { tensor.zero_(); });
}

TEST(DiagnosisLaws, BufferReusedBeforeTheOthersArriveIsNamed) {
  // Past all operators, as who frees the memory and writes to it again.
  expect_diagnosed(
      [](const Place& place, RankContext& rank, Watch& watch) {
        for (int step = 0; step < place.length; ++step) {
          std::vector<float> memory(tensor_of(place).numel(), 1.0F);
          auto tensor = at::from_blob(memory.data(), place.shape);
          while (step == place.position && rank.rank != place.culprit && !watch.is_done) std::this_thread::yield();
          auto work = (watch.at(watch.usual), rank.world.all_reduce(tensor));
          if (is_here(place, rank, step)) {
            memory.back() = 7.0F;
            watch.is_done = true;
          }
          work.wait();
        }
      },
      [](const Place& place, const Watch& watch) {
        return Expected{.ranks = {place.culprit},
                        .sequence = static_cast<std::uint64_t>(place.position),
                        .shapes = std::vector<Shape>{place.shape},
                        .where = watch.usual};
      });
}

TEST(DiagnosisLaws, OverlappingCollectivesUnderWayAreNamed) {
  // All ranks do the same, so that the first to come is named.
  expect_property(25, [] {
    const auto place = any_place();
    Watch watch;
    const auto report = sim::rehearse({.num_ranks = place.num_ranks}, [&](RankContext& rank) {
      for (int step = 0; step < place.length; ++step) {
        auto tensor = tensor_of(place);
        auto first = (watch.at(watch.usual), rank.world.all_reduce(tensor));
        if (step != place.position) {
          first.wait();
          continue;
        }
        auto part = tensor.slice(0, 0, 1);
        auto second = (watch.at(watch.planted), rank.world.all_reduce(part));
        first.wait();
        second.wait();
      }
    });
    RC_ASSERT(report.error != nullptr);
    RC_LOG(message_of(report.error));
    RC_ASSERT(report.diagnosis.has_value());
    RC_ASSERT(report.diagnosis->kind == Kind::kDesync);
    RC_ASSERT(report.diagnosis->where == name_of(watch.usual));
    RC_ASSERT(report.diagnosis->sequence == static_cast<std::uint64_t>(place.position));
    RC_ASSERT(report.diagnosis->ranks.size() == 1u);
    RC_ASSERT(report.diagnosis->text.find("overlaps") != std::string::npos);
  });
}

}  // namespace
}  // namespace accel::testing::diagnosis_laws
