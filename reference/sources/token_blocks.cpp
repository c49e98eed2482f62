#include "reference/sources/token_blocks.hpp"

#include <ATen/ops/empty.h>

#include <algorithm>

#include "reference/core/errors.hpp"
#include "reference/sources/sequential_file.hpp"
#include "reference/sources/text_file.hpp"
#include "reference/sources/text_lines.hpp"
#include "reference/sources/tokenizer/utf8.hpp"

namespace accel {
namespace {

// The lines of a text as TextLines returns them.
std::vector<std::string_view> lines_of(std::string_view text) {
  std::vector<std::string_view> lines;
  const char line_end = text.find('\n') == std::string_view::npos ? '\r' : '\n';
  while (!text.empty()) {
    const auto end = std::min(text.find(line_end), text.size() - 1) + 1;
    lines.push_back(sources::without_line_end(text.substr(0, end), line_end));
    text.remove_prefix(end);
  }
  return lines;
}

void add_token(std::vector<std::int32_t>& tokens, std::int64_t id) {
  check_config(id <= INT32_MAX, "tokenizer: a token has the id {}; expected at most {}, since tokens are int32", id,
               INT32_MAX);
  tokens.push_back(static_cast<std::int32_t>(id));
}

}  // namespace

at::Tensor tokenize_files(const Tokenizer& tokenizer, const std::vector<std::string>& paths,
                          const TokenizeOptions& options) {
  const auto end_of_text = tokenizer.token_to_id(options.end_of_text);
  check_argument(options.end_of_text.empty() || end_of_text,
                 "end_of_text: '{}' is not a token of the tokenizer; expected one of its tokens", options.end_of_text);
  std::vector<std::int32_t> tokens;
  for (const auto& path : paths) {
    auto text = read_all(path);
    sources::check_is_text(path, text);
    text.erase(0, sources::byte_order_mark_bytes(text));
    const auto invalid = sources::first_invalid_utf8(text);
    check_config(!invalid, "{}: byte {} is not UTF-8; expected a text in UTF-8; convert the file", path,
                 invalid.value_or(0));
    for (const auto part : options.by_line ? lines_of(text) : std::vector<std::string_view>{text}) {
      for (const auto id : tokenizer.encode(part, {.add_special_tokens = options.add_special_tokens}))
        add_token(tokens, id);
      if (!options.end_of_text.empty()) add_token(tokens, *end_of_text);
    }
  }
  auto result = at::empty({std::ssize(tokens)}, at::kInt);
  std::copy(tokens.begin(), tokens.end(), result.data_ptr<std::int32_t>());
  return result;
}

TokenBlocks::TokenBlocks(at::Tensor tokens, const TokenBlocksOptions& options)
    : tokens_(std::move(tokens)), block_size_(options.block_size) {
  const bool are_tokens = tokens_.defined() && tokens_.dim() == 1 && tokens_.is_cpu() &&
                          (tokens_.scalar_type() == at::kInt || tokens_.scalar_type() == at::kLong);
  check_argument(are_tokens, "TokenBlocks: expected tokens of shape (n), int32 or int64, on the CPU; got {}",
                 tokens_.defined() ? tokens_.toString() : "an undefined tensor");
  check_argument(block_size_ >= 1, "TokenBlocks: block_size {}; expected 1 or more", block_size_);
}

// One token less than all: the last block needs a target for its last token.
std::int64_t TokenBlocks::size() const { return std::max<std::int64_t>(tokens_.size(0) - 1, 0) / block_size_; }

TokenBlocks::Batch TokenBlocks::get(std::int64_t index) const {
  const auto [inputs, targets] = get_batch({index});
  return {inputs.squeeze(0), targets.squeeze(0)};
}

TokenBlocks::Batch TokenBlocks::get_batch(const std::vector<std::int64_t>& indices) const {
  auto inputs = at::empty({std::ssize(indices), block_size_}, at::kLong);
  auto targets = at::empty({std::ssize(indices), block_size_}, at::kLong);
  for (std::int64_t row = 0; row < std::ssize(indices); ++row) {
    check_argument(indices[row] >= 0 && indices[row] < size(),
                   "sample {} does not exist; there are {} blocks; expected 0 or more and less than {}", indices[row],
                   size(), size());
    inputs[row].copy_(tokens_.narrow(0, indices[row] * block_size_, block_size_));
    targets[row].copy_(tokens_.narrow(0, indices[row] * block_size_ + 1, block_size_));
  }
  return {inputs, targets};
}

}  // namespace accel
