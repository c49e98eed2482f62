#pragma once

#include <gtest/gtest.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/container/modulelist.h>
#include <torch/nn/modules/embedding.h>

#include <cstdint>
#include <set>
#include <string>

#include "reference/checkpoint/weights_files.hpp"
#include "reference/core/named_tensors.hpp"
#include "reference/files/safetensors.hpp"
#include "reference/modules/call.hpp"
#include "reference/offload/dispatch.hpp"
#include "reference/offload/module_tensors.hpp"
#include "tests/support/temporary_folder.hpp"
#include "tests/support/torch.hpp"

/// Models whose weights are in files while they are not called.
namespace accel::dispatched_models {

inline constexpr int64_t kWidth = 16;
inline constexpr int64_t kLayerBytes = 4 * (kWidth * kWidth + kWidth);

inline torch::nn::Sequential layers(int count) {
  torch::nn::Sequential net;
  for (int i = 0; i < count; ++i) {
    net->push_back(torch::nn::Linear(kWidth, kWidth));
    net->push_back(torch::nn::ReLU());
  }
  return net;
}

struct BlockImpl : torch::nn::Module {
  explicit BlockImpl(int64_t width)
      : inner(register_module("inner", torch::nn::Linear(width, 2 * width))),
        outer(register_module("outer", torch::nn::Linear(2 * width, width))) {}
  torch::Tensor forward(const torch::Tensor& x) { return x + outer(torch::relu(inner(x))); }
  torch::nn::Linear inner, outer;
};
TORCH_MODULE(Block);

// A model whose embedding is also the weight of its head.
struct NetImpl : torch::nn::Module {
  explicit NetImpl(int num_blocks, bool calls = true)
      : embedding(register_module("embedding", torch::nn::Embedding(20, kWidth))),
        head(register_parameter("head", embedding->weight)),
        shift(register_buffer("shift", torch::full({kWidth}, 0.5f))),
        calls(calls) {
    register_module("blocks", blocks);
    for (int i = 0; i < num_blocks; ++i) blocks->push_back(Block(kWidth));
  }
  torch::Tensor forward(const torch::Tensor& tokens) {
    auto values = embedding(tokens) + shift;
    for (const auto& block : *blocks)
      values = calls ? call(block->as<Block>(), values) : block->as<Block>()->forward(values);
    return torch::linear(values, head);
  }
  torch::nn::Embedding embedding;
  torch::Tensor head, shift;
  torch::nn::ModuleList blocks;
  bool calls;
};
TORCH_MODULE(Net);

// Returns the bytes of all parameters in memory, each counted once.
inline int64_t resident_bytes(const torch::nn::Module& net) {
  std::set<const c10::TensorImpl*> seen;
  int64_t bytes = 0;
  for (const auto& parameter : net.parameters()) {
    if (!parameter.is_meta() && seen.insert(parameter.unsafeGetTensorImpl()).second)
      bytes += static_cast<int64_t>(parameter.nbytes());
  }
  return bytes;
}

class DispatchTest : public ::testing::Test {
 protected:
  template <typename Model>
  std::string saved(const Model& net, int64_t max_shard_bytes = 10'000'000) {
    PosixFiles files;
    NamedTensors state;
    for (const auto& [name, tensor] : deduplicate_shared(offload::tensors_of(*net)).tensors)
      state.emplace_back(name, tensor.detach());
    write_weights(files, folder_.path("checkpoint"), state, {.max_shard_bytes = max_shard_bytes});
    return folder_.path("checkpoint");
  }

  testing::TemporaryFolder folder_;
  torch::Tensor input_ = torch::rand({3, kWidth}), tokens_ = torch::tensor({3, 1, 19});
};

}  // namespace accel::dispatched_models
