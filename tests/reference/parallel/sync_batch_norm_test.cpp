// Tests of batch norm over the batches of all ranks. The reference is LibTorch's batch norm on one batch that holds
// the rows of all ranks: outputs, gradients and running statistics must agree up to rounding.
#include "reference/parallel/sync_batch_norm.hpp"

#include <gmock/gmock.h>

#include "reference/core/errors.hpp"
#include "reference/state/rank_context.hpp"
#include "tests/support/run_ranks.hpp"
#include "tests/support/torch.hpp"

namespace accel::testing {
namespace {

namespace nn = torch::nn;
using ::testing::HasSubstr;

struct Result {
  at::Tensor output, input_gradient, weight_gradient, bias_gradient, running_mean, running_var;
};

// Runs two training steps and returns the values of the second.
template <typename Norm>
Result train(Norm norm, at::Tensor input, const at::Tensor& factor) {
  at::Tensor output;
  for (int step = 0; step < 2; ++step) {
    norm->zero_grad();
    input = input.detach().clone().requires_grad_();
    output = norm(input);
    (output * output * factor).sum().backward();
  }
  const auto gradient = [](const at::Tensor& parameter) {
    return parameter.defined() ? parameter.grad() : at::Tensor();
  };
  return {output.detach(),      input.grad(),       gradient(norm->weight),
          gradient(norm->bias), norm->running_mean, norm->running_var};
}

template <typename Norm>
void fill(Norm& norm) {
  const torch::NoGradGuard no_grad;
  norm->to(at::kDouble);
  if (norm->weight.defined()) norm->weight.copy_(at::linspace(0.5, 2, norm->weight.numel()));
  if (norm->bias.defined()) norm->bias.copy_(at::linspace(-1, 1, norm->bias.numel()));
}

// The number of rows of each rank, and the shape after the channel dimension.
struct Case {
  std::vector<std::int64_t> rows;
  std::vector<std::int64_t> shape = {};
  SyncBatchNormOptions options = SyncBatchNormOptions(3);
};

void expect_close(const at::Tensor& left, const at::Tensor& right, const char* what) {
  ASSERT_EQ(left.defined(), right.defined()) << what;
  if (left.defined()) {
    EXPECT_TRUE(at::allclose(left, right, 1e-12, 1e-12)) << what << "\n" << left << "\n" << right;
  }
}

// Trains on ranks and on one batch of all rows, and compares everything.
void expect_one_batch(Backend backend, const Case& example) {
  torch::manual_seed(5);
  std::vector<at::Tensor> inputs, factors;
  for (const auto rows : example.rows) {
    std::vector<std::int64_t> sizes{rows, 3};
    sizes.insert(sizes.end(), example.shape.begin(), example.shape.end());
    inputs.push_back(at::randn(sizes, at::kDouble) + 3);
    factors.push_back(at::randn(sizes, at::kDouble));
  }
  const auto num_ranks = static_cast<int>(example.rows.size());
  const auto results = collect_ranks(backend, num_ranks, [&](RankContext& rank) {
    SyncBatchNorm norm(example.options, rank.world);
    fill(norm);
    return train(norm, inputs[rank.rank], factors[rank.rank]);
  });
  nn::BatchNorm2d whole(example.options);
  fill(whole);
  // A batch norm for images takes any shape if it is viewed as (rows, channels, values, 1).
  const auto together = [](const std::vector<at::Tensor>& parts) {
    return at::cat(parts).flatten(2).reshape({at::cat(parts).size(0), 3, -1, 1});
  };
  const auto expected = train(whole, together(inputs), together(factors));

  std::vector<at::Tensor> outputs, gradients;
  at::Tensor weight_gradient, bias_gradient;
  for (const auto& result : results) {
    outputs.push_back(result.output);
    gradients.push_back(result.input_gradient);
    if (result.weight_gradient.defined())
      weight_gradient = weight_gradient.defined() ? weight_gradient + result.weight_gradient : result.weight_gradient;
    if (result.bias_gradient.defined())
      bias_gradient = bias_gradient.defined() ? bias_gradient + result.bias_gradient : result.bias_gradient;
    expect_close(result.running_mean, expected.running_mean, "running mean");
    expect_close(result.running_var, expected.running_var, "running variance");
    if (result.running_mean.defined()) {
      EXPECT_TRUE(result.running_mean.equal(results[0].running_mean)) << "ranks must stay equal to the bit";
    }
  }
  expect_close(together(outputs), expected.output, "output");
  expect_close(together(gradients), expected.input_gradient, "gradient of the input");
  expect_close(weight_gradient, expected.weight_gradient, "gradient of the weight");
  expect_close(bias_gradient, expected.bias_gradient, "gradient of the bias");
}

class SyncBatchNormTest : public ::testing::TestWithParam<Backend> {};
INSTANTIATE_TEST_SUITE_P(Backends, SyncBatchNormTest, ::testing::Values(Backend::kSim, Backend::kGlooThreads),
                         [](const auto& info) { return name_of(info.param); });

// Unequal numbers of rows show whether the mean is weighted by the rows; two ranks with one row each could not be
// normalised alone.
TEST_P(SyncBatchNormTest, BatchesOfAllRanksCountAsOne) {
  expect_one_batch(GetParam(), {.rows = {4, 4}, .shape = {1}});
  expect_one_batch(GetParam(), {.rows = {2, 5, 1}, .shape = {3, 2}});
  expect_one_batch(GetParam(), {.rows = {1, 1}, .shape = {1}});
  expect_one_batch(GetParam(), {.rows = {3, 2}, .shape = {2, 2, 2}});
}

// A rank may have an empty batch. It must take part in the collectives, or the others would wait forever.
TEST_P(SyncBatchNormTest, ARankWithoutRowsTakesPart) {
  expect_one_batch(GetParam(), {.rows = {3, 0, 2}, .shape = {2}});
}

// A momentum of nullopt means a cumulative average.
TEST_P(SyncBatchNormTest, OptionsMeanTheSameAsInBatchNorm) {
  expect_one_batch(GetParam(),
                   {.rows = {2, 3}, .shape = {2}, .options = SyncBatchNormOptions(3).eps(0.3).momentum(0.7)});
  expect_one_batch(GetParam(),
                   {.rows = {2, 3}, .shape = {2}, .options = SyncBatchNormOptions(3).momentum(std::nullopt)});
  expect_one_batch(GetParam(), {.rows = {2, 3}, .shape = {2}, .options = SyncBatchNormOptions(3).affine(false)});
  expect_one_batch(GetParam(),
                   {.rows = {2, 3}, .shape = {2}, .options = SyncBatchNormOptions(3).track_running_stats(false)});
}

// One value has no variance. The ranks only learn the total by communicating, and must all throw afterwards.
TEST_P(SyncBatchNormTest, OneValueOverAllRanksIsAnErrorOnEveryRank) {
  run_ranks(GetParam(), 2, [](RankContext& rank) {
    SyncBatchNorm norm(2);
    EXPECT_THROW(norm(at::ones({rank.rank, 2})), ArgumentError);
    EXPECT_THROW(norm(at::ones({4, 3})), ArgumentError) << "three channels";
    EXPECT_THROW(norm(at::ones({4})), ArgumentError);
  });
}

// In evaluation mode only the stored statistics are used. Rank 0 leaves, so a collective would never end.
TEST_P(SyncBatchNormTest, EvaluationIsLocalAndEqualsBatchNorm) {
  run_ranks(GetParam(), 2, [](RankContext& rank) {
    SyncBatchNorm norm(2);
    nn::BatchNorm1d plain(2);
    norm->eval();
    plain->eval();
    if (rank.rank == 0) return;  // no rank waits for it
    const auto input = at::randn({3, 2});
    EXPECT_TRUE(norm(input).equal(plain(input)));
    SyncBatchNorm untracked(SyncBatchNormOptions(2).track_running_stats(false));
    nn::BatchNorm1d plain_untracked(nn::BatchNormOptions(2).track_running_stats(false));
    untracked->eval();
    plain_untracked->eval();
    EXPECT_TRUE(untracked(input).equal(plain_untracked(input))) << "without running statistics they are the batch's";
  });
}

TEST_P(SyncBatchNormTest, StatisticsAreComputedWithinTheGroup) {
  run_ranks(GetParam(), 4, [](RankContext& rank) {
    const auto even = rank.new_group({0, 2}), odd = rank.new_group({1, 3});
    const auto& group = rank.rank % 2 == 0 ? even : odd;
    nn::Sequential converted(nn::BatchNorm1d(nn::BatchNormOptions(1).affine(false)));
    convert_sync_batchnorm(*converted, group);
    const auto input = at::full({2, 1}, static_cast<double>(rank.rank), at::kFloat);
    const float expected = rank.rank < 2 ? -1 : 1;
    EXPECT_NEAR(SyncBatchNorm(SyncBatchNormOptions(1), group)(input)[0][0].item<float>(), expected, 1e-4)
        << "0 and 2, or 1 and 3";
    EXPECT_NEAR(converted->forward(input)[0][0].item<float>(), expected, 1e-4);
  });
}

// Statistics in bfloat16 would lose nearly all digits over many rows.
TEST(SyncBatchNormHalvesTest, StatisticsOf16BitInputsAreFloats) {
  run_ranks(Backend::kSim, 2, [](RankContext&) {
    SyncBatchNorm norm(1);
    norm->to(at::kBFloat16);
    const auto output = norm(at::arange(0, 2048).to(at::kBFloat16).unsqueeze(1));
    EXPECT_EQ(output.scalar_type(), at::kBFloat16);
    EXPECT_NEAR(output.to(at::kDouble).square().mean().item<double>(), 1, 1e-2);
    // The mean, 257, cannot be represented in bfloat16.
    const auto far = norm(at::tensor({256.0, 258.0}).to(at::kBFloat16).unsqueeze(1));
    EXPECT_NEAR(far[0][0].item<double>(), -1, 1e-2);
    EXPECT_NEAR(far[1][0].item<double>(), 1, 1e-2);
  });
}

// Both backends have to sum in the same order, or a simulated run could not stand for a real one.
TEST(SyncBatchNormBackendsTest, SimulatedRanksAndGlooGiveTheSameBits) {
  const auto run = [](Backend backend) {
    return collect_ranks(backend, 3, [](RankContext& rank) {
      torch::manual_seed(rank.rank);
      SyncBatchNorm norm(4);
      const auto result = train(norm, at::randn({rank.rank + 2, 4, 3}), at::randn({rank.rank + 2, 4, 3}));
      return std::vector{result.output, result.input_gradient, result.weight_gradient, result.running_var};
    });
  };
  const auto sim = run(Backend::kSim), gloo = run(Backend::kGlooThreads);
  for (std::size_t rank = 0; rank < sim.size(); ++rank) {
    for (std::size_t item = 0; item < sim[rank].size(); ++item)
      EXPECT_TRUE(sim[rank][item].equal(gloo[rank][item])) << "rank " << rank << ", item " << item;
  }
}

// An existing model is converted in place of its layers: parameters, buffers and mode must stay the same objects,
// as an optimizer may already refer to them.
TEST(ConvertSyncBatchNormTest, SequentialsAreConvertedWithTheirTensors) {
  nn::Sequential net(nn::Linear(2, 3), nn::BatchNorm1d(nn::BatchNormOptions(3).eps(0.1)), nn::Linear(3, 1));
  const auto parameters = net->parameters();
  const auto running_mean = net->named_buffers()["1.running_mean"];
  net->eval();
  convert_sync_batchnorm(*net);
  const auto norm = std::dynamic_pointer_cast<SyncBatchNormImpl>(net->ptr(1));
  ASSERT_NE(norm, nullptr);
  EXPECT_EQ(norm->options.eps(), 0.1);
  EXPECT_FALSE(norm->is_training());
  const auto converted = net->parameters();
  ASSERT_EQ(converted.size(), parameters.size());
  for (std::size_t place = 0; place < parameters.size(); ++place)
    EXPECT_TRUE(converted[place].is_same(parameters[place])) << "optimizers hold the old ones";
  EXPECT_TRUE(norm->running_mean.is_alias_of(running_mean));
  run_ranks(Backend::kSim, 2, [&](RankContext& rank) {
    nn::Sequential of_rank(nn::BatchNorm1d(nn::BatchNormOptions(1).affine(false)));
    convert_sync_batchnorm(*of_rank);
    const auto output = of_rank->forward(at::full({2, 1}, static_cast<double>(rank.rank), at::kDouble).to(at::kFloat));
    EXPECT_NEAR(output[0][0].item<double>(), rank.rank == 0 ? -1 : 1, 1e-4) << "alone it would be 0";
  });
}

struct OwnMemberImpl : nn::Module {
  OwnMemberImpl()
      : body(register_module("body", nn::Sequential(nn::BatchNorm1d(2)))),
        norm(register_module("norm", nn::BatchNorm2d(2))) {}
  nn::Sequential body;
  nn::BatchNorm2d norm;
};

// A module that keeps its batch norm in a C++ data member would still call the old one. This cannot be changed from
// outside, so it must be an error instead of a conversion without effect.
TEST(ConvertSyncBatchNormTest, ANormInADataMemberIsAnErrorThatChangesNothing) {
  const auto net = std::make_shared<OwnMemberImpl>();
  try {
    convert_sync_batchnorm(*net);
    ADD_FAILURE();
  } catch (const ArgumentError& error) {
    EXPECT_THAT(error.what(), HasSubstr("norm of"));
    EXPECT_THAT(error.what(), HasSubstr("declare these as accel::SyncBatchNorm"));
  }
  EXPECT_NE(std::dynamic_pointer_cast<nn::BatchNorm1dImpl>(net->body->ptr(0)), nullptr);
  EXPECT_THROW(convert_sync_batchnorm(*nn::BatchNorm1d(2)), ArgumentError);
}

}  // namespace
}  // namespace accel::testing
