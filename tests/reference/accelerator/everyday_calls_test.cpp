// Small calls of Accelerate's interface that belong to no larger subject.
#include <accel/accel.hpp>
#include <accel/testing.hpp>

#include "tests/support/message_of.hpp"
#include "tests/support/run_ranks.hpp"
#include "tests/support/temporary_folder.hpp"
#include "tests/support/torch.hpp"

namespace accel::testing::everyday_calls {
namespace {

using ::testing::HasSubstr;

class EverydayCallsTest : public ::testing::TestWithParam<Backend> {};
INSTANTIATE_TEST_SUITE_P(Backends, EverydayCallsTest, ::testing::Values(Backend::kSim, Backend::kGlooThreads),
                         [](const auto& info) { return info.param == Backend::kSim ? "Simulated" : "Gloo"; });

TEST_P(EverydayCallsTest, ATensorOfOneRankReachesAll) {
  run_ranks(GetParam(), 3, [](RankContext& rank) {
    const Accelerator accelerator({}, rank);
    const auto own = torch::arange(6, torch::kInt).view({3, 2}).t();  // not contiguous
    const auto copy = accelerator.copy_tensor_to_devices(rank.rank == 1 ? std::optional(own) : std::nullopt);
    EXPECT_TRUE(torch::equal(copy, own));
    EXPECT_EQ(copy.scalar_type(), torch::kInt);
    const auto none = [&] { static_cast<void>(accelerator.copy_tensor_to_devices(std::nullopt)); };
    EXPECT_THAT(message_of<ArgumentError>(none), HasSubstr("expected a tensor from one rank, got one from none"));
    const auto several = [&] {
      static_cast<void>(accelerator.copy_tensor_to_devices(rank.rank > 0 ? std::optional(own) : std::nullopt));
    };
    EXPECT_THAT(message_of<ArgumentError>(several), HasSubstr("got one from ranks 1, 2"));
  });
}

TEST(EverydayCalls, AStructureHasShapesAndDtypesOnly) {
  const std::map<std::string, std::vector<at::Tensor>> batch{{"x", {torch::ones({2, 3}), torch::ones({4}, at::kLong)}}};
  const auto structure = get_data_structure(batch);
  EXPECT_TRUE(structure.at("x")[0].is_meta());
  const auto made = initialize_tensors(structure);
  EXPECT_EQ(made.at("x")[0].sizes(), (std::vector<std::int64_t>{2, 3}));
  EXPECT_EQ(made.at("x")[1].scalar_type(), at::kLong);
  EXPECT_TRUE(made.at("x")[1].is_cpu());
}

TEST(EverydayCalls, OnlyTheMainProcessSaves) {
  const TemporaryFolder folder;
  run_ranks(Backend::kSim, 2, [&](RankContext& rank) {
    const Accelerator accelerator({}, rank);
    accelerator.save(Value(Value::Dict{{"rank", rank.rank}}), folder.path("object.bin"));
    accelerator.save(NamedTensors{{"w", torch::full({2}, rank.rank + 1.0)}}, folder.path("w.safetensors"),
                     /*safe_serialization=*/true);
    accelerator.wait_for_everyone();
    EXPECT_EQ(read_torch_file(folder.path("object.bin")).at("rank").as<std::int64_t>(), 0);
    EXPECT_TRUE(torch::equal(SafetensorsFile(folder.path("w.safetensors")).tensor("w"), torch::ones({2})));
    EXPECT_TRUE(accelerator.should_save_model() == (rank.rank == 0));
    EXPECT_FALSE(accelerator.multi_device());
    EXPECT_EQ(accelerator.fp8_backend(), "NO");
    EXPECT_EQ(Accelerator({.mixed_precision = "fp8"}, rank).fp8_backend(), "AO");
  });
}

}  // namespace
}  // namespace accel::testing::everyday_calls
