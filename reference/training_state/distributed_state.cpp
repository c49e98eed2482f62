#include "reference/training_state/distributed_state.hpp"

#include <c10/util/accumulate.h>
#include <fmt/ranges.h>
#include <torch/nn/module.h>

#include <memory>
#include <set>

#include "reference/checkpoint/distributed/distributed_checkpoint.hpp"
#include "reference/checkpoint/module_state.hpp"
#include "reference/core/errors.hpp"
#include "reference/core/input/listed.hpp"
#include "reference/prepared/parameter_layouts.hpp"
#include "reference/state/objects.hpp"

namespace accel::checkpoint {
namespace {

// A description in the form that gather_object sends. A step of the path has an index, or -1 and a key.
using PackedStep = std::pair<std::string, std::int64_t>;
using PackedItem = std::tuple<std::vector<PackedStep>, int, std::vector<std::int64_t>, std::vector<std::int64_t>,
                              std::vector<std::int64_t>, std::int64_t>;

PackedItem packed(const ItemDescription& item) {
  std::vector<PackedStep> steps;
  for (const auto& step : item.path) {
    if (const auto* index = std::get_if<std::int64_t>(&step))
      steps.emplace_back("", *index);
    else
      steps.emplace_back(std::get<std::string>(step), -1);
  }
  return {std::move(steps), item.dtype ? static_cast<int>(*item.dtype) : -1,
          item.sizes,       item.box.offsets,
          item.box.sizes,   item.length};
}

ItemDescription unpacked(const PackedItem& item) {
  ItemDescription description;
  const auto& [steps, dtype, sizes, offsets, box_sizes, length] = item;
  for (const auto& [key, index] : steps) {
    if (index < 0)
      description.path.emplace_back(key);
    else
      description.path.emplace_back(index);
  }
  if (dtype >= 0) description.dtype = static_cast<at::ScalarType>(dtype);
  description.sizes = sizes;
  description.box = {offsets, box_sizes};
  description.length = length;
  return description;
}

// A rank's items, or why torch.save cannot write one of them.
using PackedRank = std::pair<std::vector<PackedItem>, std::string>;

PackedRank packed(const std::vector<DistributedItem>& items, const TorchFileOptions& types) {
  try {
    PackedRank own;
    for (const auto& item : described(items, types)) own.first.push_back(packed(item));
    return own;
  } catch (const ArgumentError& error) {
    return {{}, error.what()};
  }
}

// Adds this rank's file, and on rank 0 the metadata of all files. Collective; every rank throws for an item of any.
void add_items(std::vector<StateFile>& files, const std::string& folder, const std::vector<DistributedItem>& items,
               const TorchFileOptions& types, RankContext& context) {
  std::vector<std::vector<ItemDescription>> ranks;
  std::vector<std::string> problems;
  for (const auto& [list, problem] : gather_object(context, std::vector<PackedRank>{packed(items, types)})) {
    if (!problem.empty()) problems.push_back(fmt::format("rank {}: {}", ranks.size(), problem));
    auto& descriptions = ranks.emplace_back();
    for (const auto& item : list) descriptions.push_back(unpacked(item));
  }
  check_checkpoint(problems.empty(), "save_state: {}: not saved: {}", folder, listed(problems, "; "));
  const auto plan = plan_distributed_files(ranks);
  const auto rank = static_cast<std::size_t>(context.rank);
  std::vector<DistributedItem> written;
  for (const auto index : plan.items[rank]) written.push_back(items[index]);
  if (!written.empty()) files.push_back({folder + "/" + distributed_file(rank), std::move(written), types});
  if (context.rank == 0) files.push_back({folder + "/" + kMetadataFile, FileBytes{write_metadata(plan.metadata)}});
}

// A piece is a range of elements in row-major order. It has the form of a tensor only after its division into boxes.
void add_boxes_of(std::vector<DistributedItem>& items, const StatePath& path, const TensorPart& piece) {
  std::int64_t begin = 0;
  for (const auto& box : boxes_of_range(piece.sizes, piece.range.begin, piece.range.end)) {
    const auto count = c10::multiply_integers(box.sizes);
    items.push_back({path, piece.sizes, box, piece.values.narrow(0, begin, count).view(box.sizes)});
    begin += count;
  }
}

}  // namespace

void add_distributed_model(std::vector<StateFile>& files, std::size_t index, const ParallelModel& model,
                           const std::vector<TensorPart>& pieces, RankContext& context) {
  const auto names = state_dict_of(*model.module());
  std::map<std::string, const c10::TensorImpl*> tensors;
  for (const auto& [name, tensor] : names) tensors.emplace(name, tensor.unsafeGetTensorImpl());
  std::vector<DistributedItem> items;
  for (const auto& piece : pieces) {
    for (const auto& [name, tensor] : names) {
      if (tensor.unsafeGetTensorImpl() == tensors.at(piece.name)) add_boxes_of(items, {"model", name}, piece);
    }
  }
  add_items(files, folder_of_shards(kModelShards, index), items, {}, context);
}

void add_distributed_optimizer(std::vector<StateFile>& files, std::size_t index, const Value& remaining,
                               const std::vector<TensorPart>& pieces, RankContext& context) {
  const TorchFileOptions types{.types = {{"optimizer/param_groups/*/betas", PythonType::kTuple},
                                         {"optimizer/param_groups/*/etas", PythonType::kTuple},
                                         {"optimizer/param_groups/*/step_sizes", PythonType::kTuple}}};
  auto items = items_of(Value::Dict{{"optimizer", remaining}});
  for (const auto& piece : pieces) {
    const auto slash = piece.name.rfind('/');
    add_boxes_of(items, {"optimizer", "state", piece.name.substr(0, slash), piece.name.substr(slash + 1)}, piece);
  }
  add_items(files, folder_of_shards(kOptimizerShards, index), items, types, context);
}

SavedOptimizer distributed_optimizer(const std::string& folder) {
  const auto saved = std::make_shared<const DistributedCheckpoint>(folder);
  const auto& metadata = saved->metadata();
  SavedOptimizer optimizer;
  std::set<std::string> is_shard;
  for (const auto& [name, tensor] : metadata.tensors) {
    const auto& path = metadata.paths.at(name);
    if (path.size() != 4 || item_name(path).rfind("optimizer.state.", 0) != 0) continue;
    is_shard.insert(name);
    optimizer.shards.emplace(
        item_name({path[2]}) + "/" + item_name({path[3]}),
        StoredWeight{.file = folder, .dtype = tensor.dtype, .sizes = tensor.sizes, .load = [saved, name = name] {
                       return saved->load(name);
                     }});
  }
  auto state = saved->state_dict(is_shard).at("optimizer").as<Value::Dict>();
  state.try_emplace("state", Value::Dict());
  optimizer.state = std::move(state);
  return optimizer;
}

}  // namespace accel::checkpoint
