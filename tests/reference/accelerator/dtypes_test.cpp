// Tensors of dtypes that neither Gloo nor NCCL knows: buffers of models, and the Accelerator's operations.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <accel/accel.hpp>
#include <map>
#include <string>
#include <vector>

#include "tests/support/message_of.hpp"
#include "tests/support/run_ranks.hpp"
#include "tests/support/torch.hpp"

namespace accel::testing::dtypes_test {
namespace {

namespace nn = torch::nn;
using ::testing::AllOf;
using ::testing::HasSubstr;

const std::vector<at::ScalarType> kDtypes{at::kShort,       at::kUInt16,       at::kUInt32,
                                          at::kUInt64,      at::kComplexFloat, at::kComplexDouble,
                                          at::kFloat8_e5m2, at::kBool,         at::kFloat8_e4m3fn};

at::Tensor values_of(int rank, at::ScalarType dtype) { return (torch::arange(6).view({2, 3}) % 2 + rank).to(dtype); }

bool have_equal_bytes(const at::Tensor& one, const at::Tensor& other) {
  return one.scalar_type() == other.scalar_type() && one.sizes() == other.sizes() &&
         one.contiguous().view(at::kByte).equal(other.contiguous().view(at::kByte));
}

struct NetImpl : nn::Module {
  explicit NetImpl(int rank) : linear(register_module("linear", nn::Linear(3, 1))) {
    for (const auto dtype : kDtypes)
      buffers.push_back(register_buffer("of_" + std::string(c10::toString(dtype)), values_of(rank, dtype)));
  }
  at::Tensor forward(const at::Tensor& x) { return linear(x); }
  nn::Linear linear;
  std::vector<at::Tensor> buffers;
};
TORCH_MODULE(Net);

// As in Python, every rank gets the main process's values.
TEST(DtypesTest, BuffersOfEveryDtypeAreSynchronized) {
  const std::map<std::string, AcceleratorOptions> engines{
      {"DDP", {}},
      {"FSDP", {.fsdp_plugin = FullyShardedDataParallelPlugin{.sync_module_states = true}}},
      {"ZeRO 3", {.deepspeed_plugin = DeepSpeedPlugin{.zero_stage = 3}}}};
  for (const auto& [engine, options] : engines) {
    for (const auto backend : {Backend::kSim, Backend::kGlooThreads}) {
      const auto where = engine + " over " + name_of(backend);
      run_ranks(backend, 2, [&, &options = options](RankContext& rank) {
        Accelerator accelerator(options, rank);
        Net net(rank.rank);
        auto sgd = std::make_shared<torch::optim::SGD>(net->parameters(), torch::optim::SGDOptions(0.1));
        auto [model, optimizer] = accelerator.prepare(net, sgd);
        accelerator.backward(model(torch::ones({2, 3})).mean());
        optimizer.step();
        for (std::size_t place = 0; place < kDtypes.size(); ++place)
          EXPECT_TRUE(have_equal_bytes(net->buffers[place], values_of(0, kDtypes[place])))
              << kDtypes[place] << ", " << where;
      });
    }
  }
}

TEST(DtypesTest, OperationsMoveEveryDtype) {
  for (const int num_ranks : {1, 2, 4}) {
    for (const auto backend : {Backend::kSim, Backend::kGlooThreads}) {
      run_ranks(backend, num_ranks, [](RankContext& rank) {
        const Accelerator accelerator({}, rank);
        for (const auto dtype : kDtypes) {
          SCOPED_TRACE(c10::toString(dtype));
          const auto own = values_of(rank.rank, dtype), all = accelerator.gather(own);
          for (int other = 0; other < rank.world_size; ++other)
            EXPECT_TRUE(have_equal_bytes(all.slice(0, 2 * other, 2 * other + 2), values_of(other, dtype)));
          auto last = own.clone();
          accelerator.broadcast(last, rank.world_size - 1);
          EXPECT_TRUE(have_equal_bytes(last, values_of(rank.world_size - 1, dtype)));
          // Ranks of different lengths.
          const auto padded = accelerator.pad_across_processes(own.slice(0, 0, rank.rank == 0 ? 2 : 1));
          EXPECT_EQ(padded.size(0), 2);
        }
        auto shorts = values_of(rank.rank, at::kShort);
        if (rank.world_size > 1) {
          EXPECT_THAT(message_of<ArgumentError>([&] { accelerator.reduce(shorts); }),
                      AllOf(HasSubstr("reduce"), HasSubstr("int16"), HasSubstr("int64")));
        }
      });
    }
  }
}

}  // namespace
}  // namespace accel::testing::dtypes_test
