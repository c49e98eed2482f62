// A collective's own work is of no use here: it keeps its tensors. An event after the stream's wait for it tells the
// same.
#include "backends/nccl/gpu_waits.hpp"

#include <c10/core/Event.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <chrono>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "backends/nccl/nccl_backend.hpp"

namespace accel::nccl {
namespace {

using recorder::RankRecorder;

constexpr std::chrono::milliseconds kInterval{1};

class EventQueue final : public recorder::GpuWaits {
 public:
  EventQueue(std::shared_ptr<RankRecorder> recorder, c10::Device device)
      : recorder_(std::move(recorder)), device_(device), thread_([this](const auto& stop) { run(stop); }) {}

  void begin(const RankRecorder::Begun& call) override {
    if (is_capturing()) return;
    const std::lock_guard lock(mutex_);
    if (spare_.empty()) spare_.emplace_back(device_.type());
    auto event = std::move(spare_.back());
    spare_.pop_back();
    event.record(c10::impl::VirtualGuardImpl(device_.type()).getStream(device_));
    queue_.push_back({std::move(event), call});
    if (queue_.size() == 1) filled_.notify_one();
  }

 private:
  struct Queued {
    c10::Event event;
    RankRecorder::Begun call;
  };

  void run(const std::stop_token& stop) {
    const c10::impl::VirtualGuardImpl gpus(device_.type());
    gpus.setDevice(device_);  // else a query would create a context on the first GPU
    std::unique_lock lock(mutex_);
    while (!stop.stop_requested()) {
      filled_.wait(lock, stop, [&] { return !queue_.empty(); });
      filled_.wait_for(lock, stop, kInterval, [] { return false; });
      note_ends();
    }
  }

  // Streams may overtake each other, so every event is asked.
  void note_ends() {
    std::erase_if(queue_, [&](Queued& queued) {
      if (!has_passed(queued.event)) return false;
      recorder_->end(queued.call);
      spare_.push_back(std::move(queued.event));
      return true;
    });
    recorder_->set_gpu_wait(queue_.empty() ? 0 : queue_.front().call.position);
  }

  // An event fails with the GPU, which the watchdog of NCCL reports, and in a graph that the program captures itself.
  static bool has_passed(const c10::Event& event) {
    try {
      return event.query();
    } catch (const std::exception&) {
      return true;
    }
  }

  std::shared_ptr<RankRecorder> recorder_;
  c10::Device device_;
  std::mutex mutex_;
  std::condition_variable_any filled_;
  std::deque<Queued> queue_;
  std::vector<c10::Event> spare_;
  std::jthread thread_;  // the last member: it uses the others
};

}  // namespace

std::shared_ptr<recorder::GpuWaits> watch_gpu(std::shared_ptr<RankRecorder> recorder, c10::Device device) {
  return std::make_shared<EventQueue>(std::move(recorder), device);
}

}  // namespace accel::nccl
