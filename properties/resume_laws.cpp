// The master law: cut a run anywhere, any number of times; save, begin anew, load, run on: every rank gets the same stream,
// in order, random numbers of its samples included.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <numeric>

#include "reference/accelerator/accelerator.hpp"
#include "reference/core/value.hpp"
#include "reference/data/loader_state.hpp"
#include "reference/state/rng_sync.hpp"
#include "tests/support/property.hpp"
#include "tests/support/run_ranks.hpp"

namespace accel::testing {
namespace {

using Sample = std::pair<std::int64_t, std::int64_t>;  // its number, and a random number that reading it has drawn

Sample read_sample(std::int64_t number) { return {number, draw_int64(default_generator())}; }

struct NoisyDataset {
  std::int64_t length = 0;
  [[nodiscard]] std::int64_t size() const { return length; }
  [[nodiscard]] static Sample get(std::int64_t index) { return read_sample(index); }
};

struct NoisyStream {
  std::int64_t length = 0, place = 0;
  void reset() { place = 0; }
  std::optional<Sample> next() { return place < length ? std::optional(read_sample(place++)) : std::nullopt; }
};

// Part p holds the numbers 1000 p, 1000 p + 1, ...
struct NoisyParts {
  std::vector<std::pair<std::int64_t, std::int64_t>> parts;  // first number, length
  std::size_t part = 0;
  std::int64_t place = 0;
  void reset() { part = 0, place = 0; }
  std::optional<Sample> next() {
    while (part < parts.size() && place == parts[part].second) ++part, place = 0;
    return part < parts.size() ? std::optional(read_sample(parts[part].first + place++)) : std::nullopt;
  }
  void skip(std::int64_t num_samples) {
    while (part < parts.size() && num_samples > 0) {
      const auto here = std::min(num_samples, parts[part].second - place);
      place += here, num_samples -= here;
      if (place == parts[part].second) ++part, place = 0;
    }
  }
  [[nodiscard]] std::int64_t num_shards() const { return static_cast<std::int64_t>(parts.size()); }
  [[nodiscard]] NoisyParts shard(std::int64_t num_shards, std::int64_t index) const {
    NoisyParts own;
    for (auto p = index; p < this->num_shards(); p += num_shards) own.parts.push_back(parts[p]);
    return own;
  }
};

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
    for (; next_ < length_ && static_cast<std::int64_t>(batch.size()) < size; ++next_) batch.push_back(order_[next_].item<std::int64_t>());
    return batch.empty() ? std::nullopt : std::optional(batch);
  }

 private:
  std::int64_t length_, next_ = 0;
  at::Generator generator_ = make_generator(5);
  at::Tensor order_;
};

enum class Source { kInOrder, kShuffled, kReplacement, kRepeated, kSubset, kWeighted, kBatches, kStream, kParts };
constexpr const char* kSourceNames[] = {"in order", "shuffled", "replacement", "repeated", "subset", "weighted", "batches", "stream", "parts"};

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
  return fmt::format("{}, {} ranks, {} workers, {} epochs, length {}, batch {}, drop_last {}, even {}, split {}, dispatch {}, seedable {}, own generator {}, cuts {}, at end {}",
                     kSourceNames[static_cast<int>(c.source)], c.ranks, c.workers, c.epochs, c.length, c.batch_size, c.drop_last, c.even, c.split, c.dispatch,
                     c.seedable, c.own_generator, c.cuts, c.at_epoch_end);
}

Case make_case(int max_ranks) {
  Case c;
  c.source = static_cast<Source>(*rc::gen::inRange(0, 9));
  c.ranks = *rc::gen::inRange(1, max_ranks + 1);
  c.workers = *rc::gen::inRange(0, 5);
  c.epochs = *rc::gen::inRange(1, 4);
  c.split = c.source != Source::kBatches && *rc::gen::inRange(0, 4) == 0;
  c.batch_size = *rc::gen::inRange<std::int64_t>(1, 4) * (c.split ? c.ranks : 1);
  c.length = *rc::gen::inRange<std::int64_t>(c.source == Source::kParts ? c.ranks : 1, 26);
  c.drop_last = c.source != Source::kBatches && *rc::gen::inRange(0, 4) == 0;
  c.dispatch = c.source != Source::kBatches && *rc::gen::inRange(0, 3) == 0;
  c.even = c.dispatch || *rc::gen::inRange(0, 4) > 0;
  c.seedable = *rc::gen::arbitrary<bool>();
  c.own_generator = c.source != Source::kBatches && *rc::gen::inRange(0, 3) == 0;
  c.cuts = *rc::gen::container<std::vector<std::int64_t>>(rc::gen::inRange<std::int64_t>(0, 7));
  if (c.cuts.size() > 4) c.cuts.resize(4);
  c.at_epoch_end = *rc::gen::arbitrary<bool>();
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
  std::optional<int> ranks = std::nullopt, workers = std::nullopt;
  int prefetch_factor = 2;
  Tamper tamper = {};
  bool has_ended = false;  ///< this rank has seen all epochs, others may not have
};

