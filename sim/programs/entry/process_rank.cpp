// A C++ program as one rank of `sim-run --processes`: the context that a thread of the simulator would have, over a
// ProcessBackend.
#include "sim/programs/entry/process_rank.hpp"

#include <ATen/record_function.h>

#include <algorithm>
#include <cmath>
#include <exception>
#include <numeric>

#include "backends/process/process_backend.hpp"
#include "backends/process/update_report.hpp"
#include "backends/process/watched_writes.hpp"
#include "reference/comm/parameter_state.hpp"
#include "reference/comm/tensor_fingerprint.hpp"
#include "reference/config/environment.hpp"
#include "reference/core/errors.hpp"
#include "reference/core/system/resource_limits.hpp"
#include "reference/rank_local/call_site.hpp"
#include "reference/state/rank_context.hpp"
#include "sim/backend/replica_models.hpp"
#include "sim/programs/rehearsal/exit_code.hpp"

namespace accel::programs {
namespace {

using process::Request;

std::pair<std::string, std::uint32_t> current_line() {
  const auto where = CallSite::current();
  return {where.file, where.line};
}

process::ReportedState reported(const ParameterState& state) {
  return {.hash = state.hash,
          .dtype = static_cast<std::int8_t>(state.dtype),
          .gradient = static_cast<std::int32_t>(state.gradient),
          .gradient_hash = state.gradient_hash};
}

// Tells the proxy what a SimObserver tells the engine.
class ProcessObserver : public StepObserver {
 public:
  ProcessObserver(std::shared_ptr<process::RankLink> link, std::shared_ptr<const process::ProgramHooks> hooks)
      : link_(std::move(link)), hooks_(std::move(hooks)) {}

  std::string_view enter_phase(std::string_view phase) override {
    link_->post(request(Request::kPhase).put(phase));
    return std::exchange(phase_, phase);
  }
  void begin_backward(const at::Tensor& loss) override {
    const at::DisableRecordFunctionGuard unwatched;
    link_->ask(request(Request::kBackward).put(loss.numel() > 0 ? loss.detach().flatten()[0].item<double>() : NAN));
  }
  void add_replicas(const std::shared_ptr<const Replicas>& replicas) override { replicas_.push_back(replicas); }
  void before_update() override { link_->ask(request(Request::kUpdate)); }
  // The request comes first, because hashing is not part of the program.
  void after_update() override {
    const at::DisableRecordFunctionGuard unwatched;
    auto message = request(Request::kUpdated);
    const auto models = sim::compared_models(replicas_);
    const auto names = sim::names_of(models);
    const auto states = sim::states_of(models);
    process::UpdateReport report{.generator = fingerprint(default_generator())};
    for (const auto& model : models) {
      if (model->stage_rank) report.stage_rank = model->stage_rank;
      for (std::size_t place = 0; place < model->parameters.size(); ++place) {
        const auto index = report.parameters.size();
        report.parameters.push_back({.name = names[index],
                                     .sizes = model->parameters[place].second.sizes().vec(),
                                     .layout = model->layouts.empty() ? ParameterLayout{} : model->layouts[place],
                                     .state = reported(states[index])});
      }
    }
    report.processor_seconds = process::processor_seconds();
    link_->ask(message << report);
  }
  void end_join() override { link_->ask(request(Request::kEndJoin)); }

 private:
  [[nodiscard]] process::MessageWriter request(Request kind) const { return process::begin_request(kind, *hooks_); }

  const std::shared_ptr<process::RankLink> link_;
  const std::shared_ptr<const process::ProgramHooks> hooks_;
  std::string_view phase_ = "start";
  std::vector<std::weak_ptr<const Replicas>> replicas_;
};

Group make_group(const std::shared_ptr<process::RankLink>& link,
                 const std::shared_ptr<const process::ProgramHooks>& hooks, const std::string& name,
                 const std::vector<int>& ranks) {
  const auto place = std::find(ranks.begin(), ranks.end(), link->rank());
  if (place == ranks.end()) return {};
  const int rank = static_cast<int>(place - ranks.begin()), size = static_cast<int>(ranks.size());
  auto backend = c10::make_intrusive<process::ProcessBackend>(link, hooks, rank, size);
  backend->set_group(name, ranks);
  auto group = c10::make_intrusive<c10d::ProcessGroup>(rank, size);
  group->setBackend(c10::DeviceType::CPU, c10d::ProcessGroup::BackendType::CUSTOM, backend);
  group->setDefaultBackend(c10d::ProcessGroup::BackendType::CUSTOM);
  group->setGroupName(name);
  return {name, group};
}

std::unique_ptr<RankContext> make_context(const std::shared_ptr<process::RankLink>& link) {
  auto hooks = std::make_shared<process::ProgramHooks>();
  hooks->line = current_line;
  auto context = make_single_rank();
  context->rank = context->local_rank = link->rank();
  context->world_size = context->local_world_size = link->num_ranks();
  context->backend = "sim";
  context->num_threads = 1;
  context->restart_count = environment_int({"ACCEL_RESTART_COUNT"}).value_or(0);
  std::vector<int> everyone(link->num_ranks());
  std::iota(everyone.begin(), everyone.end(), 0);
  context->world = make_group(link, hooks, "world", everyone);
  context->new_group = [link, hooks, count = 0](const std::vector<int>& ranks) mutable {
    return make_group(link, hooks, fmt::format("group{}", ++count), ranks);
  };
  context->listener = std::make_shared<ProcessObserver>(link, hooks);
  context->warn = [link, hooks](const std::string& text) {
    link->post(process::begin_request(Request::kWarn, *hooks).put(std::string_view()).put(text));
  };
  return context;
}

}  // namespace

std::optional<ProcessRank> read_process_rank() {
  const auto rank = environment_int({"ACCEL_AREA_RANK"});
  if (!rank) return std::nullopt;
  return ProcessRank{.descriptor = environment_int({"ACCEL_AREA"}).value_or(-1), .rank = *rank};
}

int run_process_rank(const ProcessRank& simulated, const RecordOptions& record, const std::function<int()>& train) {
  const auto link =
      std::make_shared<process::RankLink>(process::SharedArea::attach(simulated.descriptor), simulated.rank);
  try {
    verify_interposition();
    const auto context = make_context(link);
    record_rank(*context, record);
    process::watch_writes(link);  // last: faults of files come before observing them
    const RankScope scope(*context);
    return run_program(*context, train);
  } catch (const std::exception& error) {
    process::unwatch_writes();
    link->post(process::begin_request(Request::kFail, {}).put(std::string_view(message_of(error))));
    return exit_code_of(error);
  }
}

}  // namespace accel::programs
