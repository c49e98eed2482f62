// What a rank of a mesh should hold is cut out of the tensor that one rank computed: its share of the samples, its
// positions of the sequence, its features. Sizes tell which of these cuts apply; where several positions are possible
// (a context-parallel rank holds contiguous or balanced chunks), one of them must match.
#include "sim/programs/runtime/layout_proof.hpp"

#include <ATen/ATen.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <regex>

#include "reference/core/errors.hpp"
#include "reference/mesh/mesh.hpp"

namespace accel::programs {
namespace {

using Indices = std::vector<std::int64_t>;

// Sizes of the samples that a model is called with.
struct Batch {
  std::int64_t rows = 0, length = 0;
};

at::Tensor selected(const at::Tensor& tensor, std::int64_t dim, const Indices& indices) {
  return tensor.index_select(dim, at::tensor(indices, at::kLong));
}

Indices range(std::int64_t begin, std::int64_t end) {
  Indices indices;
  for (auto index = begin; index < end; ++index) indices.push_back(index);
  return indices;
}

class Proof {
 public:
  Proof(const RecordedRun& one, const RecordedRun& mesh, const ParallelismConfig& layout)
      : one_(one), mesh_(mesh), layout_(layout), grid_(mesh_of(layout)) {}

  std::optional<Disagreement> run() {
    for (const auto& key : one_.keys(0)) {
      if (key.kind.starts_with("evaluation") || key.kind == "generator state") continue;
      if (key.kind == "input") note_batch(key);
      if (auto found = check(key)) return found;
    }
    return std::nullopt;
  }

 private:
  struct Own {  // a rank's tensor, and what it may be
    at::Tensor found;
    std::vector<at::Tensor> expected;
  };

  int size(const char* group) const { return static_cast<int>(members(0, group).size()); }
  std::vector<int> members(int rank, const char* group) const {
    for (auto& ranks : grid_.groups(axes_of(group))) {
      if (std::find(ranks.begin(), ranks.end(), rank) != ranks.end()) return ranks;
    }
    return {rank};
  }
  int place(int rank, const char* group) const {
    const auto ranks = members(rank, group);
    return static_cast<int>(std::find(ranks.begin(), ranks.end(), rank) - ranks.begin());
  }
  int context_size() const { return layout_.cp_size * layout_.sp_size; }
  int context_place(int rank) const { return layout_.cp_size > 1 ? place(rank, "cp") : place(rank, "sp"); }

  void note_batch(const ObservationKey& key) {
    const auto* seen = one_.find(0, key);
    if (seen->tensors.empty() || seen->tensors[0].sizes.empty()) return;
    const auto& sizes = seen->tensors[0].sizes;
    batch_ = {.rows = sizes[0], .length = sizes.size() > 1 ? sizes[1] : 0};
    const auto* own = mesh_.find(0, key);
    const auto own_sizes = own == nullptr || own->tensors.empty() ? sizes : own->tensors[0].sizes;
    divides_positions_ = own_sizes.size() > 1 && own_sizes[1] < batch_.length;
  }

