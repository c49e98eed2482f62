// The master law: cut a run anywhere, any number of times; save, begin anew, load, run on: every rank gets the same
// stream, in order, random numbers of its samples included.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <numeric>

#include "properties/gen/data_sources.hpp"
#include "reference/accelerator/accelerator.hpp"
#include "reference/core/value.hpp"
#include "reference/data/loader_state.hpp"
#include "reference/data/transformed.hpp"
#include "reference/state/rng_sync.hpp"
#include "tests/support/property.hpp"
#include "tests/support/run_ranks.hpp"

namespace accel::testing::resume_laws {
namespace {

using Sample = std::pair<std::int64_t, std::int64_t>;  // its number, and a random number that reading it has drawn

Sample read_sample(std::int64_t number) { return {number, draw_int64(default_generator())}; }

struct NoisyDataset {
  std::int64_t length = 0;
  [[nodiscard]] std::int64_t size() const { return length; }
  [[nodiscard]] static Sample get(std::int64_t index) { return read_sample(index); }
};

// A stream whose samples draw.
template <typename Numbers>
auto noisy(Numbers numbers) {
  return transformed(std::move(numbers), &read_sample);
}

// Batches of one to three samples in a shuffled order.
class RandomBatches : public BatchSampler {
 public:
  explicit RandomBatches(std::int64_t length) : length_(length) {}
  [[nodiscard]] std::optional<at::Generator> generator() const override { return generator_; }
  void begin_pass() override {
    order_ = at::randperm(length_, generator_, at::kLong);
    next_ = 0;
  }
  std::optional<std::vector<std::int64_t>> next() override {
    std::vector<std::int64_t> batch;
    const auto size = 1 + next_ % 3;
    for (; next_ < length_ && static_cast<std::int64_t>(batch.size()) < size; ++next_)
      batch.push_back(order_[next_].item<std::int64_t>());
    return batch.empty() ? std::nullopt : std::optional(batch);
  }

