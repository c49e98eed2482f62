#include "sim/backend/first_rank.hpp"

#include <ATen/CPUGeneratorImpl.h>

#include <algorithm>
#include <exception>
#include <numeric>
#include <thread>
#include <utility>

#include "reference/core/system/resource_limits.hpp"
#include "sim/backend/fake_backend.hpp"

namespace accel::sim {
namespace {

class TraceObserver : public StepObserver {
 public:
  TraceObserver(std::shared_ptr<TraceRecorder> recorder, std::function<void(const torch::nn::Module&)> on_model)
      : recorder_(std::move(recorder)), on_model_(std::move(on_model)) {}

  std::string_view enter_phase(std::string_view phase) override { return std::exchange(phase_, phase); }
  void begin_backward(const at::Tensor& /*loss*/) override {}
  void add_replicas(const std::shared_ptr<const Replicas>& /*replicas*/) override {}
  void add_model(const std::shared_ptr<torch::nn::Module>& model) override {
    if (on_model_) on_model_(*model);
  }
  void before_update() override {}
  void after_update() override { recorder_->add_update(); }
  void end_join() override {}

 private:
  std::shared_ptr<TraceRecorder> recorder_;
  std::function<void(const torch::nn::Module&)> on_model_;
  std::string_view phase_ = "start";
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
  std::exception_ptr error;
  const auto run = [&] {
    auto context = first_rank_of(options.num_ranks, recorder);
    context.listener = std::make_shared<TraceObserver>(recorder, options.on_model);
    const RankScope scope(context);
    const OperatorClock clock([&](double seconds) { recorder->add_compute(seconds); }, options.operator_seconds);
    recorder->skip_compute();
    body(context);
  };
  start_thread("the thread of the first rank", [&] {
    try {
      run();
    } catch (...) {
      error = std::current_exception();
    }
  }).join();
  if (error) std::rethrow_exception(error);
  return recorder->trace();
}

}  // namespace accel::sim
