// States that do not fit a loader, and damaged states. A state comes from a file, so it is untrusted: it must be
// rejected with every problem named, before anything changes.
#include <limits>

#include "properties/gen/resumed_loaders.hpp"
#include "reference/data/loader_state.hpp"
#include "reference/tree/value.hpp"
#include "tests/support/message_of.hpp"
#include "tests/support/property.hpp"
#include "tests/support/run_ranks.hpp"

namespace accel::testing::loader_state_laws {
namespace {

using namespace resumed_loaders;

// Returns the message of the error, or "accepted".
std::string refusal(RankContext& rank, const Value& state, std::int64_t length = 10) {
  Accelerator accelerator({}, rank);
  auto loader = accelerator.prepare(DataLoader(NoisyDataset{.length = length}, {.batch_size = 2}));
  try {
    loader.load_state_dict(state);
  } catch (const CheckpointError& error) {
    return error.what();
  }
  return "accepted";
}

template <typename Loader>
std::vector<std::int64_t> read_numbers(Loader& loader, std::size_t most = 100) {
  std::vector<std::int64_t> numbers;
  for (auto& batch : loader) {
    numbers.push_back(batch.template item<std::int64_t>());
    if (numbers.size() == most) break;
  }
  return numbers;
}

TEST(LoaderStateTest, AStateThatDoesNotFitIsRejectedWithAllProblems) {
  run_ranks(Backend::kSim, 2, [](RankContext& rank) {
    Accelerator accelerator({}, rank);
    auto loader = accelerator.prepare(DataLoader(NoisyDataset{.length = 10}, {.batch_size = 2}));
    const auto state = loader.state_dict();
    EXPECT_EQ(refusal(rank, state), "accepted");
    auto of_the_other = loader_state_of(state);
    // Three problems at once: the message must list all of them, so that a user does not fix them one per run.
    of_the_other.process_index = 1 - rank.rank;
    of_the_other.num_samples = 11;
    of_the_other.source = "stream";
    EXPECT_THAT(refusal(rank, to_value(of_the_other)),
                ::testing::AllOf(::testing::HasSubstr("a dataset with 11 samples, but this dataset has 10"),
                                 ::testing::HasSubstr(fmt::format("this is rank {}", rank.rank)),
                                 ::testing::HasSubstr("reads stream, but this loader reads samples")));
    EXPECT_THAT(
        refusal(rank, Value::Dict{{"epoch", 1.5}, {"format", 2}}),
        ::testing::AllOf(::testing::HasSubstr("epoch: expected int, got float"), ::testing::HasSubstr("order: missing"),
                         ::testing::HasSubstr("format: expected 1, the format of this build, got 2")));
    EXPECT_THAT(refusal(rank, Value(3)), ::testing::HasSubstr("the value is not the state of a loader"));
  });
}

// Ranks that read parts of their own compare their positions when they load, so a rank whose state is damaged must not
// leave the others waiting, or with a state that only they have.
TEST(LoaderStateTest, ARankThatCannotLoadIsAnErrorOnEveryRankThatReadsItsOwnParts) {
  run_ranks(Backend::kSim, 3, [](RankContext& rank) {
    const auto loader_of = [&] {
      return Accelerator({.dataloader_config = {.dispatch_batches = false, .even_batches = false}}, rank)
          .prepare(DataLoader(Parts::of({4, 1, 3}), {.batch_size = 1}));
    };
    auto loader = loader_of();
    for (int epoch = 0; epoch < 3; ++epoch) read_numbers(loader);
    EXPECT_EQ(read_numbers(loader, /*most=*/2).size(), rank.rank == 1 ? 1U : 2U);
    const auto state = loader.state_dict();
    auto other = loader_of();
    const auto before = other.state_dict();
    const auto message =
        message_of<CheckpointError>([&] { other.load_state_dict(rank.rank == 2 ? Value(Value::Dict{}) : state); });
    EXPECT_THAT(message, ::testing::HasSubstr(rank.rank == 2 ? "the value is not the state of a loader"
                                                             : "rank 2 could not load its state"));
    EXPECT_EQ(other.state_dict(), before);
    other.load_state_dict(state);
    EXPECT_EQ(other.iteration(), 3) << "rank 1 has read all its batches, but the others continue the epoch";
    EXPECT_EQ(other.state_dict(), state);
    EXPECT_EQ(read_numbers(other).size(), std::vector<std::size_t>({2, 0, 1})[rank.rank]);
    EXPECT_EQ(other.iteration(), 4);
  });
}

// Each part belongs to one rank, so with more or fewer parts samples would be lost or read twice.
TEST(LoaderStateTest, AStateOfMoreOrFewerPartsIsRejected) {
  run_ranks(Backend::kSim, 2, [](RankContext& rank) {
    const auto loader_of = [&](std::size_t num_parts) {
      return Accelerator({.dataloader_config = {.dispatch_batches = false}}, rank)
          .prepare(DataLoader(Parts::of(std::vector<std::int64_t>(num_parts, 2)), {.batch_size = 2}));
    };
    for (const std::size_t others : {2, 4}) {
      const auto state = loader_of(others).state_dict();
      EXPECT_THAT(
          message_of<CheckpointError>([&] { loader_of(3).load_state_dict(state); }),
          ::testing::HasSubstr(fmt::format("the state is of a stream with {} parts, but this stream has 3", others)));
    }
  });
}

// Other ranks divide the samples anew, so their workers start from their seeds instead of continuing those of rank 0.
TEST(LoaderStateTest, AStateOfAnotherWorldSizeKeepsNoWorkers) {
  const auto loader_of = [](RankContext& rank) {
    return Accelerator({}, rank).prepare(DataLoader(NoisyDataset{.length = 40}, {.batch_size = 2, .num_workers = 2}));
  };
  std::string saved;
  run_ranks(Backend::kSim, 2, [&](RankContext& rank) {
    auto loader = loader_of(rank);
    read_all(loader, 3);
    EXPECT_EQ(loader_state_of(loader.state_dict()).pass->readers.size(), 2u);
    if (rank.rank == 0) saved = pack(loader.state_dict());
  });
  run_ranks(Backend::kSim, 3, [&](RankContext& rank) {
    auto loader = loader_of(rank);
    loader.load_state_dict(unpack<Value>(saved));
    const auto state = loader_state_of(loader.state_dict());
    EXPECT_EQ(state.pass->num_read, 3 * 2 * 2);
    EXPECT_TRUE(state.pass->readers.empty());
    EXPECT_EQ(state.pass->next_reader, 0);
  });
}

// Rank 0's workers count the samples of each part; the counts are those of a step, not of all steps before it.
TEST(LoaderStateTest, ADispatchedStreamThatWorkersReadContinues) {
  run_ranks(Backend::kSim, 2, [](RankContext& rank) {
    const auto loader_of = [&] {
      return Accelerator({.dataloader_config = {.dispatch_batches = true}}, rank)
          .prepare(DataLoader(Parts::of({6, 6, 6}), {.batch_size = 1, .num_workers = 3}));
    };
    auto reference = loader_of();
    const auto all = read_numbers(reference);
    ASSERT_EQ(all.size(), 9U);
    for (std::size_t most = 1; most < all.size(); ++most) {
      auto loader = loader_of(), other = loader_of();
      read_numbers(loader, most);
      other.load_state_dict(loader.state_dict());
      EXPECT_EQ(read_numbers(other),
                std::vector<std::int64_t>(all.begin() + static_cast<std::ptrdiff_t>(most), all.end()));
    }
  });
}

// Only rank 0's holds what other ranks need.
TEST(LoaderStateTest, AStateOfAnotherRankOfAnotherWorldSizeIsRejected) {
  const auto loader_of = [](RankContext& rank) {
    return Accelerator({}, rank).prepare(DataLoader(NoisyDataset{.length = 12}, {.batch_size = 2}));
  };
  std::string saved;
  run_ranks(Backend::kSim, 2, [&](RankContext& rank) {
    const auto state = pack(loader_of(rank).state_dict());
    if (rank.rank == 1) saved = state;
  });
  run_ranks(Backend::kSim, 3, [&](RankContext& rank) {
    EXPECT_THAT(message_of<CheckpointError>([&] { loader_of(rank).load_state_dict(unpack<Value>(saved)); }),
                ::testing::HasSubstr("the state is of rank 1 of 2, but the world size is now 3"));
  });
}

// A loader in order must reject states of a shuffled, a seedable and a custom sampler.
TEST(LoaderStateTest, AStateOfAnotherOrderIsRejected) {
  run_ranks(Backend::kSim, 2, [](RankContext& rank) {
    const auto state_of = [&](DataLoaderOptions options, bool seedable) {
      Accelerator accelerator({.dataloader_config = {.use_seedable_sampler = seedable}}, rank);
      return accelerator.prepare(DataLoader(NoisyDataset{.length = 10}, std::move(options))).state_dict();
    };
    const auto sampler = [](std::shared_ptr<Sampler> sampler) {
      return DataLoaderOptions{.batch_size = 2, .sampler = std::move(sampler)};
    };
    EXPECT_EQ(refusal(rank, state_of({.batch_size = 2}, false)), "accepted");
    for (const auto& other :
         {state_of({.batch_size = 2, .shuffle = true}, false), state_of({.batch_size = 2, .shuffle = true}, true),
          state_of(sampler(std::make_shared<SubsetRandomSampler>(std::vector<std::int64_t>{1, 2})), false)}) {
      EXPECT_THAT(refusal(rank, other), ::testing::HasSubstr("this sampler is of kind sequential"));
    }
  });
}

TEST(LoaderStateTest, ImpossibleValuesAreRejectedBeforeAnythingChanges) {
  run_ranks(Backend::kSim, 2, [](RankContext& rank) {
    auto loader = shuffled_loader(rank);
    read_all(loader, 2);
    const auto good = loader_state_of(loader.state_dict());
    const std::vector<std::function<void(LoaderState&)>> damages{
        [](LoaderState& state) { state.pass->num_read = -1; },
        [](LoaderState& state) { state.pass->num_read = std::numeric_limits<std::int64_t>::max(); },
        [](LoaderState& state) { state.pass->next_reader = 7; },
        [](LoaderState& state) {
          state.pass->readers.assign(2, {});
          state.pass->next_reader = 2;
        },
        [](LoaderState& state) { state.pass->random_state = at::ones({3}); },
        [](LoaderState& state) { state.pass->random_state = at::Tensor(); },
        // 5056 is the size of torch's CPU generator state, so only the contents are wrong here.
        [](LoaderState& state) { state.pass->ahead_state = at::ones({5056}, at::kByte); },
        [](LoaderState& state) { state.pass->readers.push_back({.generator = at::ones({1})}); },
        [](LoaderState& state) { state.generator = at::zeros({2}); },
        [](LoaderState& state) { state.epoch = -3; },
        [](LoaderState& state) {
          state.order = Value::Dict{{"kind", "random"}, {"size", 23}, {"generator", at::ones({2})}};
        },
        [](LoaderState& state) {
          state.order = Value::Dict{{"kind", 4}};
        },
        [](LoaderState& state) { state.order = Value(3); },
    };
    for (std::size_t number = 0; number < damages.size(); ++number) {
      auto other = shuffled_loader(rank);
      const auto before = other.state_dict();
      auto damaged = good;
      damages[number](damaged);
      EXPECT_THROW(other.load_state_dict(to_value(damaged)), CheckpointError) << number;
      // Validation precedes every change. A half-loaded loader would be worse than an error.
      EXPECT_EQ(other.state_dict(), before) << number;
    }
  });
}

// Damage may leave a valid state of another value, so this cannot demand an error. Sanitizer builds find bad
// accesses.
TEST(LoaderStateTest, DamagedBytesNeverCrashTheLoader) {
  run_ranks(Backend::kSim, 1, [](RankContext& rank) {
    auto loader = shuffled_loader(rank);
    read_all(loader, 2);
    const auto bytes = pack(loader.state_dict());
    expect_property(2000, [&] {
      auto damaged = bytes;
      for (int changes = pick(1, 4); changes > 0; --changes)
        damaged[pick<std::size_t>(0, damaged.size())] = static_cast<char>(pick(0, 256));
      if (pick(0, 3) == 0) damaged.resize(pick<std::size_t>(0, damaged.size()));
      auto other = shuffled_loader(rank);
      try {
        other.load_state_dict(unpack<Value>(damaged));
      } catch (const ArgumentError&) {
      } catch (const CheckpointError&) {
      }
    });
  });
}

TEST(LoaderStateTest, LoadingInsideALoopIsAStateError) {
  run_ranks(Backend::kSim, 1, [](RankContext& rank) {
    auto loader = Accelerator({}, rank).prepare(DataLoader(NoisyDataset{.length = 4}, {.batch_size = 2}));
    const auto state = loader.state_dict();
    for ([[maybe_unused]] auto& batch : loader) EXPECT_THROW(loader.load_state_dict(state), StateError);
  });
}

}  // namespace
}  // namespace accel::testing::loader_state_laws
