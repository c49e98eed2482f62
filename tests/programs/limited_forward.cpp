// Runs a model's forward in a process whose memory the kernel limits, which is the situation that offloading is
// for.
//
// limited-forward write FOLDER WIDTH LAYERS: writes a checkpoint of Linear layers, several layers per file.
// limited-forward whole FOLDER WIDTH LAYERS [LIMIT_BYTES]: loads all of it. limited-forward streamed FOLDER WIDTH
// LAYERS [LIMIT_BYTES]: loads it as the memory allows.
//
// LIMIT_BYTES is RLIMIT_DATA: heap, thread stacks and all other private writable memory of the process since its
// start. Mapped files do not count, because the kernel can reclaim their pages. Prints one JSON object. A refused
// allocation is exit code 1.
#include <malloc.h>
#include <sys/resource.h>
#include <torch/nn/modules/activation.h>

#include <chrono>
#include <fstream>
#include <iostream>

#include "reference/checkpoint/weights_plan.hpp"
#include "reference/files/safetensors.hpp"
#include "reference/files/sha256.hpp"
#include "reference/offload/dispatch.hpp"
#include "reference/offload/empty_weights.hpp"
#include "tests/support/torch.hpp"

namespace {

constexpr int kLayersPerFile = 4;
constexpr std::int64_t kOwnBytes = 24 << 20;  // activations, the worker's stack, the allocator's slack

std::int64_t kilobytes_of(const std::string& field) {
  std::ifstream status("/proc/self/status");
  for (std::string word; status >> word;) {
    std::int64_t value = 0;
    if (word == field + ":" && status >> value) return value;
  }
  return 0;
}

torch::nn::Sequential make_net(std::int64_t width, int num_layers) {
  torch::nn::Sequential net;
  for (int i = 0; i < num_layers; ++i) {
    net->push_back(torch::nn::Linear(width, width));
    net->push_back(torch::nn::Tanh());
  }
  return net;
}

void write(const std::string& folder, std::int64_t width, int num_layers) {
  accel::PosixFiles files;
  files.make_folder(folder);
  accel::WeightMap map;
  std::int64_t total = 0;
  torch::manual_seed(7);
  for (int first = 0; first < num_layers; first += kLayersPerFile) {
    accel::NamedTensors tensors;
    const auto file = fmt::format("model-{:05}-of-{:05}.safetensors", first / kLayersPerFile + 1,
                                  (num_layers + kLayersPerFile - 1) / kLayersPerFile);
    for (int layer = first; layer < std::min(num_layers, first + kLayersPerFile); ++layer) {
      const auto scale = 1 / std::sqrt(double(width));
      tensors.emplace_back(std::to_string(2 * layer) + ".weight", torch::randn({width, width}).mul_(scale));
      tensors.emplace_back(std::to_string(2 * layer) + ".bias", torch::randn({width}).mul_(scale));
    }
    for (const auto& [name, tensor] : tensors) {
      map[name] = file;
      total += static_cast<std::int64_t>(tensor.nbytes());
    }
    accel::write_safetensors(files, folder + "/" + file, tensors, {{"format", "pt"}});
  }
  accel::write_atomically(files, folder + "/model.safetensors.index.json", accel::weights_index(map, total));
}

std::string digest(const torch::Tensor& tensor) {
  accel::Sha256 hash;
  hash.update(tensor.data_ptr(), tensor.nbytes());
  return hash.hex();
}

int forward(const std::string& mode, const std::string& folder, std::int64_t width, int num_layers,
            std::int64_t limit) {
  torch::set_num_threads(1);
  torch::manual_seed(8);
  const auto input = torch::randn({2, width});
  if (limit > 0) {
    const rlimit limits{static_cast<rlim_t>(limit), static_cast<rlim_t>(limit)};
    if (setrlimit(RLIMIT_DATA, &limits) != 0) throw std::runtime_error("RLIMIT_DATA cannot be set");
  }
  // What the process uses already cannot serve for weights, so it is subtracted from the limit.
  const auto own_bytes = kilobytes_of("VmData") * 1024 + kOwnBytes;
  accel::LoadAndDispatchOptions options{.strict = true};
  if (mode == "streamed") {
    options.device_map = "auto";
    options.max_memory = accel::MaxMemory{{"cpu", std::max<std::int64_t>(0, limit - own_bytes)}};
  }
  const torch::NoGradGuard no_grad;
  const auto net = accel::init_empty_weights([&] { return make_net(width, num_layers); });
  auto model = accel::load_checkpoint_and_dispatch(net, folder, options);
  // Two passes: the second one reuses buffers, and prefetching must give the same bits.
  const auto first = model(input);
  const auto begin = std::chrono::steady_clock::now();
  const auto second = model(input);
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
  if (!first.equal(second)) throw std::runtime_error("two passes differ");
  const auto statistics = model.statistics();
  std::cout << fmt::format(R"({{"output":"{}","seconds":{:.3f},"own_bytes":{},"brought_bytes_peak":{},)"
                           R"("loads":{},"prefetched":{},"anonymous_bytes":{},"resident_bytes_peak":{}}})",
                           digest(second), seconds.count(), own_bytes, statistics.bytes_peak, statistics.num_loads,
                           statistics.num_prefetched, kilobytes_of("RssAnon") * 1024, kilobytes_of("VmHWM") * 1024)
            << "\n";
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  // Fixes glibc's threshold from the start. By default it adapts to freed blocks and then keeps large blocks in the
  // heap.
  mallopt(M_MMAP_THRESHOLD, 1 << 20);
  const std::vector<std::string> arguments(argv + 1, argv + argc);
  if (arguments.size() < 4) return 2;
  const auto width = std::stoll(arguments[2]);
  const auto num_layers = std::stoi(arguments[3]);
  try {
    if (arguments[0] == "write") {
      write(arguments[1], width, num_layers);
      return 0;
    }
    return forward(arguments[0], arguments[1], width, num_layers, arguments.size() > 4 ? std::stoll(arguments[4]) : 0);
  } catch (const std::exception& error) {
    std::cerr << std::string(error.what()).substr(0, 300) << "\n";
    return 1;
  }
}
