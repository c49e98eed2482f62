// Tests of save_state and load_state of the Accelerator: which files are written, what a resumed training continues
// with, automatic names, asynchronous saves, and hooks.
#include <gmock/gmock.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/embedding.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <future>
#include <map>

#include "reference/checkpoint/manifest.hpp"
#include "reference/checkpoint/torch_file.hpp"
#include "reference/offload/load_checkpoint.hpp"
#include "tests/reference/training_state/saved_training.hpp"

namespace accel::testing::saved_training {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

// Python has to find its files under their usual names. The manifest, which Python ignores, detects damage.
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

// An average of the weights, which no optimizer of `prepare` steps, and its optimizer, with LibTorch's class.
TEST_F(SaveStateTest, ModulesAndOptimizersAreRegisteredWithoutAdaptors) {
  run_ranks(2, [&] {
    torch::manual_seed(1);
    torch::nn::Linear average(2, 3);
    const auto norm = std::make_shared<torch::nn::BatchNorm1dImpl>(3);
    torch::optim::Adam adam(average->parameters(), 0.5);
    Accelerator accelerator;
    accelerator.register_for_checkpointing(average, norm, adam);
    const auto step = [&] {
      norm->forward(average->forward(torch::ones({2, 2})).detach());
      average->forward(torch::ones({2, 2})).square().sum().backward();
      adam.step();
    };
    step();
    accelerator.save_state(path_);
    const auto weight = average->weight.detach().clone(), mean = norm->running_mean.clone();
    const auto moments = pack(optim::state_dict(adam));
    step();
    EXPECT_FALSE(average->weight.equal(weight));
    accelerator.load_state(path_);
    EXPECT_TRUE(average->weight.equal(weight));
    EXPECT_TRUE(norm->running_mean.equal(mean));
    EXPECT_EQ(pack(optim::state_dict(adam)), moments);
  });
  const auto state = read_torch_file(path_ + "/custom_checkpoint_0.pkl");
  EXPECT_EQ(state.at("weight").as<at::Tensor>().sizes(), torch::IntArrayRef({3, 2})) << "as Python's state_dict";
}

TEST_F(SaveStateTest, ARegisteredModuleOfAnotherShapeIsUnchangedAndReported) {
  run_ranks(1, [&] {
    torch::nn::Linear saved(2, 3);
    Accelerator accelerator;
    accelerator.register_for_checkpointing(saved);
    accelerator.save_state(path_);
    torch::nn::Linear other(torch::nn::LinearOptions(2, 4).bias(false));
    const auto before = other->weight.detach().clone();
    Accelerator second;
    second.register_for_checkpointing(other);
    EXPECT_THAT(message_of<CheckpointError>([&] { second.load_state(path_); }),
                AllOf(HasSubstr("'weight' has sizes [3, 2], the module expects [4, 2]"),
                      HasSubstr("'bias' is not in the module")));
    EXPECT_TRUE(other->weight.equal(before));
  });
}

// Between the micro-batches of a step, gradients are part of the state; an embedding's are sparse.
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
    // The window is open: one of two micro-batches. Each rank has seen another word.
    micro_batch(1 + accelerator.process_index());
    accelerator.save_state(path_);
    micro_batch(3);
    // The weights after the window, for comparison with those after loading.
    const auto uncut = net->weight.detach().clone();
    accelerator.load_state(path_);
    EXPECT_TRUE(net->weight.grad().is_sparse());
    micro_batch(3);
    EXPECT_TRUE(torch::equal(net->weight, uncut));
  });
}

// A checkpoint is written to a temporary folder next to its own. With the slash, that folder could lie inside.
TEST_F(SaveStateTest, ATrailingSlashOfTheFolderMakesNoDifference) {
  run_ranks(2, [&] {
    Training training(ddp());
    for (int save = 0; save < 2; ++save) {
      training.train(1);
      EXPECT_EQ(training.accelerator.save_state(path_ + "/"), path_);
    }
    EXPECT_EQ(training.accelerator.load_state(path_ + "//"), path_);
  });
  PosixFiles files;
  // No temporary folder is left.
  EXPECT_THAT(files.list(folder_.path()), ElementsAre("state/"));
}

// The place in the data counts per group of ranks that share a batch, not per rank of the world, so it must survive
// a change of the mesh.
TEST_F(SaveStateTest, ALoaderContinuesOnAnotherMesh) {
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
    // Four ranks have read 8 samples. Now pairs of ranks share a batch, so there are four readers again.
    EXPECT_THAT(read(accelerator, 2, /*loads=*/true), ElementsAre(8 + rank, 12 + rank));
  });
}

