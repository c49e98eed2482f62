#pragma once

#include <cstdint>
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
inline constexpr const char* kCaseSources[] = {"plain",         "subset_sampler",  "weighted_sampler",
                                               "batch_sampler", "varying_batches", "parts"};
/// What happens in the first epoch after `interrupted_after` batches: nothing, the loop is left and the loader is
/// iterated again, or a new loader continues from the saved state of the old one.
inline constexpr const char* kInterruptions[] = {"none", "iterate_again", "resume"};

struct EquivalenceCase : PlanRequest {
  std::string law = kLaws[0];
  std::string source = kCaseSources[0];
  int num_workers = 0, prefetch_factor = 2;
  bool draws_in_samples = false;                       ///< reading a sample draws a random number
  bool own_generator = false;                          ///< the loader has a generator, seeded differently on every rank
  std::vector<std::string> rng_types = {"generator"};  ///< that the loader synchronizes before each epoch
  bool device_specific = false;                        ///< set_seed seeds ranks differently
  std::vector<std::string> operations = {};            ///< of case_operations.hpp; step s runs number s % size
  std::string interruption = kInterruptions[0];
  std::int64_t interrupted_after = 1;
  int accumulation_steps = 1;  ///< of "training"
  double momentum = 0;         ///< of "training"

  /// Whether all ranks have the same number of batches, so that they can call collectives inside the loop.
  [[nodiscard]] bool in_step() const;
  /// A number of batches that every rank reads before any rank's pass ends; the largest integer if all end together.
  [[nodiscard]] std::int64_t batches_of_all_ranks() const;
  /// Whether the last step is padded with duplicates.
  [[nodiscard]] bool pads() const;
  /// Number of samples that the loader's order contains, before padding and dropping.
  [[nodiscard]] std::int64_t num_ordered() const;
  /// Samples of one step over all ranks.
  [[nodiscard]] std::int64_t step_size() const { return split_batches ? batch_size : batch_size * ranks; }
};

/// Visits all fields, those of the plan request first.
template <FieldsOf<EquivalenceCase> Case, typename Visit>
void for_each_field(Case& one, Visit&& visit) {
  using Request = std::conditional_t<std::is_const_v<Case>, const PlanRequest, PlanRequest>;
  for_each_field(static_cast<Request&>(one), visit);
  visit(Field{.name = "law", .rule = {.choices = kLaws}}, one.law);
  visit(Field{.name = "source", .rule = {.choices = kCaseSources}}, one.source);
  visit(Field{.name = "num_workers", .rule = at_least_zero}, one.num_workers);
  visit(Field{.name = "prefetch_factor", .rule = at_least_one}, one.prefetch_factor);
  visit(Field{.name = "draws_in_samples"}, one.draws_in_samples);
  visit(Field{.name = "own_generator"}, one.own_generator);
  visit(Field{.name = "rng_types"}, one.rng_types);
  visit(Field{.name = "device_specific"}, one.device_specific);
  visit(Field{.name = "operations"}, one.operations);
  visit(Field{.name = "interruption", .rule = {.choices = kInterruptions}}, one.interruption);
  visit(Field{.name = "interrupted_after", .rule = at_least_zero}, one.interrupted_after);
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
