// Compares what the ranks hold with what they should hold (layout_parts.hpp), and guesses from the numbers why they
// differ: a factor, a sum, another part, a bias, an older step.
#include "sim/programs/layouts/layout_proof.hpp"

#include <ATen/ATen.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <numeric>

#include "reference/core/errors.hpp"
#include "sim/programs/layouts/layout_parts.hpp"
#include "sim/programs/layouts/responsible_collective.hpp"

namespace accel::programs {
namespace {

class Proof {
 public:
  Proof(const RecordedRun& one, const RecordedRun& mesh, const ParallelismConfig& layout)
      : one_(one), mesh_(mesh), parts_(one, mesh, layout) {}

  std::optional<Disagreement> run() {
    for (const auto& key : one_.keys(0)) note_largest(key);
    for (const auto& key : one_.keys(0)) {
      if (key.kind.starts_with("evaluation") || key.kind == "generator state") continue;
      if (key.step > last_step_) break;
      note_rounding(key);
      if (key.kind == "input") {
        parts_.note_batch(key);
        is_cut_ = is_cut_ || has_no_output(key);
      }
      // loss_weighting "exact" weights gradients after backward, so that only those which are stepped must agree.
      if (key.kind == "gradient" && unweighted_) continue;
      if (key.kind == "parameter") unweighted_.reset();
      auto found = check(key);
      if (!found) continue;
      if (key.kind == "gradient" && is_stepped(key))
        unweighted_ = std::move(found);
      else
        return key.kind == "stepped gradient" && unweighted_ ? unweighted_ : found;
    }
    return std::nullopt;
  }

 private:
  using Own = LayoutParts::Own;

  static bool is_gradient(const std::string& kind) { return kind == "gradient" || kind == "stepped gradient"; }
  static bool is_parameter(const std::string& kind) { return kind.ends_with("parameter") || is_gradient(kind); }

  // Gradients that are stepped follow in the same step.
  bool is_stepped(ObservationKey key) const {
    key.kind = "stepped gradient";
    return one_.find(0, key) != nullptr;
  }

  // Elements of a gradient that are 0 but for rounding, such as those of a key's bias in attention, have other bits in
  // every layout, and optimizers such as Adam enlarge them. What counts as rounding is relative to the largest gradient
  // of the step.
  static double rounding_of(const std::string& dtype) { return tolerance_of(dtype) * 1e-2; }
  void note_largest(const ObservationKey& key) {
    if (!key.kind.ends_with("gradient")) return;
    for (const auto& stored : one_.find(0, key)->tensors) {
      auto& value = largest_gradient_[{key.step, key.kind}];
      value = std::max(value, largest(one_.tensor(0, stored)));
    }
  }
  double largest_gradient_of(const ObservationKey& key) const {
    const auto found = largest_gradient_.find({key.step, key.kind});
    return found == largest_gradient_.end() ? 0 : found->second;
  }
  void note_rounding(const ObservationKey& key) {
    if (!is_gradient(key.kind)) return;
    const auto& stored = one_.find(0, key)->tensors.at(0);
    const auto elements =
        one_.tensor(0, stored).abs().le(rounding_of(stored.dtype) * largest_gradient_of(key)).to(at::kDouble);
    auto& all = is_rounding_[key.name];
    all = all.defined() ? at::maximum(all, elements) : elements;
  }
  // Whether an updated parameter differs only in elements that gradients of rounding have moved. Later steps compute
  // with them, so that they cannot be compared.
  bool is_moved_by_rounding(const ObservationKey& key, const Own& own, int rank, const at::Tensor& whole) {
    const auto known = is_rounding_.find(key.name);
    if (key.kind != "parameter" || known == is_rounding_.end() || known->second.sizes() != whole.sizes()) return false;
    const auto compared = 1 - parts_.own_parameter(key, rank, known->second).expected.front();
    const Own masked{own.found * compared, {own.expected.front() * compared}};
    const auto& dtype = one_.find(0, key)->tensors.at(0).dtype;
    if (!(difference(masked.found, masked.expected.front()) <= tolerance_of(dtype) * largest(whole))) return false;
    last_step_ = key.step;
    return true;
  }

  // Whether another rank of the pipeline has it.
  bool is_of_another_stage(const ObservationKey& key, int rank) const {
    return std::ranges::any_of(parts_.members(rank, "pp"),
                               [&](int member) { return mesh_.find(member, key) != nullptr; });
  }

