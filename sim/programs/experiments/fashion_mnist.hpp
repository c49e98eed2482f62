#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <optional>
#include <string>

namespace accel::programs {

inline constexpr int kNumFashionClasses = 10;

/// Images (n, 1, 28, 28), and labels (n) int64.
struct LabelledImages {
  at::Tensor images, labels;
};

struct FashionMnist {
  LabelledImages train, test;
};

/// Reads the four idx files, plain or .gz: images uint8.
/// Throws ConfigError that names the file if one is missing, short, damaged or of another format.
FashionMnist read_fashion_mnist(const std::string& data_dir, std::optional<std::int64_t> limit,
                                std::optional<std::int64_t> eval_limit);

/// The same once per process, shared by all ranks: images float32 in [0, 1].
std::shared_ptr<const FashionMnist> load_fashion_mnist(const std::string& data_dir, std::optional<std::int64_t> limit,
                                                       std::optional<std::int64_t> eval_limit);

}  // namespace accel::programs
