#include "reference/parallel/same_model.hpp"

#include <ATen/core/Tensor.h>
#include <ATen/ops/full.h>
#include <fmt/ranges.h>

#include <map>

#include "reference/core/errors.hpp"
#include "reference/files/sha256.hpp"
#include "reference/state/objects.hpp"

namespace accel {
namespace {

using Lines = std::vector<std::string>;

// Everything that decides how a gradient is laid out in a bucket. Names are not part of it, as in Python.
std::string describe(const at::Tensor& tensor) {
  std::string text = fmt::format("{} [{}]", c10::toString(tensor.scalar_type()), fmt::join(tensor.sizes(), ", "));
  if (!tensor.is_contiguous()) text += fmt::format(" with strides [{}]", fmt::join(tensor.strides(), ", "));
  return text + (tensor.requires_grad() ? "" : " that requires no gradient");
}

// Models are compared by digest first, so the usual case costs one all-gather of 8 bytes whatever the model's size. The
// length passed to `update` includes the terminating zero, which keeps ("ab", "c") and ("a", "bc") apart.
std::int64_t digest_of(const Lines& lines) {
  Sha256 hash;
  for (const auto& line : lines) hash.update(line.c_str(), line.size() + 1);
  return static_cast<std::int64_t>(std::stoull(hash.hex().substr(0, 16), nullptr, 16));
}

// Describes the first tensor that differs, given the names and descriptions of every rank. Not all models are equal, so
// the loop ends. Ranks are grouped by description to keep the message short at thousands of ranks.
std::string first_difference(const std::vector<Lines>& names, const std::vector<Lines>& models) {
  for (std::size_t place = 0;; ++place) {
    std::map<std::string, std::vector<std::size_t>> ranks_with;
    std::string name;
    for (std::size_t rank = 0; rank < models.size(); ++rank) {
      const bool is_there = place < models[rank].size();
      ranks_with[is_there ? models[rank][place] : "missing"].push_back(rank);
      if (is_there && name.empty()) name = names[rank][place];
    }
    if (ranks_with.size() == 1) continue;
    Lines kinds;
    for (const auto& [kind, ranks] : ranks_with)
      kinds.push_back(fmt::format("{} on rank{} {}", kind, ranks.size() == 1 ? "" : "s", fmt::join(ranks, ", ")));
    return fmt::format("{} is {}", name, fmt::join(kinds, ", "));
  }
}

}  // namespace

void check_same_model(const Group& group, const NamedTensors& tensors) {
  Lines names, own;
  for (const auto& [name, tensor] : tensors) {
    names.push_back(name);
    own.push_back(describe(tensor));
  }
  const auto digests = group.all_gather(at::full({1}, digest_of(own), at::kLong));
  // Every rank sees all digests and takes the same branch, so the collectives below match.
  if (digests.eq(digests[0]).all().item<bool>()) return;
  const auto all_names = detail::gather_trees(group, names), all = detail::gather_trees(group, own);
  throw ArgumentError(fmt::format("prepare: the ranks' models differ: {}; build the same model on every rank",
                                  first_difference(all_names, all)));
}

}  // namespace accel