  // The input of a stage is a leaf, whose gradient is sent and not recorded.
  bool is_received(const ObservationKey& key) const { return parts_.size("pp") > 1 && key.kind == "input gradient"; }

  // A model that was called with a batch, and not with its micro-batches, has no output: it is a pipeline.
  bool has_no_output(const ObservationKey& input) const {
    const auto keys = one_.keys(0);
    return std::ranges::none_of(keys, [&](const auto& key) {
      return key.step == input.step && key.name == input.name && key.kind == "output";
    });
  }

  std::optional<Disagreement> check(const ObservationKey& key) {
    const auto* expected = one_.find(0, key);
    if (key.kind == "loss") return check_loss(key);
    // Replicas cut their own batches into micro-batches, which have other samples than those of one rank.
    if (is_cut_ && parts_.size("dp") > 1 && !is_parameter(key.kind)) return std::nullopt;
    for (std::size_t index = 0; index < expected->tensors.size(); ++index) {
      // Routed rows are those of other tokens in every layout.
      if (expected->tensors[index].placement == "routed") continue;
      const auto whole = one_.tensor(0, expected->tensors[index]);
      std::vector<Own> own(mesh_.num_ranks());
      for (int rank = 0; rank < mesh_.num_ranks(); ++rank) {
        const auto* seen = mesh_.find(rank, key);
        if (seen == nullptr && (is_of_another_stage(key, rank) || is_received(key))) {
          own[rank].found = at::empty({0});
          continue;
        }
        if (seen == nullptr || seen->tensors.size() <= index) return never_computed(key, rank);
        own[rank] = is_parameter(key.kind) ? parts_.own_parameter(key, rank, whole)
                                           : parts_.own_values(key, index, rank, whole);
      }
      for (int rank = 0; rank < mesh_.num_ranks(); ++rank) {
        if (mesh_.find(rank, key) == nullptr) continue;
        if (own[rank].expected.empty() || own[rank].found.sizes() != own[rank].expected.front().sizes()) {
          return found(key, rank,
                       {fmt::format("its sizes are [{}], those of one rank [{}]",
                                    fmt::join(own[rank].found.sizes(), ", "), fmt::join(whole.sizes(), ", "))},
                       0);
        }
        loss_tolerance_ = tolerance_of(expected->tensors[index].dtype);
        const auto floor = largest_gradient_of(key) * 1e-2;
        const auto error = error_of(key, own, rank, whole, floor);
        if (!(error <= tolerance_of(expected->tensors[index].dtype)) &&
            !is_moved_by_rounding(key, own[rank], rank, whole))
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

  // Relative to the largest element of the complete tensor, since a part of it may be zero, or to `floor`.
  double error_of(const ObservationKey& key, const std::vector<Own>& all, int rank, const at::Tensor& whole,
                  double floor) const {
    const auto& own = all[rank];
    double error = INFINITY;
    for (const auto& option : own.expected) error = std::min(error, difference(own.found, option));
    if (key.kind == "input gradient" && !parts_.divides_positions()) {
      const auto mean = mean_of_positions(all, rank);
      for (const auto& option : own.expected) error = std::min(error, difference(mean, option));
    }
    const auto scale = std::max({largest(whole), own.expected.empty() ? 0.0 : largest(own.expected.front()), floor});
    return scale == 0 ? error : error / scale;
  }

  // Where a model divides positions inside forward, each context-parallel rank has the gradients of its own positions,
  // and their mean is the expected one.
  at::Tensor mean_of_positions(const std::vector<Own>& all, int rank) const {
    const auto& members = parts_.members(rank, parts_.size("cp") > 1 ? "cp" : "sp");
    at::Tensor sum = at::zeros_like(all[rank].found);
    for (const auto member : members) {
      if (all[member].found.sizes() == sum.sizes()) sum = sum + all[member].found;
    }
    return sum / static_cast<double>(members.size());
  }

  // A rank's loss is that of its own samples; their mean is the loss of one rank.
  std::optional<Disagreement> check_loss(const ObservationKey& key) {
    std::vector<double> losses;
    for (int rank = 0; rank < mesh_.num_ranks(); ++rank) {
      const auto* seen = mesh_.find(rank, key);
      if (seen == nullptr) return never_computed(key, rank);
      losses.push_back(std::strtod(seen->value.c_str(), nullptr));
    }
    const auto expected = std::strtod(one_.find(0, key)->value.c_str(), nullptr),
               mean = std::accumulate(losses.begin(), losses.end(), 0.0) / mesh_.num_ranks();
    const auto error = std::abs(mean - expected) / std::max(std::abs(expected), 1e-30);
    if (error <= loss_tolerance_) return std::nullopt;
    for (int rank = 0; rank < mesh_.num_ranks(); ++rank) {
      const auto first = parts_.members(rank, "tp").front();
      if (std::abs(losses[rank] - losses[first]) > loss_tolerance_ * std::abs(expected))
        return found(key, rank, {fmt::format("rank {} has another loss for the same samples", first), {"tp"}}, error);
    }
    auto cause = factor_cause(mean / expected, "the mean of the ranks' losses");
    if (cause.groups.empty())
      cause.text = fmt::format("the mean of the ranks' losses is {:.6g}, that of one rank {:.6g}", mean, expected);
    return found(key, 0, std::move(cause), error);
  }

  // --- likely causes ------------------------------------------------------------------------------------------------
  static constexpr const char* kGroups[] = {"tp", "ep", "cp", "sp", "pp", "dp", "dp_cp", "expert_dp"};

  // The groups of `count` ranks; of several groups with the same ranks the first.
  std::vector<std::string> groups_of(double count) const {
    std::vector<std::string> groups;
    for (const auto* group : kGroups) {
      const bool is_new = std::none_of(groups.begin(), groups.end(),
                                       [&](const auto& known) { return parts_.groups(known) == parts_.groups(group); });
      if (is_new && parts_.size(group) > 1 && std::abs(parts_.size(group) - count) < 1e-6 * count)
        groups.emplace_back(group);
    }
    return groups;
  }

  // No text if the factor is 1.
  Cause factor_cause(double factor, const std::string& what = "it") const {
    if (auto groups = groups_of(factor); !groups.empty())
      return {fmt::format("{} is {:.6g} times the expected value: reduced or counted once too often over {}", what,
                          factor, fmt::join(groups, " or ")),
              groups};
    if (auto groups = groups_of(1 / factor); !groups.empty())
      return {fmt::format("{} is 1/{:.6g} of the expected value: a missing sum, or a division too many, over {}", what,
                          1 / factor, fmt::join(groups, " or ")),
              groups};
    return {std::abs(factor - 1) < 1e-6 ? "" : fmt::format("{} is {:.6g} times the expected value", what, factor)};
  }

  static bool is_close(const at::Tensor& a, const at::Tensor& b) {
    return difference(a, b) <= 1e-4 * std::max(largest(b), 1e-30);
  }

  Cause cause_of(const ObservationKey& key, int rank, const std::vector<Own>& own, const at::Tensor& whole) const {
    const auto& found = own[rank].found;
    for (const auto& expected : own[rank].expected) {
      const auto square = (expected * expected).sum().item<double>();
      if (!expected.is_floating_point() || square == 0) continue;
      const auto factor = (found * expected).sum().item<double>() / square;
      if (std::abs(factor - 1) > 1e-6 && is_close(found, expected * factor)) {
        if (auto cause = factor_cause(factor); !cause.text.empty()) return cause;
      }
    }
    if (auto cause = reduction_cause(rank, own); cause.is_missing) return cause;
    for (int other = 0; other < mesh_.num_ranks(); ++other) {
      if (other == rank) continue;
      for (const auto& expected : own[other].expected) {
        if (is_close(found, expected))
          return {fmt::format("it is the part of rank {}: a wrong or stale shard", other), groups_with(rank, other)};
      }
    }
    if (auto cause = bias_cause(key, found, own[rank]); !cause.text.empty()) return cause;
    auto before = key;
    for (--before.step; before.step >= 0; --before.step) {
      const auto* seen = one_.find(0, before);
      if (seen != nullptr && !seen->tensors.empty() && is_close(found, one_.tensor(0, seen->tensors[0])))
        return {fmt::format("it has the values of step {}: stale", before.step)};
    }
    if (!is_parameter(key.kind) && holds_other_positions(found, own[rank], whole))
      return {"it has the values of other positions: a wrong order, or positions that are counted within a part"};
    return {};
  }

  std::vector<std::string> groups_with(int rank, int other) const {
    for (const auto* group : kGroups) {
      const auto& ranks = parts_.members(rank, group);
      if (std::find(ranks.begin(), ranks.end(), other) != ranks.end()) return {group};
    }
    return {};
  }

  // The values before a sum or an average over a group.
  Cause reduction_cause(int rank, const std::vector<Own>& own) const {
    for (const auto* group : kGroups) {
      const auto ranks = parts_.members(rank, group);
      if (ranks.size() == 1) continue;
      at::Tensor sum = at::zeros_like(own[rank].found);
      for (const auto member : ranks) {
        if (own[member].found.sizes() == sum.sizes()) sum = sum + own[member].found;
      }
      for (const auto& expected : own[rank].expected) {
        if (is_close(sum, expected))
          return {fmt::format("a missing all-reduce over {}: the ranks' values sum to the expected one", group),
                  {group},
                  /*is_missing=*/true};
        if (is_close(sum / static_cast<double>(ranks.size()), expected))
          return {fmt::format("a missing average over {}: the mean of the ranks' values is the expected one", group),
                  {group},
                  /*is_missing=*/true};
      }
    }
    return {};
  }

  // Every position of the first samples has the expected values of some position.
  static bool holds_other_positions(const at::Tensor& found, const Own& own, const at::Tensor& whole) {
    if (found.dim() < 2 || own.expected.empty() || whole.dim() != found.dim()) return false;
    const auto dim = found.dim() - 2;
    const auto rows = found.flatten(0, dim), expected = whole.flatten(0, dim);
    if (rows.size(1) != expected.size(1) || rows.size(0) * expected.size(0) > (1 << 22)) return false;
    const auto nearest = std::get<0>(at::cdist(rows.to(at::kDouble), expected.to(at::kDouble), 2.0, 2).min(1));
    return largest(nearest) <= 1e-6 * std::max(largest(whole), 1e-30);
  }

  // A bias that every rank of a group adds before the sum.
  Cause bias_cause(const ObservationKey& key, const at::Tensor& found, const Own& own) const {
    for (const auto& candidate : one_.keys(0)) {
      if (candidate.kind != "prepared parameter" || !candidate.name.starts_with(key.name) ||
          !candidate.name.ends_with("bias"))
        continue;
      const auto bias = one_.tensor(0, one_.find(0, candidate)->tensors.at(0));
      for (const auto& expected : own.expected) {
        if (expected.dim() == 0 || expected.size(-1) != bias.size(0)) continue;
        for (const auto* group : kGroups) {
          const double extra = parts_.size(group) - 1;
          if (extra > 0 && difference(found, expected + bias * extra) <= 1e-4 * largest(expected))
            return {fmt::format("the bias is added {} times: once per rank of {}", extra + 1, group), {group}};
        }
        if (difference(found, expected - bias) <= 1e-4 * largest(expected)) return {"the bias is missing"};
      }
    }
    return {};
  }

  Disagreement never_computed(const ObservationKey& key, int rank) const {
    auto missing = found(key, rank, {"the rank never computed it"}, 0);
    missing.is_absent = true;
    return missing;
  }

  Disagreement found(const ObservationKey& key, int rank, Cause cause, double error) const {
    auto responsible = responsible_collective(mesh_, parts_, key, rank, cause);
    if (cause.text.empty() && responsible.symptom.empty())
      cause.text = "other values: another random stream, or another order of samples or positions";
    else if (!responsible.symptom.empty())
      cause.text = fmt::format("{}: {}", cause.text.empty() ? "other values" : cause.text, responsible.symptom);
    if (key.kind == "stepped gradient") cause.text += "; it was right after backward: clipping, or another change";
    return {.what = key,
            .rank = rank,
            .cause = std::move(cause.text),
            .collective = std::move(responsible.called),
            .missing = std::move(responsible.missing),
            .error = error};
  }

  const RecordedRun& one_;
  const RecordedRun& mesh_;
  LayoutParts parts_;
  std::map<std::pair<std::int64_t, std::string>, double> largest_gradient_;  // by step and kind
  std::map<std::string, at::Tensor> is_rounding_;                            // by parameter: 1 or 0 per element
  std::int64_t last_step_ = std::numeric_limits<std::int64_t>::max();        // that can be compared
  std::optional<Disagreement> unweighted_;  // the first of the step's gradients before clipping
  bool is_cut_ = false;                     // into micro-batches
  double loss_tolerance_ = 1e-4;            // of the dtype of the tensors before the loss
};

}  // namespace

std::optional<Disagreement> first_disagreement(const RecordedRun& one, const RecordedRun& mesh,
                                               const ParallelismConfig& layout) {
  return Proof(one, mesh, layout).run();
}

}  // namespace accel::programs
