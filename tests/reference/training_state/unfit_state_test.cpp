// Tests of checkpoints that cannot be loaded or saved: damaged files, another program, a disk that fails on one
// rank. Every rank must get the same error, and the state in memory or on disk must be as it was before.
#include <gmock/gmock.h>
#include <sys/fsuid.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <filesystem>
#include <fstream>

#include "reference/checkpoint/manifest.hpp"
#include "reference/checkpoint/torch_file.hpp"
#include "reference/files/lock_file.hpp"
#include "reference/optim/optimizers/fused_adam.hpp"
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
                           const auto handles = accelerator.prepare(net, adam);
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
                             training.accelerator.load_state(path_, {.allow_missing_manifest = true});
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

/// A disk on which files of one name cannot be written.
std::shared_ptr<Files> disk_without_space_for(const std::string& name) {
  return std::make_shared<WatchedFiles>([name](const std::string& path) {
    if (path.find(name) != std::string::npos) throw FileError(path, "written", ENOSPC);
  });
}

/// Makes the calling thread another user's to the file system, as if the rank ran on a machine without the permission.
class AsNobody {
 public:
  explicit AsNobody(bool is_meant) : is_meant_(is_meant) {
    if (is_meant_) setfsuid(65534);
  }
  ~AsNobody() {
    if (is_meant_) setfsuid(geteuid());
  }
  AsNobody(const AsNobody&) = delete;
  AsNobody& operator=(const AsNobody&) = delete;

 private:
  bool is_meant_;
};

// One rank may not open a file. All ranks get the error, so that a program which falls back to an older checkpoint does
// so on every rank.
TEST_F(SaveStateTest, AFileThatOneRankCannotOpenIsAnErrorOnEveryRank) {
  using std::filesystem::perms;
  std::filesystem::permissions(folder_.path(), perms::owner_all | perms::group_all | perms::others_all);
  for (const auto* name : {"state", "older"})
    run_ranks(2, [&] { Training(ddp()).accelerator.save_state(folder_.path(name)); });
  for (const auto* file : {"model.safetensors", "accel_manifest.json", "random_states_1.pkl", "optimizer.bin"}) {
    const auto path = path_ + "/" + file;
    const auto before = std::filesystem::status(path).permissions();
    std::filesystem::permissions(path, std::filesystem::perms::owner_read & before);
    if (geteuid() != 0) std::filesystem::permissions(path, std::filesystem::perms::none);
    for (const int rank : {0, 1}) {
      if (rank == 1 && std::string(file) == "accel_manifest.json") continue;  // which only rank 0 reads
      EXPECT_THAT(problem_on(2,
                             [&] {
                               Training training(ddp(), 9);
                               const AsNobody nobody(current_rank().rank == rank);
                               const auto weights = training.net->head->weight.detach().clone();
                               std::string problem;
                               try {
                                 training.accelerator.load_state(path_);
                               } catch (const CheckpointError& error) {
                                 problem = error.what();
                               }
                               EXPECT_TRUE(torch::equal(training.net->head->weight, weights));
                               training.accelerator.load_state(folder_.path("older"));
                               if (!problem.empty()) throw CheckpointError(problem);
                             }),
                  AllOf(HasSubstr(file), HasSubstr("Permission denied")))
          << file << " on rank " << rank;
    }
    std::filesystem::permissions(path, before);
  }
}

// Functions of the program fail as they like, on one rank alone.
TEST_F(SaveStateTest, AnErrorOfTheProgramOnOneRankIsAnErrorOnEveryRank) {
  struct Object {
    [[nodiscard]] Value state_dict() const {
      if (fails_in == "save") throw std::runtime_error("the object has no state");
      return Value::Dict{};
    }
    void load_state_dict(const Value& /*state*/) {
      // Not again when what was loaded is undone.
      if (std::exchange(fails_in, "") == "load" && current_rank().rank == 1)
        throw std::out_of_range("an entry is missing");
    }
    std::string fails_in;
  };
  const auto act = [&](const std::string& fails_in, bool loads) {
    return problem_on(2, [&] {
      Training training(ddp());
      Object object{fails_in};
      training.accelerator.register_for_checkpointing(object);
      loads ? training.accelerator.load_state(path_) : training.accelerator.save_state(path_);
    });
  };
  EXPECT_EQ(act("", /*loads=*/false), "");
  EXPECT_THAT(act("save", /*loads=*/false), HasSubstr("state: not saved: rank 0: the object has no state"));
  EXPECT_THAT(act("load", /*loads=*/true), HasSubstr("rank 1: an entry is missing"));
  EXPECT_EQ(act("", /*loads=*/true), "");
}

