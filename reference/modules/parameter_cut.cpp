#include "reference/modules/parameter_cut.hpp"

#include <ATen/ops/cat.h>
#include <ATen/ops/zeros.h>
#include <torch/nn/module.h>

#include <algorithm>
#include <numeric>

#include "reference/core/errors.hpp"

namespace accel::parallel {
namespace {

std::int64_t sum_of(const std::vector<std::int64_t>& sections) {
  return std::accumulate(sections.begin(), sections.end(), std::int64_t{0});
}

// The length of a part along the dimension that is cut.
std::int64_t length_of_part(const std::vector<std::int64_t>& sections, SectionPart which) {
  std::int64_t length = 0;
  for (const auto section : sections) length += range_of_part(section, which).length;
  return length;
}

}  // namespace

PartRange range_of_part(std::int64_t length, SectionPart which) {
  const auto longest = (length + which.num_parts - 1) / which.num_parts;
  const auto begin = std::min(which.part * longest, length);
  return {begin, std::min(longest, length - begin)};
}

at::Tensor part_of_sections(const at::Tensor& whole, std::int64_t dim, const std::vector<std::int64_t>& sections,
                            SectionPart which) {
  std::vector<at::Tensor> parts;
  std::int64_t begin = 0;
  for (const auto section : sections) {
    const auto range = range_of_part(section, which);
    parts.push_back(whole.narrow(dim, begin + range.begin, range.length));
    begin += section;
  }
  return at::cat(parts, dim);
}

bool ParameterCut::fits(const std::vector<std::int64_t>& sizes_of_whole) const {
  return dim < std::ssize(sizes_of_whole) && sizes_of_whole[static_cast<std::size_t>(dim)] == sum_of(sections);
}

std::int64_t ParameterCut::length_of_whole() const { return sum_of(sections); }

std::vector<std::int64_t> ParameterCut::whole_sizes(const at::Tensor& part) const {
  auto sizes = part.sizes().vec();
  sizes.at(static_cast<std::size_t>(dim)) = sum_of(sections);
  return sizes;
}

at::Tensor ParameterCut::part_of(const at::Tensor& whole) const {
  ensure(whole.size(dim) == sum_of(sections), "a cut tensor of {} in place of {} elements", whole.size(dim),
         sum_of(sections));
  return part_of_sections(whole, dim, sections, {.part = group.rank(), .num_parts = group.size()});
}

at::Tensor ParameterCut::whole_of(const at::Tensor& part) const {
  if (group.size() == 1) return part.detach();
  // Parts are padded to the length of the first, the longest.
  auto own = part.detach();
  const auto longest = length_of_part(sections, {.part = 0, .num_parts = group.size()});
  if (own.size(dim) < longest) {
    auto sizes = own.sizes().vec();
    sizes[static_cast<std::size_t>(dim)] = longest - own.size(dim);
    own = at::cat({own, at::zeros(sizes, own.options())}, dim);
  }
  const auto ranks = group.all_gather(own.unsqueeze(0)).unbind(0);
  std::vector<at::Tensor> pieces;
  std::vector<std::int64_t> begins(ranks.size(), 0);
  for (const auto section : sections) {
    for (int rank = 0; rank < group.size(); ++rank) {
      auto& begin = begins[static_cast<std::size_t>(rank)];
      const auto length = range_of_part(section, {.part = rank, .num_parts = group.size()}).length;
      pieces.push_back(ranks[static_cast<std::size_t>(rank)].narrow(dim, begin, length));
      begin += length;
    }
  }
  return at::cat(pieces, dim);
}

void CutModule::check_is_complete(const char* what) const {
  check_state(cuts().empty(),
              "{}: ranks divide the parameters of this model's layers, so this rank has only its parts; use "
              "accelerator.save_model, or save_state and load_state",
              what);
}

std::map<std::string, ParameterCut> parameter_cuts(const torch::nn::Module& module) {
  std::map<std::string, ParameterCut> all;
  const auto add = [&](const std::string& prefix, const torch::nn::Module& part) {
    const auto* cut_module = dynamic_cast<const CutModule*>(&part);
    if (cut_module == nullptr) return;
    for (const auto& [name, cut] : cut_module->cuts()) all.emplace(prefix.empty() ? name : prefix + "." + name, cut);
  };
  add("", module);
  for (const auto& item : module.named_modules("", /*include_self=*/false)) add(item.key(), *item.value());
  return all;
}

}  // namespace accel::parallel
