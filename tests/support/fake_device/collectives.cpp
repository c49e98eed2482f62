#include "tests/support/fake_device/collectives.hpp"

#include <ATen/core/ivalue.h>
#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <utility>

#include "tests/support/fake_device/execution.hpp"

namespace accel::testing::fake_device {
namespace {

using Tensors = std::vector<at::Tensor>;
using WorkPtr = c10::intrusive_ptr<c10d::Work>;

Tensors list_on_cpu(const Tensors& tensors) {
  Tensors list;
  for (const auto& tensor : tensors) list.push_back(on_cpu(tensor));
  return list;
}

std::vector<Tensors> lists_on_cpu(const std::vector<Tensors>& device_lists) {
  std::vector<Tensors> lists;
  for (const auto& list : device_lists) lists.push_back(list_on_cpu(list));
  return lists;
}

Tensors joined(const std::vector<Tensors>& lists) {
  Tensors all;
  for (const auto& list : lists) all.insert(all.end(), list.begin(), list.end());
  return all;
}

// A collective of the simulator whose end is an event of the group's stream.
class StreamWork final : public c10d::Work {
 public:
  StreamWork(WorkPtr simulated, c10::Stream stream, Tensors tensors, Tensors results)
      : simulated_(std::move(simulated)),
        stream_(stream),
        end_(kType),
        tensors_(std::move(tensors)),
        results_(std::move(results)) {
    end_.record(stream_);
  }

  bool wait(std::chrono::milliseconds timeout) override {
    simulated_->wait(timeout);
    end_.block(current_stream(stream_.device_index()));
    tensors_.clear();
    return true;
  }
  bool isCompleted() override { return simulated_->isCompleted(); }
  bool isSuccess() const override { return simulated_->isSuccess(); }
  std::exception_ptr exception() const override { return simulated_->exception(); }
  int sourceRank() const override { return simulated_->sourceRank(); }
  Tensors result() override { return results_; }
  std::uint64_t getSequencenumber() const override { return simulated_->getSequencenumber(); }

  // The future's event is recorded when it completes, so on the group's stream.
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override {
    auto future = c10::make_intrusive<c10::ivalue::Future>(c10::ListType::create(c10::TensorType::get()),
                                                           std::vector<c10::Device>{stream_.device()});
    simulated_->getFuture()->addCallback([future, stream = stream_,
                                          results = results_](c10::ivalue::Future& simulated) {
      const c10::StreamGuard on_stream(stream);
      simulated.hasError() ? future->setError(simulated.exception_ptr()) : future->markCompleted(c10::IValue(results));
    });
    return future;
  }

 private:
  WorkPtr simulated_;
  c10::Stream stream_;
  c10::Event end_;
  Tensors tensors_, results_;
};

class StreamBackend final : public c10d::Backend {
 public:
  StreamBackend(c10::intrusive_ptr<c10d::Backend> simulated, c10::Device device)
      : c10d::Backend(simulated->getRank(), simulated->getSize()),
        simulated_(std::move(simulated)),
        stream_(c10::impl::VirtualGuardImpl(kType).getStreamFromGlobalPool(device)) {}

  const std::string getBackendName() const override { return "fake_device"; }