// Deleted, or left out by a copy. Nobody would notice a flipped bit.
TEST_F(SaveStateTest, AMissingManifestIsAnErrorUnlessItIsAllowed) {
  run_ranks(2, [&] { Training(ddp()).accelerator.save_state(path_); });
  std::filesystem::remove(path_ + "/" + checkpoint::kManifestName);
  EXPECT_THAT(problem_on(2, [&] { Training(ddp()).accelerator.load_state(path_); }),
              AllOf(HasSubstr("state: accel wrote this checkpoint, and its accel_manifest.json is missing"),
                    HasSubstr("allow_missing_manifest")));
  run_ranks(2, [&] {
    Training training(ddp(), 9);
    std::vector<std::string> warnings;
    current_rank().warn = [&](const std::string& text) { warnings.push_back(text); };
    EXPECT_EQ(training.accelerator.load_state(path_, {.allow_missing_manifest = true}), path_);
    EXPECT_EQ(warnings.size(), current_rank().rank == 0 ? 1U : 0U);
  });
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
              // Another model: names on both sides are listed, as far as there is room.
              AllOf(HasSubstr("'weight' is missing"), HasSubstr("'bias' is missing"),
                    HasSubstr("'blocks.0.inner.weight' is not in the model"), HasSubstr("and 15 more")));
  EXPECT_THAT(problem_on(2, [&] { Training(ddp()).accelerator.load_state(folder_.path("nowhere")); }),
              HasSubstr("nowhere: the folder does not exist"));
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

/// Leaves the folder of a complete asynchronous save unpublished, beside an older one.
void save_and_die(const std::string& path) {
  run_ranks(2, [&] { Training(ddp()).accelerator.save_state(path); });
  const auto dies = [&] {
    Training training(ddp());
    training.train(1);
    training.accelerator.save_state(path, {.async = true});
    throw Error("the program fails");
  };
  EXPECT_THROW(run_ranks(2, dies), Error);
}

// The disk is full, or mounted read-only: the older checkpoint is as good as before.
TEST_F(SaveStateTest, ARecoveryThatFailsLeavesTheOlderCheckpoint) {
  save_and_die(path_);
  const auto before = PosixFiles().read(path_ + "/optimizer.bin");
  run_ranks(2, [&] {
    current_rank().files = disk_without_space_for("accel_manifest.json");
    Training training(ddp(), 9);
    EXPECT_EQ(training.accelerator.load_state(path_), path_);
  });
  EXPECT_EQ(PosixFiles().read(path_ + "/optimizer.bin"), before);
  EXPECT_EQ(problem_on(2, [&] { Training(ddp()).accelerator.load_state(path_); }), "");
  EXPECT_NE(PosixFiles().read(path_ + "/optimizer.bin"), before) << "published by the second attempt";
}

// It must not take the place of an intact one.
TEST_F(SaveStateTest, ADamagedUnfinishedFolderIsNotPublished) {
  save_and_die(path_);
  const auto before = PosixFiles().read(path_ + "/optimizer.bin");
  std::ofstream(path_ + ".tmp/model.safetensors", std::ios::binary | std::ios::app) << "x";
  EXPECT_EQ(problem_on(2, [&] { Training(ddp()).accelerator.load_state(path_); }), "");
  EXPECT_EQ(PosixFiles().read(path_ + "/optimizer.bin"), before);
}

