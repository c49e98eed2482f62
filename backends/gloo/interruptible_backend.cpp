#include "backends/gloo/interruptible_backend.hpp"

#include <chrono>
#include <utility>
#include <vector>

#include "reference/comm/collective_backend.hpp"
#include "reference/comm/wait_in_slices.hpp"
#include "reference/core/error_text.hpp"
#include "reference/elastic/elastic_ranks.hpp"

namespace accel::gloo {
namespace {

using std::chrono::milliseconds;

// How often a rank that waits asks for the state. Asking costs an exception of c10d.
constexpr milliseconds kInterval{20};

// Runs `body`, which communicates.
template <typename Body>
auto with_state(const WaitStateFunction& state, Body&& body) {
  if (state() == WaitState::kGiveUp) throw elastic::RankLost("a rank is lost");
  try {
    return body();
  } catch (const Error&) {
    throw;
  } catch (const std::exception& error) {
    if (state() == WaitState::kOver) throw;
    throw elastic::RankLost(text_of(error));
  }
}

class InterruptibleWork : public c10d::Work {
 public:
  InterruptibleWork(c10::intrusive_ptr<c10d::Work> work, WaitStateFunction state, bool is_message)
      : c10d::Work(-1, work->retrieveOpType()),
        work_(std::move(work)),
        state_(std::move(state)),
        is_message_(is_message) {}

  bool isCompleted() override { return work_->isCompleted(); }
  bool isSuccess() const override { return work_->isSuccess(); }
  std::exception_ptr exception() const override { return work_->exception(); }
  int sourceRank() const override { return work_->sourceRank(); }
  std::vector<at::Tensor> result() override { return work_->result(); }
  void synchronize() override { work_->synchronize(); }
  void abort() override { work_->abort(); }
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override { return work_->getFuture(); }
  c10::intrusive_ptr<c10::ivalue::Future> getFutureResult() override { return work_->getFutureResult(); }
  float getDuration() const override { return work_->getDuration(); }
  std::uint64_t getSequencenumber() const override { return work_->getSequencenumber(); }

  bool wait(milliseconds timeout) override {
    if (is_message_) return with_state(state_, [&] { return work_->wait(timeout); });
    const auto give_up_if_lost = [&] {
      if (state_() == WaitState::kGiveUp) throw elastic::RankLost("a rank is lost");
    };
    return wait_in_slices(*work_, timeout, kInterval, give_up_if_lost, [&](const std::exception& error) {
      if (state_() == WaitState::kOver) throw;
      throw elastic::RankLost(text_of(error));
    });
  }

 private:
  c10::intrusive_ptr<c10d::Work> work_;
  WaitStateFunction state_;
  bool is_message_;
};

class InterruptibleBackend : public CollectiveBackend {
 public:
  InterruptibleBackend(c10::intrusive_ptr<c10d::Backend> backend, WaitStateFunction state)
      : CollectiveBackend(backend->getRank(), backend->getSize()),
        backend_(std::move(backend)),
        state_(std::move(state)) {}

  const std::string getBackendName() const override { return backend_->getBackendName(); }
  c10::intrusive_ptr<Options> getBackendOptions() override { return backend_->getBackendOptions(); }
  void setTimeout(milliseconds timeout) override { backend_->setTimeout(timeout); }
  void setSequenceNumberForGroup() override { backend_->setSequenceNumberForGroup(); }
  std::uint64_t getSequenceNumberForGroup() override { return backend_->getSequenceNumberForGroup(); }
  void abort() override { backend_->abort(); }
  void shutdown() override { backend_->shutdown(); }
  bool supportsCoalescing() const override { return backend_->supportsCoalescing(); }
  void startCoalescing() override { backend_->startCoalescing(); }
  WorkPtr endCoalescing() override { return backend_->endCoalescing(); }

  WorkPtr start(CollectiveArgs args) override {
    auto work = with_state(state_, [&] { return start_on(*backend_, args); });
    return c10::make_intrusive<InterruptibleWork>(std::move(work), state_, is_message(args.collective));
  }
  void monitoredBarrier(const c10d::BarrierOptions& options, bool wait_all_ranks) override {
    with_state(state_, [&] { backend_->monitoredBarrier(options, wait_all_ranks); });
  }

 private:
  c10::intrusive_ptr<c10d::Backend> backend_;
  WaitStateFunction state_;
};

}  // namespace

c10::intrusive_ptr<c10d::Backend> interruptible(c10::intrusive_ptr<c10d::Backend> backend, WaitStateFunction state) {
  return c10::make_intrusive<InterruptibleBackend>(std::move(backend), std::move(state));
}

}  // namespace accel::gloo
