// Process groups over PyTorch's ProcessGroupGloo, and the TCPStore through which the ranks of a job find each other.
//
// This is the only unit that includes libgloo-dev's headers, which are older than the Gloo inside LibTorch. It must not
// call inline Gloo code: out-of-line functions resolve to libtorch_cpu, inline ones would use the old class layouts.
#include "backends/gloo/gloo_backend.hpp"

#include <ATen/CPUGeneratorImpl.h>
#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include <netdb.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <iostream>
#include <numeric>
#include <thread>

#include "backends/gloo/elastic_ranks.hpp"
#include "backends/recorded/c10d_store.hpp"
#include "backends/recorded/recorded_backend.hpp"
#include "backends/sockets/listening_socket.hpp"
#include "backends/watch/watched_rank.hpp"
#include "reference/core/error_text.hpp"
#include "reference/core/system/print_warning.hpp"
#include "reference/core/system/resource_limits.hpp"

namespace accel::gloo {
namespace {

// Ignores SIGPIPE, as Python does, unless the program handles it. Otherwise a write to a peer that has exited would end
// this process silently instead of failing the collective.
void ignore_sigpipe() {
  struct sigaction action {};
  const bool is_default =
      sigaction(SIGPIPE, nullptr, &action) == 0 && (action.sa_flags & SA_SIGINFO) == 0 && action.sa_handler == SIG_DFL;
  if (is_default) std::signal(SIGPIPE, SIG_IGN);
}

const char* advice_on_port() {
  return environment("MASTER_PORT") ? "choose another" : "it is the default; set MASTER_PORT to a free one";
}

// GLOO_SOCKET_IFNAME wins over the host name, as in torch/csrc/distributed/c10d/init.cpp.
std::shared_ptr<::gloo::transport::Device> tcp_device(const GlooOptions& options) {
  const auto interface = environment("GLOO_SOCKET_IFNAME");
  return interface ? c10d::ProcessGroupGloo::createDeviceForInterface(*interface)
                   : c10d::ProcessGroupGloo::createDeviceForHostname(options.hostname);
}

using Addresses = std::unique_ptr<addrinfo, decltype(&freeaddrinfo)>;

Addresses addresses_of(const std::string& host, std::chrono::milliseconds patience) {
  constexpr std::chrono::seconds kPause{1};
  addrinfo hints{}, *found = nullptr;
  hints.ai_socktype = SOCK_DGRAM;
  const auto begin = std::chrono::steady_clock::now();
  for (bool is_first = true;; is_first = false) {
    const int problem = getaddrinfo(host.c_str(), "9", &hints, &found);
    if (problem == 0) return {found, &freeaddrinfo};
    const bool may_appear = problem == EAI_AGAIN || problem == EAI_NONAME || problem == EAI_NODATA;
    if (!may_appear || std::chrono::steady_clock::now() - begin >= patience)
      throw CommError(fmt::format("MASTER_ADDR: {}: {}", host, gai_strerror(problem)));
    if (is_first) print_warning(fmt::format("MASTER_ADDR: {} is unknown; waiting for the pod of rank 0", host));
    std::this_thread::sleep_for(kPause);
  }
}

}  // namespace

// Connecting a datagram socket sends nothing; the kernel only selects the route and with it the local address. The port
// does not matter.
std::string local_address_for(const std::string& host, std::chrono::milliseconds patience) {
  const auto addresses = addresses_of(host, patience);
  sockaddr_storage address{};
  socklen_t length = sizeof(address);
  auto* const any = reinterpret_cast<sockaddr*>(&address);
  const int descriptor = socket(addresses->ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  const bool is_found =
      connect(descriptor, addresses->ai_addr, addresses->ai_addrlen) == 0 && getsockname(descriptor, any, &length) == 0;
  const int reason = errno;
  close(descriptor);
  std::array<char, NI_MAXHOST> text{};
  if (!is_found || getnameinfo(any, length, text.data(), text.size(), nullptr, 0, NI_NUMERICHOST) != 0) {
    throw CommError(fmt::format("MASTER_ADDR: no route to {}: {}", host, std::strerror(reason)));
  }
  return text.data();
}

c10::intrusive_ptr<c10d::Backend> make_backend(const std::string& name, c10::intrusive_ptr<c10d::Store> store, int rank,
                                               int size, const GlooOptions& options) {
  ignore_sigpipe();
  try {
    auto gloo_options = c10d::ProcessGroupGloo::Options::create(options.timeout);
    auto prefixed = c10::make_intrusive<c10d::PrefixStore>(name, std::move(store));
    // Collective through the store, and before ProcessGroupGloo: its constructor connects over the device at once.
    auto device = agree_on_shared_memory(*prefixed, rank, size, options.transport, options.timeout);
    gloo_options->devices.push_back(device ? device : tcp_device(options));
    return c10::make_intrusive<c10d::ProcessGroupGloo>(prefixed, rank, size, gloo_options);
  } catch (const ConfigError&) {
    // Wrong settings are the user's to fix. Everything else means that the ranks failed to meet.
    throw;
  } catch (const std::exception& error) {
    throw CommError(fmt::format("rank {}: could not join group {} of {} ranks over Gloo: {}", rank, name, size,
                                name_limits(text_of(error))));
  }
}

std::optional<recorder::GroupRecorder> group_recorder(const std::string& name, int size, const GlooOptions& options) {
  if (!options.recorder) return std::nullopt;
  auto members = options.members;
  if (members.empty()) {
    members.resize(size);
    std::iota(members.begin(), members.end(), 0);
  }
  return recorder::GroupRecorder::create(options.recorder, name, members);
}

Group make_group(const std::string& name, c10::intrusive_ptr<c10d::Store> store, int rank, int size,
                 const GlooOptions& options) {
  auto backend = make_backend(name, store, rank, size, options);
  if (options.wait_state) backend = interruptible(std::move(backend), options.wait_state);
  if (auto recorder = group_recorder(name, size, options))
    backend = recorder::recorded(std::move(backend), std::move(*recorder));
  auto process_group =
      c10::make_intrusive<c10d::ProcessGroup>(c10::make_intrusive<c10d::PrefixStore>(name, store), rank, size);
  // CUDA tensors work over Gloo too: it copies them through the host.
  for (const auto device : {c10::DeviceType::CPU, c10::DeviceType::CUDA})
    process_group->setBackend(device, c10d::ProcessGroup::BackendType::GLOO, backend);
  process_group->setDefaultBackend(c10d::ProcessGroup::BackendType::GLOO);
  process_group->setGroupName(name);
  return Group(name, std::move(process_group));
}

namespace {

// Under torchrun the agent serves the store, and it survives restarts; the prefix below separates the attempts' keys.
bool agent_serves_store() { return environment("TORCHELASTIC_USE_AGENT_STORE").value_or("False") == "True"; }

// Keys have a prefix per restart, so an attempt does not read those of the last one.
c10::intrusive_ptr<c10d::Store> connect_store(const LaunchEnvironment& launch, std::chrono::milliseconds timeout) {
  // The time-out is at most c10d's default for stores: collectives may need more time, but a launch does not.
  const bool agent_serves = agent_serves_store();
  c10d::TCPStoreOptions options;
  options.port = static_cast<std::uint16_t>(launch.master_port);
  options.isServer = launch.rank == 0 && !agent_serves;
  options.timeout = std::min<std::chrono::milliseconds>(timeout, std::chrono::minutes(5));
  if (!agent_serves) options.numWorkers = launch.world_size;
  // TCPStore has no authentication and would listen on every interface. The store owns the descriptor.
  if (options.isServer) {
    options.masterListenFd = sockets::listen_on(launch.master_address, launch.master_port);
    check_config(*options.masterListenFd >= 0 || errno != EADDRINUSE, "MASTER_PORT: port {} on {} is in use; {}",
                 launch.master_port, launch.master_address, advice_on_port());
    checked_descriptor(*options.masterListenFd,
                       fmt::format("the store at {}:{}", launch.master_address, launch.master_port));
  }
  try {
    auto store = c10::make_intrusive<c10d::TCPStore>(launch.master_address, options);
    return c10::make_intrusive<c10d::PrefixStore>("accel/" + std::to_string(launch.restart_count), std::move(store));
  } catch (const std::exception& error) {
    const auto message = name_limits(text_of(error));
    throw CommError(
        fmt::format("rank {}: no store at {}:{}: {}", launch.rank, launch.master_address, launch.master_port, message));
  }
}

// A fixed seed, unlike in a new PyTorch process: programs without set_seed are reproducible, and all ranks start alike.
std::unique_ptr<RankContext> make_context(const LaunchEnvironment& launch) {
  auto context = std::make_unique<RankContext>();
  context->rank = context->rank_in_job = launch.rank;
  context->world_size = launch.world_size;
  context->local_rank = launch.local_rank;
  context->local_world_size = launch.local_world_size;
  context->restart_count = launch.restart_count;
  // torchrun exports OMP_NUM_THREADS=1; without a launcher the ranks of one machine must not fight for its cores
  // either.
  context->num_threads = environment_int({"OMP_NUM_THREADS"}).value_or(1);
  context->generator = make_generator(c10::default_rng_seed_val);
  context->print = [](const std::string& text) { std::cout << text << std::flush; };
  return context;
}

}  // namespace

void offer_groups(RankContext& context, c10::intrusive_ptr<c10d::Store> store, const GlooOptions& options,
                  const MakeGroup& make, const std::string& prefix) {
  const auto current = std::make_shared<GlooOptions>(options);
  // Every rank calls new_group for every group, member or not, so the counters agree, and each group has its own keys.
  context.new_group = [store, current, make, prefix, rank = context.rank,
                       count = 0](const std::vector<int>& ranks) mutable {
    const auto name = fmt::format("{}group{}", prefix, ++count);
    const auto member = std::find(ranks.begin(), ranks.end(), rank);
    if (member == ranks.end()) return Group();
    auto options = *current;
    options.members.clear();
    for (const int of_world : ranks)
      options.members.push_back(current->members.empty() ? of_world : current->members.at(of_world));
    return make(name, store, static_cast<int>(member - ranks.begin()), static_cast<int>(ranks.size()), options);
  };
  context.set_timeout = [world = context.world, current](std::chrono::milliseconds timeout) {
    world.process_group()->setTimeout(timeout);
    current->timeout = timeout;
  };
  if (context.backend != "gloo") return;
  context.join_elastic = [store, current](RankContext& rank, int min_ranks) {
    auto options = *current;
    options.wait_state = {};
    ++options.num_elastic_runs;
    return join_elastic(rank, store, options, min_ranks);
  };
}

void join_groups(RankContext& context, c10::intrusive_ptr<c10d::Store> store, const GlooOptions& options,
                 const MakeGroup& make) {
  context.world = make("world", store, context.rank, context.world_size, options);
  offer_groups(context, std::move(store), options, make, /*prefix=*/"");
}

namespace {

// The rank was lost: nobody serves the store of the job any more, perhaps, and the others do not wait there. It keeps
// its place on the machine, and so its device.
std::unique_ptr<RankContext> make_joining_rank(LaunchEnvironment launch, GlooOptions options) {
  options.recorder = recorder::recorder_of_launcher(launch);
  options.members = {launch.rank};
  launch.rank = 0;
  launch.world_size = 1;
  auto context = make_context(launch);
  context->backend = "gloo";
  context->rank_in_job = options.members.front();
  context->joins_elastic = true;
  const auto name = fmt::format("rank {} alone, started anew {}", options.members.front(), options.elastic_restarts);
  const auto store = c10::make_intrusive<c10d::HashStore>();
  context->world = make_group(name, store, 0, 1, options);
  offer_groups(*context, store, options, make_group, name + ", ");
  if (options.recorder) {
    options.recorder->set_may_be_lost(true);
    context->record_end = recorder::record_end(options.recorder);
  }
  return context;
}

}  // namespace

std::unique_ptr<RankContext> make_rank(const LaunchEnvironment& of_launcher, const GlooOptions& options,
                                       const MakeGroup& make, const std::function<void(RankContext&)>& prepare) {
  auto for_job = options;
  for_job.job_size = of_launcher.world_size;
  for_job.members_file = of_launcher.elastic_members;
  for_job.elastic_restarts = of_launcher.elastic_restarts;
  if (of_launcher.elastic_restarts > 0) return make_joining_rank(of_launcher, for_job);
  auto store = connect_store(of_launcher, options.timeout);
  recorder::C10dStore job_store(store, /*ends_with_rank_0=*/!agent_serves_store());
  const auto launch = recorder::with_local_place(of_launcher, job_store);
  auto context = make_context(launch);
  context->backend = "gloo";
  if (prepare) prepare(*context);
  for_job.recorder = recorder::make_recorder(launch, job_store);
  join_groups(*context, store, for_job, make);
  if (for_job.recorder) context->record_end = recorder::watch_until_end(for_job.recorder, job_store);
  return context;
}

}  // namespace accel::gloo
