// The suite on real ranks. Rank 0 leads: it sends each case to all ranks, they run it and return what they observed,
// and rank 0 compares that with simulated ranks. The other ranks follow until the lead sends its verdict.
#include "sim/programs/equivalence/equivalence_suite.hpp"

#include <fmt/ranges.h>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include <algorithm>
#include <filesystem>
#include <map>
#include <random>

#include "backends/gloo/gloo_backend.hpp"
#include "backends/nccl/nccl_backend.hpp"
#include "reference/config/environment.hpp"
#include "reference/core/errors.hpp"
#include "reference/state/objects.hpp"
#include "reference/state/rank_context.hpp"
#include "sim/programs/equivalence/equivalence_record.hpp"
#include "sim/programs/equivalence/simulated_case.hpp"

namespace accel::programs {
namespace {

constexpr auto kTimeout = std::chrono::seconds(60);  // of a collective inside a case

constexpr int kBatch = 10;  // cases that are sent together, since sending takes as long as a small case

using Numbers = std::vector<std::uint32_t>;

// Groups of the first n ranks of the job, each a world for cases on n ranks.
class CaseWorlds {
 public:
  explicit CaseWorlds(RankContext& job) : job_(job) {
    if (job.backend == "gloo") store_ = make_store();
  }

  [[nodiscard]] RankLimits limits() const {
    return {.smallest = job_.backend == "gloo" ? 1 : job_.world_size, .largest = job_.world_size};
  }

  /// A fresh rank of a world of `size` ranks. Collective over these.
  RankContext rank_of(int size) {
    RankContext rank;
    rank.rank = rank.local_rank = job_.rank;
    rank.world_size = rank.local_world_size = size;
    rank.backend = job_.backend;
    rank.num_threads = 1;
    rank.device = job_.device;
    rank.generator = make_generator(c10::default_rng_seed_val);
    rank.print = [](const std::string&) {};
    rank.warn = [](const std::string&) {};
    if (!store_) {
      rank.world = job_.world;
      rank.new_group = job_.new_group;
      return rank;
    }
    if (!worlds_.contains(size)) worlds_.emplace(size, join(fmt::format("equivalence{}", size), job_.rank, size));
    rank.world = worlds_.at(size);
    const auto prefix = fmt::format("case{}", num_cases_++);
    rank.new_group = [this, prefix, count = 0](const std::vector<int>& ranks) mutable {
      const auto name = fmt::format("{}/{}of{}", prefix, ++count, ranks.size());
      const auto member = std::find(ranks.begin(), ranks.end(), job_.rank);
      return member == ranks.end()
                 ? Group()
                 : join(name, static_cast<int>(member - ranks.begin()), static_cast<int>(ranks.size()));
    };
    return rank;
  }

 private:
  // A store besides the job's own, served by rank 0 on any free port. Collective over the job.
  c10::intrusive_ptr<c10d::Store> make_store() {
    const auto host = read_launch_environment().master_address;
    c10d::TCPStoreOptions options{.port = 0, .isServer = job_.rank == 0, .waitWorkers = false, .timeout = kTimeout};
    c10::intrusive_ptr<c10d::TCPStore> store;
    if (options.isServer) store = c10::make_intrusive<c10d::TCPStore>(host, options);
    std::vector<std::int64_t> port{store ? store->getPort() : 0};
    options.port = static_cast<std::uint16_t>(broadcast_object_list(job_, port).front());
    return store ? store : c10::make_intrusive<c10d::TCPStore>(host, options);
  }

  Group join(const std::string& name, int rank, int size) {
    const auto hostname = gloo::local_address_for(read_launch_environment().master_address);
    return gloo::make_group(name, store_, rank, size, {.timeout = kTimeout, .hostname = hostname});
  }

  RankContext& job_;
  c10::intrusive_ptr<c10d::Store> store_;
  std::map<int, Group> worlds_;
  std::int64_t num_cases_ = 0;
};

// Runs cases on the job's ranks. All ranks call it in the same order.
class RealRanks {
 public:
  explicit RealRanks(RankContext& job) : job_(job), worlds_(job) {}

  [[nodiscard]] RankLimits limits() const { return worlds_.limits(); }

