// The generators must produce the cases that matter. A generator whose loaders rarely pad, or whose collectives are
// almost all of one kind, would leave properties that pass and prove nothing.
#include <fmt/format.h>

#include <fstream>
#include <map>
#include <nlohmann/json.hpp>

#include "properties/gen/collective_call.hpp"
#include "properties/gen/loader_program.hpp"
#include "properties/gen/plan_cases.hpp"
#include "properties/gen/read_epochs.hpp"
#include "properties/gen/resumed_loaders.hpp"
#include "tests/support/artifacts.hpp"

namespace accel::testing::distribution_laws {
namespace {

// How often each value of each feature occurs, as a share of all cases.
class Distribution {
 public:
  Distribution(std::string generator, int cases) : generator_(std::move(generator)), cases_(cases) {}

  template <typename T>
  void count(const std::string& feature, const T& value) {
    ++counts_[feature][fmt::format("{}", value)];
  }
  [[nodiscard]] double share(const std::string& feature, const std::string& value) const {
    const auto& of_feature = counts_.at(feature);
    const auto found = of_feature.find(value);
    int all = 0;
    for (const auto& [name, number] : of_feature) all += number;
    return found == of_feature.end() ? 0 : static_cast<double>(found->second) / all;
  }

  // Every one of `values` must have at least this share.
  void expect_each(const std::string& feature, const std::vector<std::string>& values, double least) const {
    for (const auto& value : values)
      EXPECT_GE(share(feature, value), least) << generator_ << ": too few cases with " << feature << " " << value;
  }
  void expect_at_least(const std::string& feature, double least) const { expect_each(feature, {"true"}, least); }
  void expect_at_most(const std::string& feature, double most) const {
    EXPECT_LE(share(feature, "true"), most) << generator_ << ": too many cases with " << feature;
  }

  // A report shows the distributions.
  void write() const {
    if (const auto path = artifact_path("distributions/" + generator_ + ".json")) {
      std::ofstream(*path) << nlohmann::json{{"generator", generator_}, {"cases", cases_}, {"counts", counts_}}.dump(2)
                           << "\n";
    }
  }

