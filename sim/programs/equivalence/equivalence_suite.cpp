// The suite on real ranks. Rank 0 leads: it compares what real ranks return for a case with simulated ranks.
#include "sim/programs/equivalence/equivalence_suite.hpp"

#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>
#include <functional>
#include <map>
#include <random>

#include "backends/gloo/gloo_backend.hpp"
#include "backends/nccl/nccl_backend.hpp"
#include "reference/config/environment.hpp"
#include "reference/core/errors.hpp"
#include "reference/state/rank_context.hpp"
#include "sim/programs/equivalence/equivalence_record.hpp"
#include "sim/programs/equivalence/real_ranks.hpp"
#include "sim/programs/equivalence/simulated_case.hpp"

namespace accel::programs {
namespace {

constexpr int kBatch = 10;  // cases that are sent together, since sending takes as long as a small case

using Numbers = std::vector<std::uint32_t>;

// The difference between real and simulated ranks, which run in parallel here: properties/equivalence_laws.cpp holds
// the other schedules equal to this one. Simulated ranks share the GPU of a lead that has one, since GPUs and CPUs
// differ in kernels and random streams. They add in Gloo's order, which NCCL's equals for two ranks only.
RankObservations simulate_case(const EquivalenceCase& one, const RankContext& lead) {
  sim::SimulationOptions options;
  if (lead.device.is_cuda()) options.place = nccl::share_gpu;
  return observe_on_simulated_ranks(one, options);
}

// Describes the failure of the first rank that has one, and names the ranks that observed the same.
std::string failure_of(const std::string& side, const RankObservations& seen) {
  std::map<std::string, std::vector<std::size_t>> ranks_of;
  for (std::size_t rank = 0; rank < seen.size(); ++rank) {
    if (!seen[rank].empty() && seen[rank].back().starts_with(kFailed)) ranks_of[seen[rank].back()].push_back(rank);
  }
  std::string text;
  for (const auto& [failure, ranks] : ranks_of)
    text += fmt::format("{}{}, ranks {}: {}", text.empty() ? "" : "\n", side, fmt::join(ranks, ", "), failure);
  return text;
}

std::string difference_from_simulated(const RankContext& lead, const RankObservations& of_real,
                                      const RankObservations& simulated) {
  if (has_failed(of_real)) return failure_of(lead.backend, of_real);
  return lead.backend == "nccl" && of_real.size() > 2
             ? first_difference(lead.backend, of_real, "simulated", simulated, equal_up_to_rounding)
             : first_difference(lead.backend, of_real, "simulated", simulated);
}

std::string name_of_side(const RankContext& job) {
  if (job.backend == "nccl") return "NCCL";
  switch (gloo::transport_from_environment()) {
    case gloo::Transport::kTcp: return "Gloo processes over TCP";
    case gloo::Transport::kSharedMemory: return "Gloo processes over shared memory";
    case gloo::Transport::kAuto: break;
  }
  return "Gloo processes";
}

EquivalenceRecord record_of(const RankContext& job, const std::string& law, const EquivalenceOptions& options,
                            RankLimits limits) {
  const auto transport = environment("ACCEL_GLOO_TRANSPORT");
  return {
      .law = law,
      .left = "simulated, parallel",
      .right = name_of_side(job),
      .command = fmt::format("{}accel test --equivalence{} --num_processes {} --law {} --cases {} --seed {}",
                             transport ? fmt::format("ACCEL_GLOO_TRANSPORT={} ", *transport) : "",
                             job.backend == "gloo" ? " --cpu" : "", job.world_size, law, options.cases, options.seed),
      .seed = options.seed,
      .limits = limits};
}

Numbers numbers_of(std::uint64_t seed, std::uint64_t index) {
  std::seed_seq sequence{seed, index};
  std::mt19937 generator(sequence);
  Numbers numbers(Choices::kCount);
  for (auto& number : numbers) number = generator() % Choices::kEnd;
  return numbers;
}

// Makes the numbers of a failing case smaller as long as it fails: blocks of them become 0, then each is halved.
template <typename Fails>
Numbers reduce_numbers(Numbers numbers, const Fails& fails) {
  const auto accept = [&](const Numbers& smaller) {
    if (smaller == numbers || !fails(smaller)) return false;
    numbers = smaller;
    return true;
  };
  for (std::size_t block = numbers.size() / 2; block > 0; block /= 2) {
    for (std::size_t first = 0; first < numbers.size(); first += block) {
      auto smaller = numbers;
      std::fill_n(smaller.begin() + static_cast<std::ptrdiff_t>(first), block, 0);
      accept(smaller);
    }
  }
  for (std::size_t index = 0; index < numbers.size(); ++index) {
    auto smaller = numbers;
    do smaller[index] = numbers[index] / 2;
    while (accept(smaller));
  }
  return numbers;
}

// The lead of the suite.
class Suite {
 public:
  Suite(RankContext& job, RealRanks& real, const EquivalenceOptions& options)
      : job_(job), real_(real), options_(options) {}

