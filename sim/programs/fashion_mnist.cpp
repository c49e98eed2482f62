#include "sim/programs/fashion_mnist.hpp"

#include <ATen/ATen.h>
#include <c10/util/accumulate.h>
#include <zlib.h>

#include <algorithm>
#include <filesystem>
#include <vector>

#include "reference/core/errors.hpp"
#include "reference/core/shared.hpp"

namespace accel::programs {
namespace {

constexpr int kNumClasses = 10;

std::string find_file(const std::string& data_dir, const std::string& name) {
  for (const auto* ending : {"", ".gz"}) {
    auto path = (std::filesystem::path(data_dir) / (name + ending)).string();
    if (std::filesystem::exists(path)) return path;
  }
  throw ConfigError(fmt::format("data_dir: {}/{} is missing, plain or as .gz; on Debian: apt-get install dataset-fashion-mnist, or set data_dir", data_dir, name));
}

// Opens an idx file of unsigned bytes (magic 0 0 8 D, D big-endian sizes, the data); refuses what cannot be one.
class IdxFile {
 public:
  explicit IdxFile(const std::string& path) : path_(path), file_(gzopen(path.c_str(), "rb"), gzclose) {
    check_config(file_ != nullptr, "{}: cannot be opened", path);
  }

  std::vector<std::int64_t> read_sizes(int num_dims) {
    std::vector<unsigned char> header(4 + 4 * num_dims);
    read(header.data(), static_cast<std::int64_t>(header.size()), "the header");
    check_config(header[0] == 0 && header[1] == 0 && header[2] == 8 && header[3] == num_dims,
                 "{}: not an idx file of bytes with {} dimensions (magic {:02x}{:02x}{:02x}{:02x})", path_, num_dims, header[0], header[1], header[2], header[3]);
    std::vector<std::int64_t> sizes;
    for (int dim = 0; dim < num_dims; ++dim) {
      const auto* bytes = &header[4 + 4 * dim];
      sizes.push_back(std::int64_t{bytes[0]} << 24 | bytes[1] << 16 | bytes[2] << 8 | bytes[3]);
    }
    return sizes;
  }

  at::Tensor read_bytes(const std::vector<std::int64_t>& sizes) {
    const auto num_bytes = c10::multiply_integers(sizes);
    // Before memory is taken for what a damaged header promises: deflate makes at most 1032 bytes of one.
    const auto num_bytes_max = 1032 * static_cast<std::int64_t>(std::filesystem::file_size(path_));
    check_config(num_bytes <= num_bytes_max, "{}: the file is short or damaged: {} bytes of data expected", path_, num_bytes);
    auto data = at::empty(sizes, at::kByte);
    read(data.data_ptr(), num_bytes, "data");
    return data;
  }

 private:
  void read(void* data, std::int64_t num_bytes, const char* what) {
    constexpr std::int64_t kPiece = 1 << 30;  // gzread counts in int
    for (std::int64_t done = 0; done < num_bytes;) {
      const auto got = gzread(file_.get(), static_cast<char*>(data) + done, static_cast<unsigned>(std::min(kPiece, num_bytes - done)));
      check_config(got > 0, "{}: the file is short or damaged: {} bytes of {} expected, {} read", path_, num_bytes, what, done);
      done += got;
    }
  }

  std::string path_;
  std::unique_ptr<gzFile_s, int (*)(gzFile)> file_;
};

LabelledImages read_split(const std::string& data_dir, const std::string& name, std::optional<std::int64_t> limit) {
  const auto image_path = find_file(data_dir, name + "-images-idx3-ubyte");
  const auto label_path = find_file(data_dir, name + "-labels-idx1-ubyte");
  IdxFile image_file(image_path), label_file(label_path);
  auto image_sizes = image_file.read_sizes(3);
  auto label_sizes = label_file.read_sizes(1);
  check_config(image_sizes[1] == 28 && image_sizes[2] == 28, "{}: images of {}x{}; expected 28x28", image_path, image_sizes[1], image_sizes[2]);
  check_config(image_sizes[0] == label_sizes[0], "{}: {} images, but {} has {} labels", image_path, image_sizes[0], label_path, label_sizes[0]);
  check_config(image_sizes[0] > 0, "{}: no images", image_path);
  if (limit) image_sizes[0] = label_sizes[0] = std::min(image_sizes[0], *limit);
  const auto images = image_file.read_bytes(image_sizes);
  const auto labels = label_file.read_bytes(label_sizes);
  const auto largest = labels.max().item<int>();
  check_config(largest < kNumClasses, "{}: label {}; expected 0 to {}", label_path, largest, kNumClasses - 1);
  return {images.unsqueeze(1).to(at::kFloat).div_(255), labels.to(at::kLong)};
}

}  // namespace

std::shared_ptr<const FashionMnist> load_fashion_mnist(const std::string& data_dir, std::optional<std::int64_t> limit,
                                                       std::optional<std::int64_t> eval_limit) {
  const auto key = fmt::format("fashion_mnist:{}:{}:{}", data_dir, limit.value_or(-1), eval_limit.value_or(-1));
  return shared<FashionMnist>(key, [&] {
    return FashionMnist{read_split(data_dir, "train", limit), read_split(data_dir, "t10k", eval_limit)};
  });
}

}  // namespace accel::programs
