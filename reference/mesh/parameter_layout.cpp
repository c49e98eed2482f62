#include "reference/mesh/parameter_layout.hpp"

#include <algorithm>
#include <numeric>

namespace accel {

ElementRange intersection(ElementRange a, ElementRange b) {
  const ElementRange both{std::max(a.begin, b.begin), std::min(a.end, b.end)};
  return both.begin < both.end ? both : ElementRange{};
}

ElementRange part_of_length(std::int64_t length, PartIndex which) {
  const auto longest = (length + which.num_parts - 1) / which.num_parts;
  const auto begin = std::min(which.index * longest, length);
  return {begin, std::min(begin + longest, length)};
}

std::int64_t Shard::length() const { return std::accumulate(sections.begin(), sections.end(), std::int64_t{0}); }

std::int64_t Shard::length_of_part(PartIndex which) const {
  std::int64_t length = 0;
  for (const auto section : sections) length += part_of_length(section, which).size();
  return length;
}

std::vector<ElementRange> Shard::ranges_of_part(PartIndex which) const {
  std::vector<ElementRange> ranges;
  std::int64_t begin = 0;
  for (const auto section : sections) {
    const auto part = part_of_length(section, which);
    ranges.push_back({begin + part.begin, begin + part.end});
    begin += section;
  }
  return ranges;
}

bool Shard::fits(const std::vector<std::int64_t>& sizes) const {
  return dim < std::ssize(sizes) && sizes[static_cast<std::size_t>(dim)] == length();
}

// An empty intersection is {0, 0}; shifting it by the parameter's start would give a negative range.
ElementRange FlatShard::part(int index) const {
  const auto held = intersection(range, {index * shard_numel, (index + 1) * shard_numel});
  return held.size() == 0 ? ElementRange{} : ElementRange{held.begin - range.begin, held.end - range.begin};
}

ElementRange FlatShard::part_in_shard(int index) const {
  const auto begin = index * shard_numel;
  const auto held = intersection(range, {begin, begin + shard_numel});
  return held.size() == 0 ? ElementRange{} : ElementRange{held.begin - begin, held.end - begin};
}

Placement ParameterLayout::placement(MeshAxis axis) const {
  const auto found = std::ranges::find(divisions, axis, &Division::axis);
  return found == divisions.end() ? Placement(Replicate{}) : found->placement;
}

const ParameterLayout::Division* ParameterLayout::layer_division() const {
  const auto found = std::ranges::find_if(
      divisions, [](const Division& division) { return std::holds_alternative<Shard>(division.placement); });
  return found == divisions.end() ? nullptr : &*found;
}

int ParameterLayout::layer_part() const {
  const auto* division = layer_division();
  return division == nullptr ? kUndivided : division->index;
}

bool ParameterLayout::is_sharded() const {
  return !divisions.empty() && std::holds_alternative<FlatShard>(divisions.back().placement);
}

std::vector<std::int64_t> ParameterLayout::sizes_after(std::size_t count) const {
  auto left = sizes;
  for (std::size_t i = 0; i < count; ++i) {
    const auto& division = divisions[i];
    if (const auto* shard = std::get_if<Shard>(&division.placement))
      left.at(static_cast<std::size_t>(shard->dim)) = shard->length_of_part(division.which());
    else if (const auto* flat = std::get_if<FlatShard>(&division.placement))
      left = {flat->part(division.index).size()};
  }
  return left;
}

}  // namespace accel
