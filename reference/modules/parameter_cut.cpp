#include "reference/modules/parameter_cut.hpp"

#include <ATen/ops/cat.h>
#include <torch/nn/module.h>

#include <numeric>

#include "reference/core/errors.hpp"

namespace accel::parallel {
namespace {

std::int64_t sum_of(const std::vector<std::int64_t>& sections) {
  return std::accumulate(sections.begin(), sections.end(), std::int64_t{0});
}

}  // namespace

at::Tensor part_of_sections(const at::Tensor& whole, std::int64_t dim, const std::vector<std::int64_t>& sections,
                            SectionPart which) {
  std::vector<at::Tensor> parts;
  std::int64_t begin = 0;
  for (const auto section : sections) {
    const auto length = section / which.num_parts;
    parts.push_back(whole.narrow(dim, begin + which.part * length, length));
    begin += section;
  }
  return at::cat(parts, dim);
}

bool ParameterCut::fits(const std::vector<std::int64_t>& sizes_of_whole) const {
  return dim < std::ssize(sizes_of_whole) && sizes_of_whole[static_cast<std::size_t>(dim)] == sum_of(sections);
}

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
  const auto ranks = group.all_gather(part.detach().unsqueeze(0)).unbind(0);
  std::vector<at::Tensor> pieces;
  std::int64_t begin = 0;
  for (const auto section : sections) {
    const auto length = section / group.size();
    for (const auto& rank : ranks) pieces.push_back(rank.narrow(dim, begin, length));
    begin += length;
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
