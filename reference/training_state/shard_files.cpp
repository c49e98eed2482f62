// Optimizer state of sharded models has three forms: in memory, keyed by parameter index with one-dimensional parts; in
// a checkpoint, keyed by parameter name, complete or in pieces; and in Python's FSDP checkpoints. The functions here
// convert between them. A checkpoint does not depend on the number of ranks that wrote it.
#include "reference/training_state/shard_files.hpp"

#include <ATen/ATen.h>
#include <c10/util/accumulate.h>
#include <fmt/ranges.h>
#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>

#include "reference/core/input/json_parser.hpp"
#include "reference/core/input/listed.hpp"
#include "reference/files/safetensors.hpp"
#include "reference/optim/optimizers/optimizer_state.hpp"
#include "reference/prepared/parameter_layouts.hpp"
#include "reference/state/objects.hpp"

namespace accel::checkpoint {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

struct StoredPiece {
  std::string file;
  std::int64_t begin = 0;
  StoredTensor values;
};

struct Pieces {
  std::vector<std::int64_t> sizes;
  std::vector<StoredPiece> pieces;
};

// Null if it is not JSON: the caller reports which tensor lacks its place.
Json parsed(const std::string& text, const std::string& path) {
  try {
    return parse_json<Json, CheckpointError>(text, {.path = path, .expected = "the place of a tensor"});
  } catch (const CheckpointError&) {
    return nullptr;
  }
}

void read_file(const std::string& path, std::map<std::string, Pieces>& found, std::vector<std::string>& problems) {
  const SafetensorsFile file(path);
  for (const auto& name : file.names()) {
    const auto text = file.metadata().find(name);
    const auto json = text == file.metadata().end() ? Json() : parsed(text->second, path);
    if (!json.is_object() || !json.contains("begin") || !json["begin"].is_number_integer() || !json.contains("sizes") ||
        !json["sizes"].is_array()) {
      problems.push_back(fmt::format("{}: '{}' lacks \"begin\" and \"sizes\" in the file's metadata", path, name));
      continue;
    }
    const auto sizes = json["sizes"].get<std::vector<std::int64_t>>();
    auto& of_name = found[name];
    if (of_name.pieces.empty()) of_name.sizes = sizes;
    if (of_name.sizes != sizes)
      problems.push_back(fmt::format("{}: '{}' has sizes [{}], in other files [{}]", path, name, fmt::join(sizes, ", "),
                                     fmt::join(of_name.sizes, ", ")));
    of_name.pieces.push_back({path, json["begin"].get<std::int64_t>(), file.stored(name)});
  }
}

// Returns why the pieces do not form the complete tensor, or "". Sorts them, so that a gap or an overlap shows as a
// piece that starts at the wrong element.
std::string problem_of(const std::string& name, Pieces& of_name) {
  std::sort(of_name.pieces.begin(), of_name.pieces.end(),
            [](const auto& a, const auto& b) { return a.begin < b.begin; });
  std::int64_t next = 0;
  for (const auto& piece : of_name.pieces) {
    if (piece.begin != next)
      return fmt::format("'{}': a piece begins at element {}, expected {}: {}", name, piece.begin, next, piece.file);
    next += c10::multiply_integers(piece.values.sizes);
  }
  return next == c10::multiply_integers(of_name.sizes)
             ? ""
             : fmt::format("'{}' lacks {} of {} elements", name, c10::multiply_integers(of_name.sizes) - next,
                           c10::multiply_integers(of_name.sizes));
}

// Reads one piece after the other into the result, so only one piece is in memory at a time.
at::Tensor assembled(const Pieces& of_name) {
  auto whole =
      at::empty({c10::multiply_integers(of_name.sizes)}, at::TensorOptions(of_name.pieces.front().values.dtype));
  for (const auto& piece : of_name.pieces)
    whole.narrow(0, piece.begin, c10::multiply_integers(piece.values.sizes)).copy_(piece.values.load());
  return whole.view(of_name.sizes);
}

// Entries that are one number per parameter. Their size alone does not tell: NAdam's and ASGD's entries of a parameter
// with one element have one element too.
bool is_scalar_state(const std::string& name) {
  return name == "step" || name == "mu_product" || name == "eta" || name == "mu";
}

// Whether an entry is a part like that of the parameter: flat parts have one dimension, parts of a cut have the
// parameter's sizes, step counts have no dimension. Optimizers with state of other sizes are refused for such models.
bool is_part(const Value& entry, const at::Tensor& parameter) {
  if (!entry.is<at::Tensor>() || !entry.as<at::Tensor>().defined()) return false;
  const auto& tensor = entry.as<at::Tensor>();
  return tensor.dim() == 1 || (tensor.dim() > 1 && tensor.sizes() == parameter.sizes());
}

// The entries that any rank has, in the same order on all ranks: a rank whose part of a parameter is empty may have no
// state for it, but must take part in the gather. `staged`: ranks of a pipeline have states of other parameters,
// and exchange them with those that shard the same stages.
std::vector<std::pair<std::string, std::string>> entries_of_all_ranks(const Value::Dict& states,
                                                                      const std::vector<at::Tensor>& parameters,
                                                                      RankContext& context,
                                                                      const ParallelModel* staged) {
  std::vector<std::pair<std::string, std::string>> own;
  for (const auto& [index, entries] : states) {
    for (const auto& [name, entry] : entries.as<Value::Dict>()) {
      if (is_part(entry, parameters.at(std::stoul(index)))) own.emplace_back(index, name);
    }
  }
  std::vector<std::pair<std::string, std::string>> all;
  if (staged == nullptr) {
    all = gather_object(context, own);
  } else {
    const auto* shards = staged->shard_group();
    for (auto& of_rank : accel::detail::gather_trees(shards == nullptr ? Group() : *shards, own))
      all.insert(all.end(), of_rank.begin(), of_rank.end());
  }
  std::sort(all.begin(), all.end());
  all.erase(std::unique(all.begin(), all.end()), all.end());
  return all;
}

// Replaces parts by complete tensors on rank 0, or on the ranks of a pipeline, and removes them on other ranks.
// Collective per entry, in sorted order.
void gather_wholes(Value::Dict& states, const std::vector<at::Tensor>& parameters, const TrainingState& state,
                   RankContext& context, const ParallelModel* staged) {
  for (const auto& [index, name] : entries_of_all_ranks(states, parameters, context, staged)) {
    const auto& parameter = parameters.at(std::stoul(index));
    const auto* divided = division_of(parameter, state);
    if (divided == nullptr) continue;
    auto entries = states.contains(index) ? states.at(index).as<Value::Dict>() : Value::Dict();
    const auto part = entries.contains(name) ? entries.at(name).as<at::Tensor>() : at::empty({0}, parameter.options());
    auto whole = divided->complete_of(part);
    const bool is_of_stage =
        staged != nullptr && (staged->shard_group() == nullptr || staged->shard_group()->rank() == 0);
    if (context.rank == 0 || is_of_stage)
      entries[name] = whole.to(at::kCPU);
    else
      entries.erase(name);
    states[index] = std::move(entries);
  }
}

// The keys of parameters in a checkpoint: names, as in FSDP, or numbers if several models have parameters of the same
// name.
std::vector<std::string> names_of(const std::vector<at::Tensor>& parameters, const TrainingState& state) {
  std::vector<std::string> names, numbers;
  for (const auto& parameter : parameters) {
    const auto* divided = division_of(parameter, state);
    numbers.push_back(std::to_string(numbers.size()));
    names.push_back(divided == nullptr ? numbers.back() : divided->name);
  }
  return std::set<std::string>(names.begin(), names.end()).size() == names.size() ? names : numbers;
}

// The names of parameters in the prepared models, which FSDP checkpoints use as keys.
std::map<const c10::TensorImpl*, std::string> names_in_models(const TrainingState& state) {
  std::map<const c10::TensorImpl*, std::string> names;
  for (const auto& model : state.models) {
    for (const auto& item : model->module()->named_parameters())
      names.emplace(item.value().unsafeGetTensorImpl(), item.key());
  }
  return names;
}

// The key of each parameter in a saved state. A checkpoint may come from a sharded or an unsharded run, and from
// Python, so the candidates are tried in order: today's key, the number, the name in the model.
std::vector<std::string> keys_in(const Value::Dict& saved, const std::map<std::string, StoredWeight>& shards,
                                 const std::vector<at::Tensor>& parameters, const TrainingState& state) {
  const auto names = names_of(parameters, state);
  const auto names_of_models = names_in_models(state);
  const auto is_key = [&](const std::string& key) {
    const auto shard = shards.lower_bound(key + "/");
    return saved.contains(key) || (shard != shards.end() && shard->first.starts_with(key + "/"));
  };
  std::vector<std::string> keys;
  for (std::size_t index = 0; index < parameters.size(); ++index) {
    const auto number = std::to_string(index);
    const auto own = names_of_models.find(parameters[index].unsafeGetTensorImpl());
    const std::array candidates{names[index], number, own == names_of_models.end() ? number : own->second};
    const auto* found = std::find_if(candidates.begin(), candidates.end(), is_key);
    keys.push_back(found == candidates.end() ? number : *found);
  }
  return keys;
}

// Rejects saved entries that match no parameter: they would be lost silently.
void check_all_used(const Value::Dict& saved, const std::map<std::string, StoredWeight>& shards,
                    const std::vector<std::string>& keys) {
  const std::set<std::string> used(keys.begin(), keys.end());
  std::set<std::string> unused;
  for (const auto& [key, entries] : saved) {
    if (!used.contains(key)) unused.insert(key);
  }
  for (const auto& [name, shard] : shards) {
    if (const auto key = name.substr(0, name.rfind('/')); !used.contains(key)) unused.insert(key);
  }
  check_checkpoint(unused.empty(),
                   "the optimizer's state has entries for '{}', which are not parameters of the prepared optimizer or "
                   "its models; prepare the same models and optimizers in the same order",
                   fmt::join(unused, "', '"));
}

// Replaces parameter indices by names in "state" and in "param_groups".
Value::Dict with_names(Value::Dict dict, const std::vector<std::string>& names_of_all) {
  Value::Dict named;
  for (const auto& [index, entries] : dict.at("state").as<Value::Dict>())
    named[names_of_all.at(std::stoul(index))] = entries;
  Value::List groups;
  for (const auto& group : dict.at("param_groups").as<Value::List>()) {
    auto entries = group.as<Value::Dict>();
    Value::List names;
    for (const auto& index : entries.at("params").as<Value::List>())
      names.emplace_back(names_of_all.at(static_cast<std::size_t>(index.as<std::int64_t>())));
    entries["params"] = std::move(names);
    groups.emplace_back(std::move(entries));
  }
  dict["state"] = std::move(named);
  dict["param_groups"] = std::move(groups);
  return dict;
}

// The complete model of which the optimizer's parameters are stages; null without a pipeline. Throws StateError for
// an optimizer that has other parameters too.
const ParallelModel* staged_model_of(const std::vector<at::Tensor>& parameters, const TrainingState& state) {
  const ParallelModel* staged = nullptr;
  std::size_t num_staged = 0;
  for (const auto& model : state.models) {
    if (model->layouts().stages() == nullptr) continue;
    if (parameters.empty()) return model.get();  // those of other ranks are stages
    for (const auto& parameter : parameters) {
      if (model->layouts().entry_in_stages(parameter) == nullptr) continue;
      ++num_staged;
      staged = model.get();
    }
  }
  check_state(num_staged == 0 || num_staged == parameters.size(),
              "an optimizer steps parameters of a pipeline and {} others; use a separate optimizer for each, so that "
              "its state can be saved",
              parameters.size() - num_staged);
  return staged;
}

std::vector<std::string> names_in_stages(const std::vector<at::Tensor>& parameters, const ParallelModel& staged) {
  std::vector<std::string> names;
  for (const auto& parameter : parameters) names.push_back(staged.layouts().entry_in_stages(parameter)->first_name);
  return names;
}

// Adds the parameters of the groups of `other`, another stage's, to those of `groups`.
void merge_groups(Value::List& groups, const Value::List& other) {
  check_state(groups.size() == other.size(),
              "the optimizers of a pipeline's ranks have {} and {} parameter groups; create the same groups on every "
              "rank, also if one has no parameters there",
              groups.size(), other.size());
  for (std::size_t index = 0; index < groups.size(); ++index) {
    auto entries = groups[index].as<Value::Dict>();
    auto names = entries.at("params").as<Value::List>();
    const auto& added = other[index].at("params").as<Value::List>();
    std::ranges::copy_if(added, std::back_inserter(names),
                         [&](const Value& name) { return std::ranges::find(names, name) == names.end(); });
    entries["params"] = std::move(names);
    groups[index] = std::move(entries);
  }
}

// The states of all stages on the first rank of the pipeline, under the names of the complete model. Collective.
Value over_stages(const Value::Dict& own, const ModelStages& stages) {
  const auto bytes = stages.gather_bytes_on_first(pack(Value(own)));
  if (bytes.empty()) return own;
  Value::Dict states;
  Value::List groups;
  for (const auto& of_rank : bytes) {
    const auto state = unpack<Value>(of_rank);
    auto added = state.at("state").as<Value::Dict>();
    states.merge(added);
    const auto& own_groups = state.at("param_groups").as<Value::List>();
    groups.empty() ? void(groups = own_groups) : merge_groups(groups, own_groups);
  }
  for (auto& group : groups) {
    auto entries = group.as<Value::Dict>();
    auto names = entries.at("params").as<Value::List>();
    std::ranges::stable_sort(names, {}, [&](const Value& name) { return stages.find(name.as<std::string>()); });
    entries["params"] = std::move(names);
    group = std::move(entries);
  }
  return Value::Dict{{"state", std::move(states)}, {"param_groups", std::move(groups)}};
}

// The numbers of a complete optimizer's parameters as names. Only an optimizer with one group of all parameters tells
// which is which.
Value::Dict named_by_stages(Value::Dict whole, const ModelStages& stages) {
  const auto& groups = whole.at("param_groups").as<Value::List>();
  const bool has_numbers = std::ranges::any_of(groups, [](const Value& group) {
    const auto& params = group.at("params").as<Value::List>();
    return !params.empty() && params.front().is<std::int64_t>();
  });
  if (!has_numbers) return whole;
  std::vector<std::string> names;
  for (const auto& entry : stages.entries) {
    if (entry.is_parameter && entry.name == entry.first_name) names.push_back(entry.name);
  }
  const auto num_saved = groups.size() == 1 ? groups.front().at("params").as<Value::List>().size() : 0;
  check_checkpoint(num_saved == names.size(),
                   "the optimizer's state was saved without names, for {} parameters in {} groups; a pipeline's rank "
                   "finds its own in one group of all {} parameters only",
                   num_saved, groups.size(), names.size());
  return with_names(std::move(whole), names);
}

bool is_of_another_stage(const std::string& name, const ModelStages& stages, const std::vector<std::string>& own) {
  return std::ranges::find(own, name) == own.end() && stages.find(name) != nullptr;
}

// What this rank's stages have of a complete state.
Value::Dict own_of_stages(Value::Dict whole, const ModelStages& stages, const std::vector<std::string>& own) {
  whole = named_by_stages(std::move(whole), stages);
  const auto is_elsewhere = [&](const std::string& name) { return is_of_another_stage(name, stages, own); };
  const auto first_name = [&](const std::string& name) {
    const auto* entry = stages.find(name);
    return entry == nullptr ? name : entry->first_name;
  };
  Value::Dict states;
  for (const auto& [name, entries] : whole.at("state").as<Value::Dict>()) states.emplace(first_name(name), entries);
  std::erase_if(states, [&](const auto& item) { return is_elsewhere(item.first); });
  Value::List groups;
  for (const auto& group : whole.at("param_groups").as<Value::List>()) {
    auto entries = group.as<Value::Dict>();
    auto names = entries.at("params").as<Value::List>();
    for (auto& name : names) name = first_name(name.as<std::string>());
    std::erase_if(names, [&](const Value& name) { return is_elsewhere(name.as<std::string>()); });
    entries["params"] = std::move(names);
    groups.emplace_back(std::move(entries));
  }
  whole["state"] = std::move(states);
  whole["param_groups"] = std::move(groups);
  return whole;
}

// Moves this rank's parts of one parameter's state from `entries` to `pieces`. If several ranks hold equal parts
// (hybrid sharding), only one of them writes. An empty part is written only for an empty parameter, so that it is not
// missing.
void take_pieces(Value::Dict& entries, const at::Tensor& parameter, const DividedParameter& divided,
                 const std::string& name, std::vector<TensorPart>& pieces) {
  for (auto entry = entries.begin(); entry != entries.end();) {
    if (!is_part(entry->second, parameter)) {
      ++entry;
      continue;
    }
    auto piece = divided.described(entry->second.as<at::Tensor>());
    piece.name = name + "/" + entry->first;
    const bool is_empty = piece.range.size() == 0 && c10::multiply_integers(piece.sizes) > 0;
    if (divided.writes_part && !is_empty) pieces.push_back(std::move(piece));
    entry = entries.erase(entry);
  }
}

void take_all_pieces(Value::Dict& states, const std::vector<at::Tensor>& parameters,
                     const std::vector<std::string>& names, const TrainingState& state,
                     std::vector<TensorPart>& pieces) {
  for (auto& [index, value] : states) {
    const auto place = std::stoul(index);
    const auto* divided = division_of(parameters.at(place), state);
    if (divided == nullptr) continue;
    auto entries = value.as<Value::Dict>();
    take_pieces(entries, parameters.at(place), *divided, names.at(place), pieces);
    value = std::move(entries);
  }
}

// The entries saved under a key, completed by the tensors that shard files have for it.
Value::Dict entries_of(const std::string& key, const Value::Dict& saved,
                       const std::map<std::string, StoredWeight>& shards) {
  const auto found = saved.find(key);
  auto entries = found == saved.end() ? Value::Dict() : found->second.as<Value::Dict>();
  const auto prefix = key + "/";
  for (auto shard = shards.lower_bound(prefix); shard != shards.end() && shard->first.starts_with(prefix); ++shard) {
    const auto name = shard->first.substr(prefix.size());
    if (name.find('/') == std::string::npos) entries[name] = shard->second.load();
  }
  return entries;
}

// Replaces tensors of the size of the complete parameter by this rank's part. The comparison is by size, since Python
// may have saved them flat or in the parameter's shape.
void keep_parts(Value::Dict& entries, const DividedParameter& divided) {
  const auto complete_numel = c10::multiply_integers(divided.layout.sizes);
  for (auto& [name, entry] : entries) {
    if (entry.is<at::Tensor>() && !is_scalar_state(name) && entry.as<at::Tensor>().numel() == complete_numel)
      entry = divided.part_of(entry.as<at::Tensor>());
  }
}

void keep_own_stages(Value::Dict& dict, std::map<std::string, StoredWeight>& shards, const ModelStages& stages,
                     const std::vector<std::string>& own) {
  dict = own_of_stages(std::move(dict), stages, own);
  std::erase_if(shards, [&](const auto& item) {
    return is_of_another_stage(item.first.substr(0, item.first.rfind('/')), stages, own);
  });
}

// Numbers of a complete optimizer are given to layers in their order: another order of the model would exchange states.
void check_sizes(const std::string& name, const Value::Dict& entries, const std::vector<std::int64_t>& sizes) {
  for (const auto* key : {"exp_avg", "momentum_buffer"}) {
    const auto entry = entries.find(key);
    if (entry == entries.end() || !entry->second.is<at::Tensor>() || !entry->second.as<at::Tensor>().defined())
      continue;
    const auto& tensor = entry->second.as<at::Tensor>();
    check_checkpoint(
        tensor.numel() == c10::multiply_integers(sizes),
        "the optimizer's {} of '{}' has sizes [{}], and the parameter [{}]; list the layers of the pipeline "
        "in the order in which the model registers them",
        key, name, fmt::join(tensor.sizes(), ", "), fmt::join(sizes, ", "));
  }
}

// Replaces the parameters in groups by consecutive indices. If they are names, they name the same parameters in the
// same order, which check_all_used has verified.
Value::List with_places(const Value::List& groups) {
  std::int64_t next = 0;
  Value::List renamed;
  for (const auto& group : groups) {
    auto entries = group.as<Value::Dict>();
    Value::List places;
    for (std::size_t i = 0; i < entries.at("params").as<Value::List>().size(); ++i) places.emplace_back(next++);
    entries["params"] = std::move(places);
    renamed.emplace_back(std::move(entries));
  }
  return renamed;
}

}  // namespace

