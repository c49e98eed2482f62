// Tests of checkpoints that cannot be loaded or saved: damaged files, another program, a disk that fails on one
// rank. Every rank must get the same error, and the state in memory or on disk must be as it was before.
#include <gmock/gmock.h>

#include <cerrno>
#include <filesystem>
#include <fstream>

#include "reference/checkpoint/manifest.hpp"
#include "reference/optim/optimizers/optimizer_state.hpp"
#include "tests/reference/training_state/saved_training.hpp"

namespace accel::testing::saved_training {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

// The program now trains fewer parameters. Dropping their moments silently would hide a mistake in the program.
TEST_F(SaveStateTest, AStateForUnknownParametersIsAnError) {
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
                    HasSubstr("which are not parameters of the prepared optimizer")));
}

// Each rank reads other files. A problem that only one of them sees has to become an error on all.
TEST_F(SaveStateTest, ADamagedCheckpointIsAnErrorOnEveryRankAndNothingIsLoaded) {
  run_ranks(2, [&] { Training(ddp()).accelerator.save_state(path_); });
  std::ofstream(path_ + "/optimizer.bin", std::ios::binary | std::ios::app) << "x";
  // A changed file, which both ranks read, and a missing one, which only rank 1 needs.
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

// What only one rank finds becomes an error on every rank, and everything is restored to the state before the call.
TEST_F(SaveStateTest, AnErrorOnOneRankRestoresAllRanks) {
  run_ranks(2, [&] {
    Training training(ddp());
    training.train(3);
    training.accelerator.save_state(path_);
  });
  std::filesystem::remove(path_ + "/" + checkpoint::kManifestName);
  write_torch_file(*std::make_unique<PosixFiles>(), path_ + "/random_states_1.pkl",
                   // A state of three bytes, which no generator accepts. Only rank 1 reads this file.
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

// The number of models, optimizers and registered objects may all have changed.
TEST_F(SaveStateTest, AnotherProgramGetsOneErrorWithAllDifferences) {
  run_ranks(1, [&] {
    Training training(ddp());
    Counter counter;
    training.accelerator.register_for_checkpointing(counter);
    training.accelerator.save_state(path_);
  });
  EXPECT_THAT(problem_on(1, [&] { Training(ddp()).accelerator.load_state(path_); }),
              HasSubstr("1 custom checkpoints, but 0 objects are registered"));
  EXPECT_THAT(problem_on(2,
                         [&] {
                           Accelerator accelerator;
                           torch::nn::Linear other(3, 2);
                           auto model = accelerator.prepare(other);
                           accelerator.load_state(path_);
                         }),
              // Another model: names on both sides are listed.
              AllOf(HasSubstr("'weight' is missing"), HasSubstr("'bias' is missing"),
                    HasSubstr("'head.weight' is not in the model")));
  EXPECT_THAT(problem_on(2, [&] { Training(ddp()).accelerator.load_state(folder_.path("nowhere")); }),
              HasSubstr("nowhere: the folder does not exist"));
}

/// A disk on which files of one name cannot be written.
std::shared_ptr<Files> disk_without_space_for(const std::string& name) {
  return std::make_shared<WatchedFiles>([name](const std::string& path) {
    if (path.find(name) != std::string::npos) throw FileError(path, "written", ENOSPC);
  });
}

// Synchronous and asynchronous saves. The manifest must be unchanged, byte for byte.
TEST_F(SaveStateTest, AFailedWriteOnOneRankKeepsTheOldCheckpoint) {
  run_ranks(3, [&] { Training(ddp()).accelerator.save_state(path_); });
  const auto before = PosixFiles().read(path_ + "/" + checkpoint::kManifestName);
  for (const bool async : {false, true}) {
    EXPECT_THAT(problem_on(3,
                           [&] {
                             if (current_rank().rank == 2)
                               current_rank().files = disk_without_space_for("random_states_2");
                             Training training(ddp(), 9);
                             training.train(1);
                             training.accelerator.save_state(path_, {.async = async});
                             training.accelerator.finish_saving();
                           }),
                AllOf(HasSubstr("state: not saved: rank 2: "), HasSubstr("No space left on device")));
    EXPECT_EQ(PosixFiles().read(path_ + "/" + checkpoint::kManifestName), before);
    // The incomplete new checkpoint is removed.
    EXPECT_THAT(PosixFiles().list(folder_.path()), ElementsAre("state/"));
  }
}

}  // namespace
}  // namespace accel::testing::saved_training
