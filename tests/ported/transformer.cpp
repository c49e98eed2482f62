// Has the form of a small GPT: its own modules in a ModuleList, which FSDP wraps one by one, and text that is
// generated from the full weights.
#include <torch/torch.h>

#include <accel/accel.hpp>
#include <cstdio>

#include "tests/ported/programs.hpp"

namespace accel::ported {
namespace transformer {
namespace {

namespace nn = torch::nn;
namespace F = torch::nn::functional;

constexpr std::int64_t kVocabulary = 11, kWidth = 16, kHeads = 2, kLength = 12, kLayers = 2;

// The class that FSDP wraps.
struct BlockImpl : nn::Module {
  BlockImpl() {
    norm1 = register_module("norm1", nn::LayerNorm(nn::LayerNormOptions({kWidth})));
    attention = register_module("attention", nn::Linear(kWidth, 3 * kWidth));
    project = register_module("project", nn::Linear(kWidth, kWidth));
    norm2 = register_module("norm2", nn::LayerNorm(nn::LayerNormOptions({kWidth})));
    expand = register_module("expand", nn::Linear(kWidth, 4 * kWidth));
    shrink = register_module("shrink", nn::Linear(4 * kWidth, kWidth));
  }
  at::Tensor forward(at::Tensor x) {
    const auto batch = x.size(0), length = x.size(1);
    const auto heads = [&](const at::Tensor& part) {
      return part.view({batch, length, kHeads, kWidth / kHeads}).transpose(1, 2);
    };
    const auto parts = attention(norm1(x)).chunk(3, 2);
    auto scores =
        heads(parts[0]).matmul(heads(parts[1]).transpose(-2, -1)) / std::sqrt(static_cast<double>(kWidth / kHeads));
    scores = scores.masked_fill(torch::ones({length, length}, torch::kBool).triu(1), -1e9);
    const auto mixed = scores.softmax(-1).matmul(heads(parts[2])).transpose(1, 2).reshape({batch, length, kWidth});
    x = x + project(mixed);
    return x + shrink(torch::gelu(expand(norm2(x))));
  }
  nn::LayerNorm norm1{nullptr}, norm2{nullptr};
  nn::Linear attention{nullptr}, project{nullptr}, expand{nullptr}, shrink{nullptr};
};
TORCH_MODULE(Block);

// Calls its blocks through accel::call, so that FSDP can gather each block's weights.
struct GptImpl : nn::Module {
  GptImpl() {
    token = register_module("token", nn::Embedding(kVocabulary, kWidth));
    place = register_module("place", nn::Embedding(kLength, kWidth));
    for (std::int64_t layer = 0; layer < kLayers; ++layer) blocks->push_back(Block());
    register_module("blocks", blocks);
    norm = register_module("norm", nn::LayerNorm(nn::LayerNormOptions({kWidth})));
    head = register_module("head", nn::Linear(kWidth, kVocabulary));
  }
  at::Tensor forward(const at::Tensor& ids) {
    auto x = token(ids) + place(torch::arange(ids.size(1)));
    for (const auto& block : *blocks) x = accel::call(*block->as<Block>(), x);  // a separate unit under FSDP
    return head(norm(x));
  }
  at::Tensor generate(at::Tensor ids) {
    while (ids.size(1) < kLength) ids = torch::cat({ids, forward(ids).select(1, -1).argmax(-1, true)}, 1);
    return ids;
  }
  nn::Embedding token{nullptr}, place{nullptr};
  nn::ModuleList blocks;
  nn::LayerNorm norm{nullptr};
  nn::Linear head{nullptr};
};
TORCH_MODULE(Gpt);

// Sequences with a constant step, which the model can learn in a few epochs.
at::Tensor texts() {
  const auto start = torch::arange(72).view({-1, 1});
  return (start + torch::arange(kLength + 1) * (start % 3 + 1)) % kVocabulary;
}

// Each position predicts the next number.
at::Tensor loss_of(const at::Tensor& logits, const at::Tensor& ids) {
  return F::cross_entropy(logits.reshape({-1, kVocabulary}), ids.narrow(1, 1, kLength).reshape(-1));
}

// The generated numbers as text.
std::string text_of(const at::Tensor& ids) {
  std::string text;
  for (std::int64_t i = 0; i < ids.size(1); ++i) text += " " + std::to_string(ids[0][i].item<std::int64_t>());
  return text;
}

// As a user of LibTorch would write it for one process.
int plain(const Arguments& arguments) {
  torch::manual_seed(4);
  Gpt model;
  torch::optim::AdamW optimizer(model->parameters(), torch::optim::AdamWOptions(3e-3));
  for (int epoch = 0; epoch < arguments.num_epochs; ++epoch) {
    double last = 0;
    for (const auto& ids : texts().split(8)) {
      optimizer.zero_grad();
      auto loss = loss_of(model(ids.narrow(1, 0, kLength)), ids);
      loss.backward();
      optimizer.step();
      last = loss.item<double>();
    }
    torch::NoGradGuard no_grad;
    std::printf("epoch %d loss %.9g text%s\n", epoch, last,
                text_of(model->generate(torch::tensor({{1, 2, 3}}))).c_str());
  }
  return 0;
}

// The same loop with accel and FSDP. generate() is a member function, so the weights are gathered for it.
int train(const Arguments& arguments) {
  accel::Accelerator accelerator(
      {.fsdp_plugin = accel::FullyShardedDataParallelPlugin{.auto_wrap_policy = "TRANSFORMER_BASED_WRAP",
                                                            .transformer_cls_names_to_wrap = {"Block"}}});
  torch::manual_seed(4);
  Gpt net;
  torch::optim::AdamW adam(net->parameters(), torch::optim::AdamWOptions(3e-3));
  auto [model, optimizer, batches] =
      accelerator.prepare(net, adam, accel::DataLoader(accel::TensorDataset(texts()), {.batch_size = 8}));
  for (int epoch = 0; epoch < arguments.num_epochs; ++epoch) {
    double last = 0;
    for (auto& [ids] : batches) {
      optimizer.zero_grad();
      auto loss = loss_of(model(ids.narrow(1, 0, kLength)), ids);
      accelerator.backward(loss);
      optimizer.step();
      last = accelerator.reduce(loss.detach(), "mean").item<double>();
    }
    torch::NoGradGuard no_grad;
    const auto whole = accelerator.gathered_parameters(model);
    const auto text = text_of(model->generate(torch::tensor({{1, 2, 3}})));
    accelerator.print(fmt::format("epoch {} loss {:.9g} text{}", epoch, last, text));
  }
  return 0;
}

}  // namespace
}  // namespace transformer

const Program kTransformer{"transformer", transformer::plain, transformer::train};

}  // namespace accel::ported
