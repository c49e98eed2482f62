// Text as blocks of bytes. The text is kept once, as bytes; batches are converted to int64 on access, since storing
// them would take eight times the memory.
#include "sim/programs/experiments/text_blocks.hpp"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>

#include <algorithm>
#include <utility>

#include "reference/core/errors.hpp"
#include "reference/core/shared.hpp"
#include "reference/sources/sequential_file.hpp"

namespace accel::programs {

std::shared_ptr<const std::string> load_text(const std::string& path) {
  return shared<std::string>("text:" + path, [&] { return read_all(path); });
}

TextBlocks::TextBlocks(std::shared_ptr<const std::string> text, Part part, std::int64_t block_size)
    : text_(std::move(text)), part_(part), block_size_(block_size) {}

// One byte less than the part: the last block needs a target for its last byte.
std::int64_t TextBlocks::size() const { return std::max<std::int64_t>(part_.end - part_.begin - 1, 0) / block_size_; }

TextBlocks::Batch TextBlocks::get_batch(const std::vector<std::int64_t>& indices) const {
  const auto num_blocks = static_cast<std::int64_t>(indices.size());
  auto inputs = at::empty({num_blocks, block_size_}, at::kLong), targets = at::empty_like(inputs);
  auto* input = inputs.mutable_data_ptr<std::int64_t>();
  auto* target = targets.mutable_data_ptr<std::int64_t>();
  for (const auto index : indices) {
    check_argument(index >= 0 && index < size(),
                   "sample {} does not exist; the text has {} blocks; expected 0 or more and less than {}", index,
                   size(), size());
    // unsigned char: a byte above 127 must become 128 to 255, not a negative index into the embedding.
    const auto* bytes = reinterpret_cast<const unsigned char*>(text_->data()) + part_.begin + index * block_size_;
    input = std::copy_n(bytes, block_size_, input);
    target = std::copy_n(bytes + 1, block_size_, target);
  }
  return {inputs, targets};
}

}  // namespace accel::programs
