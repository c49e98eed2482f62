// The main property of resuming a loader: stop a run anywhere, any number of times; save, start again, load and
// continue. Every rank then reads the same stream in the same order, including the random numbers of its samples.
#include <map>

#include "properties/gen/resumed_loaders.hpp"
#include "reference/data/loader_state.hpp"
#include "reference/state/rng_sync.hpp"
#include "reference/tree/value.hpp"
#include "tests/support/property.hpp"
#include "tests/support/run_ranks.hpp"

namespace accel::testing::resume_laws {
namespace {

using namespace resumed_loaders;

/// What one rank has seen: the epoch, each batch's numbers and random numbers, and one number that the program
/// drew.
using Seen = std::vector<std::vector<std::int64_t>>;

/// The state that a life passes on to the next one.
struct Saved {
  std::string loader;  ///< a packed Value, as a file would hold it
  at::Tensor random_state;
};

using Tamper = std::function<void(LoaderState&)>;  ///< a planted bug

struct Life {
  const Case& of;
  std::optional<std::int64_t> cut;
  int prefetch_factor = 2;
  Tamper tamper = {};
  bool has_ended = false;  ///< this rank has finished all epochs; others may not have
};

template <typename Loader>
std::optional<Saved> run_loader(Loader loader, const Life& life, const std::optional<Saved>& saved, RankContext& rank,
                                Seen& seen) {
  if (saved) {
    auto state = loader_state_of(unpack<Value>(saved->loader));
    if (life.tamper) life.tamper(state);
    loader.load_state_dict(to_value(state));
    // Loading and saving again must give the same state, or a second cut before the first batch would lose the
    // place.
    EXPECT_TRUE(life.tamper || loader.state_dict() == unpack<Value>(saved->loader))
        << "a loaded state changes when it is saved again";
    rank.generator.set_state(saved->random_state);
  }
  const auto save = [&] {
    return Saved{.loader = pack(loader.state_dict()), .random_state = rank.generator.get_state()};
  };
  std::int64_t num_batches = 0;
  if (life.has_ended) return std::nullopt;
  if (life.cut == 0) return save();
  // iteration() is the epoch where the loader continues, so a resumed life does not start at epoch 0.
  for (auto epoch = loader.iteration(); epoch < life.of.epochs; ++epoch) {
    for (auto& [numbers, random] : loader) {
      std::vector<std::int64_t> batch{epoch};
      for (const auto& tensor : {numbers, random})
        for (const auto id : ids_of(tensor)) batch.push_back(id);
      batch.push_back(draw_int64(default_generator()));
      seen.push_back(std::move(batch));
      // Uneven ranks cannot stop at the same batch, so they stop at the end of an epoch only.
      if (++num_batches == life.cut && life.of.is_in_step()) return save();
    }
    if (life.cut && (life.of.at_epoch_end || !life.of.is_in_step())) return save();
  }
  return std::nullopt;
}

std::optional<Saved> live(RankContext& rank, const Life& life, int number, const std::optional<Saved>& saved,
                          Seen& seen) {
  const auto& c = life.of;
  Accelerator accelerator({.dataloader_config = {.split_batches = c.split,
                                                 .dispatch_batches = c.dispatch,
                                                 .even_batches = c.even,
                                                 .use_seedable_sampler = c.seedable}},
                          rank);
  set_seed(static_cast<std::uint64_t>(100 * number + 7));  // a new process has no state of the previous one
  const auto sampler = sampler_of(c);
  DataLoaderOptions options{.batch_size = c.batch_size,
                            .drop_last = c.drop_last,
                            // Workers and prefetching run ahead of the program. What they read ahead must not count
                            // as consumed.
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

/// Returns what each rank has seen over all lives.
std::vector<Seen> run(Backend backend, const Case& c, const std::vector<std::int64_t>& cuts,
                      const Tamper& tamper = {}) {
  std::vector<Seen> seen(c.ranks);
  std::vector<std::optional<Saved>> saved(c.ranks);
  for (std::size_t number = 0; number <= cuts.size(); ++number) {
    if (number > 0 && std::none_of(saved.begin(), saved.end(), [](const auto& s) { return s.has_value(); })) break;
    const Life life{.of = c,
                    .cut = number < cuts.size() ? std::optional(cuts[number]) : std::nullopt,
                    // The prefetch factor changes between lives, because it must not affect the stream.
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
  const auto c = *any_case(backend == Backend::kSim ? 5 : 3);
  const auto uncut = run(Backend::kSim, c, {});
  RC_ASSERT(run(backend, c, c.cuts, tamper) == uncut);
  // A fault of Gloo alone could change the interrupted and the uninterrupted run alike.
  if (backend != Backend::kSim) RC_ASSERT(run(backend, c, {}) == uncut);
}

TEST(ResumeLaws, ARunThatIsInterruptedAnywhereSeesTheUninterruptedStream) {
  expect_property(400, [] { check_master_law(Backend::kSim); });
}

// Interrupted or not, ranks over Gloo see the stream of simulated ranks.
TEST(ResumeLaws, TheSameOnGloo) {
  expect_property(40, [] { check_master_law(Backend::kGlooThreads); });
}

// Each bug damages one field of the saved state as a forgetful implementation would leave it.
TEST(ResumeLaws, EveryPlantedBugIsCaught) {
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
           // The generator must be saved as of the start of the epoch: the order is drawn again from it and then
           // skipped through.
           at::randperm(100, generator, at::kLong);
           auto order = state.order.as<Value::Dict>();
           order["generator"] = generator.get_state();
           state.order = order;
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
      {"an open epoch restarts",
       [](LoaderState& state) {
         if (state.pass) state.pass->num_read = 0;
       }},
      {"the cursor of the second resume in an epoch is lost", [](LoaderState& state) { state.pass.reset(); }},
      {"the workers' seed is drawn again",
       [](LoaderState& state) {
         if (state.pass) state.pass->base_seed += 1;
       }},
  };
  // 400 cases each, because a bug of workers needs workers and a cut within an epoch to show.
  for (const auto& [name, bug] : bugs) expect_property_fails(name, 400, [&] { check_master_law(Backend::kSim, bug); });
}

}  // namespace
}  // namespace accel::testing::resume_laws
