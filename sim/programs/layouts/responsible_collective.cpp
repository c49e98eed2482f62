#include "sim/programs/layouts/responsible_collective.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <optional>

namespace accel::programs {
namespace {

using Texts = std::vector<std::string>;

constexpr std::string_view kOfGroup = " of group ";

// A collective without which a module that divides weights or positions cannot be right.
struct Need {
  std::string group = {}, name = {}, symptom = {};
  Texts operations = {};  // that provide it, without suffixes such as "_into_tensor"; empty: any
};

class CollectiveSearch {
 public:
  CollectiveSearch(const RecordedRun& mesh, const LayoutParts& parts, const ObservationKey& key, int rank)
      : mesh_(mesh), parts_(parts), key_(key), rank_(rank), keys_(mesh.keys(rank)) {
    place_ = std::find(keys_.begin(), keys_.end(), key) - keys_.begin();
    int number = 0;
    for (const auto& [kind, groups] : groups_to_create(parts.grid())) {
      for (std::size_t i = 0; i < groups.size(); ++i) created_[fmt::format("group{}", ++number)] = kind;
    }
  }

  ResponsibleCollective run(const Cause& cause) const {
    // Initial values have no collective before them.
    if (place_ == std::ssize(keys_) || key_.kind == "prepared parameter") return {};
    if (cause.is_missing) return {.missing = fmt::format("an all-reduce over {} {}", cause.groups.at(0), where())};
    if (!cause.groups.empty()) return {.called = last_over(cause.groups)};
    if (const auto need = need_of_module(cause)) {
      const auto called =
          last_of(collectives_in(place_, place_), [&](const std::string& own) { return provides(own, *need); });
      if (!called.empty()) return {.called = shown(called, need->group)};
      return {.missing = fmt::format("{} over {} {}", need->name, need->group, where()), .symptom = need->symptom};
    }
    const auto called = last_of(suspects(), [](const std::string&) { return true; });
    return {.called = shown(called, "")};
  }

 private:
  template <typename Matches>
  static std::string last_of(const Texts& collectives, const Matches& matches) {
    const auto found = std::find_if(collectives.rbegin(), collectives.rend(), matches);
    return found == collectives.rend() ? "" : *found;
  }

  static std::string group_of(const std::string& collective) {
    const auto begin = collective.find(kOfGroup);
    if (begin == std::string::npos) return "";
    const auto name = begin + kOfGroup.size();
    return collective.substr(name, collective.find(' ', name) - name);
  }

  // The simulator numbers the groups of a mesh. Groups of equal ranks are created once, for the first kind.
  [[nodiscard]] std::string kind_of(const std::string& collective) const {
    const auto kind = created_.find(group_of(collective));
    return kind == created_.end() ? group_of(collective) : kind->second;
  }

  [[nodiscard]] bool is_over(const std::string& collective, const std::string& group) const {
    const auto kind = kind_of(collective);
    if (kind == "world") return parts_.size(group) == mesh_.num_ranks();
    const auto is_mesh_group = [&](const MeshGroupKind& known) { return known.name == kind; };
    const auto& kinds = mesh_group_kinds();
    return std::any_of(kinds.begin(), kinds.end(), is_mesh_group) && parts_.groups(kind) == parts_.groups(group);
  }

  [[nodiscard]] bool provides(const std::string& collective, const Need& need) const {
    return is_over(collective, need.group) &&
           (need.operations.empty() || std::any_of(need.operations.begin(), need.operations.end(),
                                                   [&](const auto& name) { return collective.starts_with(name); }));
  }

  // With the name of the mesh's group in place of the simulator's.
  [[nodiscard]] std::string shown(const std::string& collective, const std::string& group) const {
    if (collective.empty()) return "";
    const auto name = collective.find(kOfGroup) + kOfGroup.size();
    auto text = collective;
    return text.replace(name, group_of(collective).size(), group.empty() ? kind_of(collective) : group);
  }

  [[nodiscard]] Texts collectives_in(std::ptrdiff_t first, std::ptrdiff_t last) const {
    Texts all;
    for (auto place = first; place <= last; ++place) {
      const auto& own = mesh_.find(rank_, keys_[place])->collectives;
      all.insert(all.end(), own.begin(), own.end());
    }
    return all;
  }

  // A module's tensors begin with the first one of the modules inside it.
  [[nodiscard]] std::ptrdiff_t begin_of_module() const {
    auto first = place_;
    const auto inside = key_.name.empty() ? "" : key_.name + ".";
    const auto is_inside = [&](const ObservationKey& other) {
      return other.kind == key_.kind && other.step == key_.step && other.name.starts_with(inside);
    };
    while (first > 0 && is_inside(keys_[first - 1])) --first;
    return first;
  }

