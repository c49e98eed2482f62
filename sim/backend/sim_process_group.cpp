// The process groups that programs and PyTorch see, each over one SimBackend.
#include <fmt/format.h>

#include <algorithm>

#include "reference/core/errors.hpp"
#include "sim/backend/sim_backend.hpp"
#include "sim/engine/world.hpp"

namespace accel::sim {
namespace {

// ProcessGroup::barrier assigns a static tensor in every call: ranks that are threads would race for it.
class SimProcessGroup : public c10d::ProcessGroup {
 public:
  using c10d::ProcessGroup::ProcessGroup;
  c10::intrusive_ptr<c10d::Work> barrier(const c10d::BarrierOptions& options) override {
    return getDefaultBackend()->barrier(options);
  }
};

}  // namespace

c10::intrusive_ptr<SimBackend> make_backend(Member member, const std::string& name, const std::vector<int>& ranks) {
  GroupMember<at::Tensor> end(member, name, ranks);
  return c10::make_intrusive<SimBackend>(std::move(member), std::move(end));
}

c10::intrusive_ptr<c10d::ProcessGroup> make_process_group(Member member, const std::string& name,
                                                          const std::vector<int>& ranks) {
  auto backend = make_backend(std::move(member), name, ranks);
  auto process_group = c10::make_intrusive<SimProcessGroup>(backend->getRank(), backend->getSize());
  // Also for devices: their tensors are reduced on the host, as ProcessGroupGloo does. PrivateUse1 is a program's own.
  for (const auto device : {c10::DeviceType::CPU, c10::DeviceType::CUDA, c10::DeviceType::PrivateUse1}) {
    process_group->setBackend(device, c10d::ProcessGroup::BackendType::CUSTOM, backend);
  }
  process_group->setDefaultBackend(c10d::ProcessGroup::BackendType::CUSTOM);
  process_group->setGroupName(name);
  return process_group;
}

std::function<accel::Group(const std::vector<int>& ranks)> group_maker(Member member, std::vector<int> of_run,
                                                                       std::string suffix,
                                                                       std::shared_ptr<FaultModel> faults) {
  return [member = std::move(member), of_run = std::move(of_run), suffix = std::move(suffix),
          faults = std::move(faults), count = 0](const std::vector<int>& ranks) mutable {
    const auto name = fmt::format("group{}{}", ++count, suffix);
    if (faults) faults->on_rendezvous(*member.world, member.rank);
    std::vector<int> members;
    for (const int rank : ranks) members.push_back(of_run.at(rank));
    member.world->group(name, members);
    const bool is_member = std::find(members.begin(), members.end(), member.rank) != members.end();
    return is_member ? accel::Group(name, make_process_group(member, name, members)) : accel::Group();
  };
}

}  // namespace accel::sim
