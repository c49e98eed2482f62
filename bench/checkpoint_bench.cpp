// Measures checkpoints: writing and reading the weights of a large model, beside plain copies of the same number of
// bytes to and from the same disk, how long training waits for a save, and small checkpoints in memory.
//
//   checkpoint_bench [--out FILE.json] [--rounds N] [--folder DIR] [--tensors N] [Google Benchmark's options]
#include <fcntl.h>
#include <sys/resource.h>
#include <torch/nn/module.h>
#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <memory>

#include "bench/program.hpp"
#include "reference/accelerator/accelerator.hpp"
#include "reference/checkpoint/module_state.hpp"
#include "reference/files/safetensors.hpp"
#include "reference/offload/load_checkpoint.hpp"
#include "reference/optim/optimizers/optimizers.hpp"

namespace {

using namespace accel::bench;

namespace fs = std::filesystem;

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
double peak_bytes() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return static_cast<double>(usage.ru_maxrss) * 1024;
}

// A model of equal tensors, created at the first use.
struct LargeImpl : torch::nn::Module {
  LargeImpl(int num_tensors, std::int64_t tensor_bytes) {
    for (int i = 0; i < num_tensors; ++i) register_parameter("w" + std::to_string(i), torch::zeros({tensor_bytes / 4}));
  }
};
TORCH_MODULE(Large);

// Weights in a file. The model is created at the first use.
class Weights {
 public:
  struct Options {
    std::string folder;
    int num_tensors;
    std::int64_t tensor_bytes;
  };
  explicit Weights(Options options) : options_(std::move(options)) {}

  double write() {
    const auto state = accel::checkpoint::state_dict_of(*model());
    make_room(file("model.safetensors"), bytes());
    return seconds_of([&] { accel::write_safetensors(files_, file("model.safetensors"), state); });
  }
  double write_plain() {
    make_room(file("plain"), bytes());
    return seconds_of([&] { copy_to_disk(file("plain"), bytes()); });
  }
  double read(bool from_disk) {
    if (!fs::exists(file("model.safetensors"))) write();
    if (from_disk) forget(file("model.safetensors"));
    return seconds_of([&] { load(); });
  }
  double read_plain() {
    if (!fs::exists(file("plain"))) write_plain();
    forget(file("plain"));
    return seconds_of([&] { copy_from_disk(file("plain")); });
  }
  double peak_of_reading() {
    read(/*from_disk=*/false);
    const double before = peak_bytes();
    load();
    return peak_bytes() - before;
  }

 private:
  Large& model() {
    if (!model_) model_ = Large(options_.num_tensors, options_.tensor_bytes);
    return *model_;
  }
  void load() { accel::load_checkpoint_in_model(*model(), file("model.safetensors"), {.strict = true}); }
  [[nodiscard]] std::int64_t bytes() const { return options_.num_tensors * options_.tensor_bytes; }
  [[nodiscard]] std::string file(const std::string& name) const { return options_.folder + "/" + name; }

  Options options_;
  accel::PosixFiles files_;
  std::optional<Large> model_;
};

// Calls `measure` with a training whose checkpoint contains weights and Adam's two moments, hence three times the bytes
// of the weights.
double with_training(int num_tensors, std::int64_t tensor_bytes,
                     const std::function<double(accel::Accelerator&)>& measure) {
  accel::Accelerator accelerator;
  Large net(num_tensors, tensor_bytes);
  accel::optim::Adam adam(net->parameters(), torch::optim::AdamOptions(1e-3));
  auto [model, optimizer] = accelerator.prepare(net, adam);
  for (auto& parameter : net->parameters()) parameter.mutable_grad() = torch::ones_like(parameter);
  optimizer.step();
  return measure(accelerator);
}

double save(const std::string& folder, int num_tensors) {
  return with_training(num_tensors, 64 << 20, [&](accel::Accelerator& accelerator) {
    return seconds_of([&] { accelerator.save_state(folder + "/sync"); });
  });
}

// Only the call, during which training waits. The rest happens in the background.
double save_async(const std::string& folder, int num_tensors) {
  return with_training(num_tensors, 64 << 20, [&](accel::Accelerator& accelerator) {
    const auto seconds = seconds_of([&] { accelerator.save_state(folder + "/async", {.async = true}); });
    accelerator.finish_saving();
    return seconds;
  });
}

Rows all_rows(const std::string& folder, const std::string& memory, int tensors) {
  const auto large =
      std::make_shared<Weights>(Weights::Options{.folder = folder, .num_tensors = tensors, .tensor_bytes = 64 << 20});
  const auto small =
      std::make_shared<Weights>(Weights::Options{.folder = memory, .num_tensors = 64, .tensor_bytes = 1 << 20});
  const auto saved = std::max(1, tensors / 8);
  return {{.name = "write/weights", .measure = [=] { return large->write(); }, .beside = "write/plain_copy"},
          {.name = "write/plain_copy", .measure = [=] { return large->write_plain(); }},
          {.name = "read/weights", .measure = [=] { return large->read(true); }, .beside = "read/plain_copy"},
          {.name = "read/plain_copy", .measure = [=] { return large->read_plain(); }},
          {.name = "read/memory_beyond_model", .measure = [=] { return large->peak_of_reading(); }, .unit = "bytes"},
          {.name = "save_state/async_call",
           .measure = [=] { return save_async(folder, saved); },
           .beside = "save_state/sync"},
          {.name = "save_state/sync", .measure = [=] { return save(folder, saved); }},
          // 64 MiB in a file system in memory, so that the disk does not add its noise.
          {.name = "write/small_weights_in_memory", .measure = [=] { return small->write(); }, .compared = true},
          {.name = "read/small_weights_in_memory", .measure = [=] { return small->read(false); }, .compared = true}};
}

// Folders for the files, removed at the end.
class WorkFolder {
 public:
  explicit WorkFolder(const std::string& parent)
      : path_(parent + "/accel-checkpoint-bench." + std::to_string(::getpid())) {
    fs::create_directories(path_);
  }
  ~WorkFolder() {
    std::error_code ignored;
    fs::remove_all(path_, ignored);
  }
  [[nodiscard]] const std::string& path() const { return path_; }

 private:
  std::string path_;
};

}  // namespace

int main(int argc, char** argv) {
  Program program("checkpoint_bench", "Measures checkpoints.");
  std::string folder = fs::temp_directory_path().string();
  int tensors = 32;
  program.add("--folder", folder, "Folder on the disk to measure");
  program.add("--tensors", tensors, "Number of tensors, each of 64 MiB");
  const auto context = accel::make_single_rank();
  const accel::RankScope scope(*context);
  std::optional<WorkFolder> disk, memory;
  return program.run(argc, argv, [&] {
    disk.emplace(folder);
    memory.emplace(fs::is_directory("/dev/shm") ? "/dev/shm" : folder);
    return all_rows(disk->path(), memory->path(), tensors);
  });
}
