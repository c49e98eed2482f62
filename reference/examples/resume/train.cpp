// resume FOLDER STEPS: trains for three epochs, and stops after so many steps. Run it again, and it goes on: with the next
// batch of the same epoch, in the same order, on every rank. On another number of ranks it goes on, too, behind the samples
// that have been seen.
#include <torch/torch.h>

#include <accel/accel.hpp>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <tuple>

namespace {

std::string read(const std::filesystem::path& file) {
  std::ifstream in(file, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

void write(const std::filesystem::path& file, const std::string& bytes) {
  const auto unfinished = file.string() + ".part";
  std::ofstream(unfinished, std::ios::binary) << bytes;
  std::filesystem::rename(unfinished, file);  // a state is whole, or not there
}

// What a rank keeps is a tree: the loader's place in the data, and the rank's random numbers.
using State = std::pair<accel::Value, at::Tensor>;

}  // namespace

int train(int argc, char** argv) {
  if (argc != 3) return 2;
  const std::filesystem::path folder = argv[1];
  auto steps = std::atoi(argv[2]);

  accel::Accelerator accelerator;
  accel::set_seed(42);
  accel::TensorDataset dataset(torch::arange(1000, 1050));
  auto batches = accelerator.prepare(accel::DataLoader(dataset, {.batch_size = 4, .shuffle = true, .num_workers = 2}));
  const auto rank = accelerator.process_index(), ranks = accelerator.num_processes();

  // `latest` names the folder of the last states that every rank has written. Rank 0's serves another number of ranks.
  int64_t step = 0;
  if (exists(folder / "latest")) {
    const auto saved = folder / read(folder / "latest");
    auto [place, random] = accel::unpack<State>(read(saved / "rank0"));
    if (place.at("num_processes") == accel::Value(ranks)) std::tie(place, random) = accel::unpack<State>(read(saved / ("rank" + std::to_string(rank))));
    batches.load_state_dict(place);
    accel::default_generator().set_state(random);
    step = std::stoll(saved.filename().string().substr(4));
  }

  for (auto epoch = batches.iteration(); epoch < 3; ++epoch) {
    for (auto& [numbers] : batches) {
      ++step;
      const auto seen = accelerator.gather_for_metrics(numbers);  // instead of training: what all ranks were given
      std::string line;
      for (int64_t row = 0; row < seen.size(0); ++row) line += " " + std::to_string(seen[row].item<int64_t>());
      accelerator.print("epoch", epoch, line);
      if (--steps > 0) continue;

      const auto name = "step" + std::to_string(step);
      create_directories(folder / name);
      write(folder / name / ("rank" + std::to_string(rank)), accel::pack(State(batches.state_dict(), accel::default_generator().get_state())));
      accelerator.wait_for_everyone();
      accelerator.on_main_process([&] { write(folder / "latest", name); });
      return 0;
    }
  }
  return 0;
}

int main(int argc, char** argv) { return accel::run(argc, argv, train); }
