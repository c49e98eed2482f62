#include <accel/accel.hpp>
#include <accel/testing.hpp>
#include <gmock/gmock.h>
#include <torch/nn/modules/embedding.h>

#include <cerrno>
#include <filesystem>
#include <fstream>
#include <mutex>

#include "reference/checkpoint/manifest.hpp"
#include "reference/optim/optimizers/optimizer_state.hpp"
#include "tests/reference/sharded/sharded_training.hpp"
#include "tests/support/message_of.hpp"
#include "tests/support/temporary_folder.hpp"
#include "tests/support/torch.hpp"

namespace accel::testing {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

struct Counter {
  std::int64_t count = 0;
  [[nodiscard]] Value state_dict() const { return Value::Dict{{"count", count}}; }
  void load_state_dict(const Value& state) { count = state.at("count").as<std::int64_t>(); }
};

/// A rank's training: a net, an optimizer, a schedule, a loader.
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

  /// Weights, moments and the like, whole, on rank 0.
  std::string state() {
    auto weights = accelerator.get_state_dict(model);
    std::string text;
    for (const auto& [name, tensor] : weights) text += name + pack(tensor.clone());
    return text + fmt::format("{} {}", optimizer.lr(), draw_int64(default_generator()));
  }

  Accelerator accelerator;
  Net net;
  optim::Adam adam;
  LambdaLR schedule;
  PreparedModel<NetImpl> model;
  AcceleratedOptimizer optimizer;
  decltype(std::declval<Accelerator&>().prepare(DataLoader(TensorDataset(at::Tensor()), {}))) batches;
  AcceleratedScheduler scheduler;
};

AcceleratorOptions ddp() { return {.ddp_kwargs = {.find_unused_parameters = true}}; }
AcceleratorOptions automatic(const std::string& project, std::optional<int> limit = std::nullopt) {
  auto options = ddp();
  options.project_config = {.project_dir = project, .automatic_checkpoint_naming = true, .total_limit = limit};
  return options;
}
AcceleratorOptions sharded_as(const std::string& state_dict_type) {
  return {.fsdp_plugin = FullyShardedDataParallelPlugin{.auto_wrap_policy = "TRANSFORMER_BASED_WRAP",
                                                        .transformer_cls_names_to_wrap = {"Block"},
                                                        .state_dict_type = state_dict_type}};
}

class SaveStateTest : public ::testing::Test {
 protected:
  /// What every rank's CheckpointError says, which must be the same; "" if there is none.
  template <typename Body>
  static std::string problem_on(int num_ranks, const Body& body) {
    const auto messages = run_ranks(num_ranks, [&] { return message_of<CheckpointError>(body); });
    for (const auto& message : messages) EXPECT_EQ(message, messages.front());
    return messages.front();
  }

  TemporaryFolder folder_;
  std::string path_ = folder_.path("state");
};

TEST_F(SaveStateTest, WritesAcceleratesFilesAndAManifest) {
  run_ranks(2, [&] {
    Training training(ddp());
    Counter counter;
    training.accelerator.register_for_checkpointing(counter);
    training.train(2);
    EXPECT_EQ(training.accelerator.save_state(path_), path_);
  });
  PosixFiles files;
  EXPECT_THAT(files.list(path_),
              ElementsAre(checkpoint::kManifestName, "custom_checkpoint_0.pkl", "dl_state_dict.bin",
                          "dl_state_dict_rank1.bin", "model.safetensors", "optimizer.bin", "random_states_0.pkl",
                          "random_states_1.pkl", "rank_tensors_1.safetensors", "scheduler.bin"));
  EXPECT_EQ(checkpoint::read_manifest(path_)->world_size, 2);
}

TEST_F(SaveStateTest, SparseGradientsOfAnOpenWindowAreSaved) {
  run_ranks(2, [&] {
    Accelerator accelerator({.gradient_accumulation_steps = 2});
    torch::manual_seed(1);
    auto net = std::make_shared<torch::nn::EmbeddingImpl>(torch::nn::EmbeddingOptions(6, 2).sparse(true));
    torch::optim::SGD sgd(net->parameters(), 0.5);
    auto [model, optimizer] = accelerator.prepare(net, sgd);
    const auto micro_batch = [&](std::int64_t word) {
      auto window = accelerator.accumulate(model);
      accelerator.backward(model(torch::tensor({word, word})).square().sum());
      optimizer.step();
      optimizer.zero_grad();
    };
    micro_batch(1 + accelerator.process_index());
    accelerator.save_state(path_);
    micro_batch(3);
    const auto uncut = net->weight.detach().clone();
    accelerator.load_state(path_);
    EXPECT_TRUE(net->weight.grad().is_sparse());
    micro_batch(3);
    EXPECT_TRUE(torch::equal(net->weight, uncut));
  });
}

