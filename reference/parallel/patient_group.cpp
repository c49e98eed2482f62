#include "reference/parallel/patient_group.hpp"

#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

namespace accel {
namespace {

class PatientProcessGroup : public c10d::ProcessGroup {
 public:
  PatientProcessGroup(c10d::ProcessGroup& group, c10::DeviceType device, std::shared_ptr<const bool> is_patient)
      : ProcessGroup(group.getRank(), group.getSize()), is_patient_(std::move(is_patient)) {
    setBackend(device, group.getBackendType(), group.getBackend(device));
    setDefaultBackend(group.getBackendType());
  }

  c10::intrusive_ptr<c10d::Work> allreduce(std::vector<at::Tensor>& tensors,
                                           const c10d::AllreduceOptions& options) override {
    auto work = ProcessGroup::allreduce(tensors, options);
    if (*is_patient_) work->wait();
    return work;
  }

 private:
  std::shared_ptr<const bool> is_patient_;
};

}  // namespace

Group patient_group(const Group& group, c10::Device device, std::shared_ptr<const bool> is_patient) {
  return {group.name(),
          c10::make_intrusive<PatientProcessGroup>(*group.process_group(), device.type(), std::move(is_patient))};
}

}  // namespace accel
