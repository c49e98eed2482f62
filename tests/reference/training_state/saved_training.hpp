#pragma once

#include <gtest/gtest.h>

#include <accel/accel.hpp>
#include <accel/optim.hpp>
#include <accel/testing.hpp>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "reference/optim/optimizers/optimizer_state.hpp"
#include "tests/reference/sharded/sharded_training.hpp"
#include "tests/support/message_of.hpp"
#include "tests/support/temporary_folder.hpp"
#include "tests/support/torch.hpp"

/// Trainings whose state is saved and loaded.
namespace accel::testing::saved_training {

struct Counter {
  std::int64_t count = 0;
  [[nodiscard]] Value state_dict() const { return Value::Dict{{"count", count}}; }
  void load_state_dict(const Value& state) { count = state.at("count").as<std::int64_t>(); }
};

/// The training of one rank: a net, an optimizer, a schedule and a loader.
struct Training {
  explicit Training(AcceleratorOptions options, std::uint64_t seed = 3)
      : accelerator(std::move(options)),
        net((set_seed(seed), make_net())),
        adam(net->parameters(), {.lr = 0.05}),
        schedule(adam, [](std::int64_t step) { return 1.0 / static_cast<double>(step + 1); }),
        model(accelerator.prepare(net)),
        optimizer(accelerator.prepare(adam)),
        batches(accelerator.prepare(DataLoader(TensorDataset(torch::arange(24, torch::kFloat).view({-1, 1})),
                                               {.batch_size = 1, .shuffle = true}))),
        scheduler(accelerator.prepare(schedule)) {}

  void train(int num_steps) {
    for (auto& [inputs] : batches) {
      auto window = accelerator.accumulate(model);
      accelerator.backward(model(inputs.expand({1, 4}) / 10).square().mean());
      optimizer.step();
      scheduler.step();
      optimizer.zero_grad();
      if (--num_steps == 0) return;
    }
  }

  /// The full weights, learning rate and other state, on rank 0.
  std::string state() {
    auto weights = accelerator.get_state_dict(model);
    std::string text;
    for (const auto& [name, tensor] : weights) text += name + pack(tensor.clone());
    return text + fmt::format("{} {}", optimizer.lr(), draw_int64(default_generator()));
  }

  /// The moments of this rank's parameters.
  [[nodiscard]] std::string moments() const { return pack(optim::state_dict(adam)); }

  Accelerator accelerator;
  Net net;
  optim::Adam adam;
  LambdaLR schedule;
  PreparedModel<NetImpl> model;
  AcceleratedOptimizer optimizer;
  decltype(std::declval<Accelerator&>().prepare(DataLoader(TensorDataset(at::Tensor()), {}))) batches;
  AcceleratedScheduler scheduler;
};

inline AcceleratorOptions ddp() { return {.ddp_kwargs = {.find_unused_parameters = true}}; }
inline AcceleratorOptions automatic(const std::string& project, std::optional<int> limit = std::nullopt) {
  auto options = ddp();
  options.project_config = {.project_dir = project, .automatic_checkpoint_naming = true, .total_limit = limit};
  return options;
}
inline AcceleratorOptions sharded_as(const std::string& state_dict_type) {
  return {.fsdp_plugin = FullyShardedDataParallelPlugin{.auto_wrap_policy = "TRANSFORMER_BASED_WRAP",
                                                        .transformer_cls_names_to_wrap = {"Block"},
                                                        .state_dict_type = state_dict_type}};
}

/// A disk that calls `before_create` with the path of each file before it is created. What that throws is the error of
/// the disk.
class WatchedFiles final : public Files {
 public:
  explicit WatchedFiles(std::function<void(const std::string& path)> before_create)
      : before_create_(std::move(before_create)) {}
  std::unique_ptr<WritableFile> create(const std::string& path) override {
    before_create_(path);
    return files_.create(path);
  }
  std::string read(const std::string& path) override { return files_.read(path); }
  std::vector<std::string> list(const std::string& path) override { return files_.list(path); }
  void rename(const std::string& from, const std::string& to) override { files_.rename(from, to); }
  void remove(const std::string& path) override { files_.remove(path); }
  void make_folder(const std::string& path) override { files_.make_folder(path); }
  void sync_folder(const std::string& path) override { files_.sync_folder(path); }

 private:
  std::function<void(const std::string& path)> before_create_;
  PosixFiles files_;
};

class SaveStateTest : public ::testing::Test {
 protected:
  /// The message of the CheckpointError, which must be the same on every rank; "" if there is none.
  template <typename Body>
  static std::string problem_on(int num_ranks, const Body& body) {
    const auto messages = run_ranks(num_ranks, [&] { return message_of<CheckpointError>(body); });
    for (const auto& message : messages) EXPECT_EQ(message, messages.front());
    return messages.front();
  }

  TemporaryFolder folder_;
  std::string path_ = folder_.path("state");
};

}  // namespace accel::testing::saved_training