TEST_F(SaveStateTest, ASlashBehindTheFolderIsNothing) {
  run_ranks(2, [&] {
    Training training(ddp());
    for (int save = 0; save < 2; ++save) {
      training.train(1);
      EXPECT_EQ(training.accelerator.save_state(path_ + "/"), path_);
    }
    EXPECT_EQ(training.accelerator.load_state(path_ + "//"), path_);
  });
  PosixFiles files;
  EXPECT_THAT(files.list(folder_.path()), ElementsAre("state/"));
}

// The place in the data is of those that share a batch, not of a rank of the world.
TEST_F(SaveStateTest, ALoaderGoesOnOnAnotherMesh) {
  const auto read = [&](Accelerator& accelerator, int most, bool loads) {
    auto batches = accelerator.prepare(DataLoader(TensorDataset(torch::arange(16)), {.batch_size = 1}));
    if (loads) accelerator.load_state(path_);
    std::vector<std::int64_t> seen;
    for (auto& [ids] : batches) {
      seen.push_back(ids.template item<std::int64_t>());
      if (std::ssize(seen) < most) continue;
      if (!loads) accelerator.save_state(path_);
      break;
    }
    return seen;
  };
  run_ranks(4, [&] {
    Accelerator accelerator;
    read(accelerator, 2, /*loads=*/false);
  });
  run_ranks(8, [&] {
    Accelerator accelerator({.parallelism_config = ParallelismConfig{.dp_replicate_size = 4, .tp_size = 2}});
    const auto rank = accelerator.process_index() / 2;
    EXPECT_THAT(read(accelerator, 2, /*loads=*/true), ElementsAre(8 + rank, 12 + rank));
  });
}

// torchdata's place is none of ours: the loader begins its epoch, as it does for a checkpoint of Python's without one.
TEST_F(SaveStateTest, PythonsStateOfAStatefulLoaderIsPassedOver) {
  run_ranks(1, [&] {
    Training training(ddp());
    training.train(3);
    training.accelerator.save_state(path_);
    std::filesystem::remove(path_ + "/" + checkpoint::kManifestName);
    PosixFiles files;
    write_torch_file(files, path_ + "/dl_state_dict.bin",
                     Value::Dict{{"_num_yielded", 3}, {"_iterator_finished", false}, {"dataset_state", Value()}});
    Training resumed(ddp(), /*seed=*/9);
    resumed.accelerator.load_state(path_);
    EXPECT_EQ(resumed.batches.iteration(), 0);
    EXPECT_EQ(resumed.model->parameters().front().equal(training.model->parameters().front()), true);
  });
}

