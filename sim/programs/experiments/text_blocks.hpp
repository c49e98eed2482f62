#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include <ATen/core/Tensor.h>

/// A text as samples for a language model.
///
///     const auto text = load_text("book.txt.gz");
///     TextBlocks train(text, {.begin = 0, .end = text->size() * 9 / 10}, /*block_size=*/64);
///     train.get_batch({0, 5});   // bytes (2, 64) int64, and the byte after each
///
/// Thread rule: any number of readers; copies share the text.
namespace accel::programs {

/// Reads the bytes of a file, plain or .gz, once per process, and shares them among all ranks. Throws ConfigError that
/// names the file if it is damaged or cannot be read.
std::shared_ptr<const std::string> load_text(const std::string& path);

/// A dataset whose sample i holds bytes [i * block_size, (i + 1) * block_size) of a part of a text, and the byte after
/// each as its target. Blocks do not overlap; an incomplete block at the end is left out.
class TextBlocks {
 public:
  using Batch = std::tuple<at::Tensor, at::Tensor>;
  struct Part {
    std::int64_t begin = 0, end = 0;
  };

  TextBlocks(std::shared_ptr<const std::string> text, Part part, std::int64_t block_size);

  [[nodiscard]] std::int64_t size() const;
  [[nodiscard]] Batch get_batch(const std::vector<std::int64_t>& indices) const;

 private:
  std::shared_ptr<const std::string> text_;
  Part part_;
  std::int64_t block_size_;
};

}  // namespace accel::programs