const DividedParameter* division_of(const at::Tensor& parameter, const TrainingState& state) {
  for (const auto& model : state.models) {
    if (const auto* divided = model->layouts().find(parameter)) return divided;
  }
  for (const auto& custom : state.custom) {
    if (!custom.layouts) continue;
    if (const auto* divided = custom.layouts->find(parameter)) return divided;
  }
  return nullptr;
}

// safetensors metadata maps strings to strings, so the place is stored as JSON text.
StateFile file_of_pieces(std::string name, const std::vector<TensorPart>& pieces) {
  StateFile file{std::move(name), NamedTensors()};
  for (const auto& piece : pieces) {
    std::get<NamedTensors>(file.content).emplace_back(piece.name, piece.values);
    file.metadata[piece.name] = Json{{"begin", piece.range.begin}, {"sizes", piece.sizes}}.dump();
  }
  return file;
}

std::string folder_of_shards(const std::string& what, std::size_t index) { return fmt::format("{}_{}", what, index); }
std::string file_of_shard(const std::string& what, std::size_t index, int rank) {
  return fmt::format("{}/rank{}.safetensors", folder_of_shards(what, index), rank);
}

std::map<std::string, StoredWeight> read_shards(const std::string& folder) {
  std::map<std::string, Pieces> found;
  std::vector<std::string> problems;
  for (const auto& entry : fs::directory_iterator(folder)) read_file(entry.path().string(), found, problems);
  std::map<std::string, StoredWeight> weights;
  for (auto& [name, of_name] : found) {
    if (auto problem = problem_of(name, of_name); !problem.empty()) problems.push_back(std::move(problem));
    weights.emplace(name, StoredWeight{.file = folder,
                                       .dtype = of_name.pieces.front().values.dtype,
                                       .sizes = of_name.sizes,
                                       .load = [of_name] { return assembled(of_name); }});
  }
  check_checkpoint(problems.empty(), "{}: {}; copy all files of one save", folder, listed(problems, "; "));
  return weights;
}

