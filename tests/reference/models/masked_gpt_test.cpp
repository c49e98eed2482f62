// The loss of a gpt whose targets count in unequal numbers on the ranks of a mesh.
#include <gtest/gtest.h>

#include <functional>
#include <map>
#include <string>

#include "reference/models/gpt.hpp"
#include "reference/modules/parameter_cut.hpp"
#include "tests/support/run_ranks.hpp"
#include "tests/support/torch.hpp"

namespace accel::testing::masked_gpt_test {
namespace {

using namespace accel::models;
using Tensors = std::map<std::string, at::Tensor>;

Tensors complete(const torch::nn::Module& network, const std::function<at::Tensor(const at::Tensor&)>& tensor_of) {
  Tensors all;
  const auto cuts = parallel::parameter_cuts(network);
  for (const auto& item : network.named_parameters()) {
    const auto cut = cuts.find(item.key());
    all[item.key()] =
        cut == cuts.end() ? tensor_of(item.value()).clone() : cut->second.whole_of(tensor_of(item.value()));
  }
  return all;
}

// Under cp 2, rank 0 holds the first and the last quarter of the positions, where no target counts.
TEST(MaskedGptTest, MaskedTargetsExpertsAndContextParallelismEqualOneRank) {
  const auto tokens = at::arange(32).view({4, 8}).remainder(11);
  auto targets = (tokens + 1).clone();
  for (const int position : {0, 1, 3, 6, 7}) targets.select(1, position).fill_(-100);
  const auto gradients = [&](const DeviceMesh& mesh) {
    const GeneratorScope scope(make_generator(6));
    GptOptions options{.vocab_size = 13, .layers = 1, .heads = 4, .width = 8, .initial_std = 0.3, .dtype = "float64"};
    options.num_local_experts = 4;
    options.router_aux_loss_coef = 0.5;
    const auto network = gpt(options, mesh);
    const auto& context = mesh["cp"];
    const auto own = [&](const at::Tensor& batch) {
      const auto rows = batch.chunk(mesh["dp"].size())[mesh["dp"].rank()];
      if (context.size() == 1) return rows;
      const auto chunks = rows.chunk(2 * context.size(), 1);
      return at::cat({chunks[context.rank()], chunks[2 * context.size() - 1 - context.rank()]}, 1);
    };
    auto loss = network->forward(own(tokens), own(targets));
    loss.backward();
    auto mean = loss.detach().clone();
    mesh["dp_cp"].all_reduce(mean, ReduceOp::kMean).wait();
    const auto cuts = parallel::parameter_cuts(*network);
    for (auto& item : network->named_parameters()) {
      const auto cut = cuts.find(item.key());
      const bool is_expert = cut != cuts.end() && cut->second.axis == "ep";
      mesh[is_expert ? "expert_dp" : "dp_cp"].all_reduce(item.value().mutable_grad(), ReduceOp::kMean).wait();
    }
    auto all = complete(*network, [](const at::Tensor& parameter) { return parameter.grad(); });
    all["loss"] = mean;
    return all;
  };
  const auto expected = gradients(DeviceMesh());
  for (const auto backend : {Backend::kSim, Backend::kGlooThreads}) {
    for (const auto& mesh :
         {ParallelismConfig{.cp_size = 2}, ParallelismConfig{.cp_size = 4},
          ParallelismConfig{.cp_size = 2, .tp_size = 2}, ParallelismConfig{.cp_size = 2, .ep_size = 2}}) {
      run_ranks(backend, static_cast<int>(mesh.total_size()), [&](RankContext& rank) {
        const auto found = gradients(DeviceMesh(rank, mesh));
        for (const auto& [name, gradient] : expected)
          EXPECT_TRUE(at::allclose(found.at(name), gradient, 1e-10, 1e-12)) << name;
      });
    }
  }
}

}  // namespace
}  // namespace accel::testing::masked_gpt_test
