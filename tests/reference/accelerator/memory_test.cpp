#include "reference/accelerator/memory.hpp"

#include <c10/util/Exception.h>
#include <gmock/gmock.h>

#include "reference/core/errors.hpp"
#include "tests/support/message_of.hpp"
#include "tests/support/torch.hpp"

namespace accel {
namespace {

using accel::testing::message_of;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(FindExecutableBatchSizeTest, SizesShrinkByATenthUntilOneFits) {
  std::vector<std::int64_t> tried;
  const auto found = find_executable_batch_size([&](std::int64_t batch_size) {
    tried.push_back(batch_size);
    if (batch_size > 70) throw std::bad_alloc();
    return batch_size * 2;
  });
  EXPECT_THAT(tried, ElementsAre(128, 115, 103, 92, 82, 73, 65));  // as Python's int(n * 0.9)
  EXPECT_EQ(found, 130);
}

TEST(FindExecutableBatchSizeTest, TheNextSizeMayBeTheUsers) {
  std::vector<std::int64_t> tried;
  find_executable_batch_size(
      [&](std::int64_t batch_size) {
        tried.push_back(batch_size);
        if (batch_size > 3) throw c10::OutOfMemoryError({__func__, __FILE__, __LINE__}, "CUDA out of memory. Tried to allocate 1 TiB");
      },
      {.starting_batch_size = 20, .reduce_batch_size = [](std::int64_t batch_size) { return batch_size / 2; }});
  EXPECT_THAT(tried, ElementsAre(20, 10, 5, 2));
}

TEST(FindExecutableBatchSizeTest, MemoryThatTheCpuRefusesIsShortMemory) {
  std::vector<std::int64_t> tried;
  find_executable_batch_size(
      [&](std::int64_t batch_size) {
        tried.push_back(batch_size);
        torch::empty({batch_size - 1, std::int64_t{1} << 55});  // more than there is, unless no row is asked for
      },
      {.starting_batch_size = 4, .reduce_batch_size = [&](std::int64_t) { return std::int64_t{1}; }});
  EXPECT_THAT(tried, ElementsAre(4, 1));
}

TEST(FindExecutableBatchSizeTest, AnotherErrorIsTheFunctionsOwn) {
  EXPECT_THAT(message_of<std::runtime_error>([] { find_executable_batch_size([](std::int64_t) { throw std::runtime_error("a wrong shape"); }); }), HasSubstr("a wrong shape"));
}

TEST(FindExecutableBatchSizeTest, NoSizeThatFitsIsAnError) {
  const auto never = [](std::int64_t) { throw std::bad_alloc(); };
  EXPECT_EQ(message_of<Error>([&] { find_executable_batch_size(never, {.starting_batch_size = 16}); }), "No executable batch size found, reached zero.");
  EXPECT_EQ(message_of<Error>([&] { find_executable_batch_size(never, {.starting_batch_size = 0}); }), "No executable batch size found, reached zero.");
  EXPECT_THROW(find_executable_batch_size(never, {.reduce_batch_size = [](std::int64_t batch_size) { return batch_size; }}), ArgumentError);
}

TEST(ReleaseMemoryTest, ObjectsAreEmptyBehindIt) {
  auto tensor = at::ones({3});
  auto module = std::make_shared<torch::nn::LinearImpl>(2, 2);
  const std::weak_ptr<torch::nn::LinearImpl> watched = module;
  release_memory(tensor, module);
  EXPECT_FALSE(tensor.defined());
  EXPECT_TRUE(watched.expired());
}

}  // namespace
}  // namespace accel
