#include "reference/prepared/registered_buffers.hpp"

#include <torch/nn/module.h>

#include <algorithm>
#include <utility>

namespace accel {

// A buffer that several modules register is left out.
RegisteredBuffers::RegisteredBuffers(const torch::nn::Module& module) {
  {
    const auto named = module.named_buffers();
    for (const auto& item : named) {
      const bool is_shared =
          std::ranges::count_if(named, [&](const auto& other) { return other.value().is_same(item.value()); }) > 1;
      if (item.value().defined() && !is_shared) buffers_.push_back({.name = item.key(), .tensor = item.value()});
    }
  }
  constexpr std::size_t kRegistryAndRecord = 2;
  for (auto& buffer : buffers_) buffer.num_foreign = buffer.tensor.use_count() - kRegistryAndRecord;
}

void RegisteredBuffers::count_prepared() {
  for (auto& buffer : buffers_) buffer.num_prepared = buffer.tensor.use_count() - buffer.num_foreign;
}

// By then the program has dropped what it held while it prepared.
void RegisteredBuffers::begin_forward() {
  if (std::exchange(has_begun_, true)) return;
  std::erase_if(buffers_, [](const Buffer& buffer) { return !buffer.has_member(); });
}

std::vector<std::string> RegisteredBuffers::without_member() const {
  std::vector<std::string> names;
  for (const auto& buffer : buffers_) {
    if (has_begun_ && !buffer.has_member()) names.push_back(buffer.name);
  }
  return names;
}

}  // namespace accel
