// Faults of the rendezvous store and of a rank's files.
#include "sim/faults/fault_effect.hpp"

namespace accel::sim {
namespace {

struct SlowStore : FaultEffect {
  using FaultEffect::FaultEffect;
  void on_rendezvous(World& world, int rank) override {
    const bool gives_up = fault_.away || *fault_.seconds > seconds_of(world.timeout());
    strike(world, {}, gives_up);
    // The text is that of c10d's TCPStore client.
    if (gives_up) {
      throw InjectedFault(fmt::format("The client socket has timed out after {}ms while trying to connect to the store",
                                      world.timeout().count()));
    }
    world.clocks().delay(rank, *fault_.seconds, "store_slow");
  }
};

struct TornWrite : FaultEffect {
  using FaultEffect::FaultEffect;
  void on_file_fault(World& world, int rank) override {
    // The file layer throws ProcessDied on the rank itself; here its peers learn of the end of its process.
    if (strike(world, {rank}, /*may_stop=*/true)) disconnect(world, rank);
  }
};

// The rank lives on and may handle the error; its connections stay open.
struct DiskFull : FaultEffect {
  using FaultEffect::FaultEffect;
  void on_file_fault(World& world, int rank) override { strike(world, {rank}, /*may_stop=*/true); }
};

}  // namespace

std::unique_ptr<FaultEffect> make_storage_effect(const Fault& fault, FaultedRun& run) {
  switch (fault.kind) {
    case FaultKind::kStoreSlow: return std::make_unique<SlowStore>(fault, run);
    case FaultKind::kTornWrite: return std::make_unique<TornWrite>(fault, run);
    case FaultKind::kDiskFull: return std::make_unique<DiskFull>(fault, run);
    default: throw InternalError(fmt::format("{} has no effect on storage", rule_of(fault.kind).name));
  }
}

}  // namespace accel::sim
