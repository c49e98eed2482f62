#pragma once

#include <functional>
#include <memory>
#include <string>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <vector>

#include "reference/comm/collective_backend.hpp"
#include "reference/comm/group.hpp"
#include "sim/backend/sim_work.hpp"
#include "sim/backend/torch_tensors.hpp"
#include "sim/engine/faults.hpp"

/// A c10d backend over a World, for ranks that are threads: see GroupMember.
///
///     auto group = accel::sim::make_process_group(member, "world", {0, 1, 2, 3});
///     group->allreduce(tensors)->wait();
///
/// Calls return immediately; outputs are valid after `wait()`. Thread rule: one backend per rank, used by that rank's
/// thread and its autograd threads.
namespace accel::sim {

class SimBackend : public CollectiveBackend {
 public:
  SimBackend(Member member, GroupMember<at::Tensor> end);

  const std::string getBackendName() const override { return "sim"; }
  WorkPtr start(CollectiveArgs args) override;
  std::uint64_t getSequenceNumberForGroup() override { return end_.num_started(); }

 private:
  Member member_;
  GroupMember<at::Tensor> end_;
};

/// `ranks` are world ranks in order; the member's is one of them. Thread rule: the member's thread.
c10::intrusive_ptr<SimBackend> make_backend(Member member, const std::string& name, const std::vector<int>& ranks);
/// A process group whose only backend is a SimBackend.
/// Thread rule: the member's thread.
c10::intrusive_ptr<c10d::ProcessGroup> make_process_group(Member member, const std::string& name,
                                                          const std::vector<int>& ranks);
/// RankContext::new_group of a world whose ranks are these of the run. Names of groups are counted per rank. All ranks
/// create groups in the same order, as c10d requires, so equal names mean the same group; the engine checks that the
/// members agree. `suffix`: of the names, which no other world of the run has. `faults`: null: none.
std::function<accel::Group(const std::vector<int>& ranks)> group_maker(Member member, std::vector<int> of_run,
                                                                       std::string suffix,
                                                                       std::shared_ptr<FaultModel> faults);

}  // namespace accel::sim
