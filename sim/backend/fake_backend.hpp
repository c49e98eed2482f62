#pragma once

#include <deque>
#include <map>
#include <memory>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <utility>
#include <vector>

#include "reference/comm/collective_backend.hpp"
#include "sim/backend/rank_trace.hpp"

/// A c10d backend of one rank whose peers do not run. Every collective returns at once, with the result that it has if
/// all ranks of the group hold the same tensors as this one: a sum is a multiple, and gathered parts are copies.
///
///     auto group = make_fake_process_group(recorder, {0, 1, 2, 3});  // for rank 0
///     group->allreduce(tensors)->wait();                             // four times the tensors
///
/// A message is received from the rank's own sends: the peer at the same distance sends the same. If the output of
/// an all_to_all expects other numbers of rows than this rank sends to itself, rows are repeated or left out; without
/// any they are zero. The recorder gets every call and every wait. Thread rule: the rank's thread.
namespace accel::sim {

class FakeBackend : public CollectiveBackend {
 public:
  /// `group`: its number in the recorder.
  FakeBackend(std::shared_ptr<TraceRecorder> recorder, int group, int group_rank, int size);

  const std::string getBackendName() const override { return "fake"; }
  WorkPtr start(CollectiveArgs args) override;
  std::uint64_t getSequenceNumberForGroup() override { return 0; }

 private:
  /// A message whose other end is not posted yet.
  struct Message {
    std::size_t call;
    at::Tensor tensor;
  };
  struct Mailbox {
    std::deque<Message> sends, receives;
  };

  /// Writes the result, which all ranks have.
  void compute(const CollectiveArgs& args);
  void post(const CollectiveArgs& args, std::size_t call);
  void deliver(Mailbox& mailbox);

  std::shared_ptr<TraceRecorder> recorder_;
  int group_;
  std::map<std::pair<int /*destination - source*/, int /*tag*/>, Mailbox> mailboxes_;
};

/// The process group of these world ranks, of which rank 0 is one. Its only backend is a FakeBackend.
c10::intrusive_ptr<c10d::ProcessGroup> make_fake_process_group(const std::shared_ptr<TraceRecorder>& recorder,
                                                               const std::vector<int>& ranks);

}  // namespace accel::sim