template <typename Loader>
std::optional<Saved> run_loader(Loader loader, const Life& life, const std::optional<Saved>& saved, RankContext& rank, Seen& seen) {
  if (saved) {
    auto state = loader_state_of(unpack<Value>(saved->loader));
    if (life.tamper) life.tamper(state);
    loader.load_state_dict(to_value(state));
    EXPECT_TRUE(life.tamper || life.ranks || loader.state_dict() == unpack<Value>(saved->loader)) << "saving what was loaded gives something else";
    rank.generator.set_state(saved->random_state);
  }
  const auto save = [&] { return Saved{.loader = pack(loader.state_dict()), .random_state = rank.generator.get_state()}; };
  std::int64_t num_batches = 0;
  if (life.has_ended) return std::nullopt;
  if (life.cut == 0) return save();
  for (auto epoch = loader.iteration(); epoch < life.of.epochs; ++epoch) {
    for (auto& [numbers, random] : loader) {
      std::vector<std::int64_t> batch{epoch};
      for (const auto& tensor : {numbers, random}) batch.insert(batch.end(), tensor.template const_data_ptr<std::int64_t>(), tensor.template const_data_ptr<std::int64_t>() + tensor.numel());
      batch.push_back(draw_int64(default_generator()));
      seen.push_back(std::move(batch));
      if (++num_batches == life.cut && life.of.is_in_step()) return save();
    }
    if (life.cut && (life.of.at_epoch_end || !life.of.is_in_step())) return save();
  }
  return std::nullopt;
}

std::shared_ptr<Sampler> sampler_of(const Case& c) {
  if (c.source == Source::kReplacement) return std::make_shared<RandomSampler>(c.length, RandomSamplerOptions{.replacement = true, .num_samples = 50 + c.length});
  if (c.source == Source::kRepeated) return std::make_shared<RandomSampler>(c.length, RandomSamplerOptions{.num_samples = 2 * c.length + 1});
  if (c.source == Source::kSubset) {
    std::vector<std::int64_t> indices((c.length + 1) / 2);
    for (std::size_t place = 0; place < indices.size(); ++place) indices[place] = 2 * static_cast<std::int64_t>(place);
    return std::make_shared<SubsetRandomSampler>(indices);
  }
  if (c.source == Source::kWeighted) return std::make_shared<WeightedRandomSampler>(std::vector<double>(c.length, 0.5), WeightedRandomSampler::Options{.num_samples = c.length + 3});
  return nullptr;
}

std::optional<Saved> live(RankContext& rank, const Life& life, int number, const std::optional<Saved>& saved, Seen& seen) {
  const auto& c = life.of;
  Accelerator accelerator({.dataloader_config = {.split_batches = c.split, .dispatch_batches = c.dispatch, .even_batches = c.even,
                                                 .use_seedable_sampler = c.seedable}}, rank);
  set_seed(static_cast<std::uint64_t>(100 * number + 7));  // a new process knows nothing of the last
  const auto sampler = sampler_of(c);
  DataLoaderOptions options{.batch_size = c.batch_size, .drop_last = c.drop_last, .num_workers = life.workers.value_or(c.workers), .prefetch_factor = life.prefetch_factor};
  if (c.own_generator) options.generator = make_generator(static_cast<std::uint64_t>(number));
  if (c.source == Source::kBatches) {
    options = {.num_workers = options.num_workers, .prefetch_factor = options.prefetch_factor, .batch_sampler = std::make_shared<RandomBatches>(c.length)};
  }
  if (c.source == Source::kShuffled) options.shuffle = true;
  if (sampler) options.sampler = sampler;
  const auto run = [&](auto dataset) { return run_loader(accelerator.prepare(DataLoader(std::move(dataset), options)), life, saved, rank, seen); };
  if (c.source == Source::kStream) return run(NoisyStream{.length = c.length});
  if (c.source != Source::kParts) return run(NoisyDataset{.length = c.length});
  NoisyParts parts;  // uneven ones, at least one sample each
  const auto num_parts = std::min<std::int64_t>(c.length, 2 * c.ranks + 1);
  for (std::int64_t part = 0; part < num_parts; ++part) parts.parts.emplace_back(1000 * part, 1 + (part == 0 ? c.length - num_parts : 0));
  return run(parts);
}

/// What each rank has seen over all lives.
std::vector<Seen> run(Backend backend, const Case& c, const std::vector<std::int64_t>& cuts, const Tamper& tamper = {}) {
  std::vector<Seen> seen(c.ranks);
  std::vector<std::optional<Saved>> saved(c.ranks);
  for (std::size_t number = 0; number <= cuts.size(); ++number) {
    if (number > 0 && std::none_of(saved.begin(), saved.end(), [](const auto& s) { return s.has_value(); })) break;
    const Life life{.of = c, .cut = number < cuts.size() ? std::optional(cuts[number]) : std::nullopt, .prefetch_factor = 1 + static_cast<int>(number % 3), .tamper = tamper};
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
      {"what was prefetched counts", [](LoaderState& state) { if (state.pass) state.pass->num_read += 1; }},
      {"the generator is that of the moment, not of the epoch's start", [](LoaderState& state) {
         if (state.pass && state.order.contains("generator")) {
           auto generator = generator_of_state(state.order.at("generator").as<at::Tensor>());
           at::randperm(100, generator, at::kLong);
           state.order = Value::Dict{{"generator", generator.get_state()}};
         }
       }},
      {"the workers' generators are not saved", [](LoaderState& state) { if (state.pass) for (auto& reader : state.pass->readers) reader.generator = at::Tensor(); }},
      {"the worker in turn is not saved", [](LoaderState& state) { if (state.pass) state.pass->next_reader = 0; }},
      {"what the rank's thread drew ahead is drawn again", [](LoaderState& state) { if (state.pass) state.pass->ahead_state = at::Tensor(); }},
      {"an open epoch is begun anew", [](LoaderState& state) { if (state.pass) state.pass->num_read = 0; }},
      {"the cursor of the second resume in an epoch is lost", [](LoaderState& state) { state.pass.reset(); }},
      {"the workers' seed is drawn again", [](LoaderState& state) { if (state.pass) state.pass->base_seed += 1; }},
  };
  for (const auto& [name, bug] : bugs) expect_property_fails(name, 400, [&] { check_master_law(Backend::kSim, bug); });
}

}  // namespace
}  // namespace accel::testing
