// Has the form of a word language model: an LSTM whose state is passed from batch to batch, clipped gradients, and
// a rate that decays. What it tests: a forward with several inputs and outputs.
#include <torch/torch.h>

#include <accel/accel.hpp>
#include <cstdio>

#include "tests/ported/programs.hpp"

namespace accel::ported {
namespace lstm {
namespace {

namespace nn = torch::nn;
namespace F = torch::nn::functional;

constexpr const char* kText =
    "the rank that waits is not the rank that is late. a late rank computes, and a rank that waits has called a "
    "collective. "
    "who reads a report of a hang looks for the rank that is missing, and then for the line where it is instead. ";
constexpr std::int64_t kVocabulary = 128, kWidth = 24, kLength = 10, kBatch = 4;

using State = std::pair<at::Tensor, at::Tensor>;

// Its forward takes and returns the state of the LSTM together with the batch.
struct ReaderImpl : nn::Module {
  ReaderImpl() {
    embedding = register_module("embedding", nn::Embedding(kVocabulary, kWidth));
    lstm = register_module("lstm", nn::LSTM(nn::LSTMOptions(kWidth, kWidth).batch_first(true)));
    head = register_module("head", nn::Linear(kWidth, kVocabulary));
  }
  std::pair<at::Tensor, State> forward(const at::Tensor& ids, const State& state) {
    const auto [output, next] = lstm->forward(embedding(ids), std::tuple(state.first, state.second));
    return {head(output), {std::get<0>(next), std::get<1>(next)}};
  }
  nn::Embedding embedding{nullptr};
  nn::LSTM lstm{nullptr};
  nn::Linear head{nullptr};
};
TORCH_MODULE(Reader);

// Of shape (blocks, kLength + 1): characters, and the one that follows them.
at::Tensor blocks() {
  std::vector<std::int64_t> ids;
  for (const char* letter = kText; *letter != 0; ++letter) ids.push_back(*letter);
  const auto count = (static_cast<std::int64_t>(ids.size()) - 1) / kLength / 16 * 16;
  const auto all = torch::tensor(ids);
  std::vector<at::Tensor> rows;
  for (std::int64_t row = 0; row < count; ++row) rows.push_back(all.narrow(0, row * kLength, kLength + 1));
  return torch::stack(rows);
}

State zeros() { return {torch::zeros({1, kBatch, kWidth}), torch::zeros({1, kBatch, kWidth})}; }
// Gradients must not flow into earlier batches.
State detached(const State& state) { return {state.first.detach(), state.second.detach()}; }
// Each character predicts the next one.
at::Tensor loss_of(const at::Tensor& logits, const at::Tensor& rows) {
  return F::cross_entropy(logits.reshape({-1, kVocabulary}), rows.narrow(1, 1, kLength).reshape(-1));
}

// As a user of LibTorch would write it for one process.
int plain(const Arguments& arguments) {
  torch::manual_seed(5);
  Reader model;
  torch::optim::SGD optimizer(model->parameters(), /*lr=*/1.0);
  for (int epoch = 0; epoch < arguments.num_epochs; ++epoch) {
    auto state = zeros();
    double last = 0;
    for (const auto& rows : blocks().split(kBatch)) {
      optimizer.zero_grad();
      auto [logits, next] = model(rows.narrow(1, 0, kLength), detached(state));
      auto loss = loss_of(logits, rows);
      loss.backward();
      nn::utils::clip_grad_norm_(model->parameters(), 0.25);
      optimizer.step();
      state = next;
      last = loss.item<double>();
    }
    for (auto& group : optimizer.param_groups()) group.options().set_lr(group.options().get_lr() / 2);
    std::printf("epoch %d loss %.9g\n", epoch, last);
  }
  return 0;
}

// The same loop with accel. Each rank passes its own state from batch to batch.
int train(const Arguments& arguments) {
  accel::Accelerator accelerator;
  torch::manual_seed(5);
  Reader net;
  torch::optim::SGD sgd(net->parameters(), /*lr=*/1.0);
  auto [model, optimizer, batches] =
      accelerator.prepare(net, sgd, accel::DataLoader(accel::TensorDataset(blocks()), {.batch_size = kBatch}));
  for (int epoch = 0; epoch < arguments.num_epochs; ++epoch) {
    auto state = zeros();
    double last = 0;
    for (auto& [rows] : batches) {
      optimizer.zero_grad();
      auto [logits, next] = model(rows.narrow(1, 0, kLength), detached(state));
      auto loss = loss_of(logits, rows);
      accelerator.backward(loss);
      accelerator.clip_grad_norm_(model.parameters(), 0.25);
      optimizer.step();
      state = next;
      last = accelerator.reduce(loss.detach(), "mean").item<double>();
    }
    optimizer.set_lr(optimizer.lr() / 2);
    accelerator.print(fmt::format("epoch {} loss {:.9g}", epoch, last));
  }
  return 0;
}

}  // namespace
}  // namespace lstm

const Program kLstm{"lstm", lstm::plain, lstm::train};

}  // namespace accel::ported