  /// The lead's call: what the ranks of each case observed.
  std::vector<RankObservations> observe(const std::vector<EquivalenceCase>& cases) {
    std::vector<std::string> texts;
    for (const auto& one : cases) texts.push_back(to_json(one));
    const auto of_ranks = run(receive(texts));
    std::vector<RankObservations> of_cases(cases.size());
    for (std::size_t index = 0; index < cases.size(); ++index) {
      for (int rank = 0; rank < cases[index].ranks; ++rank)
        of_cases[index].push_back(of_ranks[static_cast<std::size_t>(rank)][index]);
    }
    return of_cases;
  }
  void finish(bool is_equal) { receive({is_equal ? kEqual : kDifferent}); }
  /// The other ranks' call: returns the verdict once the lead has called finish().
  bool follow() {
    for (;;) {
      const auto texts = receive({});
      if (texts.front() == kEqual || texts.front() == kDifferent) return texts.front() == kEqual;
      run(texts);
    }
  }

 private:
  static constexpr const char *kEqual = "equal", *kDifferent = "different";

  std::vector<std::string> receive(std::vector<std::string> texts) { return broadcast_object_list(job_, texts); }
  std::vector<std::vector<Observations>> run(const std::vector<std::string>& texts) {
    std::vector<Observations> seen;
    for (const auto& text : texts) seen.push_back(run_case(text));
    return gather_object(job_, std::vector<std::vector<Observations>>{seen});
  }
  Observations run_case(const std::string& text) {
    const auto one = read_case(text);
    if (job_.rank >= one.ranks) return {};
    try {
      auto rank = worlds_.rank_of(one.ranks);
      const RankScope scope(rank);
      return observe_case(rank, one);
    } catch (const std::exception& error) {  // of the transport, also as LibTorch's own errors
      throw CommError(fmt::format("{}; it occurred in the case {}", error.what(), text));
    }
  }

  RankContext& job_;
  CaseWorlds worlds_;
};

// The difference between real and simulated ranks, which run in parallel here: properties/equivalence_laws.cpp holds
// the other schedules equal to this one. Simulated ranks share the GPU of a lead that has one, since GPUs and CPUs
// differ in kernels and random streams. They add in Gloo's order, which NCCL's equals for two ranks only.
std::string difference_from_simulated(const EquivalenceCase& one, const RankContext& lead,
                                      const RankObservations& of_real) {
  sim::SimulationOptions options;
  if (lead.device.is_cuda()) options.place = nccl::share_gpu;
  const auto simulated = observe_on_simulated_ranks(one, options);
  return lead.backend == "nccl" && one.ranks > 2
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

EquivalenceRecord record_of(const RankContext& job, const std::string& law, const EquivalenceOptions& options) {
  const auto transport = environment("ACCEL_GLOO_TRANSPORT");
  return {
      .law = law,
      .left = "simulated, parallel",
      .right = name_of_side(job),
      .command = fmt::format("{}accel test --equivalence{} --num_processes {} --law {} --cases {} --seed {}",
                             transport ? fmt::format("ACCEL_GLOO_TRANSPORT={} ", *transport) : "",
                             job.backend == "gloo" ? " --cpu" : "", job.world_size, law, options.cases, options.seed),
      .seed = options.seed};
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
    auto record = record_of(job_, law, options_);
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
      for (int index = first; index < std::min(first + kBatch, options_.cases); ++index) {
        numbers.push_back(numbers_of(options_.seed, static_cast<std::uint64_t>(index)));
        cases.push_back(draw(law, numbers.back()));
      }
      const auto observed = real_.observe(cases);
      for (std::size_t index = 0; index < cases.size(); ++index) {
        record.count(cases[index]);
        if (difference_from_simulated(cases[index], job_, observed[index]).empty()) continue;
        job_.print(fmt::format("{}: case {} of {} differs\n", law, static_cast<std::size_t>(first) + index + 1,
                               options_.cases));
        const auto fails = [&](const Numbers& smaller) { return !difference_of(draw(law, smaller)).empty(); };
        report(draw(law, reduce_numbers(numbers[index], fails)));
        return false;
      }
    }
    job_.print(fmt::format("{}: {} cases on {} to {} ranks, seed {}: no difference between {} and simulated ranks\n",
                           law, options_.cases, real_.limits().smallest, real_.limits().largest, options_.seed,
                           job_.backend));
    return true;
  }

  EquivalenceCase draw(const std::string& law, const Numbers& numbers) const {
    return draw_case(law, Choices(numbers), real_.limits());
  }
  std::string difference_of(const EquivalenceCase& one) {
    return difference_from_simulated(one, job_, real_.observe({one}).front());
  }
  bool report(const EquivalenceCase& one) {
    const auto difference = difference_of(one);
    const auto json = to_json(one);
    if (difference.empty()) {
      job_.print(fmt::format("no difference: {}\n", json));
      return true;
    }
    job_.print(fmt::format("{}\nrepeat it with: accel test --equivalence --case '{}' --num_processes {}\n", difference,
                           json, job_.world_size));
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