  WorkPtr broadcast(Tensors& tensors, const c10d::BroadcastOptions& options) override {
    return run_in_place("broadcast", tensors, &c10d::Backend::broadcast, options);
  }
  WorkPtr allreduce(Tensors& tensors, const c10d::AllreduceOptions& options) override {
    return run_in_place("all_reduce", tensors, &c10d::Backend::allreduce, options);
  }
  WorkPtr allreduce_coalesced(Tensors& tensors, const c10d::AllreduceCoalescedOptions& options) override {
    return run_in_place("all_reduce_coalesced", tensors, &c10d::Backend::allreduce_coalesced, options);
  }
  WorkPtr reduce(Tensors& tensors, const c10d::ReduceOptions& options) override {
    return run_in_place("reduce", tensors, &c10d::Backend::reduce, options);
  }
  WorkPtr allgather(std::vector<Tensors>& outputs, Tensors& inputs, const c10d::AllgatherOptions& options) override {
    return run("all_gather", inputs, joined(outputs), joined(outputs), [&] {
      auto into = lists_on_cpu(outputs);
      auto own = list_on_cpu(inputs);
      return simulated_->allgather(into, own, options);
    });
  }
  WorkPtr _allgather_base(at::Tensor& output, at::Tensor& input, const c10d::AllgatherOptions& options) override {
    return run_into("all_gather_into_tensor", output, input, &c10d::Backend::_allgather_base, options);
  }
  WorkPtr gather(std::vector<Tensors>& outputs, Tensors& inputs, const c10d::GatherOptions& options) override {
    return run("gather", inputs, joined(outputs), joined(outputs), [&] {
      auto into = lists_on_cpu(outputs);
      auto own = list_on_cpu(inputs);
      return simulated_->gather(into, own, options);
    });
  }
  WorkPtr scatter(Tensors& outputs, std::vector<Tensors>& inputs, const c10d::ScatterOptions& options) override {
    return run("scatter", joined(inputs), outputs, outputs, [&] {
      auto own = lists_on_cpu(inputs);
      auto into = list_on_cpu(outputs);
      return simulated_->scatter(into, own, options);
    });
  }
  WorkPtr reduce_scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                         const c10d::ReduceScatterOptions& options) override {
    return run("reduce_scatter", joined(inputs), outputs, outputs, [&] {
      auto own = lists_on_cpu(inputs);
      auto into = list_on_cpu(outputs);
      return simulated_->reduce_scatter(into, own, options);
    });
  }
  WorkPtr _reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                               const c10d::ReduceScatterOptions& options) override {
    return run_into("reduce_scatter_tensor", output, input, &c10d::Backend::_reduce_scatter_base, options);
  }
  WorkPtr alltoall_base(at::Tensor& output, at::Tensor& input, std::vector<std::int64_t>& output_splits,
                        std::vector<std::int64_t>& input_splits, const c10d::AllToAllOptions& options) override {
    return run_into("all_to_all_single", output, input, &c10d::Backend::alltoall_base, output_splits, input_splits,
                    options);
  }
  WorkPtr send(Tensors& tensors, int destination, int tag) override {
    return run("send", tensors, {}, {}, [&] {
      auto own = list_on_cpu(tensors);
      return simulated_->send(own, destination, tag);
    });
  }
  WorkPtr recv(Tensors& tensors, int source, int tag) override {
    return run("recv", {}, tensors, tensors, [&] {
      auto into = list_on_cpu(tensors);
      return simulated_->recv(into, source, tag);
    });
  }
  WorkPtr barrier(const c10d::BarrierOptions& options) override { return simulated_->barrier(options); }
  void setSequenceNumberForGroup() override {}
  std::uint64_t getSequenceNumberForGroup() override { return simulated_->getSequenceNumberForGroup(); }

 private:
  // The simulator moves the bytes when the last rank arrives. That is somewhere between the call and `wait()`, as on a
  // GPU.
  template <typename Start>
  WorkPtr run(const char* name, const Tensors& reads, const Tensors& writes, const Tensors& results, Start&& start) {
    c10::Event ready(kType);
    ready.record(current_stream(stream_.device_index()));
    ready.block(stream_);
    {
      const c10::StreamGuard on_stream(stream_);
      races().launch(key_of(stream_));
      for (const auto& tensor : reads) read(tensor, name);
      for (const auto& tensor : writes) write(tensor, name);
    }
    auto tensors = reads;
    tensors.insert(tensors.end(), writes.begin(), writes.end());
    return c10::make_intrusive<StreamWork>(start(), stream_, std::move(tensors), results);
  }

  template <typename Method, typename Options>
  WorkPtr run_in_place(const char* name, const Tensors& tensors, Method method, const Options& options) {
    return run(name, tensors, tensors, tensors, [&] {
      auto own = list_on_cpu(tensors);
      return (*simulated_.*method)(own, options);
    });
  }

  template <typename Method, typename... Arguments>
  WorkPtr run_into(const char* name, const at::Tensor& output, const at::Tensor& input, Method method,
                   Arguments&... arguments) {
    return run(name, {input}, {output}, {output}, [&] {
      auto into = on_cpu(output), own = on_cpu(input);
      return (*simulated_.*method)(into, own, arguments...);
    });
  }

  c10::intrusive_ptr<c10d::Backend> simulated_;
  c10::Stream stream_;
};

// The type only names the backend's place in the group; the simulator's is CUSTOM.
void add_streams(const Group& group, c10::Device device) {
  const auto& process_group = group.process_group();
  if (!process_group) return;
  process_group->setBackend(kType, c10d::ProcessGroup::BackendType::NCCL,
                            c10::make_intrusive<StreamBackend>(process_group->getBackend(c10::kCPU), device));
}

}  // namespace

Counts counts_during(const RankContext& rank, const std::function<void()>& body) {
  rank.world.barrier();
  clear_counts();
  rank.world.barrier();
  body();
  rank.world.barrier();
  const auto result = counts();
  rank.world.barrier();
  return result;
}

DeviceScope::DeviceScope(RankContext& rank)
    : rank_(rank), new_group_(rank.new_group), current_(device(rank.rank % kNumDevices)) {
  rank.device = device(rank.rank % kNumDevices);
  const c10::impl::VirtualGuardImpl streams(kType);
  stream_ = streams.exchangeStream(streams.getStreamFromGlobalPool(rank.device));
  add_streams(rank.world, rank.device);
  rank.new_group = [create = rank.new_group, device = rank.device](const std::vector<int>& ranks) {
    auto group = create(ranks);
    add_streams(group, device);
    return group;
  };
}

DeviceScope::~DeviceScope() {
  c10::impl::VirtualGuardImpl(kType).exchangeStream(*stream_);
  rank_.new_group = std::move(new_group_);
  rank_.device = c10::kCPU;
}

}  // namespace accel::testing::fake_device