// The place that torchdata stores cannot be used here. The loader starts its epoch again, as it does with a
// checkpoint of Python that has no such file.
TEST_F(SaveStateTest, PythonsStateOfAStatefulLoaderIsIgnored) {
  run_ranks(1, [&] {
    Training training(ddp());
    training.train(3);
    training.accelerator.save_state(path_);
    // As in a checkpoint of Python.
    std::filesystem::remove(path_ + "/" + checkpoint::kManifestName);
    PosixFiles files;
    write_torch_file(files, path_ + "/dl_state_dict.bin",
                     Value::Dict{{"_num_yielded", 3}, {"_iterator_finished", false}, {"dataset_state", Value()}});
    Training resumed(ddp(), /*seed=*/9);
    resumed.accelerator.load_state(path_, {.allow_missing_manifest = true});
    EXPECT_EQ(resumed.batches.iteration(), 0);
    EXPECT_EQ(resumed.model->parameters().front().equal(training.model->parameters().front()), true);
  });
}

// LibTorch's parameter groups have no place for these values, but Python's OneCycleLR looks for them there.
TEST_F(SaveStateTest, SavedGroupsOfAnyOptimizerHaveTheSchedulesEntries) {
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

// With a limit of 2, older checkpoints are deleted. A new process continues the numbers, and an existing name is
// never overwritten.
TEST_F(SaveStateTest, AutomaticNamesAreNumberedAndLimited) {
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
                HasSubstr("checkpoint_3 already exists; set save_iteration"));
  });
}

// A schedule that counts samples must count those of an open window once, before or after the load.
TEST_F(SaveStateTest, SamplesOfAnOpenWindowAreSaved) {
  run_ranks(2, [&] {
    const auto train = [&](int num_micro_batches, bool resumes) {
      Accelerator accelerator({.gradient_accumulation_steps = 2});
      torch::nn::Linear net(1, 1);
      torch::optim::SGD sgd(net->parameters(), 1.0);
      LambdaLR lambda(sgd, [](std::int64_t step) { return 1.0 / static_cast<double>(step + 1); });
      auto [model, optimizer, batches] =
          accelerator.prepare(net, sgd, DataLoader(TensorDataset(torch::ones({8, 1})), {.batch_size = 1}));
      auto scheduler = accelerator.prepare_scheduler(lambda, {.samples_per_step = 2});
      if (resumes) accelerator.load_state(path_);
      for (auto& [inputs] : batches) {
        auto window = accelerator.accumulate(model);
        accelerator.backward(model(inputs).sum());
        optimizer.step();
        scheduler.step();
        optimizer.zero_grad();
        if (--num_micro_batches == 0) break;
      }
      if (!resumes) accelerator.save_state(path_);
      return optimizer.lr();
    };
    EXPECT_EQ(train(1, /*resumes=*/false), 1.0);
    EXPECT_EQ(train(1, /*resumes=*/true), 1.0 / 3);  // 4 samples are 2 steps of the schedule
  });
}

// No file is written before training has changed everything, so the save must hold copies.
TEST_F(SaveStateTest, AnAsynchronousSaveHoldsTheStateAtTheTimeOfTheCall) {
  std::string saved;
  run_ranks(2, [&] {
    Training training(automatic(folder_.path("project")));
    training.train(2);
    // Reading the state draws random numbers, so the generator is restored.
    const auto generator = default_generator().get_state();
    auto state = training.state() + training.moments();
    default_generator().set_state(generator);
    if (training.accelerator.is_main_process()) saved = state;
    std::promise<void> has_trained;
    current_rank().files = std::make_shared<WatchedFiles>(
        [wait = has_trained.get_future().share()](const std::string& /*path*/) { wait.wait(); });
    training.accelerator.save_state("", {.async = true});
    training.train(2);
    has_trained.set_value();
    training.accelerator.save_state("", {.async = true});
    training.accelerator.end_training();
  });
  run_ranks(2, [&] {
    Training training(automatic(folder_.path("project")), 9);
    training.accelerator.load_state(folder_.path("project/checkpoints/checkpoint_0"));
    auto state = training.state() + training.moments();
    if (training.accelerator.is_main_process()) {
      EXPECT_EQ(state, saved);
    }
    EXPECT_EQ(training.accelerator.load_state(), folder_.path("project/checkpoints/checkpoint_1"));
  });
}

