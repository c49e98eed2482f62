// find_executable_batch_size and release_memory (accelerate/utils/memory.py). Memory errors are simulated by
// exceptions, or by allocations that no machine can satisfy.
#include "reference/accelerator/memory.hpp"

#include <c10/util/Exception.h>
#include <gmock/gmock.h>

#include "reference/accelerator/accelerator.hpp"
#include "reference/core/errors.hpp"
#include "reference/optim/schedules/decay_schedules.hpp"
#include "tests/support/message_of.hpp"
#include "tests/support/temporary_folder.hpp"
#include "tests/support/torch.hpp"

namespace accel {
namespace {

using accel::testing::message_of;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

// The rule is Accelerate's: 90 % of the last size, rounded down.
TEST(FindExecutableBatchSizeTest, SizesShrinkByATenthUntilOneSucceeds) {
  std::vector<std::int64_t> tried;
  const auto found = find_executable_batch_size([&](std::int64_t batch_size) {
    tried.push_back(batch_size);
    if (batch_size > 70) throw std::bad_alloc();
    return batch_size * 2;
  });
  EXPECT_THAT(tried, ElementsAre(128, 115, 103, 92, 82, 73, 65));  // truncated like int(n * 0.9) in Python
  EXPECT_EQ(found, 130);
}

// The user's function replaces the rule, for example to halve the size.
TEST(FindExecutableBatchSizeTest, TheNextSizeMayBeChosenByTheUser) {
  std::vector<std::int64_t> tried;
  find_executable_batch_size(
      [&](std::int64_t batch_size) {
        tried.push_back(batch_size);
        if (batch_size > 3)
          throw c10::OutOfMemoryError({__func__, __FILE__, __LINE__}, "CUDA out of memory. Tried to allocate 1 TiB");
      },
      {.starting_batch_size = 20, .reduce_batch_size = [](std::int64_t batch_size) { return batch_size / 2; }});
  EXPECT_THAT(tried, ElementsAre(20, 10, 5, 2));
}

// CPUs report it with another exception than GPUs, whose text has to be recognised.
TEST(FindExecutableBatchSizeTest, ARefusedCpuAllocationCountsAsOutOfMemory) {
  std::vector<std::int64_t> tried;
  find_executable_batch_size(
      [&](std::int64_t batch_size) {
        tried.push_back(batch_size);
        torch::empty({batch_size - 1, std::int64_t{1} << 55});  // more than there is, unless no row is asked for
      },
      {.starting_batch_size = 4, .reduce_batch_size = [&](std::int64_t) { return std::int64_t{1}; }});
  EXPECT_THAT(tried, ElementsAre(4, 1));
}

// Retrying on every exception would hide bugs behind smaller and smaller batches.
TEST(FindExecutableBatchSizeTest, OtherErrorsPassThrough) {
  EXPECT_THAT(message_of<std::runtime_error>(
                  [] { find_executable_batch_size([](std::int64_t) { throw std::runtime_error("a wrong shape"); }); }),
              HasSubstr("a wrong shape"));
}

// Even a batch of one sample does not fit: the loop must end instead of trying a batch of zero.
TEST(FindExecutableBatchSizeTest, NoSizeThatFitsIsAnError) {
  const auto never = [](std::int64_t) { throw std::bad_alloc(); };
  // The first sentence is Python's, because users search for it.
  EXPECT_THAT(message_of<Error>([&] { find_executable_batch_size(never, {.starting_batch_size = 16}); }),
              HasSubstr("No executable batch size found, reached zero. The last batch size was 1; expected"));
  EXPECT_THAT(message_of<Error>([&] { find_executable_batch_size(never, {.starting_batch_size = 0}); }),
              HasSubstr("No executable batch size found, reached zero. The last batch size was 0; expected"));
  EXPECT_THROW(
      find_executable_batch_size(never, {.reduce_batch_size = [](std::int64_t batch_size) { return batch_size; }}),
      ArgumentError);
}

// The weak pointer shows that no copy is left that would keep the memory.
TEST(ReleaseMemoryTest, ObjectsAreEmptyAfterwards) {
  auto tensor = at::ones({3});
  auto module = std::make_shared<torch::nn::LinearImpl>(2, 2);
  const std::weak_ptr<torch::nn::LinearImpl> watched = module;
  release_memory(tensor, module);
  EXPECT_FALSE(tensor.defined());
  EXPECT_TRUE(watched.expired());
}

// A user's object whose state is saved and loaded.
struct Counted {
  std::int64_t count = 3;
  [[nodiscard]] Value state_dict() const { return count; }
  void load_state_dict(const Value& state) { count = state.as<std::int64_t>(); }
};

// As in Accelerate, objects that were not prepared are kept.
TEST(ReleaseMemoryTest, TheLossScaleAndRegisteredObjectsStay) {
  const auto rank = make_single_rank();
  const testing::TemporaryFolder folder;
  Accelerator accelerator({.mixed_precision = "fp16"}, *rank);
  Counted counted;
  accelerator.register_for_checkpointing(counted);
  accelerator.scaler()->scale(at::ones({}));
  accelerator.scaler()->update(/*new_scale=*/128.0);
  accelerator.free_memory();
  EXPECT_EQ(accelerator.scaler()->get_scale(), 128.0);
  accelerator.save_state(folder.path("saved"));
  counted.count = 4;
  accelerator.load_state(folder.path("saved"));
  EXPECT_EQ(counted.count, 3);
}

// The accelerator holds references too. If it kept them, releasing the handles would free no memory.
TEST(ReleaseMemoryTest, ObjectsOfPrepareAreEmptyAfterwards) {
  const auto rank = make_single_rank();
  Accelerator accelerator({}, *rank);
  torch::nn::Linear net(2, 2);
  const std::weak_ptr<torch::nn::LinearImpl> watched = net.ptr();
  auto sgd = std::make_unique<torch::optim::SGD>(net->parameters(), 0.1);
  auto step_lr = std::make_unique<StepLR>(*sgd, 1);
  auto plain_loader = std::make_unique<DataLoader<TensorDataset<at::Tensor>>>(TensorDataset(at::ones({4, 2})));
  auto [model, optimizer, scheduler, loader] = accelerator.prepare(net, *sgd, *step_lr, *plain_loader);
  const std::weak_ptr<detail::Loader> watched_loader = loader.loader();
  accelerator.free_memory(net, model, optimizer, scheduler, loader, sgd, step_lr, plain_loader);
  EXPECT_TRUE(net.is_empty());
  EXPECT_TRUE(watched.expired());
  EXPECT_TRUE(watched_loader.expired());
  EXPECT_EQ(sgd, nullptr);
}

}  // namespace
}  // namespace accel