 private:
  std::string generator_;
  int cases_;
  std::map<std::string, std::map<std::string, int>> counts_;
};

// Draws cases and lets `count` record the features of each.
template <typename T>
Distribution distribution_of(const std::string& name, const rc::Gen<T>& generator,
                             const std::function<void(Distribution&, const T&)>& count, int cases = 2000) {
  Distribution distribution(name, cases);
  rc::Random random(1);
  // The size grows from 0 to 100, as RapidCheck's own does while it checks a property.
  for (int one = 0; one < cases; ++one) count(distribution, generator(random.split(), one * 100 / cases).value());
  distribution.write();
  return distribution;
}

std::vector<std::string> numbers(int first, int last) {
  std::vector<std::string> all;
  for (int number = first; number <= last; ++number) all.push_back(std::to_string(number));
  return all;
}

// The floors that all generators of loaders share.
void expect_loader_floors(const Distribution& loaders, int max_ranks) {
  loaders.expect_at_least("pads", 0.40);
  loaders.expect_each("ranks", numbers(1, max_ranks), 0.05);
  loaders.expect_at_least("batch size above 1", 0.70);
  loaders.expect_at_most("is empty", 0.03);
}

const std::vector<std::string> kBoth{"false", "true"};

TEST(DistributionLaws, LoadersOfAllModes) {
  using namespace read_epochs;
  const auto loaders = distribution_of<Case>("read_epochs", any_case(), [](auto& to, const Case& c) {
    to.count("pads", c.pads());
    to.count("ranks", c.ranks);
    to.count("batch size above 1", c.batch_size > 1);
    to.count("is empty", c.num_kept() == 0);
    to.count("source", kSourceNames[static_cast<int>(c.source)]);
    to.count("workers", c.workers);
    to.count("shuffle", c.shuffle);
    to.count("seedable", c.seedable);
    to.count("even_batches", c.even);
    to.count("split_batches", c.split);
    to.count("drop_last", c.drop_last);
    to.count("dispatch_batches", c.dispatch);
  });
  expect_loader_floors(loaders, 5);
  loaders.expect_each("source", {std::begin(kSourceNames), std::end(kSourceNames)}, 0.03);
  loaders.expect_each("workers", numbers(0, 2), 0.03);
  for (const auto* option : {"shuffle", "seedable", "even_batches", "split_batches", "drop_last", "dispatch_batches"})
    loaders.expect_each(option, kBoth, 0.03);
}

TEST(DistributionLaws, LoadersThatAreResumed) {
  using namespace resumed_loaders;
  const auto loaders = distribution_of<Case>("resumed_loaders", any_case(4), [](auto& to, const Case& c) {
    to.count("pads", pads(c));
    to.count("ranks", c.ranks);
    to.count("batch size above 1", c.batch_size > 1);
    to.count("is empty", c.length == 0 || (c.drop_last && num_shared(c).value_or(1000) < c.batch_size));
    to.count("source", kSourceNames[static_cast<int>(c.source)]);
    to.count("workers", c.workers);
    to.count("cuts", c.cuts.size());
    to.count("seedable", c.seedable);
    to.count("even_batches", c.even);
    to.count("split_batches", c.split);
    to.count("drop_last", c.drop_last);
    to.count("dispatch_batches", c.dispatch);
    to.count("own generator", c.own_generator);
  });
  expect_loader_floors(loaders, 4);
  loaders.expect_each("source", {std::begin(kSourceNames), std::end(kSourceNames)}, 0.03);
  loaders.expect_each("workers", numbers(0, 4), 0.03);
  loaders.expect_each("cuts", numbers(0, 4), 0.03);
  for (const auto* option :
       {"seedable", "even_batches", "split_batches", "drop_last", "dispatch_batches", "own generator"})
    loaders.expect_each(option, kBoth, 0.03);
}

TEST(DistributionLaws, RequestsOfPlans) {
  using programs::PlanRequest;
  const auto requests = distribution_of<PlanRequest>("plan_requests", plan_request(8), [](auto& to, const auto& r) {
    const auto step_size = r.batch_size * (r.split_batches ? 1 : r.ranks);
    const auto kept = r.drop_last ? r.length / step_size * step_size : r.length;
    to.count("pads", pads(r));
    to.count("ranks", r.ranks);
    to.count("batch size above 1", r.batch_size > 1);
    to.count("is empty", r.epochs == 0 || r.skip_batches * step_size >= kept);
    to.count("epochs", r.epochs);
    to.count("skips", r.skip_batches > 0);
    to.count("iterable", r.iterable);
    to.count("shuffle", r.shuffle);
    to.count("even_batches", r.even_batches);
    to.count("split_batches", r.split_batches);
    to.count("drop_last", r.drop_last);
    to.count("dispatch_batches", r.dispatch_batches ? (*r.dispatch_batches ? "true" : "false") : "null");
    to.count("use_seedable_sampler", r.use_seedable_sampler);
    to.count("has data_seed", r.data_seed.has_value());
  });
  expect_loader_floors(requests, 8);
  requests.expect_each("epochs", numbers(1, 3), 0.03);
  requests.expect_each("dispatch_batches", {"true", "false", "null"}, 0.03);
  for (const auto* option : {"skips", "iterable", "shuffle", "even_batches", "split_batches", "drop_last",
                             "use_seedable_sampler", "has data_seed"})
    requests.expect_each(option, kBoth, 0.03);
}

TEST(DistributionLaws, ShardPlans) {
  const auto plans = distribution_of<ShardPlanCase>("shard_plans", shard_plan_case(), [](auto& to, const auto& one) {
    const auto& o = one.options;
    to.count("pads", plan_shards(o).num_duplicates() > 0);
    to.count("ranks", o.num_ranks);
    to.count("batch size above 1", o.batch_size > 1);
    to.count("is empty", plan_shards(o).num_batches(0) == 0);
    to.count("even_batches", o.even_batches);
    to.count("split_batches", o.split_batches);
    to.count("drop_last", o.drop_last);
  });
  expect_loader_floors(plans, 8);
  for (const auto* option : {"even_batches", "split_batches", "drop_last"}) plans.expect_each(option, kBoth, 0.03);
}

TEST(DistributionLaws, ProgramsOfLoaders) {
  using namespace loader_program;
  const auto any_program = rc::gen::exec([] {
    Model model(*any_setup());
    return std::pair(model, any_steps(model, 40));
  });
  const auto programs = distribution_of<std::pair<Model, std::vector<Step>>>(
      "loader_programs", any_program,
      [](auto& to, auto program) {
        auto& [model, steps] = program;
        to.count("ranks", model.setup.ranks);
        to.count("workers", model.setup.workers);
        bool is_loaded_inside = false, gathers_in_pass = false;
        for (const auto& step : steps) {
          to.count("step", kNames[static_cast<int>(step.kind)]);
          gathers_in_pass |= step.kind == Kind::kGather && model.open;
          Command(step).apply(model);
          is_loaded_inside |= model.is_loaded && model.place.num_read;
        }
        to.count("resumes inside an epoch", is_loaded_inside);
        to.count("gathers a batch", gathers_in_pass);
      },
      /*cases=*/500);
  programs.expect_each("ranks", numbers(1, 3), 0.05);
  programs.expect_each("workers", numbers(0, 2), 0.05);
  programs.expect_each("step", {std::begin(kNames), std::end(kNames)}, 0.03);
  programs.expect_at_least("resumes inside an epoch", 0.40);
  programs.expect_at_least("gathers a batch", 0.40);
}

TEST(DistributionLaws, CollectiveCalls) {
  const auto calls =
      distribution_of<CollectiveCall>("collective_calls", collective_call(8, 60000), [](auto& to, const auto& call) {
        to.count("operation", name_of(call.op));
        to.count("dtype", c10::toString(call.dtype));
        to.count("reduction", static_cast<int>(call.reduction));
        to.count("root", call.root);
        to.count("elements", call.numel < 8 ? "fewer than ranks" : call.numel < 5000 ? "up to 5,000" : "more");
        to.count("special values", call.special_values);
      });
  std::vector<std::string> operations, dtypes;
  for (int op = 0; op < static_cast<int>(Op::kCount); ++op) operations.emplace_back(name_of(static_cast<Op>(op)));
  for (const auto dtype :
       {at::kFloat, at::kDouble, at::kHalf, at::kBFloat16, at::kChar, at::kByte, at::kBool, at::kInt, at::kLong})
    dtypes.emplace_back(c10::toString(dtype));
  calls.expect_each("operation", operations, 0.03);
  calls.expect_each("dtype", dtypes, 0.03);
  calls.expect_each("root", numbers(0, 7), 0.05);
  calls.expect_each("elements", {"fewer than ranks", "up to 5,000", "more"}, 0.03);
  calls.expect_each("special values", kBoth, 0.03);
}

}  // namespace
}  // namespace accel::testing::distribution_laws