// A process that fails before its save is published leaves the complete files under a temporary name. The next process
// must find and use them.
TEST_F(SaveStateTest, AnAsynchronousSaveOfAProgramThatFailedIsFound) {
  const auto fails_after_saving = [&] {
    Training training(automatic(folder_.path("project")));
    training.accelerator.save_state();
    training.train(1);
    training.accelerator.save_state("", {.async = true});
    throw Error("the program fails");
  };
  EXPECT_THROW(run_ranks(2, fails_after_saving), Error);
  EXPECT_FALSE(std::filesystem::exists(folder_.path("project/checkpoints/checkpoint_1")));
  run_ranks(2, [&] {
    Training training(automatic(folder_.path("project")), 9);
    EXPECT_EQ(training.accelerator.load_state(), folder_.path("project/checkpoints/checkpoint_1"));
    EXPECT_EQ(training.accelerator.save_state(), folder_.path("project/checkpoints/checkpoint_2"));
  });
}

// Of one component, and below folders that do not exist.
TEST_F(SaveStateTest, RelativeFoldersWork) {
  const auto before = std::filesystem::current_path();
  std::filesystem::current_path(folder_.path());
  for (const auto* name : {"ckpt", "out/checkpoint_1", "a/b/c", "./d"}) {
    EXPECT_EQ(problem_on(2, [&] { Training(ddp()).accelerator.save_state(name); }), "") << name;
    EXPECT_EQ(problem_on(2, [&] { Training(ddp(), 9).accelerator.load_state(name); }), "") << name;
  }
  std::filesystem::current_path(before);
  EXPECT_THAT(PosixFiles().list(folder_.path()), ElementsAre("a/", "ckpt/", "d/", "out/"));
}

// As in a process, objects on the stack are not destroyed.
TEST_F(SaveStateTest, AnAsynchronousSaveIsPublishedWhenTheProgramExits) {
  static std::vector<std::unique_ptr<Training>> never_destroyed;
  run_ranks(1, [&] {
    auto& training = *never_destroyed.emplace_back(std::make_unique<Training>(ddp()));
    training.accelerator.save_state(path_, {.async = true});
    std::exit(0);
  });
  EXPECT_TRUE(checkpoint::read_manifest(path_).has_value());
}

// Without end_training, too.
TEST_F(SaveStateTest, AnAsynchronousSaveIsPublishedWhenTheProgramReturns) {
  run_ranks(2, [&] {
    Training training(ddp());
    training.accelerator.save_state(path_, {.async = true});
  });
  EXPECT_TRUE(checkpoint::read_manifest(path_).has_value());
  EXPECT_THAT(PosixFiles().list(folder_.path()), ElementsAre("state/"));
}

// Another Accelerator of the same program loads what the first one did not publish yet.
TEST_F(SaveStateTest, AnAsynchronousSaveOfAnEarlierAcceleratorIsLoaded) {
  run_ranks(2, [&] {
    { Training(ddp()).accelerator.save_state(path_, {.async = true}); }
    EXPECT_EQ(Training(ddp(), 9).accelerator.load_state(path_), path_);
  });
}

// Programs use hooks to save adapters only, or to add files.
TEST_F(SaveStateTest, HooksSeeAndMayChangeTheState) {
  run_ranks(2, [&] {
    Training training(ddp());
    auto hook = training.accelerator.register_save_state_pre_hook(
        [&](const auto& models, checkpoint::Weights& weights, const std::string& folder) {
          EXPECT_EQ(models.size(), 1U);
          weights.clear();
          if (training.accelerator.is_main_process()) std::ofstream(folder + "/mine.txt") << "text";
        });
    training.accelerator.save_state(path_);
    // After its removal the hook must have no effect.
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

// In several small files and in both formats, as for publishing a model.
TEST_F(SaveStateTest, WeightsAloneAreSavedAndLoaded) {
  for (const bool safe : {true, false}) {
    const auto weights = run_ranks(2, [&] {
                           Training training(sharded_as("FULL_STATE_DICT"));
                           training.accelerator.save_model(training.model, folder_.path(safe ? "safe" : "pickled"),
                                                           {.max_shard_size = "0.2KB", .safe_serialization = safe});
                           return training.accelerator.get_state_dict(training.model);
                         }).front();
    auto net = (torch::manual_seed(9), make_net());
    const torch::NoGradGuard no_grad;
    // So that a parameter that is not loaded is noticed.
    for (auto& parameter : net->parameters()) parameter.zero_();
    load_checkpoint_in_model(*net, folder_.path(safe ? "safe" : "pickled"), {.strict = true});
    const std::map<std::string, at::Tensor> by_name(weights.begin(), weights.end());
    for (const auto& item : net->named_parameters())
      EXPECT_TRUE(torch::equal(item.value(), by_name.at(item.key()))) << item.key();
    EXPECT_GT(PosixFiles().list(folder_.path(safe ? "safe" : "pickled")).size(), 2U);
  }
}

}  // namespace
}  // namespace accel::testing::saved_training
