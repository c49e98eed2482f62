#include "sim/backend/first_rank.hpp"

#include <ATen/CPUGeneratorImpl.h>
#include <c10/util/ThreadLocalDebugInfo.h>
#include <torch/csrc/profiler/orchestration/observer.h>

#include <algorithm>
#include <exception>
#include <numeric>
#include <thread>
#include <utility>

#include "reference/core/system/resource_limits.hpp"
#include "sim/backend/fake_backend.hpp"

namespace accel::sim {
namespace {

// Ends the program. No std::exception: programs report those.
struct EnoughTraced {};

class TraceObserver : public StepObserver {
 public:
  TraceObserver(std::shared_ptr<TraceRecorder> recorder, const FirstRankOptions& options)
      : recorder_(std::move(recorder)), on_model_(options.on_model), max_updates_(options.max_updates) {}

  std::string_view enter_phase(std::string_view phase) override { return std::exchange(phase_, phase); }
  void begin_backward(const at::Tensor& /*loss*/) override {
    if (max_updates_ > 0 && num_updates_ >= max_updates_) throw EnoughTraced();
    has_update_ = false;
  }
  void add_replicas(const std::shared_ptr<const Replicas>& /*replicas*/) override {}
  void add_model(const std::shared_ptr<torch::nn::Module>& model) override {
    if (on_model_) on_model_(*model);
  }
  void before_update() override {}
  // Optimizers that step one after the other are one update.
  void after_update() override {
    const auto num_calls = std::exchange(num_calls_, recorder_->num_calls());
    if (std::exchange(has_update_, true) && num_calls == num_calls_) return;
    ++num_updates_;
    recorder_->add_update();
  }
  void end_join() override {}

 private:
  std::shared_ptr<TraceRecorder> recorder_;
  std::function<void(const torch::nn::Module&)> on_model_;
  int max_updates_, num_updates_ = 0;
  bool has_update_ = false;    // since the last backward pass
  std::size_t num_calls_ = 0;  // before the last update
  std::string_view phase_ = "start";
};

// LibTorch's allocator reports to the profiler of the thread, whose place this takes. LibTorch expects an object of
// this class there.
class PeakMemory final : public torch::profiler::impl::ProfilerStateBase {
 public:
  PeakMemory()
      : ProfilerStateBase(torch::profiler::impl::ProfilerConfig(torch::profiler::impl::ProfilerState::Disabled)) {}

  void reportMemoryUsage(void*, std::int64_t bytes, std::size_t, std::size_t, c10::Device device) override {
    if (!device.is_cpu()) return;
    now_ += bytes;
    peak_ = std::max(peak_, now_);
  }
  [[nodiscard]] bool memoryProfilingEnabled() const override { return true; }
  torch::profiler::impl::ActiveProfilerType profilerType() override {
    return torch::profiler::impl::ActiveProfilerType::NONE;
  }
  [[nodiscard]] std::int64_t peak() const { return peak_; }

 private:
  std::int64_t now_ = 0, peak_ = 0;
};

RankContext first_rank_of(int num_ranks, const std::shared_ptr<TraceRecorder>& recorder) {
  std::vector<int> everyone(num_ranks);
  std::iota(everyone.begin(), everyone.end(), 0);
  RankContext context;
  context.world_size = context.local_world_size = num_ranks;
  context.backend = "sim";
  context.num_threads = 1;
  context.generator = make_generator(c10::default_rng_seed_val);
  context.world = accel::Group("world", make_fake_process_group(recorder, everyone));
  context.new_group = [recorder](const std::vector<int>& ranks) {
    const bool is_member = std::find(ranks.begin(), ranks.end(), 0) != ranks.end();
    return is_member ? accel::Group("group", make_fake_process_group(recorder, ranks)) : accel::Group();
  };
  context.print = context.warn = [](const std::string&) {};  // what the program prints has no meaning
  return context;
}

}  // namespace

RankTrace run_first_rank(const FirstRankOptions& options, const std::function<void(RankContext&)>& body) {
  verify_interposition();
  const auto recorder =
      std::make_shared<TraceRecorder>(options.num_ranks, options.operator_seconds ? 0 : options.cpu_factor);
  const auto memory = std::make_shared<PeakMemory>();
  std::exception_ptr error;
  const auto run = [&] {
    const c10::DebugInfoGuard measures(c10::DebugInfoKind::PROFILER_STATE, memory);
    auto context = first_rank_of(options.num_ranks, recorder);
    context.listener = std::make_shared<TraceObserver>(recorder, options);
    const RankScope scope(context);
    const OperatorClock clock([&](double seconds) { recorder->add_compute(seconds); }, options.operator_seconds);
    recorder->skip_compute();
    body(context);
  };
  start_thread("the thread of the first rank", [&] {
    try {
      run();
    } catch (const EnoughTraced&) {
    } catch (...) {
      error = std::current_exception();
    }
  }).join();
  if (error) std::rethrow_exception(error);
  auto trace = recorder->trace();
  trace.peak_memory_bytes = memory->peak();
  return trace;
}

}  // namespace accel::sim