  // The positions that a rank may hold, of `count` in all.
  std::vector<Indices> positions(int rank, std::int64_t count) const {
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

  std::vector<at::Tensor> positions_of(const at::Tensor& rows, int rank, std::int64_t expected_length) const {
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

  // The rank's share of the samples. A tensor whose rows are tokens has batch * length of them.
  std::vector<at::Tensor> shares_of(const at::Tensor& whole, int rank, const std::vector<std::int64_t>& sizes) const {
    if (whole.dim() == 0 || sizes.empty()) return {whole};
    const int parts = size("dp"), own = place(rank, "dp");
    const auto rows = batch_.rows;
    const bool has_rows = rows > 0 && rows % parts == 0;
    if (has_rows && whole.size(0) == rows && (sizes[0] == rows / parts)) {
      const auto share = whole.narrow(0, own * (rows / parts), rows / parts);
      const bool has_positions = batch_.length > 1 && share.dim() > 1 && sizes.size() > 1 &&
                                 share.size(1) == batch_.length && sizes[1] != share.size(1);
      return has_positions ? positions_of(share, rank, sizes[1]) : std::vector{share};
    }
    const auto tokens = rows * batch_.length;
    if (has_rows && batch_.length > 1 && whole.size(0) == tokens) {
      auto shape = whole.sizes().vec();
      shape[0] = batch_.length;
      shape.insert(shape.begin(), rows);
      const auto share = whole.reshape(shape).narrow(0, own * (rows / parts), rows / parts);
      std::vector<at::Tensor> options;
      if (sizes[0] % (rows / parts) == 0) {
        for (const auto& option : positions_of(share, rank, sizes[0] / (rows / parts)))
          options.push_back(option.flatten(0, 1));
      }
      return options;
    }
    return {whole};
  }

  // Dimensions that are still larger are those of features, which tensor-parallel ranks divide.
  std::vector<at::Tensor> features_of(std::vector<at::Tensor> options, int rank, const std::vector<std::int64_t>& sizes,
                                      const Indices& sections) const {
    std::vector<at::Tensor> fitting;
    for (auto& option : options) {
      if (option.dim() != static_cast<std::int64_t>(sizes.size())) continue;
      std::vector<at::Tensor> cuts{option};
      for (std::int64_t dim = 0; dim < option.dim(); ++dim) {
        const auto parts = sizes[dim] == 0 ? 0 : option.size(dim) / sizes[dim];
        if (option.size(dim) == sizes[dim] || parts != layout_.tp_size) continue;
        const auto own = place(rank, "tp");
        std::vector<at::Tensor> next;
        for (const auto& cut : cuts) {
          next.push_back(cut.narrow(dim, own * sizes[dim], sizes[dim]));
          if (std::accumulate(sections.begin(), sections.end(), std::int64_t{0}) != option.size(dim)) continue;
          std::vector<at::Tensor> pieces;
          std::int64_t begin = 0;
          for (const auto section : sections) {
            pieces.push_back(cut.narrow(dim, begin + own * (section / parts), section / parts));
            begin += section;
          }
          next.push_back(at::cat(pieces, dim));
        }
        cuts = std::move(next);
      }
      for (auto& cut : cuts) {
        if (cut.sizes() == at::IntArrayRef(sizes)) fitting.push_back(std::move(cut));
      }
    }
    return fitting;
  }

  // The sections of the module's weight, in whose order its outputs are cut.
  Indices sections_of(const std::string& module) const {
    for (const auto& key : mesh_.keys(0)) {
      if (key.kind != "prepared parameter" || key.name != module + ".weight") continue;
      const auto* seen = mesh_.find(0, key);
      return seen->cut ? seen->cut->sections : Indices();
    }
    return {};
  }

  at::Tensor part_of(const at::Tensor& whole, const RecordedCut& cut, int rank) const {
    const int parts = size(cut.axis.c_str()), own = place(rank, cut.axis.c_str());
    std::vector<at::Tensor> pieces;
    std::int64_t begin = 0;
    for (const auto section : cut.sections) {
      pieces.push_back(whole.narrow(cut.dim, begin + own * (section / parts), section / parts));
      begin += section;
    }
    return at::cat(pieces, cut.dim);
  }

  // Between steps, parameters of a sharded model are flat parts, in the order of the shard group.
  at::Tensor found_parameter(const ObservationKey& key, int rank, const at::Tensor& expected) const {
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

  static bool is_parameter(const std::string& kind) { return kind.ends_with("parameter") || kind == "gradient"; }

  Own own_parameter(const ObservationKey& key, int rank, const at::Tensor& whole) const {
    const auto& cut = mesh_.find(rank, key)->cut;
    const auto expected = cut ? part_of(whole, *cut, rank) : whole;
    return {found_parameter(key, rank, expected), {expected}};
  }

  // Sums what tensor-parallel peers hold of a tensor whose placement is a sum.
  at::Tensor found_values(const ObservationKey& key, std::size_t index, int rank) const {
    const auto& stored = mesh_.find(rank, key)->tensors.at(index);
    const bool is_gradient = key.kind == "input gradient";
    const bool is_sum = stored.placement == (is_gradient ? "copied" : "partial");
    if (!is_sum) return mesh_.tensor(rank, stored);
    at::Tensor sum;
    for (const auto member : members(rank, "tp")) {
      const auto* seen = mesh_.find(member, key);
      if (seen == nullptr) continue;
      const auto value = mesh_.tensor(member, seen->tensors.at(index));
      sum = sum.defined() ? sum + value : value;
    }
    return sum;
  }

  Own own_values(const ObservationKey& key, std::size_t index, int rank, const at::Tensor& whole) const {
    const auto found = found_values(key, index, rank);
    const auto sizes = found.sizes().vec();
    auto options = shares_of(whole, rank, sizes);
    // Samples have no features to divide: ranks of other sizes read other samples.
    if (key.kind != "input") options = features_of(std::move(options), rank, sizes, sections_of(key.name));
    if (key.kind == "input gradient") {
      for (auto& option : options) option = option * size(divides_positions_ ? "dp_cp" : "dp");
    }
    return {found, std::move(options)};
  }

  std::optional<Disagreement> check(const ObservationKey& key) {
    const auto* expected = one_.find(0, key);
    if (key.kind == "loss") return check_loss(key);
    for (std::size_t index = 0; index < expected->tensors.size(); ++index) {
      if (expected->tensors[index].placement == "routed") continue;  // rows of other tokens in every layout
      const auto whole = one_.tensor(0, expected->tensors[index]);
      std::vector<Own> own(mesh_.num_ranks());
      for (int rank = 0; rank < mesh_.num_ranks(); ++rank) {
        const auto* seen = mesh_.find(rank, key);
        if (seen == nullptr || seen->tensors.size() <= index) return found(key, rank, "the rank never computed it", 0);
        own[rank] = is_parameter(key.kind) ? own_parameter(key, rank, whole) : own_values(key, index, rank, whole);
      }
      for (int rank = 0; rank < mesh_.num_ranks(); ++rank) {
        if (own[rank].expected.empty() || own[rank].found.sizes() != own[rank].expected.front().sizes()) {
          return found(key, rank,
                       fmt::format("its sizes are [{}], those of one rank [{}]",
                                   fmt::join(own[rank].found.sizes(), ", "), fmt::join(whole.sizes(), ", ")),
                       0);
        }
        const auto error = error_of(own[rank], whole);
        if (!(error <= tolerance_of(expected->tensors[index].dtype)))
          return found(key, rank, cause_of(key, rank, own, whole), error);
      }
    }
    return std::nullopt;
  }

  static double tolerance_of(const std::string& dtype) {
    return dtype == "Double" ? 1e-9 : dtype == "Float" ? 1e-4 : 0.05;
  }

  static double largest(const at::Tensor& tensor) {
    return tensor.numel() == 0 ? 0 : tensor.to(at::kDouble).abs().max().item<double>();
  }
  static double difference(const at::Tensor& a, const at::Tensor& b) {
    if (a.sizes() != b.sizes()) return INFINITY;
    const auto error = largest(a.to(at::kDouble) - b.to(at::kDouble));
    return std::isnan(error) ? INFINITY : error;
  }

  // Relative to the largest element of the complete tensor, since a part of it may be zero.
  static double error_of(const Own& own, const at::Tensor& whole) {
    double error = INFINITY;
    for (const auto& option : own.expected) error = std::min(error, difference(own.found, option));
    const auto scale = std::max(largest(whole), own.expected.empty() ? 0.0 : largest(own.expected.front()));
    return scale == 0 ? error : error / scale;
  }

  // A rank's loss is that of its own samples; their mean is the loss of one rank.
  std::optional<Disagreement> check_loss(const ObservationKey& key) {
    double sum = 0;
    for (int rank = 0; rank < mesh_.num_ranks(); ++rank) {
      const auto* seen = mesh_.find(rank, key);
      if (seen == nullptr) return found(key, rank, "the rank never computed it", 0);
      sum += std::strtod(seen->value.c_str(), nullptr);
    }
    const auto expected = std::strtod(one_.find(0, key)->value.c_str(), nullptr), mean = sum / mesh_.num_ranks();
    const auto error = std::abs(mean - expected) / std::max(std::abs(expected), 1e-30);
    if (error <= 1e-4) return std::nullopt;
    return found(key, 0, factor_text(mean / expected, "the mean of the ranks' losses"), error);
  }

  // --- likely causes ------------------------------------------------------------------------------------------------
  static constexpr const char* kGroups[] = {"tp", "ep", "cp", "sp", "dp", "dp_cp", "expert_dp"};

  std::string factor_text(double factor, const std::string& what = "it") const {
    for (const auto* group : kGroups) {
      const double count = size(group);
      if (count == 1) continue;
      if (std::abs(factor - count) < 1e-6 * count)
        return fmt::format("{} is {} times the expected value: reduced or counted once too often over {}", what, count,
                           group);
      if (std::abs(factor * count - 1) < 1e-6)
        return fmt::format("{} is 1/{} of the expected value: a missing sum, or a division too many, over {}", what,
                           count, group);
    }
    return std::abs(factor - 1) < 1e-6 ? "" : fmt::format("{} is {:.6g} times the expected value", what, factor);
  }

  std::string cause_of(const ObservationKey& key, int rank, const std::vector<Own>& own,
                       const at::Tensor& whole) const {
    const auto& found = own[rank].found;
    const auto close = [&](const at::Tensor& a, const at::Tensor& b) {
      return difference(a, b) <= 1e-4 * std::max(largest(b), 1e-30);
    };
    for (const auto& expected : own[rank].expected) {
      const auto square = (expected * expected).sum().item<double>();
      if (!expected.is_floating_point() || square == 0) continue;
      const auto factor = (found * expected).sum().item<double>() / square;
      if (std::abs(factor - 1) > 1e-6 && close(found, expected * factor)) {
        if (auto text = factor_text(factor); !text.empty()) return text;
      }
    }
    for (const auto* group : kGroups) {
      const auto ranks = members(rank, group);
      if (ranks.size() == 1) continue;
      at::Tensor sum = at::zeros_like(found);
      for (const auto member : ranks) {
        if (own[member].found.sizes() == sum.sizes()) sum = sum + own[member].found;
      }
      for (const auto& expected : own[rank].expected) {
        if (close(sum, expected))
          return fmt::format("a missing all-reduce over {}: the ranks' values sum to the expected one", group);
        if (close(sum / static_cast<double>(ranks.size()), expected))
          return fmt::format("a missing average over {}: the mean of the ranks' values is the expected one", group);
      }
    }
    for (int other = 0; other < mesh_.num_ranks(); ++other) {
      if (other == rank) continue;
      for (const auto& expected : own[other].expected) {
        if (close(found, expected)) return fmt::format("it is the part of rank {}: a wrong or stale shard", other);
      }
    }
    if (const auto text = bias_cause(key, found, own[rank]); !text.empty()) return text;
    auto before = key;
    for (--before.step; before.step >= 0; --before.step) {
      const auto* seen = one_.find(0, before);
      if (seen != nullptr && !seen->tensors.empty() && close(found, one_.tensor(0, seen->tensors[0])))
        return fmt::format("it has the values of step {}: stale", before.step);
    }
    (void)whole;
    return "other values: another random stream, or another order of samples or positions";
  }

  // A bias that every rank of a group adds before the sum.
  std::string bias_cause(const ObservationKey& key, const at::Tensor& found, const Own& own) const {
    for (const auto& candidate : one_.keys(0)) {
      if (candidate.kind != "prepared parameter" || candidate.name != key.name + ".bias") continue;
      const auto bias = one_.tensor(0, one_.find(0, candidate)->tensors.at(0));
      for (const auto& expected : own.expected) {
        if (expected.dim() == 0 || expected.size(-1) != bias.size(0)) continue;
        for (const auto* group : kGroups) {
          const double extra = size(group) - 1;
          if (extra > 0 && difference(found, expected + bias * extra) <= 1e-4 * largest(expected))
            return fmt::format("the bias is added {} times: once per rank of {}", extra + 1, group);
        }
        if (difference(found, expected - bias) <= 1e-4 * largest(expected)) return "the bias is missing";
      }
    }
    return "";
  }

  // Names the axis of a group that the mesh has created.
  std::string with_axis(const std::string& collective) const {
    int number = 0;
    for (const auto& [kind, groups] : groups_to_create(grid_)) {
      for (std::size_t i = 0; i < groups.size(); ++i) {
        const auto name = fmt::format("group{}", ++number);
        if (collective.find(" of group " + name + " ") != std::string::npos)
          return std::regex_replace(collective, std::regex("group " + name), fmt::format("group {}", kind));
      }
    }
    return collective;
  }

  Disagreement found(const ObservationKey& key, int rank, std::string cause, double error) const {
    const auto* seen = mesh_.find(rank, key);
    return {.what = key,
            .rank = rank,
            .cause = std::move(cause),
            .collective = seen == nullptr ? "" : with_axis(seen->collective),
            .error = error};
  }

  const RecordedRun& one_;
  const RecordedRun& mesh_;
  ParallelismConfig layout_;
  Mesh grid_;
  Batch batch_;
  bool divides_positions_ = false;  // context-parallel ranks are called with their own positions
};

}  // namespace

std::optional<Disagreement> first_disagreement(const RecordedRun& one, const RecordedRun& mesh,
                                               const ParallelismConfig& layout) {
  return Proof(one, mesh, layout).run();
}

std::string describe(const Disagreement& disagreement) {
  const auto& [step, kind, name, count] = disagreement.what;
  const auto what = describe(Observation{.step = step, .kind = kind, .name = name});
  auto text = fmt::format("step {}: {} on rank {} is wrong", step, what, disagreement.rank);
  if (disagreement.error > 0) text += fmt::format(" by {:.3g} of its largest element", disagreement.error);
  if (!disagreement.cause.empty()) text += "; " + disagreement.cause;
  if (!disagreement.collective.empty()) text += fmt::format("; last collective before it: {}", disagreement.collective);
  return text;
}

std::vector<ParallelismConfig> all_layouts(int num_ranks) {
  std::vector<ParallelismConfig> layouts;
  const auto divisors = [](int number) {
    std::vector<int> all;
    for (int value = 1; value <= number; ++value) {
      if (number % value == 0) all.push_back(value);
    }
    return all;
  };
  for (const auto replicas : divisors(num_ranks)) {
    for (const auto cp : divisors(num_ranks / replicas)) {
      for (const auto sp : divisors(num_ranks / replicas / cp)) {
        if (cp > 1 && sp > 1) continue;
        for (const auto tp : divisors(num_ranks / replicas / cp / sp)) {
          layouts.push_back({.dp_replicate_size = replicas,
                             .cp_size = cp,
                             .sp_size = sp,
                             .tp_size = tp,
                             .ep_size = num_ranks / replicas / cp / sp / tp});
        }
      }
    }
  }
  return layouts;
}

std::string name_of(const ParallelismConfig& layout) {
  std::vector<std::string> sizes;
  const std::pair<const char*, int> all[] = {{"dp_replicate", layout.dp_replicate_size},
                                             {"dp_shard", layout.dp_shard_size},
                                             {"cp", layout.cp_size},
                                             {"sp", layout.sp_size},
                                             {"tp", layout.tp_size},
                                             {"ep", layout.ep_size}};
  for (const auto& [name, size] : all) {
    if (size > 1) sizes.push_back(fmt::format("{} {}", name, size));
  }
  return sizes.empty() ? "one rank" : fmt::format("{}", fmt::join(sizes, " x "));
}

}  // namespace accel::programs
