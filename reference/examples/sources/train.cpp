#include <torch/torch.h>

#include <accel/accel.hpp>
#include <accel/optim.hpp>
#include <accel/sources.hpp>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>

namespace fs = std::filesystem;

// A point in the plane, and the side of a line on which it lies. The files below contain such points.
struct Point {
  explicit Point(int64_t number) : x(number * 37 % 101), y(number * 53 % 103), is_right(x > y) {}
  int64_t x, y;
  bool is_right;
};

// Files in three common formats: a CSV table, lines of text, and tar shards in which two members form a sample.
class Files {
 public:
  Files() {
    auto pattern = (fs::temp_directory_path() / "accel-sources.XXXXXX").string();
    if (mkdtemp(pattern.data()) == nullptr) throw accel::Error("no temporary folder");
    folder_ = pattern;
    std::ofstream table(path("points.csv")), text(path("points.txt"));
    table << "x,\"is right\",y\r\n";
    for (int64_t number = 0; number < 1500; ++number)
      table << Point(number).x << "," << Point(number).is_right << ",\"" << Point(number).y << "\"\r\n";
    for (int64_t number = 2000; number < 2203; ++number)
      text << Point(number).x << " " << Point(number).y << " " << Point(number).is_right << "\n";
    for (int shard = 0; shard < 6; ++shard) write_shard(shard);
  }
  ~Files() { fs::remove_all(folder_); }
  Files(const Files&) = delete;
  Files& operator=(const Files&) = delete;

  [[nodiscard]] std::string path(const std::string& name) const { return (folder_ / name).string(); }

 private:
  void write_shard(int shard) const {
    const auto samples = folder_ / "samples";
    fs::create_directory(samples);
    for (int64_t number = 3000 + 17 * shard; number < 3017 + 17 * shard; ++number) {
      std::ofstream(samples / (std::to_string(number) + ".xy")) << Point(number).x << " " << Point(number).y;
      std::ofstream(samples / (std::to_string(number) + ".cls")) << Point(number).is_right;
    }
    const auto archive = path("points-" + std::to_string(shard) + ".tar");
    if (std::system(
            ("tar --create --sort=name --file '" + archive + "' --directory '" + samples.string() + "' .").c_str()) !=
        0)
      throw accel::Error("tar failed");
    fs::remove_all(samples);
  }

  fs::path folder_;
};

// Parses two numbers into a tensor.
at::Tensor numbers_of(std::istream&& text) {
  float x = 0, y = 0;
  text >> x >> y;
  return torch::tensor({x, y});
}

int train(int, char**) {
  accel::Accelerator accelerator;
  accel::set_seed(42);
  const Files files;
  accel::LabelledCsvTensors table(files.path("points.csv"), {.label = "is right"});
  auto lines = accel::transformed(accel::TextLines(files.path("points.txt")), [](const std::string& line) {
    return std::pair(numbers_of(std::istringstream(line)),
                     accel::decode_integer(line.substr(line.rfind(' ')), "points.txt"));
  });
  auto shards =
      accel::transformed(accel::TarShards(files.path("points-{0..5}.tar")), [](const accel::TarShards::Sample& sample) {
        return std::pair(numbers_of(std::istringstream(sample.at("xy"))),
                         accel::decode_integer(sample.at("cls"), sample.at("__key__")));
      });

  torch::nn::Linear line(2, 2);
  accel::optim::Adam adam(line->parameters(), torch::optim::AdamOptions(0.05));
  auto [model, optimizer, batches, text_batches, shard_batches] =
      accelerator.prepare(line, adam, accel::DataLoader(table, {.batch_size = 10, .shuffle = true}),
                          accel::DataLoader(lines, {.batch_size = 10}), accel::DataLoader(shards, {.batch_size = 10}));

  double error = 0;
  for (int epoch = 0; epoch < 4; ++epoch) {
    for (auto& [point, label] : batches) {
      auto loss = torch::nn::functional::cross_entropy(model(point / 100), label);
      accelerator.backward(loss);
      optimizer.step();
      optimizer.zero_grad();
      error = accelerator.reduce(loss, "mean").item<double>();
    }
  }

  torch::NoGradGuard no_grad;
  int64_t seen = 0, correct = 0;
  const auto count = [&](auto& loader) {
    for (auto& [point, label] : loader) {
      auto [guess, truth] = accelerator.gather_for_metrics(std::pair(model(point / 100).argmax(1), label));
      correct += (guess == truth).sum().template item<int64_t>();
      seen += truth.size(0);
    }
  };
  count(text_batches);
  count(shard_batches);
  const double accuracy = double(correct) / double(seen);
  accelerator.print("loss", error, "accuracy", accuracy, "over", seen, "samples");
  return seen == 203 + 102 && accuracy > 0.8 ? 0 : 1;  // every sample once, on any number of ranks
}

int main(int argc, char** argv) { return accel::run(argc, argv, train); }
