// The choice between shared memory and TCP. Every rank publishes its situation in the store and reads that of all
// others; the decision is a function of these texts alone, so all ranks decide alike.
#include "backends/gloo/transport.hpp"

#include <torch/csrc/distributed/c10d/Store.hpp>
#include <torch/version.h>
#include <unistd.h>

#include <array>
#include <fstream>
#include <sstream>

#include "backends/gloo/device.hpp"
#include "reference/config/environment.hpp"
#include "reference/core/errors.hpp"

namespace accel::gloo {
namespace {

// What a rank publishes, one field per line.
struct Place {
  std::string wanted;
  std::string host;     // kernel, network namespace, protocol; "" if unknown
  std::string address;  // of its listener; "" if it has none
  std::string problem;  // why it has no listener
};

std::string name_of(Transport transport) {
  return transport == Transport::kAuto ? "auto" : transport == Transport::kTcp ? "tcp" : "shm";
}

// Ranks share memory only if this text is equal on all of them. Abstract sockets are visible in one network namespace
// only, which two containers or two simulated machines on one kernel do not share. The boot id distinguishes kernels.
// The protocol version and the LibTorch version keep different builds from talking past each other.
std::string host_identity() {
  std::ifstream in("/proc/sys/kernel/random/boot_id");
  std::string boot_id;
  std::getline(in, boot_id);
  std::array<char, 64> network{};
  const auto size = readlink("/proc/self/ns/net", network.data(), network.size());
  if (boot_id.empty() || size <= 0) return "";
  constexpr int kProtocol = 1;
  return fmt::format("{} {} protocol {} LibTorch {}", boot_id,
                     std::string(network.data(), static_cast<std::size_t>(size)), kProtocol, TORCH_VERSION);
}

// Waits for every rank: get_to_str blocks until the key exists, at most for the store's time-out. Texts must not
// contain newlines, since they separate the fields.
std::vector<Place> exchange_places(c10d::Store& store, int rank, int size, const Place& place) {
  const auto key = [](int of) { return fmt::format("transport/{}", of); };
  const auto text = fmt::format("{}\n{}\n{}\n{}", place.wanted, place.host, place.address, place.problem);
  store.set(key(rank), text);
  std::vector<Place> places(size);
  for (int other = 0; other < size; ++other) {
    std::istringstream in(store.get_to_str(key(other)));
    for (auto* line : {&places[other].wanted, &places[other].host, &places[other].address, &places[other].problem})
      std::getline(in, *line);
  }
  return places;
}

// Returns the first reason, in rank order, why the group cannot share memory, or "".
std::string obstacle(const std::vector<Place>& places) {
  for (std::size_t rank = 0; rank < places.size(); ++rank) {
    const auto& place = places[rank];
    if (place.wanted == "tcp") return fmt::format("rank {} has ACCEL_GLOO_TRANSPORT=tcp", rank);
    if (place.host.empty()) return fmt::format("rank {} cannot identify its host, since /proc is missing", rank);
    if (place.host != places[0].host)
      return fmt::format("ranks 0 and {} are not on the same host and in the same network namespace", rank);
    if (place.address.empty()) return fmt::format("rank {}: {}", rank, place.problem);
  }
  return "";
}

}  // namespace

Transport transport_from_environment() {
  const auto word = environment("ACCEL_GLOO_TRANSPORT").value_or("auto");
  for (const auto transport : {Transport::kAuto, Transport::kTcp, Transport::kSharedMemory}) {
    if (word == name_of(transport)) return transport;
  }
  throw ConfigError(fmt::format("ACCEL_GLOO_TRANSPORT: expected auto, tcp or shm, got {}", word));
}

std::shared_ptr<::gloo::transport::Device> agree_on_shared_memory(c10d::Store& store, int rank, int size,
                                                                  Transport wanted, std::chrono::milliseconds timeout) {
  // A single rank exchanges nothing.
  if (size == 1) return nullptr;
  std::optional<SegmentListener> listener;
  Place place{.wanted = name_of(wanted)};
  if (wanted != Transport::kTcp) {
    place.host = host_identity();
    try {
      check_layout();
      listener.emplace(size);
      place.address = listener->address();
    } catch (const CommError& error) {
      place.problem = error.what();
    }
  }
  // A rank that cannot share memory still publishes its place: the others wait for it in the store.
  const auto places = exchange_places(store, rank, size, place);
  const auto problem = obstacle(places);
  if (!problem.empty()) {
    const bool is_asked_for =
        std::any_of(places.begin(), places.end(), [](const Place& each) { return each.wanted == "shm"; });
    check_config(!is_asked_for, "ACCEL_GLOO_TRANSPORT=shm: {}; set ACCEL_GLOO_TRANSPORT=auto", problem);
    return nullptr;
  }
  std::vector<std::string> addresses;
  for (const auto& each : places) addresses.push_back(each.address);
  return make_device(rank, connect(std::move(*listener), addresses, rank, timeout));
}

}  // namespace accel::gloo