  // The gradient of a parameter is complete soon after that of the input of its module, or of one around it.
  [[nodiscard]] Texts suspects_of_gradient() const {
    for (auto module = key_.name; module.find('.') != std::string::npos;) {
      module = module.substr(0, module.rfind('.'));
      const auto input = std::find(keys_.begin(), keys_.end(),
                                   ObservationKey{.step = key_.step, .kind = "input gradient", .name = module});
      if (input != keys_.end()) return mesh_.find(rank_, *input)->collectives;
    }
    return {};
  }

  [[nodiscard]] Texts suspects() const {
    return key_.kind.ends_with("ed gradient") || key_.kind == "gradient" ? suspects_of_gradient()
                                                                         : collectives_in(begin_of_module(), place_);
  }

  // The last suspect, else the last one before, since an error without a collective follows one: an output of a
  // reduction that is divided once more.
  [[nodiscard]] std::string last_over(const Texts& groups) const {
    for (const auto& collectives : {suspects(), collectives_in(0, place_)}) {
      for (auto called = collectives.rbegin(); called != collectives.rend(); ++called) {
        for (const auto& group : groups) {
          if (is_over(*called, group)) return shown(*called, group);
        }
      }
    }
    return "";
  }

  // Whether a right tensor of a module inside this one shows that the collective of a weight was called. The gradient
  // of a divided layer's own input is a part of a sum.
  [[nodiscard]] bool is_satisfied(const std::string& parameter) const {
    const auto layer = parameter.substr(0, parameter.rfind('.'));
    return std::any_of(keys_.begin() + begin_of_module(), keys_.begin() + place_, [&](const auto& inner) {
      const bool is_of_layer = inner.name == layer && key_.kind == "output";
      return is_of_layer || layer.starts_with(inner.name + ".");
    });
  }

  // A weight that is divided along its inputs computes parts of a sum; along its outputs, in backward.
  [[nodiscard]] std::optional<Need> need_of_module(const Cause& cause) const {
    if (key_.kind == "loss") {
      if (parts_.size("dp_cp") == 1) return std::nullopt;
      return Need{.group = "dp_cp",
                  .name = "an all-reduce of the numbers of tokens",
                  .symptom = "each rank averages over its own tokens",
                  .operations = {"all_reduce"}};
    }
    if (key_.kind != "output" && key_.kind != "input gradient") return std::nullopt;
    const auto inside = key_.name.empty() ? "" : key_.name + ".";
    for (const auto& parameter : keys_) {
      if (parameter.kind != "prepared parameter" || !parameter.name.starts_with(inside)) continue;
      const auto& division = mesh_.find(rank_, parameter)->division;
      if (!division || is_satisfied(parameter.name)) continue;
      const std::string group(name_of(division->axis));
      if (division->axis == kExpertAxis)
        return Need{.group = group,
                    .name = "an all-to-all",
                    .symptom = "those of the rank's own experts",
                    .operations = {"all_to_all"}};
      if (std::get<Shard>(division->placement).dim == (key_.kind == "output" ? 1 : 0))
        return Need{.group = group,
                    .name = "a reduction",
                    .symptom = "a rank's own part of a sum",
                    .operations = {"all_reduce", "reduce_scatter"}};
    }
    if (!parts_.divides_positions() || !cause.text.empty()) return std::nullopt;
    return Need{.group = parts_.size("cp") > 1 ? "cp" : "sp",
                .name = "an exchange of positions",
                .symptom = "those of the rank's own positions, or another random stream"};
  }

  [[nodiscard]] std::string where() const {
    const auto name = [](const ObservationKey& key) {
      return describe(Observation{.step = key.step, .kind = key.kind, .name = key.name});
    };
    if (key_.kind.ends_with("ed gradient") || key_.kind == "gradient") return "of " + name(key_);
    return place_ == 0 ? "before " + name(key_) : "after " + name(keys_[place_ - 1]);
  }

  const RecordedRun& mesh_;
  const LayoutParts& parts_;
  const ObservationKey& key_;
  int rank_;
  const std::vector<ObservationKey>& keys_;
  std::ptrdiff_t place_;
  std::map<std::string, std::string> created_;  // kinds by the simulator's names of groups
};

}  // namespace

ResponsibleCollective responsible_collective(const RecordedRun& mesh, const LayoutParts& parts,
                                             const ObservationKey& key, int rank, const Cause& cause) {
  return CollectiveSearch(mesh, parts, key, rank).run(cause);
}

}  // namespace accel::programs