  bool run() {
    if (options_.only_case) return report(read_case(*options_.only_case));
    const auto laws =
        options_.laws.empty() ? std::vector<std::string>(std::begin(kLaws), std::end(kLaws)) : options_.laws;
    // Every law runs, also after a failure: which laws fail narrows down the cause.
    return std::count_if(laws.begin(), laws.end(), [&](const std::string& law) { return !check(law); }) == 0;
  }

 private:
  // Without a record of this run, that of an earlier run must not remain.
  bool check(const std::string& law) {
    auto record = record_of(job_, law, options_, real_.limits());
    const auto path = options_.out ? *options_.out + "/" + file_name(record) : "";
    if (options_.out) std::filesystem::remove(path);
    record.differences = 1;  // until all cases are compared
    try {
      if (compare(law, record)) record.differences = 0;
    } catch (...) {
      if (options_.out) write_record(path, record);
      throw;
    }
    if (options_.out) write_record(path, record);
    return record.differences == 0;
  }

  bool compare(const std::string& law, EquivalenceRecord& record) {
    for (int first = 0; first < options_.cases; first += kBatch) {
      std::vector<Numbers> numbers;
      std::vector<EquivalenceCase> cases;
      std::vector<RankObservations> simulated;
      for (int index = first; index < std::min(first + kBatch, options_.cases); ++index) {
        numbers.push_back(numbers_of(options_.seed, static_cast<std::uint64_t>(index)));
        cases.push_back(draw(law, numbers.back()));
        // A case that fails on simulated ranks, which diagnose it at once, would fail on real ranks after a time-out.
        simulated.push_back(simulate_case(cases.back(), job_));
        if (has_failed(simulated.back())) break;
      }
      const auto num_sent = cases.size() - (has_failed(simulated.back()) ? 1 : 0);
      const auto observed = num_sent == 0
                                ? std::vector<RankObservations>()
                                : real_.observe({cases.begin(), cases.begin() + static_cast<std::ptrdiff_t>(num_sent)});
      for (std::size_t index = 0; index < cases.size(); ++index) {
        record.count(cases[index]);
        const bool is_failed = index == num_sent;
        if (!is_failed && difference_from_simulated(job_, observed[index], simulated[index]).empty()) continue;
        job_.print(fmt::format("{}: case {} of {} {}\n", law, static_cast<std::size_t>(first) + index + 1,
                               options_.cases, is_failed ? "fails on simulated ranks" : "differs"));
        const auto fails = [&](const Numbers& smaller) {
          const auto one = draw(law, smaller);
          return is_failed ? has_failed(simulate_case(one, job_)) : !difference_of(one).empty();
        };
        report(draw(law, reduce_numbers(numbers[index], fails)));
        return false;
      }
    }
    job_.print(
        fmt::format("{}: {} cases on {} to {} ranks, seed {}: no difference between {} and simulated ranks; {}\n", law,
                    options_.cases, real_.limits().smallest, real_.limits().largest, options_.seed, job_.backend,
                    record.coverage()));
    return true;
  }

  EquivalenceCase draw(const std::string& law, const Numbers& numbers) const {
    return draw_case(law, Choices(numbers), real_.limits());
  }
  std::string difference_of(const EquivalenceCase& one) {
    const auto simulated = simulate_case(one, job_);
    if (has_failed(simulated)) return failure_of("simulated", simulated);
    return difference_from_simulated(job_, real_.observe({one}).front(), simulated);
  }
  bool report(const EquivalenceCase& one) {
    const auto difference = difference_of(one);
    const auto json = to_json(one);
    if (difference.empty()) {
      job_.print(fmt::format("no difference: {}\n", json));
      return true;
    }
    job_.print(
        fmt::format("the smallest case that was found: {}\n{}\nrepeat it with: accel test --equivalence --case '{}'{} "
                    "--num_processes {}\n",
                    json, difference, json, job_.backend == "gloo" ? " --cpu" : "", job_.world_size));
    return false;
  }

  RankContext& job_;
  RealRanks& real_;
  const EquivalenceOptions& options_;
};

}  // namespace

bool run_equivalence(const EquivalenceOptions& options) {
  auto& job = current_rank();
  check_config(job.world_size > 1,
               "accel test --equivalence: the job has one rank; expected two or more, such as --num_processes 4");
  RealRanks real(job);
  if (job.rank != 0) return real.follow();
  const bool is_equal = Suite(job, real, options).run();
  real.finish(is_equal);
  return is_equal;
}

}  // namespace accel::programs