Value state_dict_of(const torch::optim::Optimizer& optimizer, const TrainingState& state, RankContext& context,
                    OptimizerForm form, std::vector<TensorPart>& pieces) {
  const auto parameters = optim::parameters_of(optimizer);
  auto dict = optim::state_dict(optimizer).as<Value::Dict>();
  auto states = dict.at("state").as<Value::Dict>();
  const auto names = names_of(parameters, state);
  const auto* staged = staged_model_of(parameters, state);
  if (form == OptimizerForm::kWhole)
    gather_wholes(states, parameters, state, context, staged);
  else
    take_all_pieces(states, parameters, names, state, pieces);
  dict["state"] = std::move(states);
  if (staged != nullptr)
    return over_stages(with_names(std::move(dict), names_in_stages(parameters, *staged)), *staged->layouts().stages());
  // An optimizer without sharded parameters keeps Accelerate's plain form, with integer keys.
  const bool has_names = std::any_of(parameters.begin(), parameters.end(),
                                     [&](const auto& parameter) { return state.path->is_sharded(parameter); });
  return has_names ? with_names(std::move(dict), names) : Value(std::move(dict));
}

Value parts_of(const Value& whole, const std::map<std::string, StoredWeight>& all_shards,
               const torch::optim::Optimizer& optimizer, const TrainingState& state) {
  const auto parameters = optim::parameters_of(optimizer);
  auto dict = whole.as<Value::Dict>();
  auto shards = all_shards;
  const auto* staged = staged_model_of(parameters, state);
  const auto own = staged == nullptr ? std::vector<std::string>() : names_in_stages(parameters, *staged);
  if (staged != nullptr) keep_own_stages(dict, shards, *staged->layouts().stages(), own);
  const auto saved = dict.at("state").as<Value::Dict>();
  const auto keys = staged != nullptr ? own : keys_in(saved, shards, parameters, state);
  check_all_used(saved, shards, keys);
  Value::Dict states;
  for (std::size_t index = 0; index < parameters.size(); ++index) {
    auto entries = entries_of(keys[index], saved, shards);
    const auto* divided = division_of(parameters[index], state);
    if (staged != nullptr)
      check_sizes(keys[index], entries, divided == nullptr ? parameters[index].sizes().vec() : divided->layout.sizes);
    if (divided != nullptr) keep_parts(entries, *divided);
    if (!entries.empty()) states[std::to_string(index)] = std::move(entries);
  }
  dict["state"] = std::move(states);
  dict["param_groups"] = with_places(dict.at("param_groups").as<Value::List>());
  return dict;
}

}  // namespace accel::checkpoint
