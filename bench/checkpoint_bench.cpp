// Measures checkpoints: writing and reading the weights of a large model, compared with plain copies of the same number
// of bytes to and from the same disk, and how long training waits for a save.
#include <fcntl.h>
#include <sys/resource.h>
#include <torch/nn/module.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "bench/median.hpp"
#include "bench/program.hpp"
#include "reference/accelerator/accelerator.hpp"
#include "reference/core/safetensors.hpp"
#include "reference/offload/load_checkpoint.hpp"
#include "reference/optim/optimizers/optimizers.hpp"

namespace {

using accel::bench::Json;
using accel::bench::median;

using Clock = std::chrono::steady_clock;
namespace fs = std::filesystem;

constexpr std::int64_t kTensorBytes = 64 << 20;

template <typename F>
double seconds_of(F&& f) {
  const auto start = Clock::now();
  f();
  return std::chrono::duration<double>(Clock::now() - start).count();
}

// Writes like dd with conv=fsync: blocks of 4 MiB, then waits until the disk has them. A checkpoint is synced too.
void copy_to_disk(const std::string& path, std::int64_t bytes) {
  const std::string block(4 << 20, 'x');
  const auto file = accel::PosixFiles().create(path);
  for (std::int64_t written = 0; written < bytes; written += std::ssize(block)) file->append(block);
  file->sync();
  file->close();
}

// Writes and removes a file, so that the next write reuses page-cache memory. On a virtual machine the first use of
// other memory is slower, which would count against whichever side runs first.
void make_room(const std::string& path, std::int64_t bytes) {
  fs::remove(path);
  copy_to_disk(path, bytes);
  fs::remove(path);
}

// Reads like cat.
void copy_from_disk(const std::string& path) {
  std::string block(1 << 20, ' ');
  std::ifstream in(path, std::ios::binary);
  while (in.read(block.data(), std::ssize(block))) {
  }
}

// Drops the file's pages from memory, so that the next read comes from the disk.
void forget(const std::string& path) {
  const int file = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  accel::check_config(file >= 0 && ::posix_fadvise(file, 0, 0, POSIX_FADV_DONTNEED) == 0,
                      "{}: cannot drop the file from the page cache", path);
  ::close(file);
}

// Peak resident set; ru_maxrss is in KiB on Linux.
std::int64_t peak_bytes() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return usage.ru_maxrss * 1024;
}

// A model of equal tensors, each large enough that the cost per tensor does not matter.
struct LargeImpl : torch::nn::Module {
  explicit LargeImpl(int num_tensors) {
    for (int i = 0; i < num_tensors; ++i) register_parameter("w" + std::to_string(i), torch::zeros({kTensorBytes / 4}));
  }
};
TORCH_MODULE(Large);

Json measure_weights(const std::string& folder, int num_tensors, int rounds) {
  const auto plain = folder + "/plain", model = folder + "/model.safetensors";
  Large net(num_tensors);
  accel::PosixFiles files;
  const auto state = accel::checkpoint::state_dict_of(*net);
  const auto before = peak_bytes();
  std::vector<double> writes, reads, write_ratios, read_ratios;
  for (int round = 0; round < rounds; ++round) {
    make_room(plain, num_tensors * kTensorBytes);
    const auto copied = seconds_of([&] { copy_to_disk(plain, num_tensors * kTensorBytes); });
    make_room(model, num_tensors * kTensorBytes);
    writes.push_back(seconds_of([&] { accel::write_safetensors(files, model, state); }));
    write_ratios.push_back(copied / writes.back());
    // Both files have just been written and are in the page cache.
    forget(plain);
    forget(model);
    const auto read = seconds_of([&] { copy_from_disk(plain); });
    forget(plain);
    reads.push_back(seconds_of([&] { accel::load_checkpoint_in_model(*net, model, {.strict = true}); }));
    read_ratios.push_back(read / reads.back());
  }
  return {{"bytes", num_tensors * kTensorBytes},
          {"largest_tensor_bytes", kTensorBytes},
          {"write_seconds", median(writes)},
          {"write_share_of_copy_rate", median(write_ratios)},
          {"read_seconds", median(reads)},
          {"read_share_of_copy_rate", median(read_ratios)},
          {"peak_beyond_model_bytes", peak_bytes() - before}};
}

// A training whose checkpoint contains weights and Adam's two moments, hence three times the bytes of the weights. The
// asynchronous save is measured in two parts: the call, during which training waits, and the rest in the background.
Json measure_saving(const std::string& folder, int num_tensors) {
  accel::Accelerator accelerator;
  Large net(num_tensors);
  accel::optim::Adam adam(net->parameters(), torch::optim::AdamOptions(1e-3));
  auto [model, optimizer] = accelerator.prepare(net, adam);
  for (auto& parameter : net->parameters()) parameter.mutable_grad() = torch::ones_like(parameter);
  optimizer.step();
  const auto whole = seconds_of([&] { accelerator.save_state(folder + "/whole"); });
  const auto call = seconds_of([&] { accelerator.save_state(folder + "/async", {.async = true}); });
  const auto rest = seconds_of([&] { accelerator.finish_saving(); });
  return {{"bytes", 3 * num_tensors * kTensorBytes},
          {"save_seconds", whole},
          {"async_call_seconds", call},
          {"async_rest_seconds", rest},
          {"call_over_save", call / whole}};
}

}  // namespace

int main(int argc, char** argv) {
  accel::bench::Program program("checkpoint_bench", "Measures checkpoints.");
  std::string folder = fs::temp_directory_path().string();
  int rounds = 3, tensors = 32;
  program.add("--folder", folder, "Folder on the disk to measure");
  program.add("--rounds", rounds, "Number of rounds per measurement; reports the median");
  program.add("--tensors", tensors, "Number of tensors, each of 64 MiB");
  if (const auto code = program.parse(argc, argv)) return *code;
  const auto work = folder + "/accel-checkpoint-bench." + std::to_string(::getpid());
  const int code = program.report([&] {
    fs::create_directories(work);
    const auto context = accel::make_single_rank();
    const accel::RankScope scope(*context);
    return Json{{"weights", measure_weights(work, tensors, rounds)},
                {"saving", measure_saving(work, std::max(1, tensors / 8))}};
  });
  fs::remove_all(work);
  return code;
}
