#include "sim/backend/process_group.hpp"

#include "reference/core/errors.hpp"

namespace accel::sim {
namespace {

// ProcessGroup::barrier keeps a static tensor that every caller assigns: threads as ranks would race for it.
class SimProcessGroup : public c10d::ProcessGroup {
 public:
  using c10d::ProcessGroup::ProcessGroup;
  c10::intrusive_ptr<c10d::Work> barrier(const c10d::BarrierOptions& options) override {
    return getDefaultBackend()->barrier(options);
  }
};

}  // namespace

c10::intrusive_ptr<c10d::ProcessGroup> make_process_group(Member member, const std::string& name,
                                                          const std::vector<int>& ranks) {
  auto group = member.world->group(name, ranks);
  const int group_rank = group->group_rank_of(member.rank);
  check_argument(group_rank >= 0, "group {}: rank {} is not a member of {}", name, member.rank, describe_ranks(ranks));
  auto backend = c10::make_intrusive<SimBackend>(std::move(member), std::move(group), group_rank);
  auto process_group = c10::make_intrusive<SimProcessGroup>(group_rank, static_cast<int>(ranks.size()));
  for (const auto device : {c10::DeviceType::CPU, c10::DeviceType::CUDA}) {
    process_group->setBackend(device, c10d::ProcessGroup::BackendType::CUSTOM, backend);
  }
  process_group->setDefaultBackend(c10d::ProcessGroup::BackendType::CUSTOM);
  process_group->setGroupName(name);
  return process_group;
}

}  // namespace accel::sim
