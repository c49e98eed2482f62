#include "sim/programs/equivalence/real_ranks.hpp"

#include <fmt/ranges.h>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include <algorithm>
#include <functional>
#include <iterator>
#include <map>
#include <utility>

#include "backends/gloo/gloo_backend.hpp"
#include "backends/sockets/listening_socket.hpp"
#include "reference/config/environment.hpp"
#include "reference/core/errors.hpp"
#include "reference/core/system/resource_limits.hpp"
#include "reference/rank_local/random.hpp"
#include "reference/state/objects.hpp"
#include "reference/state/rank_context.hpp"
#include "sim/programs/equivalence/checked_group.hpp"

namespace accel::programs {
namespace {

constexpr auto kTimeout = std::chrono::seconds(60);  // of a collective inside a case

constexpr std::int64_t kEqual = 1, kDifferent = 0;

// Each rank returns this value with the number of the first case, so that a rank that ran other cases is found.
std::int64_t check_value(const std::vector<std::string>& texts) {
  return static_cast<std::int64_t>(std::hash<std::string>()(fmt::format("{}", fmt::join(texts, "\n"))));
}

}  // namespace

// Groups of the first n ranks of the job, each a world for cases on n ranks.
class CaseWorlds {
 public:
  explicit CaseWorlds(RankContext& job) : job_(job) {
    if (job.backend == "gloo") store_ = make_store();
  }

  [[nodiscard]] RankLimits limits() const {
    return {.smallest = job_.backend == "gloo" ? 1 : job_.world_size, .largest = job_.world_size};
  }

  /// After a case that failed, groups may contain messages of it: all ranks then join new ones.
  void use_generation(std::int64_t generation) {
    if (std::exchange(generation_, generation) != generation) worlds_.clear();
  }

  /// Runs `body` on a fresh rank of a world of `size` ranks. Collective over these. A call in which the ranks differ is
  /// a CommError on all of them, see checked_group.hpp.
  void run(int size, std::int64_t number, const std::function<void(RankContext&)>& body) {
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
      const RankScope scope(rank);
      body(rank);
      return;
    }
    auto& world = world_of(size);
    world.begin_case(number);
    rank.world = world.group();
    rank.new_group = [this, number, count = 0](const std::vector<int>& ranks) mutable {
      const auto name = fmt::format("case{}/{}of{}", number, ++count, ranks.size());
      const auto member = std::find(ranks.begin(), ranks.end(), job_.rank);
      if (member == ranks.end()) return Group();
      auto group = join(fmt::format("group {}", count), name, static_cast<int>(member - ranks.begin()),
                        static_cast<int>(ranks.size()));
      group.begin_case(number);
      return group.group();
    };
    {
      const RankScope scope(rank);
      body(rank);
    }
    world.end_case();
  }

 private:
  // A store besides the job's own, served by rank 0 on any free port. Collective over the job.
  c10::intrusive_ptr<c10d::Store> make_store() {
    const auto host = read_launch_environment().master_address;
    c10d::TCPStoreOptions options{.port = 0, .isServer = job_.rank == 0, .waitWorkers = false, .timeout = kTimeout};
    c10::intrusive_ptr<c10d::TCPStore> store;
    if (options.isServer) {
      options.masterListenFd = checked_descriptor(sockets::listen_on(host, options.port), "the store at " + host);
      store = c10::make_intrusive<c10d::TCPStore>(host, options);
      options.masterListenFd.reset();
    }
    std::vector<std::int64_t> port{store ? store->getPort() : 0};
    options.port = static_cast<std::uint16_t>(broadcast_object_list(job_, port).front());
    return store ? store : c10::make_intrusive<c10d::TCPStore>(host, options);
  }

  CheckedGroup& world_of(int size) {
    const auto found = worlds_.find(size);
    if (found != worlds_.end()) return found->second;
    return worlds_.emplace(size, join("world", fmt::format("world{}", size), job_.rank, size)).first->second;
  }

  // `name` is that of messages; the groups of a job have one store, in which `key` tells them apart.
  CheckedGroup join(const std::string& name, const std::string& key, int rank, int size) {
    const auto hostname = gloo::local_address_for(read_launch_environment().master_address);
    auto store = c10::make_intrusive<c10d::PrefixStore>(fmt::format("{}/{}", generation_, key), store_);
    return {name, std::move(store), rank, size, {.timeout = kTimeout, .hostname = hostname}};
  }

  RankContext& job_;
  c10::intrusive_ptr<c10d::Store> store_;
  std::map<int, CheckedGroup> worlds_;
  std::int64_t generation_ = 0;
};

// What the lead sends to all ranks: cases to run, or a verdict.
struct RealRanks::Message {
  std::vector<std::int64_t> numbers = {};  ///< generation of the groups, number of the first case
  std::vector<std::string> cases = {};     ///< empty: the verdict is in `numbers`
};

