#include "sim/programs/fashion_mnist.hpp"

#include <ATen/ATen.h>
#include <zlib.h>

#include <filesystem>
#include <vector>

#include "reference/core/errors.hpp"
#include "reference/core/shared.hpp"

namespace accel::programs {
namespace {

std::string find_file(const std::string& data_dir, const std::string& name) {
  for (const auto* ending : {"", ".gz"}) {
    auto path = (std::filesystem::path(data_dir) / (name + ending)).string();
    if (std::filesystem::exists(path)) return path;
  }
  throw ConfigError(fmt::format("data_dir: {}/{} is missing, plain or as .gz; on Debian: apt-get install dataset-fashion-mnist, or set data_dir", data_dir, name));
}

// The bytes of an idx file of unsigned bytes: magic 0 0 8 D, D big-endian sizes, the data.
at::Tensor read_idx(const std::string& path, int num_dims, std::optional<std::int64_t> limit) {
  const std::unique_ptr<gzFile_s, int (*)(gzFile)> file(gzopen(path.c_str(), "rb"), gzclose);
  check_config(file != nullptr, "{}: cannot be opened", path);
  const auto read = [&](void* data, std::int64_t num_bytes, const char* what) {
    const auto got = gzread(file.get(), data, static_cast<unsigned>(num_bytes));
    check_config(got == num_bytes, "{}: the file is short or damaged: {} bytes of {} expected, {} read", path, num_bytes, what, std::max(got, 0));
  };
  std::vector<unsigned char> header(4 + 4 * num_dims);
  read(header.data(), static_cast<std::int64_t>(header.size()), "the header");
  check_config(header[0] == 0 && header[1] == 0 && header[2] == 8 && header[3] == num_dims,
               "{}: not an idx file of bytes with {} dimensions (magic {:02x}{:02x}{:02x}{:02x})", path, num_dims, header[0], header[1], header[2], header[3]);
  std::vector<std::int64_t> sizes;
  for (int dim = 0; dim < num_dims; ++dim) {
    const auto* bytes = &header[4 + 4 * dim];
    sizes.push_back(std::int64_t{bytes[0]} << 24 | bytes[1] << 16 | bytes[2] << 8 | bytes[3]);
  }
  if (limit) sizes[0] = std::min(sizes[0], *limit);
  auto data = at::empty(sizes, at::kByte);
  read(data.data_ptr(), data.numel(), "data");
  return data;
}

LabelledImages read_split(const std::string& data_dir, const std::string& name, std::optional<std::int64_t> limit) {
  const auto image_file = find_file(data_dir, name + "-images-idx3-ubyte");
  const auto label_file = find_file(data_dir, name + "-labels-idx1-ubyte");
  const auto images = read_idx(image_file, 3, limit);
  const auto labels = read_idx(label_file, 1, limit);
  check_config(images.size(0) == labels.size(0), "{}: {} images, but {} has {} labels", image_file, images.size(0), label_file, labels.size(0));
  check_config(images.size(1) == 28 && images.size(2) == 28, "{}: images of {}x{}; expected 28x28", image_file, images.size(1), images.size(2));
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
