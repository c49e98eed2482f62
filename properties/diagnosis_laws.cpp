// Bugs planted in a program's calls must be found and named: rank, operation, sequence number, shapes, and the line
// of the program. Every case plants one bug at a random place of a program on 3 or more ranks.
#include <gtest/gtest.h>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include <numeric>

#include "properties/gen/planted_bugs.hpp"
#include "reference/accelerator/accelerator.hpp"
#include "reference/rank_local/call_site.hpp"

namespace accel::testing::diagnosis_laws {
namespace {

using namespace planted_bugs;

using Step = std::function<void(const Place&, RankContext&, Watch&)>;

// At one step the culprit makes another call, which meets the regular call of the other ranks.
void expect_difference(const std::string& op, const Step& usual, const Step& planted) {
  expect_diagnosed(
      [&](const Place& place, RankContext& rank, Watch& watch) {
        for (int step = 0; step < place.length; ++step)
          (is_here(place, rank, step) ? planted : usual)(place, rank, watch);
      },
      [&](const Place& place, const Watch& watch) {
        // Every step makes one call, so the sequence number is the step.
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

// In Gloo the ranks would wait for messages of different kinds until the timeout.
TEST(DiagnosisLaws, WrongOperationIsNamed) {
  expect_difference("all_reduce", usual_sum, [](const Place& place, RankContext& rank, Watch& watch) {
    auto tensor = tensor_of(place);
    watch.at(watch.planted), rank.world.broadcast(tensor).wait();
  });
}

// In Gloo this ends without an error and with wrong numbers.
TEST(DiagnosisLaws, WrongReduceOpIsNamed) {
  expect_difference("all_reduce", usual_sum, [](const Place& place, RankContext& rank, Watch& watch) {
    auto tensor = tensor_of(place);
    watch.at(watch.planted), rank.world.all_reduce(tensor, ReduceOp::kMax).wait();
  });
}

// Gloo compares no dtypes. It would mix bytes of floats and doubles, or hang.
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

// The number of elements agrees, and Gloo would not notice. The result would have its elements in the wrong places.
TEST(DiagnosisLaws, WrongShapeOfAsManyElementsIsNamed) {
  expect_difference("all_reduce", usual_sum, [](const Place& place, RankContext& rank, Watch& watch) {
    planted_sum(tensor_of(place).unsqueeze(0), rank, watch);
  });
}

TEST(DiagnosisLaws, WrongRootIsNamed) {
  const auto broadcast_from = [](int root, std::atomic<std::source_location> Watch::*call) {
    return [=](const Place& place, RankContext& rank, Watch& watch) {
      auto tensor = tensor_of(place);
      watch.at(watch.*call), rank.world.broadcast(tensor, root).wait();
    };
  };
  // Both calls share one line, because the file and line are then equal too: only the root differs.
  expect_difference("broadcast", broadcast_from(0, &Watch::usual), broadcast_from(1, &Watch::planted));
}

// A group of two gives no majority, so neither rank can be called right.
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

// Missing and extra calls shift all later calls by one. The report must place the first difference, not the last.
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

// The culprit is one call ahead, so the ranks meet in different calls.
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
  // The calls agree in everything, so the ranks run one call apart until the culprit ends. Only the recorded lines
  // tell where they parted.
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

// There is no wrong call to point to: the diagnosis must say which rank is missing and where its program ended.
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
                        .sides = {{place.others(), watch.usual}, {{place.culprit}, {}}}};
      });
}

// The classic mistake `if (accelerator.is_main_process()) accelerator.reduce(...)`. The collective beneath is that of
// the others' next call, so only the public function tells them apart.
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
        const auto number = static_cast<std::uint64_t>(place.position);
        std::vector<int> others(place.num_ranks - 1);
        std::iota(others.begin(), others.end(), 1);
        return Expected{.ranks = {0},
                        .sequence = number,
                        .shapes = std::vector<Shape>{place.shape},
                        .where = watch.usual,
                        .apart_at = number,
                        .sides = {{others, watch.usual}, {{0}, watch.planted}}};
      });
}

// Two groups of the same ranks have separate sequences. The culprit waits in one and the others in the other.
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

// The receive waits forever, while its sender goes on to the next collective.
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
          // The last operation is a message of one element more. Gloo reports only that the size differs.
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
  // Two rows for each peer. The culprit sends one row less to one peer and one more to another, so its total is
  // right.
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
          // alltoall_base of LibTorch passes no source location, so CallSite supplies the line.
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

// The number of rows agrees; only their width differs, which Gloo would copy as wrong bytes.
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
                        // The shapes differ by design, so the report has no common shape to name.
                        .shapes = std::nullopt,
                        .where = watch.usual};
      });
}

// A transposed tensor has the same shape but another memory order. Gloo sums memory, not elements.
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

}  // namespace
}  // namespace accel::testing::diagnosis_laws