// LibTorch's groups keep none of it, and Python's OneCycleLR looks for it there.
TEST_F(SaveStateTest, GroupsOfAnyOptimizerHaveWhatSchedulesKeepInThem) {
  run_ranks(1, [&] {
    Accelerator accelerator;
    torch::nn::Linear net(2, 1);
    torch::optim::SGD sgd(net->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
    SequentialLR schedule(sgd,
                          {accel::schedule<MultiStepLR>(std::vector<int>{1, 3}, 0.5),
                           accel::schedule<OneCycleLR>(OneCycleLROptions{.max_lr = 2.0, .total_steps = 10})},
                          {2});
    auto optimizer = accelerator.prepare(sgd);
    auto scheduler = accelerator.prepare(schedule);
    accelerator.save_state(path_);
    const auto saved = scheduler.state_dict();
    accelerator.load_state(path_);
    EXPECT_EQ(scheduler.state_dict(), saved);
  });
  const auto group = read_torch_file(path_ + "/optimizer.bin").at("param_groups").as<Value::List>().front();
  for (const auto& [key, value] :
       {std::pair("initial_lr", 0.08), {"max_lr", 2.0}, {"base_momentum", 0.85}, {"max_momentum", 0.95}})
    EXPECT_EQ(group.at(key), Value(value)) << key;
}

TEST_F(SaveStateTest, AutomaticNamesAreNumberedLimitedAndGoneOnWith) {
  const auto project = folder_.path("project");
  run_ranks(2, [&] {
    Training training(automatic(project, /*limit=*/2));
    for (int i = 0; i < 4; ++i)
      EXPECT_EQ(training.accelerator.save_state("not read"), fmt::format("{}/checkpoints/checkpoint_{}", project, i));
    EXPECT_EQ(training.accelerator.save_iteration(), 4);
  });
  PosixFiles files;
  EXPECT_THAT(files.list(project + "/checkpoints"), ElementsAre("checkpoint_2/", "checkpoint_3/"));
  run_ranks(2, [&] {
    Training training(automatic(project, 2), /*seed=*/9);
    EXPECT_EQ(training.accelerator.load_state(), project + "/checkpoints/checkpoint_3");
    EXPECT_EQ(training.accelerator.save_iteration(), 4);
    training.accelerator.set_save_iteration(3);
    EXPECT_THAT(message_of<CheckpointError>([&] { training.accelerator.save_state(); }),
                HasSubstr("checkpoint_3 is there already; set save_iteration"));
  });
}

// The bits of what is loaded do not depend on how many ranks saved or load; of random numbers rank 0's stay, others are
// their own.
TEST_F(SaveStateTest, ACheckpointOfSomeRanksLoadsOnOthers) {
  for (const auto& options : {ddp(), sharded_as("FULL_STATE_DICT"), sharded_as("SHARDED_STATE_DICT")}) {
    std::string saved;
    run_ranks(3, [&] {
      Training training(options);
      training.train(2);
      training.accelerator.save_state(path_);
      auto state = training.state();
      if (training.accelerator.is_main_process()) saved = state;
    });
    for (const int ranks : {1, 2, 3, 5}) {
      std::mutex mutex;
      std::set<std::int64_t> draws;
      run_ranks(ranks, [&] {
        Training training(options, /*seed=*/9);
        training.accelerator.load_state(path_);
        auto state = training.state();
        if (training.accelerator.is_main_process()) {
          EXPECT_EQ(state, saved) << ranks << " ranks";
        }
        const std::lock_guard lock(mutex);
        if (ranks != 3) draws.insert(draw_int64(default_generator()));
      });
      if (ranks != 3) {
        EXPECT_EQ(draws.size(), static_cast<std::size_t>(ranks));
      }
    }
  }
}

TEST_F(SaveStateTest, AShardedTrainingGoesOnWithTheSameBits) {
  for (const auto* type : {"FULL_STATE_DICT", "SHARDED_STATE_DICT", "LOCAL_STATE_DICT"}) {
    const auto uncut = run_ranks(3, [&] {
      Training training(sharded_as(type));
      training.train(5);
      return training.state();
    });
    run_ranks(3, [&] {
      Training training(sharded_as(type));
      training.train(2);
      training.accelerator.save_state(path_);
    });
    const auto resumed = run_ranks(3, [&] {
      Training training(sharded_as(type), /*seed=*/9);
      training.accelerator.load_state(path_);
      training.train(3);
      return training.state();
    });
    EXPECT_EQ(resumed, uncut) << type;
  }
}

TEST_F(SaveStateTest, EveryMachineHasWhatItNeedsOrSaysThatItCannot) {
  run_ranks(2, [&] {
    auto options = ddp();
    options.project_config = {.save_on_each_node = true};
    Training(options).accelerator.save_state(path_);
    auto sharded = sharded_as("SHARDED_STATE_DICT");
    sharded.project_config = {.save_on_each_node = true};
    Training training(sharded);
    EXPECT_THAT(message_of<ArgumentError>([&] { training.accelerator.save_state(path_); }),
                HasSubstr("no machine has all of it"));
  });
  EXPECT_TRUE(checkpoint::read_manifest(path_)->lists("model.safetensors"));
}

TEST_F(SaveStateTest, LocalShardsLoadOnAsManyRanksOnly) {
  run_ranks(3, [&] { Training(sharded_as("LOCAL_STATE_DICT")).accelerator.save_state(path_); });
  EXPECT_THAT(problem_on(2, [&] { Training(sharded_as("LOCAL_STATE_DICT")).accelerator.load_state(path_); }),
              HasSubstr("of 3 ranks, and there are 2; under LOCAL_STATE_DICT"));
}

TEST_F(SaveStateTest, WhatIsShardedLoadsWholeAndTheOtherWayRound) {
  std::string saved;
  run_ranks(3, [&] {
    Training training(sharded_as("SHARDED_STATE_DICT"));
    training.train(2);
    training.accelerator.save_state(path_);
    auto state = training.state();
    if (training.accelerator.is_main_process()) saved = state;
  });
  run_ranks(2, [&] {
    Training whole(ddp(), 9);
    whole.accelerator.load_state(path_);
    whole.accelerator.save_state(path_);
  });
  run_ranks(4, [&] {
    Training training(sharded_as("FULL_STATE_DICT"), 9);
    training.accelerator.load_state(path_);
    auto state = training.state();
    if (training.accelerator.is_main_process()) {
      EXPECT_EQ(state, saved);
    }
  });
}

TEST_F(SaveStateTest, TheOptimizersStateOfAShardedRunIsThereInAnUnshardedOne) {
  for (const auto* type : {"FULL_STATE_DICT", "SHARDED_STATE_DICT"}) {
    const auto save_as = [](const char* state_dict_type, const std::string& path) {
      run_ranks(3, [&] {
        Training training(sharded_as(state_dict_type));
        training.train(2);
        training.accelerator.save_state(path);
      });
    };
    save_as(type, path_);
    save_as("FULL_STATE_DICT", folder_.path("full"));
    const auto saved = read_torch_file(folder_.path("full/optimizer.bin")).at("state");
    for (const int ranks : {1, 2, 3}) {
      run_ranks(ranks, [&] {
        Training whole(ddp(), 9);
        whole.accelerator.load_state(path_);
        const auto loaded = optim::state_dict(whole.adam).at("state");
        NamedTensors parameters;
        for (const auto& item : whole.net->named_parameters()) parameters.emplace_back(item.key(), item.value());
        parameters = each_once(std::move(parameters));
        ASSERT_EQ(loaded.as<Value::Dict>().size(), saved.as<Value::Dict>().size()) << type;
        for (std::size_t index = 0; index < parameters.size(); ++index) {
          const auto& name = parameters[index].first;
          if (!saved.contains(name)) continue;  // it has had no gradient
          for (const auto* entry : {"exp_avg", "exp_avg_sq", "step"}) {
            EXPECT_TRUE(loaded.at(std::to_string(index))
                            .at(entry)
                            .as<at::Tensor>()
                            .equal(saved.at(name).at(entry).as<at::Tensor>()))
                << type << " " << name << " " << entry;
          }
        }
      });
    }
  }
}

TEST_F(SaveStateTest, AStateOfParametersThatTheOptimizerLacksIsRefused) {
  run_ranks(2, [&] {
    Training training(sharded_as("FULL_STATE_DICT"));
    training.train(1);
    training.accelerator.save_state(path_);
  });
  EXPECT_THAT(problem_on(2,
                         [&] {
                           Accelerator accelerator;
                           auto net = make_net();
                           auto parameters = net->parameters();
                           parameters.pop_back();
                           optim::Adam adam(parameters, {.lr = 0.05});
                           accelerator.prepare(net, adam);
                           accelerator.load_state(path_);
                         }),
              AllOf(HasSubstr("the optimizer's state has entries for '"),
                    HasSubstr("which are no parameters of the prepared optimizer")));
}

TEST_F(SaveStateTest, ADamagedCheckpointIsAnErrorOnEveryRankAndNothingIsLoaded) {
  run_ranks(2, [&] { Training(ddp()).accelerator.save_state(path_); });
  std::ofstream(path_ + "/optimizer.bin", std::ios::binary | std::ios::app) << "x";
  std::filesystem::remove(path_ + "/random_states_1.pkl");
  EXPECT_THAT(problem_on(2,
                         [&] {
                           Training training(ddp(), 9);
                           const auto before = training.state();
                           const auto generator = default_generator().get_state();
                           try {
                             training.accelerator.load_state(path_);
                           } catch (const CheckpointError&) {
                             default_generator().set_state(generator);
                             EXPECT_NE(training.state(), "");
                             throw;
                           }
                         }),
              AllOf(HasSubstr("optimizer.bin: "), HasSubstr("random_states_1.pkl: missing")));
}

// What one rank alone sees is every rank's error, and all is as it was.
TEST_F(SaveStateTest, WhatDoesNotFitOnOneRankIsUndoneOnAll) {
  run_ranks(2, [&] {
    Training training(ddp());
    training.train(3);
    training.accelerator.save_state(path_);
  });
  std::filesystem::remove(path_ + "/" + checkpoint::kManifestName);
  write_torch_file(*std::make_unique<PosixFiles>(), path_ + "/random_states_1.pkl",
                   Value::Dict{{"step", 0}, {"torch_manual_seed", torch::zeros({3}, torch::kByte)}});
  EXPECT_THAT(problem_on(2,
                         [&] {
                           Training training(ddp(), 9);
                           training.train(1);
                           const auto weights =
                               pack(torch::cat({training.net->head->weight.flatten()}).detach().clone());
                           const auto state = pack(optim::state_dict(training.adam));
                           const auto rate = training.optimizer.lr();
                           const auto place = pack(training.batches.state_dict());
                           const auto generator = default_generator().get_state();
                           try {
                             training.accelerator.load_state(path_);
                           } catch (const CheckpointError&) {
                             EXPECT_EQ(pack(training.net->head->weight.flatten().detach().clone()), weights);
                             EXPECT_EQ(pack(optim::state_dict(training.adam)), state);
                             EXPECT_EQ(training.optimizer.lr(), rate);
                             EXPECT_EQ(pack(training.batches.state_dict()), place);
                             EXPECT_TRUE(torch::equal(default_generator().get_state(), generator));
                             throw;
                           }
                         }),
              HasSubstr("load_state: rank 1: "));
}

TEST_F(SaveStateTest, AProgramThatIsAnotherIsToldEverythingThatDiffers) {
  run_ranks(1, [&] {
    Training training(ddp());
    Counter counter;
    training.accelerator.register_for_checkpointing(counter);
    training.accelerator.save_state(path_);
  });
  EXPECT_THAT(problem_on(1, [&] { Training(ddp()).accelerator.load_state(path_); }),
              HasSubstr("1 custom checkpoints, and 0 objects are registered"));
  EXPECT_THAT(problem_on(2,
                         [&] {
                           Accelerator accelerator;
                           torch::nn::Linear other(3, 2);
                           auto model = accelerator.prepare(other);
                           accelerator.load_state(path_);
                         }),
              AllOf(HasSubstr("'weight' is missing"), HasSubstr("'bias' is missing"),
                    HasSubstr("'head.weight' is not in the model")));
  EXPECT_THAT(problem_on(2, [&] { Training(ddp()).accelerator.load_state(folder_.path("nowhere")); }),
              HasSubstr("nowhere: no such folder"));
}

/// A disk on which files of one name cannot be written.
class BadDisk final : public Files {
 public:
  explicit BadDisk(std::string name) : name_(std::move(name)) {}
  std::unique_ptr<WritableFile> create(const std::string& path) override {
    if (path.find(name_) != std::string::npos) throw FileError(path, "written", ENOSPC);
    return files_.create(path);
  }
  std::string read(const std::string& path) override { return files_.read(path); }
  std::vector<std::string> list(const std::string& path) override { return files_.list(path); }
  void rename(const std::string& from, const std::string& to) override { files_.rename(from, to); }
  void remove(const std::string& path) override { files_.remove(path); }
  void make_folder(const std::string& path) override { files_.make_folder(path); }
  void sync_folder(const std::string& path) override { files_.sync_folder(path); }

 private:
  std::string name_;
  PosixFiles files_;
};

TEST_F(SaveStateTest, WhatOneRankCannotWriteIsNotSavedByAnyAndTheOldCheckpointStays) {
  run_ranks(3, [&] { Training(ddp()).accelerator.save_state(path_); });
  const auto before = PosixFiles().read(path_ + "/" + checkpoint::kManifestName);
  for (const bool async : {false, true}) {
    EXPECT_THAT(problem_on(3,
                           [&] {
                             current_rank().files =
                                 std::make_shared<BadDisk>(current_rank().rank == 2 ? "random_states_2" : "none");
                             Training training(ddp(), 9);
                             training.train(1);
                             training.accelerator.save_state(path_, {.async = async});
                             training.accelerator.finish_saving();
                           }),
                AllOf(HasSubstr("state: not saved: rank 2: "), HasSubstr("No space left on device")));
    EXPECT_EQ(PosixFiles().read(path_ + "/" + checkpoint::kManifestName), before);
    EXPECT_THAT(PosixFiles().list(folder_.path()), ElementsAre("state/"));
  }
}

TEST_F(SaveStateTest, AnAsynchronousSaveHoldsWhatWasThereWhenItWasCalled) {
  std::string saved;
  run_ranks(2, [&] {
    Training training(automatic(folder_.path("project")));
    training.train(2);
    const auto generator = default_generator().get_state();
    auto state = training.state();
    default_generator().set_state(generator);
    if (training.accelerator.is_main_process()) saved = state;
    training.accelerator.save_state("", {.async = true});
    training.train(2);
    training.accelerator.save_state("", {.async = true});
    training.accelerator.end_training();
  });
  run_ranks(2, [&] {
    Training training(automatic(folder_.path("project")), 9);
    training.accelerator.load_state(folder_.path("project/checkpoints/checkpoint_0"));
    auto state = training.state();
    if (training.accelerator.is_main_process()) {
      EXPECT_EQ(state, saved);
    }
    EXPECT_EQ(training.accelerator.load_state(), folder_.path("project/checkpoints/checkpoint_1"));
  });
}

// A process that ends without waiting leaves what was written, whole but for its name: the next one finds it.
TEST_F(SaveStateTest, AnAsynchronousSaveThatNobodyWaitedForIsFound) {
  run_ranks(2, [&] {
    Training training(automatic(folder_.path("project")));
    training.accelerator.save_state();
    training.train(1);
    training.accelerator.save_state("", {.async = true});
  });
  run_ranks(2, [&] {
    Training training(automatic(folder_.path("project")), 9);
    EXPECT_EQ(training.accelerator.load_state(), folder_.path("project/checkpoints/checkpoint_1"));
    EXPECT_EQ(training.accelerator.save_state(), folder_.path("project/checkpoints/checkpoint_2"));
  });
}

TEST_F(SaveStateTest, HooksSeeAndChangeWhatIsSavedAndLoaded) {
  run_ranks(2, [&] {
    Training training(ddp());
    auto hook = training.accelerator.register_save_state_pre_hook(
        [&](const auto& models, checkpoint::Weights& weights, const std::string& folder) {
          EXPECT_EQ(models.size(), 1U);
          weights.clear();
          if (training.accelerator.is_main_process()) std::ofstream(folder + "/mine.txt") << "text";
        });
    training.accelerator.save_state(path_);
    hook.remove();
    training.accelerator.save_state(folder_.path("whole"));
  });
  EXPECT_FALSE(std::filesystem::exists(path_ + "/model.safetensors"));
  EXPECT_TRUE(checkpoint::read_manifest(path_)->lists("mine.txt"));
  EXPECT_TRUE(std::filesystem::exists(folder_.path("whole/model.safetensors")));
  run_ranks(2, [&] {
    Training training(ddp(), 9);
    const auto before = training.net->head->weight.clone();
    const auto hook =
        training.accelerator.register_load_state_pre_hook([](auto& models, const std::string&) { models.clear(); });
    training.accelerator.load_state(path_);
    EXPECT_TRUE(torch::equal(training.net->head->weight, before));
  });
}

TEST_F(SaveStateTest, AWeightsFileAloneIsSavedAndLoaded) {
  for (const bool safe : {true, false}) {
    const auto weights = run_ranks(2, [&] {
                           Training training(sharded_as("FULL_STATE_DICT"));
                           training.accelerator.save_model(training.model, folder_.path(safe ? "safe" : "pickled"),
                                                           {.max_shard_size = "0.2KB", .safe_serialization = safe});
                           return training.accelerator.get_state_dict(training.model);
                         }).front();
    auto net = (torch::manual_seed(9), make_net());
    const torch::NoGradGuard no_grad;
    for (auto& parameter : net->parameters()) parameter.zero_();
    load_checkpoint_in_model(*net, folder_.path(safe ? "safe" : "pickled"), {.strict = true});
    const std::map<std::string, at::Tensor> by_name(weights.begin(), weights.end());
    for (const auto& item : net->named_parameters())
      EXPECT_TRUE(torch::equal(item.value(), by_name.at(item.key()))) << item.key();
    EXPECT_GT(PosixFiles().list(folder_.path(safe ? "safe" : "pickled")).size(), 2U);
  }
}

}  // namespace
}  // namespace accel::testing
