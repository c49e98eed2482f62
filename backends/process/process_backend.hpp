#pragma once

#include <memory>
#include <string>
#include <vector>

#include "backends/process/process_work.hpp"
#include "reference/comm/collective_backend.hpp"

/// A c10d backend whose rank is a process of a simulated run: every collective of ProcessGroupGloo, carried to the
/// rank's proxy in the simulator. CPU tensors.
///
/// A call returns at once; outputs are valid after `wait()`, which throws CommError with what the simulator says.
/// Thread rule: like RankLink.
namespace accel::process {

class ProcessBackend : public CollectiveBackend {
 public:
  /// `rank` and `size` are those of the group; its name and ranks may be set later, before the first call.
  ProcessBackend(std::shared_ptr<RankLink> link, std::shared_ptr<const ProgramHooks> hooks, int rank, int size);

  /// The world ranks of the group, in order.
  void set_group(std::string name, std::vector<int> ranks);

  const std::string getBackendName() const override { return "gloo"; }
  c10::intrusive_ptr<Options> getBackendOptions() override { return options_; }
  void setTimeout(std::chrono::milliseconds timeout) override { options_->timeout = timeout; }
  WorkPtr start(CollectiveArgs args) override;
  std::uint64_t getSequenceNumberForGroup() override { return sequence_; }

 private:
  PlacedTensor place(const at::Tensor& tensor, bool is_read, bool is_written, bool is_async,
                     std::vector<Buffer>& buffers) const;
  std::uint32_t group();

  const std::shared_ptr<RankLink> link_;
  const std::shared_ptr<const ProgramHooks> hooks_;
  c10::intrusive_ptr<Options> options_ = c10::make_intrusive<Options>("gloo");
  std::string name_;
  std::vector<int> ranks_;
  std::uint32_t group_ = 0;  // 0: unknown to the proxy
  std::uint64_t sequence_ = 0;
};

}  // namespace accel::process
