// The resume property: stop a training after any micro-batch, save, start a new process with other random numbers,
// load and continue. Every rank then has the bits of the uninterrupted run in parameters, optimizer, schedule, loss
// scale, data and random numbers. Each planted bug drops one piece of the state, to prove that the property needs
// it.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <filesystem>
#include <fstream>

#include "reference/accelerator/accelerator.hpp"
#include "reference/checkpoint/manifest.hpp"
#include "reference/checkpoint/module_state.hpp"
#include "reference/checkpoint/torch_file.hpp"
#include "reference/optim/optimizers/optimizer_state.hpp"
#include "reference/optim/optimizers/optimizers.hpp"
#include "reference/optim/schedules/lambda_lr.hpp"
#include "reference/state/rng_sync.hpp"
#include "tests/support/property.hpp"
#include "tests/support/run_ranks.hpp"
#include "tests/support/temporary_folder.hpp"
#include "tests/support/torch.hpp"

namespace accel::testing::checkpoint_laws {
namespace {

// A life is one process between two checkpoints. The options cover every part of the state that save_state writes.
struct Case {
  int ranks = 1, accumulation = 1, workers = 0, epochs = 2;
  std::int64_t length = 24, batch_size = 2;
  std::string optimizer = "adamw", precision = "no", weighting = "accelerate", sharding = "none";
  bool schedule = false, own_streams = false, has_batch_norm = false, clips = false, async = false, safe = true;
  double init_scale = 65536;
  std::string state_dict_type = "FULL_STATE_DICT";
  std::vector<std::int64_t> cuts;  ///< micro-batches after which a life ends, counted within the life
};

// RapidCheck prints this line for a counterexample, so it names every option.
std::string describe(const Case& c) {
  return fmt::format(
      "{}, {} ranks, accumulation {}, {} workers, {} epochs, length {}, batch {}, {}, {}, scale {}, weighting {}, "
      "schedule {}, own streams {}, batch norm {}, clips {}, async {}, safe {}, cuts {}",
      c.sharding, c.ranks, c.accumulation, c.workers, c.epochs, c.length, c.batch_size, c.optimizer, c.precision,
      c.init_scale, c.weighting, c.schedule, c.own_streams, c.has_batch_norm, c.clips, c.async, c.safe, c.cuts);
}

Case make_case(int max_ranks) {
  Case c;
  c.ranks = pick(1, max_ranks + 1);
  c.accumulation = pick(1, 4);
  c.workers = pick(0, 3);
  c.length = pick<std::int64_t>(1, 40);
  c.batch_size = pick<std::int64_t>(1, 4);
  c.optimizer = pick_from<std::string>({"sgd", "adam", "adamw", "torch_adamw", "rmsprop"});
  c.precision = pick_from<std::string>({"no", "no", "bf16", "fp16"});
  c.init_scale = pick(0, 2) == 0 ? 65536 : 4e9;  // 4e9 overflows in the first steps
  c.weighting = pick(0, 3) == 0 ? "exact" : "accelerate";
  c.schedule = pick(0, 2) == 0;
  c.own_streams = pick(0, 2) == 0;
  c.has_batch_norm = pick(0, 2) == 0;
  c.clips = pick(0, 2) == 0;
  c.async = pick(0, 2) == 0;
  c.sharding =
      pick_from<std::string>({"none", "none", "none", "FULL_SHARD", "SHARD_GRAD_OP", "zero1", "zero2", "zero3"});
  c.state_dict_type = pick_from<std::string>({"FULL_STATE_DICT", "SHARDED_STATE_DICT", "LOCAL_STATE_DICT"});
  c.safe = pick(0, 3) > 0;
  for (int count = pick(0, 4); count > 0; --count) c.cuts.push_back(pick<std::int64_t>(0, 9));
  return c;
}

// A data set whose samples are computed from their index.
struct Samples {
  std::int64_t length = 0;
  [[nodiscard]] std::int64_t size() const { return length; }
  [[nodiscard]] static std::pair<at::Tensor, at::Tensor> get(std::int64_t index) {
    return {at::sin(at::arange(6, at::kFloat) * static_cast<double>(index + 1)), at::full({}, index % 3, at::kLong)};
  }
};

struct NetImpl : torch::nn::Module {
  explicit NetImpl(bool has_buffers) {
    if (has_buffers) norm = register_module("norm", torch::nn::BatchNorm1d(8));
  }
  torch::nn::Linear first = register_module("first", torch::nn::Linear(6, 8));
  torch::nn::BatchNorm1d norm = nullptr;
  torch::nn::Linear second = register_module("second", torch::nn::Linear(8, 8)),
                    last = register_module("last", torch::nn::Linear(8, 3));
  at::Tensor forward(const at::Tensor& x) {
    auto y = first(x);
    if (norm) y = norm(at::stack({y, y * y}, 2)).mean(2);  // even a batch of one sample has several values per channel
    return last(torch::relu(second(torch::dropout(torch::relu(y), 0.25, is_training()))));
  }
};
TORCH_MODULE(Net);

// Optimizers with different kinds of state.
std::unique_ptr<torch::optim::Optimizer> make_optimizer(const std::string& name, std::vector<at::Tensor> parameters) {
  if (name == "sgd")
    return std::make_unique<optim::SGD>(std::move(parameters), torch::optim::SGDOptions(0.05).momentum(0.9));
  if (name == "adam") return std::make_unique<optim::Adam>(std::move(parameters), torch::optim::AdamOptions(0.01));
  if (name == "adamw") return std::make_unique<optim::AdamW>(std::move(parameters), torch::optim::AdamWOptions(0.01));
  if (name == "rmsprop")
    return std::make_unique<torch::optim::RMSprop>(std::move(parameters),
                                                   torch::optim::RMSpropOptions(0.01).momentum(0.5));
  return std::make_unique<torch::optim::AdamW>(std::move(parameters), torch::optim::AdamWOptions(0.01));
}

/// State of the user's program that is not part of Accelerate, for register_for_checkpointing.
struct Counter {
  std::int64_t micro_batches = 0;
  [[nodiscard]] Value state_dict() const { return Value::Dict{{"micro_batches", micro_batches}}; }
  void load_state_dict(const Value& state) { micro_batches = state.at("micro_batches").as<std::int64_t>(); }
};

AcceleratorOptions options_of(const Case& c) {
  AcceleratorOptions options{.mixed_precision = c.precision,
                             .gradient_accumulation_steps = c.accumulation,
                             .grad_scaler_kwargs = {.init_scale = c.init_scale, .growth_interval = 3},
                             .loss_weighting = c.weighting};
  if (c.sharding.starts_with("zero"))
    options.deepspeed_plugin =
        DeepSpeedPlugin{.gradient_clipping = c.clips ? "0.5" : "0", .zero_stage = c.sharding.back() - '0'};
  else if (c.sharding != "none")
    options.fsdp_plugin =
        FullyShardedDataParallelPlugin{.sharding_strategy = c.sharding, .state_dict_type = c.state_dict_type};
  return options;
}

/// The lines that one rank records: one per micro-batch, then the final state. Equal traces mean equal bits,
/// because floats are written in hexadecimal and tensors as bytes.
using Trace = std::vector<std::string>;

/// Damages the folder before it is loaded, which plants a bug.
using Tamper = std::function<void(const std::string& folder)>;

bool run_life(const Case& c, RankContext& rank, std::uint64_t seed, const std::string& from,
              std::optional<std::int64_t> cut, const std::string& to, Trace& trace) {
  Accelerator accelerator(options_of(c), rank);
  // Every life starts from another seed. Only what load_state restores can make the streams equal again.
  set_seed(seed, {.device_specific = c.own_streams});
  Net net(c.has_batch_norm);
  auto plain_optimizer = make_optimizer(c.optimizer, net->parameters());
  LambdaLR plain_schedule(*plain_optimizer, [](std::int64_t step) { return 1.0 / static_cast<double>(step + 1); });
  auto [model, optimizer, batches] = accelerator.prepare(
      net, *plain_optimizer,
      DataLoader(Samples{c.length}, {.batch_size = c.batch_size, .shuffle = true, .num_workers = c.workers}));
  std::optional<AcceleratedScheduler> schedule;
  if (c.schedule) schedule = accelerator.prepare(plain_schedule);
  Counter counter;
  accelerator.register_for_checkpointing(counter);
  if (!from.empty()) accelerator.load_state(from, {.allow_missing_manifest = true});
  const auto save = [&] {
    accelerator.save_state(to, {.safe_serialization = c.safe, .async = c.async});
    if (c.async) {
      // The snapshot must not change when the training continues while an asynchronous save is still writing.
      const c10::NoGradGuard no_grad;
      for (auto& parameter : model.parameters()) parameter.add_(1);
      at::rand({3});
      accelerator.finish_saving();
    }
    return false;
  };
  auto left = cut.value_or(-1);
  // A cut of 0 saves right after loading: the state must survive a round trip before the first batch.
  if (left == 0) return save();
  for (auto epoch = batches.iteration(); epoch < c.epochs; ++epoch) {
    for (auto& [inputs, targets] : batches) {
      {
        auto window = accelerator.accumulate(model);
        const auto loss = torch::nn::functional::cross_entropy(model(inputs), targets);
        accelerator.backward(loss);
        if (c.clips && accelerator.sync_gradients()) accelerator.clip_grad_norm_(model.parameters(), 0.5);
        optimizer.step();
        if (schedule) schedule->step();
        optimizer.zero_grad();
        ++counter.micro_batches;
        trace.push_back(fmt::format("{} {} {:a} {} {} {} {}", counter.micro_batches, epoch, loss.item<double>(),
                                    accelerator.sync_gradients(), optimizer.step_was_skipped(), optimizer.lr(),
                                    // This draw shows whether the default generator continues where it stopped.
                                    draw_int64(default_generator())));
      }
      if (--left == 0) return save();
    }
  }
  // Sums come first, so that a difference is reported with the name of its parameter. The bytes below are what
  // counts.
  for (const auto& [name, tensor] : checkpoint::state_dict_of(*net))
    trace.push_back(
        fmt::format("{} {}", name, c10::str(tensor.to(at::kDouble).flatten().contiguous().sum().item<double>())));
  trace.push_back(pack(optim::state_dict(*plain_optimizer)));
  for (const auto& parameter : net->parameters()) trace.push_back(pack(parameter.detach().clone()));
  if (accelerator.scaler() != nullptr) trace.push_back(fmt::format("scale {}", accelerator.scaler()->get_scale()));
  return true;
}

std::vector<Trace> run(Backend backend, const Case& c, const std::vector<std::int64_t>& cuts,
                       const Tamper& tamper = {}) {
  const TemporaryFolder folder;
  std::vector<Trace> traces(c.ranks);
  std::string from;
  for (std::size_t life = 0;; ++life) {
    const auto to = folder.path(fmt::format("life{}", life));
    std::atomic<int> ended = 0;
    if (tamper && !from.empty()) tamper(from);
    run_ranks(backend, c.ranks, [&](RankContext& rank) {
      const auto cut = life < cuts.size() ? std::optional(cuts[life]) : std::nullopt;
      ended += run_life(c, rank, /*seed=*/life == 0 ? 7 : 100 + life, from, cut, to, traces[rank.rank]) ? 1 : 0;
    });
    if (ended > 0) return traces;
    from = to;
  }
}

// Returns "" if the traces are equal.
std::string difference(const std::vector<Trace>& cut, const std::vector<Trace>& uncut) {
  for (std::size_t rank = 0; rank < uncut.size(); ++rank) {
    for (std::size_t line = 0; line < std::max(cut[rank].size(), uncut[rank].size()); ++line) {
      const auto text = [&](const Trace& trace) { return line < trace.size() ? trace[line] : std::string("nothing"); };
      if (text(cut[rank]) != text(uncut[rank]))
        return fmt::format("rank {}, line {}: '{}'; uncut '{}'", rank, line, text(cut[rank]), text(uncut[rank]));
    }
  }
  return "";
}

void check_resume(Backend backend, const Tamper& tamper = {}) {
  const auto c = make_case(backend == Backend::kSim ? 5 : 3);
  RC_LOG(describe(c));
  const auto uncut = run(Backend::kSim, c, {});
  const auto found = difference(run(backend, c, c.cuts, tamper), uncut);
  RC_ASSERT(found == "");
  // A fault of Gloo alone could change the interrupted and the uninterrupted run alike.
  if (backend != Backend::kSim) RC_ASSERT(difference(run(backend, c, {}), uncut) == "");
}

// The most important promise of checkpoints.
TEST(CheckpointLaws, ATrainingThatIsCutAnywhereEndsWithTheBitsOfAnUncutOne) {
  expect_property(100, [] { check_resume(Backend::kSim); });
}

// Gloo runs fewer cases because its ranks have to connect again in every life.
TEST(CheckpointLaws, TheSameOnGloo) {
  expect_property(15, [] { check_resume(Backend::kGlooThreads); });
}

// --- planted bugs ----------------------------------------------------------------------------------------------------

using Change = std::function<void(Value::Dict& content)>;

// Changes the contents of all files whose name starts with `name`. It removes the manifest as well, so that the
// folder looks like one of Python's: with a manifest, load_state would detect the change by its hash.
Tamper in_files(const std::string& name, const Change& change) {
  return [=](const std::string& folder) {
    PosixFiles files;
    if (std::filesystem::exists(folder + "/" + checkpoint::kManifestName))
      files.remove(folder + "/" + checkpoint::kManifestName);
    for (const auto& file : files.list(folder)) {
      if (!file.starts_with(name)) continue;
      auto content = read_torch_file(folder + "/" + file).as<Value::Dict>();
      change(content);
      write_torch_file(files, folder + "/" + file, content);
    }
  };
}

// A planted bug: the checkpoint lacks a file.
Tamper without_files(const std::string& name) {
  return [=](const std::string& folder) {
    PosixFiles files;
    for (const auto& file : files.list(folder)) {
      if (file.starts_with(name) || file == checkpoint::kManifestName) files.remove(folder + "/" + file);
    }
  };
}

// Applies a change to our own part of a state.
Change in_ours(const Change& change) {
  return [=](Value::Dict& content) {
    auto ours = content.at("accel").as<Value::Dict>();
    change(ours);
    content["accel"] = ours;
  };
}

// "buckets": DDP rebuilds its buckets after the first backward. A run that loses them sums gradients in another
// order, which changes the last bits on three or more ranks.
TEST(CheckpointLaws, EveryPlantedBugIsCaught) {
  const auto buckets_are_lost = in_ours([](Value::Dict& ours) {
    Value::List models;
    for (const auto& model : ours.at("models").as<Value::List>()) {
      if (model.is_null()) return;
      auto state = model.as<Value::Dict>();
      state["buckets"] = Value();
      models.emplace_back(state);
    }
    ours["models"] = models;
  });
  const std::map<std::string, Tamper> bugs{
      {"the order of gradients in buckets is lost", in_files("random_states_", buckets_are_lost)},
      {"gradients of an open window are lost", without_files("rank_tensors_")},
      {"the place in the data is lost", without_files("dl_state_dict")},
      {"the micro-batch in the window is lost",
       in_files("random_states_", [](Value::Dict& content) { content["step"] = 0; })},
      {"every rank has rank 0's random numbers",
       [](const std::string& folder) {
         // This only removes the manifest: no file starts with "nothing".
         without_files("nothing")(folder);
         for (int rank = 1; std::filesystem::exists(folder + "/random_states_" + std::to_string(rank) + ".pkl");
              ++rank) {
           std::filesystem::copy_file(folder + "/random_states_0.pkl",
                                      folder + "/random_states_" + std::to_string(rank) + ".pkl",
                                      std::filesystem::copy_options::overwrite_existing);
         }
       }},
      {"moments are lost", in_files("optimizer", [](Value::Dict& content) { content["state"] = Value::Dict{}; })},
      {"the loss scale is lost", in_files("scaler", [](Value::Dict& content) { content["scale"] = 1024.0; })},
      // The scaler raises the scale after growth_interval (3) good steps in a row, so the count decides when the
      // scale grows.
      {"good steps in a row are lost",
       in_files("scaler", [](Value::Dict& content) { content["_growth_tracker"] = 0; })},
      {"what an exact window holds is lost",
       in_files("random_states_", in_ours([](Value::Dict& ours) {
                  ours["window"] = Value::Dict{{"items", 0.0}, {"samples", 0.0}, {"unit", 1.0}, {"any", false}};
                }))},
      {"a program's own object is lost",
       in_files("custom_checkpoint_", [](Value::Dict& content) { content["micro_batches"] = 0; })},
      {"a skipped step is forgotten",
       in_files("random_states_", in_ours([](Value::Dict& ours) { ours["skipped"] = Value::List{}; }))},
  };
  // Up to 400 cases per bug: some bugs show only in rare combinations, for example sharding with a cut inside a
  // window.
  for (const auto& [name, bug] : bugs) expect_property_fails(name, 400, [&] { check_resume(Backend::kSim, bug); });
}

// Counterexamples that RapidCheck found and shrank. Each was a bug once.
TEST(CheckpointLaws, CutsThatWentWrongOnce) {
  const Case small{.length = 3, .batch_size = 1};
  std::vector<Case> cases;
  const auto add = [&](auto change) { change(cases.emplace_back(small)); };
  add([](Case& c) { c.accumulation = 2, c.cuts = {1, 0}; });  // saved inside a window right after loading
  add([](Case& c) {
    c.accumulation = 3, c.precision = "fp16", c.init_scale = 4e9, c.cuts = {1, 2};
  });  // after a skipped step
  add([](Case& c) { c.length = 1, c.optimizer = "rmsprop", c.schedule = true, c.cuts = {1}; });
  for (const auto& c : cases)
    EXPECT_EQ(difference(run(Backend::kSim, c, c.cuts), run(Backend::kSim, c, {})), "") << describe(c);
}

}  // namespace
}  // namespace accel::testing::checkpoint_laws
