#include "reference/context_parallel/context_parallel_scope.hpp"

#include <gmock/gmock.h>

#include "reference/context_parallel/shard_sequence.hpp"
#include "reference/core/errors.hpp"
#include "tests/support/message_of.hpp"
#include "tests/support/run_ranks.hpp"
#include "tests/support/torch.hpp"

namespace accel::testing {
namespace {

using namespace accel::parallel;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(ContextParallelScopeTest, BuffersAreDividedInsideAndRestoredAfterwards) {
  run_ranks(Backend::kSim, 4, [](RankContext& rank) {
    const DeviceMesh mesh(rank, {.dp_replicate_size = 2, .cp_size = 2});
    const int part = rank.rank % 2;
    const auto tokens = at::arange(16).view({2, 8}), table = at::arange(24).view({8, 3}), kept = tokens + 100;
    const auto handle = tokens;
    const auto expected = tokens.clone(), expected_table = table.clone(), expected_kept = kept.clone();
    const auto* memory = tokens.data_ptr();
    {
      const auto scope = maybe_context_parallel(
          mesh, {.buffers = {tokens, table, kept}, .buffer_seq_dims = {1, 0, -1}, .no_restore_buffers = {kept}});
      const auto positions = part == 0 ? at::tensor({0, 1, 6, 7}, at::kLong) : at::tensor({2, 3, 4, 5}, at::kLong);
      EXPECT_TRUE(at::equal(scope.position_ids(), positions));
      EXPECT_TRUE(at::equal(handle, expected.index_select(1, positions)));
      EXPECT_TRUE(at::equal(table, expected_table.index_select(0, positions)));
      EXPECT_EQ(scope.plan().length(), 8);
      tokens.fill_(-1);
    }
    EXPECT_TRUE(at::equal(handle, expected));
    EXPECT_EQ(tokens.data_ptr(), memory);
    EXPECT_TRUE(at::equal(table, expected_table));
    EXPECT_TRUE(at::equal(
        kept, shard_sequence(expected_kept, 1,
                             SequencePlan({.length = 8, .num_ranks = 2, .order = SequenceOrder::kZigzag}), part)));
  });
}

TEST(ContextParallelScopeTest, AMeshWithoutContextParallelismWarnsOnceAndChangesNothing) {
  run_ranks(Backend::kSim, 2, [](RankContext& rank) {
    std::vector<std::string> warnings;
    rank.warn = [&](const std::string& text) { warnings.push_back(text); };
    const DeviceMesh mesh(rank, {.dp_replicate_size = 2});
    const auto tokens = at::arange(7);
    for (int step = 0; step < 2; ++step) {
      const auto scope = maybe_context_parallel(mesh, {.buffers = {tokens}, .buffer_seq_dims = {0}});
      EXPECT_TRUE(at::equal(tokens, at::arange(7)));
      EXPECT_TRUE(at::equal(scope.position_ids(), at::arange(7)));
    }
    EXPECT_EQ(warnings.size(), rank.rank == 0 ? 1U : 0U);
    if (rank.rank == 0) EXPECT_THAT(warnings, ElementsAre(HasSubstr("set parallelism_config.cp_size to more than 1")));
  });
}

TEST(ContextParallelScopeTest, WrongArgumentsAreErrorsThatLeaveTheBuffersComplete) {
  run_ranks(Backend::kSim, 2, [](RankContext& rank) {
    const DeviceMesh mesh(rank, {.cp_size = 2});
    const auto tokens = at::arange(8);
    const auto message = [&](const ContextParallelOptions& options) {
      const auto text = message_of<ArgumentError>([&] { (void)maybe_context_parallel(mesh, options); });
      EXPECT_TRUE(at::equal(tokens, at::arange(8)));
      return text;
    };
    EXPECT_THAT(message({}), HasSubstr("0 buffers and 0 buffer_seq_dims"));
    EXPECT_THAT(message({.buffers = {tokens}, .buffer_seq_dims = {}}), HasSubstr("1 buffers and 0 buffer_seq_dims"));
    EXPECT_THAT(message({.buffers = {tokens, at::ones({4})}, .buffer_seq_dims = {0, 0}}),
                HasSubstr("dimension 0 of buffer 1 has 4 elements, and the sequence of buffer 0 has 8"));
    EXPECT_THAT(message({.buffers = {at::ones({6})}, .buffer_seq_dims = {0}}), HasSubstr("expected a multiple of 4"));
    EXPECT_THAT(message({.buffers = {tokens, tokens}, .buffer_seq_dims = {0, 0}}), HasSubstr("passed twice"));
    EXPECT_THAT(message({.buffers = {at::ones({8}).requires_grad_()}, .buffer_seq_dims = {0}}),
                HasSubstr("buffer 0 requires gradients"));
    EXPECT_THAT(message({.buffers = {tokens}, .buffer_seq_dims = {0}, .no_restore_buffers = {tokens.clone()}}),
                HasSubstr("no_restore_buffers has a tensor of shape [8]"));
  });
}

}  // namespace
}  // namespace accel::testing
