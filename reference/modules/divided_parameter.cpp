#include "reference/modules/divided_parameter.hpp"

#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <c10/core/GradMode.h>

#include "reference/core/errors.hpp"

namespace accel {
namespace {

at::Tensor flat_part_of(const at::Tensor& complete, const FlatShard& flat, PartIndex which, const std::string& name) {
  check_argument(complete.numel() == flat.range.size(), "got a tensor of {} elements, but '{}' has {}",
                 complete.numel(), name, flat.range.size());
  const auto part = flat.part(which.index);
  return complete.reshape({-1}).narrow(0, part.begin, part.size()).clone();
}

// The complete flat buffer is gathered for one parameter: simple, and only used when checkpoints are written in full.
at::Tensor flat_complete_of(const at::Tensor& part, const FlatShard& flat, const Group& group,
                            const std::string& name) {
  const c10::NoGradGuard no_grad;
  const auto place = flat.part_in_shard(group.rank());
  check_argument(part.numel() == place.size(), "got a part of {} elements, but this rank holds {} of '{}'",
                 part.numel(), place.size(), name);
  // Only the shards that hold a part of this parameter matter, but an all-gather needs equal sizes on all ranks.
  auto shard = at::zeros({flat.shard_numel}, part.options());
  shard.narrow(0, place.begin, place.size()).copy_(part.reshape({-1}));
  auto buffer = at::empty({flat.shard_numel * group.size()}, part.options());
  group.all_gather_into(buffer, shard).wait();
  return buffer.narrow(0, flat.range.begin, flat.range.size()).clone();  // a copy does not keep the buffer alive
}

}  // namespace

at::Tensor part_of(const at::Tensor& complete, const Shard& shard, PartIndex which) {
  ensure(complete.size(shard.dim) == shard.length(), "a divided tensor of {} in place of {} elements",
         complete.size(shard.dim), shard.length());
  std::vector<at::Tensor> parts;
  for (const auto& range : shard.ranges_of_part(which))
    parts.push_back(complete.narrow(shard.dim, range.begin, range.size()));
  return at::cat(parts, shard.dim);
}

at::Tensor complete_of(const at::Tensor& part, const Shard& shard, const Group& group) {
  if (group.size() == 1) return part.detach();
  // Parts are padded to the length of the first, the longest.
  auto own = part.detach();
  const auto longest = shard.length_of_part({.index = 0, .num_parts = group.size()});
  if (own.size(shard.dim) < longest) {
    auto sizes = own.sizes().vec();
    sizes[static_cast<std::size_t>(shard.dim)] = longest - own.size(shard.dim);
    own = at::cat({own, at::zeros(sizes, own.options())}, shard.dim);
  }
  const auto ranks = group.all_gather(own.unsqueeze(0)).unbind(0);
  std::vector<at::Tensor> sections;
  std::vector<std::int64_t> begins(ranks.size(), 0);
  for (const auto section : shard.sections) {
    for (int rank = 0; rank < group.size(); ++rank) {
      auto& begin = begins[static_cast<std::size_t>(rank)];
      const auto length = part_of_length(section, {.index = rank, .num_parts = group.size()}).size();
      sections.push_back(ranks[static_cast<std::size_t>(rank)].narrow(shard.dim, begin, length));
      begin += length;
    }
  }
  return at::cat(sections, shard.dim);
}

bool DividedParameter::is_divided_over(MeshAxis axis) const {
  return std::holds_alternative<Shard>(layout.placement(axis));
}

at::Tensor DividedParameter::part_of(const at::Tensor& complete) const {
  auto own = complete;
  for (std::size_t i = 0; i < layout.divisions.size(); ++i) {
    const auto& division = layout.divisions[i];
    if (const auto* shard = std::get_if<Shard>(&division.placement))
      own = accel::part_of(own.view(layout.sizes_after(i)), *shard, division.which());
    else if (const auto* flat = std::get_if<FlatShard>(&division.placement))
      own = flat_part_of(own, *flat, division.which(), name);
  }
  return own;
}

at::Tensor DividedParameter::complete_of(const at::Tensor& part) const {
  auto complete = part;
  for (auto i = layout.divisions.size(); i-- > 0;) {
    const auto& division = layout.divisions[i];
    if (const auto* flat = std::get_if<FlatShard>(&division.placement))
      complete = flat_complete_of(complete, *flat, groups[i], name).view(layout.sizes_after(i));
    else if (const auto* shard = std::get_if<Shard>(&division.placement))
      complete = accel::complete_of(complete, *shard, groups[i]);
  }
  return complete;
}

TensorPart DividedParameter::described(const at::Tensor& part) const {
  const auto* flat =
      layout.divisions.size() == 1 ? std::get_if<FlatShard>(&layout.divisions.front().placement) : nullptr;
  return {.name = name,
          .sizes = layout.sizes,
          .range = flat == nullptr ? ElementRange{} : flat->part(layout.divisions.front().index),
          .values = flat == nullptr ? part : part.detach().reshape({-1})};
}

}  // namespace accel