RealRanks::RealRanks(RankContext& job) : job_(job), worlds_(std::make_unique<CaseWorlds>(job)) {}

RealRanks::~RealRanks() = default;

RankLimits RealRanks::limits() const { return worlds_->limits(); }

std::vector<RankObservations> RealRanks::observe(const std::vector<EquivalenceCase>& cases) {
  std::vector<std::string> texts;
  for (const auto& one : cases) texts.push_back(to_json(one));
  const auto of_ranks = run(send(texts));
  num_cases_ += static_cast<std::int64_t>(cases.size());
  std::vector<RankObservations> of_cases(cases.size());
  bool any_failed = false;
  for (std::size_t index = 0; index < cases.size(); ++index) {
    for (int rank = 0; rank < cases[index].most_ranks(); ++rank)
      of_cases[index].push_back(of_ranks[static_cast<std::size_t>(rank)][index]);
    any_failed = any_failed || has_failed(of_cases[index]);
  }
  if (any_failed) ++generation_;
  return of_cases;
}

void RealRanks::finish(bool is_equal) { receive({.numbers = {is_equal ? kEqual : kDifferent}}); }

bool RealRanks::follow() {
  for (;;) {
    const auto message = receive({});
    if (message.cases.empty()) return message.numbers.front() == kEqual;
    run(message);
  }
}

RealRanks::Message RealRanks::send(const std::vector<std::string>& texts) {
  return receive({.numbers = {generation_, num_cases_}, .cases = texts});
}

RealRanks::Message RealRanks::receive(const Message& message) {
  std::vector<std::pair<std::vector<std::int64_t>, std::vector<std::string>>> sent{{message.numbers, message.cases}};
  const auto received = broadcast_object_list(job_, sent);
  return {.numbers = received.front().first, .cases = received.front().second};
}

// After a case that failed on this rank, its groups are of no use for the rest, until the lead begins a new generation.
std::vector<std::vector<Observations>> RealRanks::run(const Message& message) {
  worlds_->use_generation(message.numbers.at(0));
  std::vector<Observations> seen;
  bool has_groups = true;
  for (std::size_t index = 0; index < message.cases.size(); ++index) {
    const auto number = message.numbers.at(1) + static_cast<std::int64_t>(index);
    seen.push_back(run_case(message.cases[index], number, has_groups));
  }
  using Answer = std::pair<std::vector<std::int64_t>, std::vector<Observations>>;
  auto answers =
      gather_object(job_, std::vector<Answer>{{{message.numbers.at(1), check_value(message.cases)}, std::move(seen)}});
  std::vector<std::vector<Observations>> of_ranks;
  for (std::size_t rank = 0; rank < answers.size(); ++rank) {
    ensure(answers[rank].first == answers.front().first,
           "accel test --equivalence: rank {} answered for other cases than rank 0; expected those from number {} on",
           rank, message.numbers.at(1));
    of_ranks.push_back(std::move(answers[rank].second));
  }
  return of_ranks;
}

// All ranks of the job take part in the exchanges between two stages, also those that run no part of the case: the next
// stage may have other ranks.
Observations RealRanks::run_case(const std::string& text, std::int64_t number, bool& has_groups) {
  const auto one = read_case(text);
  Observations seen;
  std::vector<std::string> states(static_cast<std::size_t>(job_.world_size));
  for (int stage = 0; stage < one.num_stages(); ++stage) {
    std::string state, failure;
    if (job_.rank < one.ranks_of(stage)) {
      state = states[static_cast<std::size_t>(one.state_of(job_.rank))];
      failure = has_groups ? run_stage(one, stage, number, state, seen)
                           : std::string(kFailed) + "not run, after a case that failed";
      if (!failure.empty()) seen.push_back(failure);
      has_groups = has_groups && failure.empty();
    }
    if (one.num_stages() == 1) break;
    states = gather_object(job_, std::vector<std::string>{state});
    const auto failures = gather_object(job_, std::vector<std::string>{failure});
    const auto first = std::find_if(failures.begin(), failures.end(), [](const auto& text) { return !text.empty(); });
    if (first != failures.end() && failure.empty()) seen.push_back(*first);
    if (states.front().empty() || first != failures.end()) break;
  }
  return seen;
}

// Returns the error that ended the stage, or "". Stores the loader's state.
std::string RealRanks::run_stage(const EquivalenceCase& one, int stage, std::int64_t number, std::string& state,
                                 Observations& seen) {
  try {
    StageResult result;
    worlds_->run(one.ranks_of(stage), number,
                 [&](RankContext& rank) { result = observe_stage(rank, one, stage, state); });
    std::move(result.seen.begin(), result.seen.end(), std::back_inserter(seen));
    state = result.state;
    return "";
  } catch (const std::exception& error) {  // of the transport, also as LibTorch's own errors
    return kFailed + message_without_frames(error);
  }
}

}  // namespace accel::programs
