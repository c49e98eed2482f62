#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "sim/programs/equivalence/choices.hpp"
#include "sim/programs/experiments/plan_request.hpp"

/// The cases of the equivalence suite: small programs that every backend must run with the same results.
namespace accel::programs {

/// The behavior that a case tests.
inline constexpr const char* kLaws[] = {"sharding", "even_batches", "gather_for_metrics", "rng_synchronization",
                                        "training"};
/// What the loader reads: "plain" is a map-style dataset, or a stream if `iterable` is set.
inline constexpr const char* kCaseSources[] = {
    "plain",           "subset_sampler",      "weighted_sampler", "batch_sampler",
    "varying_batches", "replacement_sampler", "repeated_sampler", "parts",
    "drawing_stream"};
/// What happens in one epoch after `interrupted_after` batches, or at its end if it has fewer: nothing; the loop is
/// left by break or by an exception and the loader is iterated again; a new loader continues from the state that the
/// old one has after the loop was left, or that it had inside the loop, which then went on.
inline constexpr const char* kInterruptions[] = {"none", "iterate_again", "exception", "resume", "resume_inside"};
/// Whether the program reads another prepared loader: inside every second step of the first one's loop, or after it.
inline constexpr const char* kSecondLoaders[] = {"none", "inside", "in_turn"};
/// What happens before each epoch, also before the rest of a resumed one: nothing, set_epoch with the number of the
/// epoch, set_epoch with another number, or (except before the first epoch) set_seed.
inline constexpr const char* kBeforeEpochs[] = {"none", "set_epoch", "jump_epoch", "set_seed"};

struct EquivalenceCase : PlanRequest {
  std::string law = kLaws[0];
  std::string source = kCaseSources[0];
  int num_workers = 0, prefetch_factor = 2;
  bool persistent_workers = false;
  bool worker_init = false;                            ///< worker_init_fn draws random numbers
  bool epoch_in_samples = false;                       ///< the dataset has set_epoch, and its samples depend on it
  bool draws_in_samples = false;                       ///< reading a sample draws a random number
  bool own_generator = false;                          ///< the loader has a generator, seeded differently on every rank
  std::vector<std::string> rng_types = {"generator"};  ///< that the loader synchronizes before each epoch
  bool device_specific = false;                        ///< set_seed seeds ranks differently
  std::vector<std::string> operations = {};            ///< of case_operations.hpp; step s runs number s % size
  std::string interruption = kInterruptions[0];
  std::int64_t interrupted_after = 1;
  int interruptions = 1;  ///< that many in a row
  int interrupted_epoch = 0;
  int resumed_ranks = 0;                  ///< ranks of the new job that the first resume starts; 0: in the same job
  std::int64_t resumed_skip_batches = 0;  ///< skip_first_batches after a resume
  std::string second_loader = kSecondLoaders[0];
  bool leaves_second = false;  ///< the loop over the second loader is left after its first batch
  std::string before_epochs = kBeforeEpochs[0];
  std::optional<bool> join_even_batches = {};  ///< of "training": even_batches of join_uneven_inputs
  int accumulation_steps = 1;                  ///< of "training"
  double momentum = 0;                         ///< of "training"