 private:
  std::int64_t length_, next_ = 0;
  at::Generator generator_ = make_generator(5);
  at::Tensor order_;
};

enum class Source { kInOrder, kShuffled, kReplacement, kRepeated, kSubset, kWeighted, kBatches, kStream, kParts };
constexpr const char* kSourceNames[] = {"in order", "shuffled", "replacement", "repeated", "subset",
                                        "weighted", "batches",  "stream",      "parts"};

struct Case {
  Source source = Source::kShuffled;
  int ranks = 1, workers = 0, epochs = 2;
  std::int64_t length = 10, batch_size = 2;
  bool drop_last = false, even = true, split = false, dispatch = false, seedable = false, own_generator = false;
  std::vector<std::int64_t> cuts;  ///< batches after which a life ends, counted within the life
  bool at_epoch_end = false;       ///< a life that has read its epoch to the end is cut there
  /// All ranks have as many batches; else they meet between epochs only.
  [[nodiscard]] bool is_in_step() const { return even || dispatch || ranks == 1; }
};

std::string describe(const Case& c) {
  return fmt::format(
      "{}, {} ranks, {} workers, {} epochs, length {}, batch {}, drop_last {}, even {}, split {}, dispatch {}, "
      "seedable {}, own generator {}, cuts {}, at end {}",
      kSourceNames[static_cast<int>(c.source)], c.ranks, c.workers, c.epochs, c.length, c.batch_size, c.drop_last,
      c.even, c.split, c.dispatch, c.seedable, c.own_generator, c.cuts, c.at_epoch_end);
}

Case make_case(int max_ranks) {
  Case c;
  c.source = static_cast<Source>(pick(0, 9));
  c.ranks = pick(1, max_ranks + 1);
  c.workers = pick(0, 5);
  c.epochs = pick(1, 4);
  c.split = c.source != Source::kBatches && pick(0, 4) == 0;
  c.batch_size = pick<std::int64_t>(1, 4) * (c.split ? c.ranks : 1);
  c.length = pick<std::int64_t>(1, 26);
  c.drop_last = c.source != Source::kBatches && pick(0, 4) == 0;
  c.dispatch = c.source != Source::kBatches && pick(0, 3) == 0;
  c.even = c.dispatch || pick(0, 4) > 0;
  c.seedable = (pick(0, 2) == 0);
  c.own_generator = c.source != Source::kBatches && pick(0, 3) == 0;
  c.cuts = *rc::gen::container<std::vector<std::int64_t>>(rc::gen::inRange<std::int64_t>(0, 7));
  if (c.cuts.size() > 4) c.cuts.resize(4);
  c.at_epoch_end = (pick(0, 2) == 0);
  return c;
}

/// What a rank has seen: the epoch and each batch's numbers and random numbers, then one that its program has drawn.
using Seen = std::vector<std::vector<std::int64_t>>;

/// What a life leaves to the next.
struct Saved {
  std::string loader;  ///< a packed Value, as it stands in a file
  at::Tensor random_state;
};

using Tamper = std::function<void(LoaderState&)>;  ///< a planted bug

struct Life {
  const Case& of;
  std::optional<std::int64_t> cut;
  int prefetch_factor = 2;
  Tamper tamper = {};
  bool has_ended = false;  ///< this rank has seen all epochs, others may not have
};

template <typename Loader>
std::optional<Saved> run_loader(Loader loader, const Life& life, const std::optional<Saved>& saved, RankContext& rank,
                                Seen& seen) {
  if (saved) {
    auto state = loader_state_of(unpack<Value>(saved->loader));
    if (life.tamper) life.tamper(state);
    loader.load_state_dict(to_value(state));
    EXPECT_TRUE(life.tamper || loader.state_dict() == unpack<Value>(saved->loader))
        << "saving what was loaded gives something else";
    rank.generator.set_state(saved->random_state);
  }
  const auto save = [&] {
    return Saved{.loader = pack(loader.state_dict()), .random_state = rank.generator.get_state()};
  };
  std::int64_t num_batches = 0;
  if (life.has_ended) return std::nullopt;
  if (life.cut == 0) return save();
  for (auto epoch = loader.iteration(); epoch < life.of.epochs; ++epoch) {
    for (auto& [numbers, random] : loader) {
      std::vector<std::int64_t> batch{epoch};
      for (const auto& tensor : {numbers, random})
        for (const auto id : ids_of(tensor)) batch.push_back(id);
      batch.push_back(draw_int64(default_generator()));
      seen.push_back(std::move(batch));
      if (++num_batches == life.cut && life.of.is_in_step()) return save();
    }
    if (life.cut && (life.of.at_epoch_end || !life.of.is_in_step())) return save();
  }
  return std::nullopt;
}

std::shared_ptr<Sampler> sampler_of(const Case& c) {
  if (c.source == Source::kReplacement)
    return std::make_shared<RandomSampler>(c.length,
                                           RandomSamplerOptions{.replacement = true, .num_samples = 50 + c.length});
  if (c.source == Source::kRepeated)
    return std::make_shared<RandomSampler>(c.length, RandomSamplerOptions{.num_samples = 2 * c.length + 1});
  if (c.source == Source::kSubset) {
    std::vector<std::int64_t> indices((c.length + 1) / 2);
    for (std::size_t place = 0; place < indices.size(); ++place) indices[place] = 2 * static_cast<std::int64_t>(place);
    return std::make_shared<SubsetRandomSampler>(indices);
  }
  if (c.source == Source::kWeighted)
    return std::make_shared<WeightedRandomSampler>(std::vector<double>(c.length, 0.5),
                                                   WeightedRandomSampler::Options{.num_samples = c.length + 3});
  return nullptr;
}

// Uneven parts, at least one sample each; as many as there are ranks, or more.
Parts parts_of(const Case& c) {
  Parts parts;
  const auto num_parts = std::max<std::int64_t>(c.ranks, std::min<std::int64_t>(c.length, 2 * c.ranks + c.length % 5));
  for (std::int64_t part = 0; part < num_parts; ++part)
    parts.parts.emplace_back(1000 * part, 1 + (part * part * 7 + c.length) % 6);
  return parts;
}

std::optional<Saved> live(RankContext& rank, const Life& life, int number, const std::optional<Saved>& saved,
                          Seen& seen) {
  const auto& c = life.of;
  Accelerator accelerator({.dataloader_config = {.split_batches = c.split,
                                                 .dispatch_batches = c.dispatch,
                                                 .even_batches = c.even,
                                                 .use_seedable_sampler = c.seedable}},
                          rank);
  set_seed(static_cast<std::uint64_t>(100 * number + 7));  // a new process knows nothing of the last
  const auto sampler = sampler_of(c);
  DataLoaderOptions options{.batch_size = c.batch_size,
                            .drop_last = c.drop_last,
                            .num_workers = c.workers,
                            .prefetch_factor = life.prefetch_factor};
  if (c.own_generator) options.generator = make_generator(static_cast<std::uint64_t>(number));
  if (c.source == Source::kBatches) {
    options = {.num_workers = options.num_workers,
               .prefetch_factor = options.prefetch_factor,
               .batch_sampler = std::make_shared<RandomBatches>(c.length)};
  }
  if (c.source == Source::kShuffled) options.shuffle = true;
  if (sampler) options.sampler = sampler;
  const auto run = [&](auto dataset) {
    return run_loader(accelerator.prepare(DataLoader(std::move(dataset), options)), life, saved, rank, seen);
  };
  if (c.source == Source::kStream) return run(noisy(NumberStream{.length = c.length}));
  if (c.source != Source::kParts) return run(NoisyDataset{.length = c.length});
  return run(noisy(parts_of(c)));
}

/// What each rank has seen over all lives.
std::vector<Seen> run(Backend backend, const Case& c, const std::vector<std::int64_t>& cuts,
                      const Tamper& tamper = {}) {
  std::vector<Seen> seen(c.ranks);
  std::vector<std::optional<Saved>> saved(c.ranks);
  for (std::size_t number = 0; number <= cuts.size(); ++number) {
    if (number > 0 && std::none_of(saved.begin(), saved.end(), [](const auto& s) { return s.has_value(); })) break;
    const Life life{.of = c,
                    .cut = number < cuts.size() ? std::optional(cuts[number]) : std::nullopt,
                    .prefetch_factor = 1 + static_cast<int>(number % 3),
                    .tamper = tamper};
    std::vector<std::optional<Saved>> next(c.ranks);
    run_ranks(backend, c.ranks, [&](RankContext& rank) {
      auto own = life;
      own.has_ended = number > 0 && !saved[rank.rank];
      next[rank.rank] = live(rank, own, static_cast<int>(number), saved[rank.rank], seen[rank.rank]);
    });
    saved = std::move(next);
  }
  return seen;
}

void check_master_law(Backend backend, const Tamper& tamper = {}) {
  auto c = make_case(backend == Backend::kSim ? 5 : 3);
  RC_LOG(describe(c));
  RC_ASSERT(run(backend, c, c.cuts, tamper) == run(backend, c, {}));
}

TEST(ResumeLaws, ARunThatIsCutAnywhereSeesWhatAnUncutOneSees) {
  expect_property(400, [] { check_master_law(Backend::kSim); });
}

TEST(ResumeLaws, TheSameOnGloo) {
  expect_property(40, [] { check_master_law(Backend::kGlooThreads); });
}

TEST(ResumeLaws, TheLawCatchesEveryPlantedBug) {
  const std::map<std::string, Tamper> bugs{
      {"the epoch is not saved", [](LoaderState& state) { state.epoch = 0; }},
      {"what was prefetched counts",
       [](LoaderState& state) {
         if (state.pass) state.pass->num_read += 1;
       }},
      {"the generator is that of the moment, not of the epoch's start",
       [](LoaderState& state) {
         if (state.pass && state.order.contains("generator")) {
           auto generator = generator_of_state(state.order.at("generator").as<at::Tensor>());
           at::randperm(100, generator, at::kLong);
           state.order = Value::Dict{{"generator", generator.get_state()}};
         }
       }},
      {"the workers' generators are not saved",
       [](LoaderState& state) {
         if (state.pass)
           for (auto& reader : state.pass->readers) reader.generator = at::Tensor();
       }},
      {"the worker in turn is not saved",
       [](LoaderState& state) {
         if (state.pass) state.pass->next_reader = 0;
       }},
      {"what the rank's thread drew ahead is drawn again",
       [](LoaderState& state) {
         if (state.pass) state.pass->ahead_state = at::Tensor();
       }},
      {"an open epoch is begun anew",
       [](LoaderState& state) {
         if (state.pass) state.pass->num_read = 0;
       }},
      {"the cursor of the second resume in an epoch is lost", [](LoaderState& state) { state.pass.reset(); }},
      {"the workers' seed is drawn again",
       [](LoaderState& state) {
         if (state.pass) state.pass->base_seed += 1;
       }},
  };
  for (const auto& [name, bug] : bugs) expect_property_fails(name, 400, [&] { check_master_law(Backend::kSim, bug); });
}

// --- another number of ranks, or of workers --------------------------------------------------------------------------

/// The numbers that all ranks are given in each step of an epoch, duplicates left out, over lives of different numbers
/// of ranks.
std::vector<std::vector<std::int64_t>> gathered_over_lives(Case c, const std::vector<int>& ranks,
                                                           const std::vector<int>& workers, const std::string& order,
                                                           bool loses_place) {
  std::vector<std::vector<std::int64_t>> steps;
  std::vector<std::string> saved;  // per rank; rank 0's serves another number of ranks
  for (std::size_t number = 0; number < ranks.size(); ++number) {
    const bool is_last = number + 1 == ranks.size();
    std::vector<std::string> next(ranks[number]);
    run_ranks(Backend::kSim, ranks[number], [&](RankContext& rank) {
      Accelerator accelerator(
          {.dataloader_config = {.split_batches = c.split, .dispatch_batches = c.dispatch, .order = order}}, rank);
      set_seed(7);
      DataLoaderOptions options{.batch_size = c.batch_size,
                                .shuffle = c.source == Source::kShuffled,
                                .num_workers = workers[number % workers.size()]};
      options.sampler = sampler_of(c);
      const auto read = [&](auto loader) {
        if (!saved.empty()) {
          auto state = loader_state_of(unpack<Value>(saved[saved.size() == next.size() ? rank.rank : 0]));
          if (loses_place) state.pass.reset();
          loader.load_state_dict(to_value(state));
        }
        auto left = is_last ? std::int64_t{-1} : c.cuts[number];
        const auto save = [&] { next[rank.rank] = pack(loader.state_dict()); };
        if (left == 0) return save();
        for (auto& batch : loader) {
          const auto all = accelerator.gather_for_metrics(std::get<0>(batch));
          if (rank.rank == 0) steps.push_back(ids_of(all));
          if (--left == 0) return save();
        }
      };
      if (c.source == Source::kStream) {
        read(accelerator.prepare(DataLoader(noisy(NumberStream{.length = c.length}), options)));
      } else {
        read(accelerator.prepare(DataLoader(NoisyDataset{.length = c.length}, options)));
      }
    });
    if (next.front().empty()) break;  // the epoch was over
    saved = std::move(next);
  }
  return steps;
}

void check_elastic(bool loses_place) {
  Case c;
  c.source = *rc::gen::element(Source::kInOrder, Source::kShuffled, Source::kReplacement, Source::kSubset,
                               Source::kWeighted, Source::kStream);
  c.length = pick<std::int64_t>(1, 60);
  c.batch_size = pick<std::int64_t>(1, 4);
  c.dispatch = (pick(0, 2) == 0);
  std::vector<int> ranks, workers;
  for (int life = pick(2, 5); life > 0; --life) {
    ranks.push_back(pick(1, 6));
    workers.push_back(c.source == Source::kStream ? 0 : pick(0, 3));
    c.cuts.push_back(pick<std::int64_t>(0, 4));
  }
  // Before its first pass one rank alone has no order: it is drawn from the default generator then.
  if (ranks.front() == 1) c.cuts.front() = std::max<std::int64_t>(c.cuts.front(), 1);
  RC_LOG(fmt::format("{}, ranks {}, workers {}", describe(c), ranks, workers));
  std::vector<std::int64_t> seen, expected;
  for (const auto& step : gathered_over_lives(c, ranks, workers, "accelerate", loses_place))
    seen.insert(seen.end(), step.begin(), step.end());
  // The order is that of the first life, whoever reads on.
  for (const auto& step : gathered_over_lives(c, {ranks.front()}, {0}, "accelerate", false))
    expected.insert(expected.end(), step.begin(), step.end());
  RC_ASSERT(seen == expected);
}

TEST(ElasticLaws, AStateOfSomeRanksIsReadOnByOthersAndEverySampleComesOnce) {
  expect_property(300, [] { check_elastic(false); });
}
TEST(ElasticLaws, ThatLawCatchesAPlaceThatIsLost) {
  expect_property_fails("the place is lost", 100, [] { check_elastic(true); });
}

void check_elastic_order(const std::string& order) {
  Case c;
  c.source = *rc::gen::element(Source::kInOrder, Source::kShuffled, Source::kReplacement, Source::kStream);
  c.length = pick<std::int64_t>(1, 60);
  c.batch_size = 12;
  c.dispatch = (pick(0, 2) == 0);
  const std::vector<int> divisors{1, 2, 3, 4, 6, 12};
  const auto any = [&] { return divisors[pick<std::size_t>(0, divisors.size())]; };
  const std::vector<int> ranks{any(), any(), any()}, workers{0, c.source == Source::kStream ? 0 : 2};
  c.cuts = {pick<std::int64_t>(0, 3), pick<std::int64_t>(0, 3), 0};
  RC_LOG(fmt::format("{}, ranks {}", describe(c), ranks));
  RC_ASSERT(gathered_over_lives(c, ranks, workers, order, false) == gathered_over_lives(c, {1}, {0}, order, false));
}

TEST(ElasticLaws, AnElasticOrdersStepsDoNotDependOnTheNumberOfRanks) {
  expect_property(200, [] { check_elastic_order("elastic"); });
}
TEST(ElasticLaws, ThatLawCatchesStepsThatGrowWithTheRanks) {
  expect_property_fails("accelerate's order", 100, [] { check_elastic_order("accelerate"); });
}

TEST(ElasticLaws, TheLastStepOfAnElasticOrderIsTheSameForOneRank) {
  const auto whole_step = [](int ranks, bool dispatch) {
    std::vector<std::int64_t> rows(ranks);
    run_ranks(Backend::kSim, ranks, [&](RankContext& rank) {
      Accelerator accelerator({.dataloader_config = {.dispatch_batches = dispatch, .order = "elastic"}}, rank);
      set_seed(3);
      for (auto& [ids] :
           accelerator.prepare(DataLoader(TensorDataset(at::arange(5)), {.batch_size = 4, .shuffle = true})))
        rows[rank.rank] += (ids * ids + 1).sum().item<std::int64_t>();
    });
    return std::accumulate(rows.begin(), rows.end(), std::int64_t{0});
  };
  for (const bool dispatch : {false, true}) {
    EXPECT_EQ(whole_step(1, false), whole_step(2, dispatch));
    EXPECT_EQ(whole_step(1, false), whole_step(4, dispatch));
    EXPECT_EQ(whole_step(1, false), whole_step(1, dispatch));
  }
}

// --- what a user does between ----------------------------------------------------------------------------------------

template <typename Loader>
std::vector<std::vector<std::int64_t>> read_all(Loader& loader, std::int64_t most = 1000) {
  std::vector<std::vector<std::int64_t>> batches;
  for (auto& batch : loader) {
    batches.push_back(ids_of(std::get<0>(batch)));
    if (static_cast<std::int64_t>(batches.size()) == most) break;
  }
  return batches;
}

auto shuffled_loader(RankContext& rank, std::int64_t length = 23,
                     std::optional<at::Generator> generator = std::nullopt) {
  return Accelerator({}, rank).prepare(DataLoader(
      NoisyDataset{.length = length}, {.batch_size = 2, .shuffle = true, .generator = std::move(generator)}));
}

TEST(PlaceTest, BehindABreakTheStateIsThatOfThePlaceWhereTheLoopWasLeft) {
  run_ranks(Backend::kSim, 2, [](RankContext& rank) {
    set_seed(1);
    auto whole = shuffled_loader(rank), broken = whole;
    const auto at_start = whole.state_dict();
    const auto expected = read_all(whole);
    auto fresh = shuffled_loader(rank);
    fresh.load_state_dict(at_start);
    const auto head = read_all(fresh, 3);
    auto resumed = shuffled_loader(rank);
    resumed.load_state_dict(fresh.state_dict());
    auto seen = head;
    for (auto& batch : read_all(resumed)) seen.push_back(batch);
    EXPECT_EQ(seen, expected);
    fresh.set_epoch(5);
    EXPECT_EQ(fresh.state_dict().at("epoch"), Value(5));
    EXPECT_TRUE(fresh.state_dict().at("pass").is_null()) << "another epoch has no place yet";
  });
}

TEST(PlaceTest, SkippingBehindALoadGoesOnFromTheLoadedPlace) {
  for (const auto source : {Source::kShuffled, Source::kStream, Source::kParts}) {
    for (const bool dispatch : {false, true}) {
      for (const int workers : {0, 3}) {
        const Case c{.source = source, .ranks = 2, .workers = workers, .epochs = 1, .length = 24, .dispatch = dispatch};
        const auto read = [&](std::int64_t head, std::int64_t skip) {
          return collect_ranks(Backend::kSim, c.ranks, [&](RankContext& rank) {
            Accelerator accelerator({.dataloader_config = {.dispatch_batches = c.dispatch}}, rank);
            set_seed(9);
            const auto run = [&](auto dataset) {
              DataLoader plain(
                  std::move(dataset),
                  {.batch_size = c.batch_size, .shuffle = source == Source::kShuffled, .num_workers = c.workers});
              auto loader = accelerator.prepare(plain);
              std::vector<std::vector<std::int64_t>> seen;
              if (head > 0) {
                seen = read_all(loader, head);
                loader.load_state_dict(loader.state_dict());
              }
              auto rest = skip_first_batches(loader, skip);
              for (auto& batch : read_all(rest)) seen.push_back(batch);
              return seen;
            };
            if (source == Source::kShuffled) return run(NoisyDataset{.length = c.length});
            if (source == Source::kStream) return run(noisy(NumberStream{.length = c.length}));
            return run(noisy(parts_of(c)));
          });
        };
        const auto whole = read(0, 0);
        for (const auto& [head, skip] : {std::pair{0, 2}, {2, 0}, {1, 2}, {0, 100}}) {
          const auto seen = read(head, skip);
          for (int rank = 0; rank < c.ranks; ++rank) {
            auto expected = whole[rank];
            const auto begin = std::min<std::ptrdiff_t>(head, static_cast<std::ptrdiff_t>(expected.size()));
            expected.erase(expected.begin() + begin,
                           expected.begin() +
                               std::min<std::ptrdiff_t>(begin + skip, static_cast<std::ptrdiff_t>(expected.size())));
            EXPECT_EQ(seen[rank], expected)
                << describe(c) << ", " << head << " read, " << skip << " skipped, rank " << rank;
          }
        }
      }
    }
  }
}

TEST(PlaceTest, AFirstBatchThatCannotBeReadDoesNotLoseThePlace) {
  struct Flaky {
    std::shared_ptr<bool> fails = std::make_shared<bool>(false);
    [[nodiscard]] static std::int64_t size() { return 12; }
    [[nodiscard]] std::tuple<std::int64_t> get(std::int64_t index) const {
      check_state(!*fails, "the disk is away");
      return {index};
    }
  };
  run_ranks(Backend::kSim, 1, [](RankContext& rank) {
    Flaky dataset;
    auto loader = Accelerator({}, rank).prepare(DataLoader(dataset, {.batch_size = 2, .shuffle = true}));
    const auto head = read_all(loader, 2);
    const auto state = loader.state_dict();
    const auto random = rank.generator.get_state();
    loader.load_state_dict(state);
    const auto expected = read_all(loader);
    loader.load_state_dict(state);
    rank.generator.set_state(random);
    *dataset.fails = true;
    EXPECT_THROW(read_all(loader), StateError);
    EXPECT_EQ(loader.state_dict(), state);
    *dataset.fails = false;
    EXPECT_EQ(read_all(loader), expected);
  });
}

TEST(PlaceTest, SkippingIsAlikeOnRanksThatHaveDifferentNumbersOfParts) {
  for (const auto backend : {Backend::kSim, Backend::kGlooThreads}) {
    const auto read = [&](std::int64_t skip) {
      return collect_ranks(backend, 2, [&](RankContext& rank) {
        Accelerator accelerator({.dataloader_config = {.dispatch_batches = false}}, rank);
        const auto parts = noisy(Parts::of({4, 4, 4}));
        auto loader =
            skip_first_batches(accelerator.prepare(DataLoader(parts, {.batch_size = 2, .num_workers = 2})), skip);
        std::vector<std::int64_t> sizes;
        for (auto& batch : loader) sizes.push_back(accelerator.gather_for_metrics(std::get<0>(batch)).size(0));
        return sizes;
      });
    };
    const auto whole = read(0), rest = read(1);
    for (int rank = 0; rank < 2; ++rank)
      EXPECT_EQ(rest[rank], std::vector<std::int64_t>(whole[rank].begin() + 1, whole[rank].end()));
  }
}

TEST(PlaceTest, AnEpochThatIsSetTakesTheLoadedPlaceAwayUnlessItIsItsOwn) {
  run_ranks(Backend::kSim, 1, [](RankContext& rank) {
    auto loader = Accelerator({}, rank).prepare(DataLoader(noisy(NumberStream{.length = 10}), {.batch_size = 2}));
    read_all(loader, 2);
    const auto state = loader.state_dict();
    loader.load_state_dict(state);
    loader.set_epoch(loader.iteration());
    EXPECT_EQ(read_all(loader).size(), 3U);
    loader.load_state_dict(state);
    loader.set_epoch(4);
    EXPECT_EQ(read_all(loader).size(), 5U);
    EXPECT_THROW(loader.set_epoch(-1), ArgumentError);
  });
}

TEST(PlaceTest, APlaceOfAPlainLoaderIsNotLostByPreparingIt) {
  run_ranks(Backend::kSim, 1, [](RankContext& rank) {
    DataLoader plain(NoisyDataset{.length = 8}, {.batch_size = 2});
    EXPECT_THROW(Accelerator({}, rank).prepare(skip_first_batches(plain, 1)), StateError);
    read_all(plain, 1);
    plain.load_state_dict(plain.state_dict());
    EXPECT_THROW(Accelerator({}, rank).prepare(plain), StateError);
  });
}

TEST(PlaceTest, LoadersThatShareASamplerAreNotReadInsideOneAnother) {
  run_ranks(Backend::kSim, 1, [](RankContext& rank) {
    DataLoader plain(NoisyDataset{.length = 8}, {.batch_sampler = std::make_shared<RandomBatches>(8)});
    auto outer = Accelerator({}, rank).prepare(plain), inner = Accelerator({}, rank).prepare(plain);
    for ([[maybe_unused]] auto& batch : outer) EXPECT_THROW(read_all(inner), StateError);
    EXPECT_GT(read_all(inner).size(), 0U);
  });
}

TEST(PlaceTest, AnEpochThatADatasetRefusesIsHeardOfByEveryRank) {
  struct Refusing : Parts {
    int rank = 0;
    void set_epoch(std::int64_t epoch) const {
      check_state(epoch == 0 || rank != 0, "the files of epoch {} are away", epoch);
    }
    [[nodiscard]] Refusing shard(std::int64_t num_shards, std::int64_t index) const {
      return {Parts::shard(num_shards, index), rank};
    }
  };
  for (const bool dispatch : {false, true}) {
    run_ranks(Backend::kGlooThreads, 2, [&](RankContext& rank) {
      Accelerator accelerator({.dataloader_config = {.dispatch_batches = dispatch}}, rank);
      auto loader = accelerator.prepare(DataLoader(noisy(Refusing{Parts::of({4, 4}), rank.rank}), {.batch_size = 2}));
      read_all(loader);
      EXPECT_THROW(read_all(loader), Error) << "dispatch " << dispatch;
    });
  }
}

TEST(PlaceTest, EvenBatchesMayChangeInsideAPassAndCountFromTheNextOne) {
  run_ranks(Backend::kSim, 2, [](RankContext& rank) {
    Accelerator accelerator({}, rank);
    auto train = accelerator.prepare(DataLoader(TensorDataset(at::arange(3)), {.batch_size = 1}));
    std::int64_t steps = 0, inner_steps = 0;
    auto inner = accelerator.prepare(DataLoader(TensorDataset(at::arange(3)), {.batch_size = 1}));
    for ([[maybe_unused]] auto& batch : train) {
      ++steps;
      accelerator.join_uneven_inputs({}, {.even_batches = false}, [&] {
        for ([[maybe_unused]] auto& other : inner) ++inner_steps;
      });
    }
    EXPECT_EQ(steps, 2);
    EXPECT_EQ(inner_steps, rank.rank == 0 ? 4 : 2);
    EXPECT_EQ(inner.size(), 2);
    EXPECT_EQ(train.size(), 2);
  });
}

// --- states that do not fit ------------------------------------------------------------------------------------------

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

TEST(LoaderStateTest, AStateThatDoesNotFitIsRefusedWithAllThatIsWrong) {
  run_ranks(Backend::kSim, 2, [](RankContext& rank) {
    Accelerator accelerator({}, rank);
    auto loader = accelerator.prepare(DataLoader(NoisyDataset{.length = 10}, {.batch_size = 2}));
    const auto state = loader.state_dict();
    EXPECT_EQ(refusal(rank, state), "accepted");
    auto of_the_other = loader_state_of(state);
    of_the_other.process_index = 1 - rank.rank;
    of_the_other.num_samples = 11;
    of_the_other.source = "stream";
    EXPECT_THAT(refusal(rank, to_value(of_the_other)),
                ::testing::AllOf(::testing::HasSubstr("a dataset of 11 samples, this one has 10"),
                                 ::testing::HasSubstr(fmt::format("this is rank {}", rank.rank)),
                                 ::testing::HasSubstr("reads stream, this one reads samples")));
    EXPECT_THAT(
        refusal(rank, Value::Dict{{"epoch", 1.5}, {"format", 2}}),
        ::testing::AllOf(::testing::HasSubstr("epoch: expected int, got float"), ::testing::HasSubstr("order: missing"),
                         ::testing::HasSubstr("format: this build reads 1, got 2")));
    EXPECT_THAT(refusal(rank, Value(3)), ::testing::HasSubstr("this is no state of a loader"));
  });
}

TEST(LoaderStateTest, AStateOfAnotherOrderIsRefused) {
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
      EXPECT_THAT(refusal(rank, other), ::testing::HasSubstr("this one is of kind sequential"));
    }
  });
}

TEST(LoaderStateTest, NumbersAndTensorsThatCannotBeAreRefusedBeforeAnythingChanges) {
  run_ranks(Backend::kSim, 2, [](RankContext& rank) {
    auto loader = shuffled_loader(rank);
    read_all(loader, 2);
    const auto good = loader_state_of(loader.state_dict());
    const std::vector<std::function<void(LoaderState&)>> damages{
        [](LoaderState& state) { state.pass->num_read = -1; },
        [](LoaderState& state) { state.pass->num_read = std::numeric_limits<std::int64_t>::max(); },
        [](LoaderState& state) { state.pass->next_reader = 7; },
        [](LoaderState& state) { state.pass->random_state = at::ones({3}); },
        [](LoaderState& state) { state.pass->random_state = at::Tensor(); },
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
      EXPECT_EQ(other.state_dict(), before) << number;
    }
  });
}

TEST(LoaderStateTest, BytesThatWereDamagedAreAnErrorOrAnotherValueButNeverACrash) {
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
}  // namespace accel::testing::resume_laws