// Rank 0 alone writes notes, for example, and its disk is full.
TEST_F(SaveStateTest, AHookThatFailsOnOneRankIsAnErrorOnEveryRank) {
  EXPECT_THAT(problem_on(2,
                         [&] {
                           Training training(sharded_as("FULL_STATE_DICT"));
                           const auto hook = training.accelerator.register_save_state_pre_hook(
                               [](const auto&, checkpoint::Weights&, const std::string&) {
                                 if (current_rank().rank == 0) throw std::runtime_error("the hook fails");
                               });
                           training.accelerator.save_state(path_);
                         }),
              HasSubstr("state: not saved: rank 0: the hook fails"));
  EXPECT_THAT(PosixFiles().list(folder_.path()), ElementsAre());
}

// Nobody waits for the save, but its error is that of the program.
TEST_F(SaveStateTest, AFailedAsynchronousSaveFailsTheProgramThatReturns) {
  EXPECT_THAT(message_of<Error>([&] {
                run_ranks(2, [&] {
                  current_rank().files = disk_without_space_for("optimizer");
                  Training(ddp()).accelerator.save_state(path_, {.async = true});
                });
              }),
              AllOf(HasSubstr("state: not saved: rank 0: "), HasSubstr("No space left on device")));
}

/// Another process that saves to `folder`, or one that died while it did.
class OtherProcess {
 public:
  explicit OtherProcess(const std::string& lock) {
    int ends[2];
    if (pipe(ends) != 0) throw Error("pipe");
    pid_ = fork();
    if (pid_ == 0) {
      const auto own = LockFile::acquire(lock);
      static_cast<void>(write(ends[1], own ? "1" : "0", 1));
      for (;;) pause();
    }
    char is_locked = '0';
    EXPECT_EQ(read(ends[0], &is_locked, 1), 1);
    EXPECT_EQ(is_locked, '1');
    close(ends[0]);
    close(ends[1]);
  }
  ~OtherProcess() { die(); }
  OtherProcess(const OtherProcess&) = delete;
  OtherProcess& operator=(const OtherProcess&) = delete;

  [[nodiscard]] std::string name() const { return fmt::format("process {} on ", pid_); }
  void die() {
    if (const auto pid = std::exchange(pid_, -1); pid > 0) {
      kill(pid, SIGKILL);
      waitpid(pid, nullptr, 0);
    }
  }

 private:
  pid_t pid_ = -1;
};

// The second program would delete what the first one is writing.
TEST_F(SaveStateTest, ASecondProgramThatSavesToTheFolderGetsAnError) {
  const auto project = folder_.path("project");
  std::filesystem::create_directories(project);
  for (const bool is_automatic : {false, true}) {
    OtherProcess other(is_automatic ? project + "/checkpoints.lock" : path_ + ".lock");
    const auto options = is_automatic ? automatic(project) : ddp();
    const auto saves = [&] { Training(options).accelerator.save_state(is_automatic ? "" : path_); };
    EXPECT_THAT(problem_on(2, saves), AllOf(HasSubstr(other.name()), HasSubstr("is saving to")));
    other.die();
    EXPECT_EQ(problem_on(2, saves), "");
    EXPECT_FALSE(std::filesystem::exists(project + "/checkpoints.lock"));
  }
  EXPECT_THAT(PosixFiles().list(folder_.path()), ElementsAre("project/", "state/"));
}

// A program that only evaluates must not publish, or remove, what the training is writing.
TEST_F(SaveStateTest, LoadingChangesNothingWhileAnotherProgramSaves) {
  run_ranks(1, [&] { Training(ddp()).accelerator.save_state(path_); });
  std::filesystem::copy(path_, path_ + ".tmp");
  {
    const OtherProcess other(path_ + ".lock");
    run_ranks(1, [&] { Training(ddp()).accelerator.load_state(path_); });
    EXPECT_TRUE(std::filesystem::exists(path_ + ".tmp"));
  }
  run_ranks(1, [&] { Training(ddp()).accelerator.load_state(path_); });
  EXPECT_THAT(PosixFiles().list(folder_.path()), ElementsAre("state/"));
}

}  // namespace
}  // namespace accel::testing::saved_training
