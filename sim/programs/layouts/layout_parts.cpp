#include "sim/programs/layouts/layout_parts.hpp"

#include <ATen/ATen.h>

#include <algorithm>

#include "reference/modules/divided_parameter.hpp"

namespace accel::programs {
namespace {

using Indices = std::vector<std::int64_t>;

at::Tensor selected(const at::Tensor& tensor, std::int64_t dim, const Indices& indices) {
  return tensor.index_select(dim, at::tensor(indices, at::kLong));
}

Indices range(std::int64_t begin, std::int64_t end) {
  Indices indices;
  for (auto index = begin; index < end; ++index) indices.push_back(index);
  return indices;
}

}  // namespace

const std::vector<int>& LayoutParts::members(int rank, const std::string& group) const {
  const auto& groups = groups_.at(group);
  return *std::find_if(groups.begin(), groups.end(), [&](const auto& ranks) {
    return std::find(ranks.begin(), ranks.end(), rank) != ranks.end();  // every rank is in one group
  });
}

int LayoutParts::place(int rank, const std::string& group) const {
  const auto& ranks = members(rank, group);
  return static_cast<int>(std::find(ranks.begin(), ranks.end(), rank) - ranks.begin());
}
void LayoutParts::note_batch(const ObservationKey& key) {
  const auto* seen = one_.find(0, key);
  if (seen->tensors.empty() || seen->tensors[0].sizes.empty()) return;
  const auto& sizes = seen->tensors[0].sizes;
  batch_ = {.rows = sizes[0], .length = sizes.size() > 1 ? sizes[1] : 0};
  const auto* own = mesh_.find(0, key);
  const auto own_sizes = own == nullptr || own->tensors.empty() ? sizes : own->tensors[0].sizes;
  divides_positions_ = own_sizes.size() > 1 && own_sizes[1] < batch_.length;
}

// The positions that a rank may hold, of `count` in all.
std::vector<LayoutParts::Indices> LayoutParts::positions(int rank, std::int64_t count) const {
  const int parts = context_size(), own = context_place(rank);
  if (parts == 1) return {range(0, count)};
  std::vector<Indices> options;
  if (count % parts == 0) options.push_back(range(own * count / parts, (own + 1) * count / parts));
  if (count % (2 * parts) == 0) {
    const auto chunk = count / (2 * parts);
    auto balanced = range(own * chunk, (own + 1) * chunk);
    const auto last = 2 * parts - 1 - own;
    for (const auto index : range(last * chunk, (last + 1) * chunk)) balanced.push_back(index);
    options.push_back(std::move(balanced));
  }
  options.push_back(range(0, count));
  return options;
}

LayoutParts::Tensors LayoutParts::positions_of(const at::Tensor& rows, int rank, std::int64_t expected_length) const {
  std::vector<at::Tensor> options;
  for (auto indices : positions(rank, rows.size(1))) {
    // Sequence parallelism divides a tensor-parallel rank's positions further.
    const int parts = layout_.tp_size;
    if (std::ssize(indices) == expected_length * parts && parts > 1) {
      const auto begin = indices.begin() + place(rank, "tp") * expected_length;
      indices = Indices(begin, begin + expected_length);
    }
    if (std::ssize(indices) == expected_length) options.push_back(selected(rows, 1, indices));
  }
  return options;
}

// The rank's share of the samples. The rows of a tensor are samples, positions, or tokens (samples * positions); where
// their numbers are equal, all readings are options.
LayoutParts::Tensors LayoutParts::shares_of(const at::Tensor& whole, int rank, const Sizes& sizes) const {
  if (whole.dim() == 0 || sizes.empty()) return {whole};
  Tensors options;
  const auto add = [&](const Tensors& more) { options.insert(options.end(), more.begin(), more.end()); };
  const int parts = size("dp");
  const auto rows = batch_.rows, length = batch_.length;
  const bool has_positions = length > 1, has_rows = rows > 0 && rows % parts == 0;
  const auto rows_of_rank = rows / parts;
  const auto share = [&](const at::Tensor& samples) {
    return samples.narrow(0, place(rank, "dp") * rows_of_rank, rows_of_rank);
  };
  if (has_rows && whole.size(0) == rows && sizes[0] == rows_of_rank) {
    const auto own = share(whole);
    const bool is_cut =
        has_positions && own.dim() > 1 && sizes.size() > 1 && own.size(1) == length && sizes[1] != length;
    add(is_cut ? positions_of(own, rank, sizes[1]) : Tensors{own});
  }
  if (has_positions && whole.size(0) == length && sizes[0] < length) {  // rows of positions
    for (const auto& option : positions_of(whole.unsqueeze(0), rank, sizes[0])) options.push_back(option.squeeze(0));
  }
  if (has_rows && has_positions && whole.size(0) == rows * length && sizes[0] % rows_of_rank == 0) {
    auto shape = whole.sizes().vec();
    shape[0] = length;
    shape.insert(shape.begin(), rows);
    for (const auto& option : positions_of(share(whole.reshape(shape)), rank, sizes[0] / rows_of_rank))
      options.push_back(option.flatten(0, 1));
  }
  return options.empty() ? Tensors{whole} : options;
}

// Dimensions that are still larger are those of features, which tensor-parallel ranks divide.
LayoutParts::Tensors LayoutParts::features_of(std::vector<at::Tensor> options, int rank,
                                              const std::vector<std::int64_t>& sizes, const Indices& sections) const {
  std::vector<at::Tensor> fitting;
  for (auto& option : options) {
    if (option.dim() != static_cast<std::int64_t>(sizes.size())) continue;
    std::vector<at::Tensor> divided{option};
    for (std::int64_t dim = 0; dim < option.dim(); ++dim) {
      const PartIndex own{.index = place(rank, "tp"), .num_parts = layout_.tp_size};
      const auto range = part_of_length(option.size(dim), own);
      if (option.size(dim) == sizes[dim] || range.size() != sizes[dim]) continue;
      std::vector<at::Tensor> next;
      const Shard by_sections{.dim = dim, .sections = sections};
      for (const auto& values : divided) {
        next.push_back(values.narrow(dim, range.begin, range.size()));
        if (by_sections.length() == option.size(dim)) next.push_back(part_of(values, by_sections, own));
      }
      divided = std::move(next);
    }
    for (auto& values : divided) {
      if (values.sizes() == at::IntArrayRef(sizes)) fitting.push_back(std::move(values));
    }
  }
  return fitting;
}

// The sections of the module's weight, in whose order its outputs are divided.
LayoutParts::Indices LayoutParts::sections_of(const std::string& module) const {
  for (const auto& key : mesh_.keys(0)) {
    if (key.kind != "prepared parameter" || key.name != module + ".weight") continue;
    const auto* seen = mesh_.find(0, key);
    return seen->division ? std::get<Shard>(seen->division->placement).sections : Indices();
  }
  return {};
}

// Between steps, parameters of a sharded model are flat parts, in the order of the shard group.
at::Tensor LayoutParts::found_parameter(const ObservationKey& key, int rank, const at::Tensor& expected) const {
  const auto own = mesh_.tensor(rank, mesh_.find(rank, key)->tensors.at(0));
  if (own.sizes() == expected.sizes() || own.dim() != 1) return own;
  std::vector<at::Tensor> parts;
  for (const auto member : members(rank, "dp_shard_cp")) {
    const auto* seen = mesh_.find(member, key);
    if (seen != nullptr && !seen->tensors.empty()) parts.push_back(mesh_.tensor(member, seen->tensors[0]).flatten());
  }
  const auto all = at::cat(parts);
  return all.numel() >= expected.numel() ? all.narrow(0, 0, expected.numel()).view(expected.sizes()) : own;
}

LayoutParts::Own LayoutParts::own_parameter(const ObservationKey& key, int rank, const at::Tensor& whole) const {
  const auto& division = mesh_.find(rank, key)->division;
  const auto expected = division ? part_of(whole, std::get<Shard>(division->placement), division->which()) : whole;
  return {found_parameter(key, rank, expected), {expected}};
}

// Sums what tensor-parallel peers hold of a partial tensor, or of the gradient of a copied one.
at::Tensor LayoutParts::found_values(const ObservationKey& key, std::size_t index, int rank) const {
  const auto& stored = mesh_.find(rank, key)->tensors.at(index);
  if (stored.placement != (key.kind == "input gradient" ? "copied" : "partial")) return mesh_.tensor(rank, stored);
  at::Tensor sum;
  for (const auto member : members(rank, "tp")) {
    const auto* seen = mesh_.find(member, key);
    if (seen == nullptr) continue;
    const auto value = mesh_.tensor(member, seen->tensors.at(index));
    sum = sum.defined() ? sum + value : value;
  }
  return sum;
}

at::Tensor LayoutParts::mean_of_ranks(const ObservationKey& key, std::size_t index) const {
  at::Tensor sum = at::zeros({}, at::kDouble);
  for (int rank = 0; rank < mesh_.num_ranks(); ++rank) {
    const auto* seen = mesh_.find(rank, key);
    if (seen != nullptr && seen->tensors.size() > index) sum = sum + mesh_.tensor(rank, seen->tensors[index]);
  }
  return sum / mesh_.num_ranks();
}

LayoutParts::Own LayoutParts::own_values(const ObservationKey& key, std::size_t index, int rank,
                                         const at::Tensor& whole) const {
  // A number is a mean over the rank's samples, such as a loss, or equal on all ranks.
  if (whole.dim() == 0 && key.kind == "output") return {mean_of_ranks(key, index), {whole}};
  const auto found = found_values(key, index, rank);
  const auto sizes = found.sizes().vec();
  auto options = shares_of(whole, rank, sizes);
  // Samples have no features to divide: ranks of other sizes read other samples.
  if (key.kind != "input") options = features_of(std::move(options), rank, sizes, sections_of(key.name));
  if (key.kind == "input gradient") {
    // A model that divides positions inside forward has gradients of complete positions before, and of its own after.
    const auto before = options;
    for (auto& option : options) option = option * size(divides_positions_ ? "dp_cp" : "dp");
    if (context_size() > 1 && !divides_positions_) {
      for (const auto& option : before) options.push_back(option * size("dp_cp"));
    }
  }
  return {found, std::move(options)};
}

}  // namespace accel::programs
