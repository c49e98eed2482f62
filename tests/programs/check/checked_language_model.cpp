// A small language model that saves its state in the middle of epochs and continues from it, right as it is, or with
// one mistake: `checked_language_model [MISTAKE]`. See check_test.cpp.
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/rnn.h>

#include <accel/accel.hpp>
#include <accel/optim.hpp>
#include <filesystem>
#include <fstream>
#include <iomanip>
#include <limits>
#include <memory>
#include <string>

#include "tests/support/torch.hpp"

namespace {

namespace nn = torch::nn;

constexpr std::int64_t kTexts = 256, kLength = 12, kWords = 20;
constexpr int kEpochs = 3;

// Some words of a text are replaced at random.
struct Texts {
  [[nodiscard]] std::int64_t size() const { return kTexts; }
  [[nodiscard]] at::Tensor get(std::int64_t index) const {
    const auto words = (at::arange(kLength) * (index % 3 + 1) + index) % kWords;
    return at::where(at::rand({kLength}) < 0.1, at::randint(kWords, {kLength}), words);
  }
};

struct Model : nn::Module {
  Model()
      : words(register_module("words", nn::Embedding(kWords, 16))),
        hidden(register_module("hidden", nn::GRU(nn::GRUOptions(16, 16).batch_first(true)))),
        head(register_module("head", nn::Linear(16, kWords))) {}
  at::Tensor forward(const at::Tensor& texts) { return head(std::get<0>(hidden(words(texts)))); }
  nn::Embedding words;
  nn::GRU hidden;
  nn::Linear head;
};

// A checkpoint of the program's own, in one file that is written in place.
void save_in_place(const Model& model, int epoch, const std::string& file) {
  std::ofstream out(file);
  out << std::setprecision(std::numeric_limits<float>::max_digits10) << epoch << '\n';
  for (const auto& parameter : model.parameters()) {
    const auto values = parameter.detach().contiguous().view(-1);
    for (std::int64_t index = 0; index < values.numel(); ++index) out << values[index].item<float>() << ' ';
  }
  out << "end\n";
}

int load_in_place(Model& model, const std::string& file) {
  std::ifstream in(file);
  int epoch = 0;
  in >> epoch;
  const torch::NoGradGuard no_grad;
  for (auto& parameter : model.parameters()) {
    auto values = parameter.view(-1);
    for (std::int64_t index = 0; index < values.numel(); ++index) {
      float value = 0;
      in >> value;
      values[index] = value;
    }
  }
  std::string end;
  in >> end;
  if (end != "end") throw std::runtime_error(file + " is incomplete");
  return epoch;
}

int train(int argc, char** argv) {
  const std::string mistake = argc > 1 ? argv[1] : "";
  const auto has = [&](const char* name) { return mistake == name; };
  accel::Accelerator accelerator({.gradient_accumulation_steps = 2,
                                  .project_config = {.project_dir = "run", .automatic_checkpoint_naming = true}});
  accel::set_seed(3, {.device_specific = true});
  auto net = std::make_shared<Model>();
  accel::optim::AdamW adamw(net->parameters(), {.lr = 3e-3});
  accel::DataLoaderOptions options{.batch_size = 8, .shuffle = true, .num_workers = 2};
  if (has("workers_seeded_alike")) options.worker_init_fn = [](int) { torch::manual_seed(0); };
  if (has("set_epoch_forgotten")) {
    options.shuffle = false;
    options.sampler = std::make_shared<accel::DistributedSampler>(
        kTexts, accel::DistributedSampler::Options{.num_replicas = accelerator.num_processes(),
                                                   .rank = accelerator.process_index()});
  }
  accel::DataLoader plain(Texts{}, options);
  auto [model, optimizer] = accelerator.prepare(net, adamw);
  accel::CosineAnnealingLR cosine(adamw, /*T_max=*/64);
  auto scheduler = accelerator.prepare(cosine);

  const std::string file = "weights.txt";
  const bool has_own_file = has("optimizer_forgotten");
  int first_epoch = 0;
  const auto train_on = [&](auto& loader) {
    for (int epoch = first_epoch; epoch < kEpochs; ++epoch) {
      int step = 0;
      for (auto& texts : loader) {
        const auto window = accelerator.accumulate(model);
        const auto logits = model(texts).narrow(1, 0, kLength - 1);
        const auto loss =
            nn::functional::cross_entropy(logits.reshape({-1, kWords}), texts.narrow(1, 1, kLength - 1).reshape({-1}));
        accelerator.backward(loss);
        optimizer.step();
        scheduler.step();
        optimizer.zero_grad();
        if (++step % 4 == 0 && !has("set_epoch_forgotten") && !has_own_file) accelerator.save_state();
      }
      if (has_own_file && accelerator.is_main_process()) save_in_place(*net, epoch + 1, file);
    }
  };
  if (has_own_file && std::filesystem::exists(file)) first_epoch = load_in_place(*net, file);
  if (has("set_epoch_forgotten")) {
    train_on(plain);
    return 0;
  }
  auto loader = accelerator.prepare(plain);
  if (!has_own_file && accelerator.has_checkpoint()) accelerator.load_state();
  if (!has_own_file) first_epoch = static_cast<int>(loader.iteration());
  train_on(loader);
  return 0;
}

}  // namespace

int main(int argc, char** argv) { return accel::run(argc, argv, train); }