  /// Whether all ranks have the same number of batches, so that they can call collectives inside the loop.
  [[nodiscard]] bool in_step() const;
  /// The same for the jobs of all stages.
  [[nodiscard]] bool always_in_step() const;
  /// Number of steps of a complete pass on the rank with the most, as far as the sizes tell.
  [[nodiscard]] std::int64_t num_steps() const;
  /// even_batches inside the loop; join_uneven_inputs does not change it for streams.
  [[nodiscard]] bool pass_is_even() const { return iterable ? even_batches : join_even_batches.value_or(even_batches); }
  [[nodiscard]] bool resumes() const { return interruption == "resume" || interruption == "resume_inside"; }
  /// The parts of the case in one job each: before (0) and after (1) the first resume, if that starts a new job.
  [[nodiscard]] int num_stages() const { return resumes() && resumed_ranks > 0 ? 2 : 1; }
  [[nodiscard]] int ranks_of(int stage) const { return stage == 0 ? ranks : resumed_ranks; }
  /// The rank whose state a rank of the second job loads: its own, or rank 0's on another number of ranks.
  [[nodiscard]] int state_of(int rank) const { return resumed_ranks == ranks ? rank : 0; }
  [[nodiscard]] int most_ranks() const { return num_stages() == 1 ? ranks : std::max(ranks, resumed_ranks); }
  /// Whether the last step is padded with duplicates.
  [[nodiscard]] bool pads() const;
  /// Number of samples that the loader's order contains, before padding and dropping.
  [[nodiscard]] std::int64_t num_ordered() const;
  /// Samples of one step over all ranks.
  [[nodiscard]] std::int64_t step_size() const { return splits() ? batch_size : batch_size * ranks; }
};

/// Visits all fields, those of the plan request first.
template <FieldsOf<EquivalenceCase> Case, typename Visit>
void for_each_field(Case& one, Visit&& visit) {
  using Request = std::conditional_t<std::is_const_v<Case>, const PlanRequest, PlanRequest>;
  for_each_field(static_cast<Request&>(one), visit);
  visit(Field{.name = "order", .rule = {.choices = kOrders}}, one.order);
  visit(Field{.name = "law", .rule = {.choices = kLaws}}, one.law);
  visit(Field{.name = "source", .rule = {.choices = kCaseSources}}, one.source);
  visit(Field{.name = "num_workers", .rule = at_least_zero}, one.num_workers);
  visit(Field{.name = "prefetch_factor", .rule = at_least_one}, one.prefetch_factor);
  visit(Field{.name = "persistent_workers"}, one.persistent_workers);
  visit(Field{.name = "worker_init"}, one.worker_init);
  visit(Field{.name = "epoch_in_samples"}, one.epoch_in_samples);
  visit(Field{.name = "draws_in_samples"}, one.draws_in_samples);
  visit(Field{.name = "own_generator"}, one.own_generator);
  visit(Field{.name = "rng_types"}, one.rng_types);
  visit(Field{.name = "device_specific"}, one.device_specific);
  visit(Field{.name = "operations"}, one.operations);
  visit(Field{.name = "interruption", .rule = {.choices = kInterruptions}}, one.interruption);
  visit(Field{.name = "interrupted_after", .rule = at_least_zero}, one.interrupted_after);
  visit(Field{.name = "interruptions", .rule = at_least_one}, one.interruptions);
  visit(Field{.name = "interrupted_epoch", .rule = at_least_zero}, one.interrupted_epoch);
  visit(Field{.name = "resumed_ranks", .rule = at_least_zero}, one.resumed_ranks);
  visit(Field{.name = "resumed_skip_batches", .rule = at_least_zero}, one.resumed_skip_batches);
  visit(Field{.name = "second_loader", .rule = {.choices = kSecondLoaders}}, one.second_loader);
  visit(Field{.name = "leaves_second"}, one.leaves_second);
  visit(Field{.name = "before_epochs", .rule = {.choices = kBeforeEpochs}}, one.before_epochs);
  visit(Field{.name = "join_even_batches"}, one.join_even_batches);
  visit(Field{.name = "accumulation_steps", .rule = at_least_one}, one.accumulation_steps);
  visit(Field{.name = "momentum", .rule = finite_at_least_zero}, one.momentum);
}

/// Draws a case of a law on 1 to `max_ranks` ranks, or on exactly `ranks` ranks.
struct RankLimits {
  int smallest = 1, largest = 16;
};
EquivalenceCase draw_case(const std::string& law, Choices choices, RankLimits limits);

/// One line of JSON, with the fields that differ from their defaults.
std::string to_json(const EquivalenceCase& one);
/// Throws ConfigError with all problems.
EquivalenceCase read_case(const std::string& json);

}  // namespace accel::programs
