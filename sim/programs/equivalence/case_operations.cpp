// The operations of cases. Every rank passes values that depend on its rank and on the place in the case, so that a
// swapped, missing or repeated contribution changes the result.
#include "sim/programs/equivalence/case_operations.hpp"

#include <ATen/ops/bernoulli.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/randperm.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <tuple>

#include "reference/comm/tensor_fingerprint.hpp"
#include "reference/state/rng_sync.hpp"

namespace accel::programs {
namespace {

constexpr std::int64_t kLongestText = 96;  // elements

template <typename T>
std::string join(const std::vector<T>& values) {
  return fmt::format("[{}]", fmt::join(values, ", "));
}

// A tensor of `rows` rows that differs between ranks and calls.
at::Tensor rows_of_rank(const OperationInput& in, std::int64_t rows) {
  return at::full({rows, 2}, static_cast<double>(100 * in.accelerator.process_index() + in.place), at::kDouble);
}

std::string gather_tuple(const OperationInput& in) {
  const auto [numbers, drawn] = in.accelerator.gather_for_metrics(
      std::tuple(in.batch.select(1, 0).contiguous().to(at::kLong), in.batch.select(1, 1).contiguous()));
  return text_of(numbers) + " " + text_of(drawn);
}

std::string gather_list(const OperationInput& in) {
  const auto tensors = in.accelerator.gather_for_metrics(std::vector<at::Tensor>{in.batch, in.batch.to(at::kFloat)});
  return text_of(tensors[0]) + " " + text_of(tensors[1]);
}

std::string gather_nested(const OperationInput& in) {
  const auto tree = in.accelerator.gather_for_metrics(
      std::map<std::string, std::vector<at::Tensor>>{{"a", {in.batch}}, {"b", {in.batch * 2, in.batch.neg()}}});
  return text_of(tree.at("a")[0]) + " " + text_of(tree.at("b")[0]) + " " + text_of(tree.at("b")[1]);
}

// One object per sample, of different lengths.
std::string gather_objects(const OperationInput& in) {
  std::vector<std::string> names;
  for (std::int64_t row = 0; row < in.batch.size(0); ++row) {
    const auto number = static_cast<std::size_t>(in.batch[row][0].item<double>());
    names.push_back(std::string(number % 5, 'x') + std::to_string(number));
  }
  return join(in.accelerator.gather_for_metrics(names, {.use_gather_object = true}));
}

std::string pad(const OperationInput& in) {
  const auto rows = 1 + (in.accelerator.process_index() + in.place) % 3;
  return text_of(in.accelerator.gather(
      in.accelerator.pad_across_processes(rows_of_rank(in, rows), {.pad_index = -1, .pad_first = in.place % 2 == 1})));
}

std::string broadcast(const OperationInput& in) {
  auto tensor = rows_of_rank(in, 2);
  in.accelerator.broadcast(tensor, static_cast<int>(in.place) % in.accelerator.num_processes());
  return text_of(tensor);
}

std::string broadcast_objects(const OperationInput& in) {
  std::vector<std::string> names(static_cast<std::size_t>(1 + in.accelerator.process_index() % 3),
                                 fmt::format("rank {}, call {}", in.accelerator.process_index(), in.place));
  return join(broadcast_object_list(in.accelerator.context(), names,
                                    static_cast<int>(in.place) % in.accelerator.num_processes()));
}

std::string gather_all_objects(const OperationInput& in) {
  const std::vector<std::int64_t> own(static_cast<std::size_t>(in.accelerator.process_index() % 3),
                                      10 * in.accelerator.process_index() + in.place);
  return join(gather_object(in.accelerator.context(), own));
}

// The different paths of the CPU kernels: scalar and vectorized normals, integers, permutations, masks.
std::string draw(const OperationInput& /*in*/) {
  std::string text = text_of(at::rand({2}, at::kDouble));
  for (const auto& drawn :
       {at::randn({3}), at::randn({17}), at::randint(0, 1000, {2}), at::randperm(5), at::bernoulli(at::full({4}, 0.3))})
    text += " " + text_of(drawn);
  return text;
}

// Moves one rank's stream away from those of the others.
std::string draw_on_one_rank(const OperationInput& in) {
  if (in.place % in.accelerator.num_processes() != in.accelerator.process_index()) return "";
  return text_of(at::rand({1}, at::kDouble));
}

std::string draw_from_loader_generator(const OperationInput& in) {
  return in.loader_generator ? text_of(at::rand({2}, *in.loader_generator, at::kDouble)) : "";
}

std::string seed(const OperationInput& in) {
  set_seed(static_cast<std::uint64_t>(in.place), {.device_specific = false});
  return text_of(at::rand({1}, at::kDouble));
}

std::string seed_per_rank(const OperationInput& in) {
  set_seed(static_cast<std::uint64_t>(in.place), {.device_specific = true});
  return text_of(at::rand({1}, at::kDouble));
}

std::string synchronize_torch(const OperationInput& in) {
  synchronize_rng_state(in.accelerator.context(), "torch");
  return state_of(default_generator());
}

// The generator of the loader; the default one if the loader has none.
std::string synchronize_loader_generator(const OperationInput& in) {
  const auto generator = in.loader_generator.value_or(default_generator());
  synchronize_rng_states({"generator"}, generator);
  return state_of(generator);
}

constexpr const char *kMetrics = "gather_for_metrics", *kStreams = "rng_synchronization", *kTraining = "training";

const CaseOperation kOperations[] = {
    {"gather", "even_batches", [](const OperationInput& in) { return text_of(in.accelerator.gather(in.batch)); }},
    {"gather_object", "even_batches", gather_all_objects},
    {"gather_for_metrics", kMetrics,
     [](const OperationInput& in) { return text_of(in.accelerator.gather_for_metrics(in.batch)); }},
    {"gather_for_metrics_of_tuple", kMetrics, gather_tuple},
    {"gather_for_metrics_of_list", kMetrics, gather_list},
    {"gather_for_metrics_of_tree", kMetrics, gather_nested},
    {"gather_for_metrics_of_objects", kMetrics, gather_objects},
    {"draw", kStreams, draw},
    {"draw_on_one_rank", kStreams, draw_on_one_rank},
    {"draw_from_loader_generator", kStreams, draw_from_loader_generator},
    {"set_seed", kStreams, seed},
    {"set_seed_per_rank", kStreams, seed_per_rank},
    {"synchronize_torch", kStreams, synchronize_torch},
    {"synchronize_loader_generator", kStreams, synchronize_loader_generator},
    {"reduce_sum", kTraining,
     [](const OperationInput& in) { return text_of(in.accelerator.reduce(rows_of_rank(in, 3))); }},
    {"reduce_mean", kTraining,
     [](const OperationInput& in) { return text_of(in.accelerator.reduce(rows_of_rank(in, 1) / 7, "mean")); }},
    {"reduce_max", kTraining,
     [](const OperationInput& in) { return text_of(in.accelerator.reduce(rows_of_rank(in, 2), "max")); }},
    {"pad_across_processes", kTraining, pad},
    {"broadcast", kTraining, broadcast},
    {"broadcast_object_list", kTraining, broadcast_objects}};

}  // namespace

std::vector<const char*> operations_of(const std::string& law) {
  std::vector<const char*> names;
  for (const auto& operation : kOperations) {
    if (law.empty() || law == operation.law) names.push_back(operation.name);
  }
  return names;
}

const CaseOperation* find_operation(const std::string& name) {
  const auto* const found = std::find_if(std::begin(kOperations), std::end(kOperations),
                                         [&](const CaseOperation& operation) { return name == operation.name; });
  return found == std::end(kOperations) ? nullptr : found;
}

std::string text_of(const at::Tensor& tensor) {
  const auto flat = tensor.detach().cpu().contiguous();
  const auto shape = fmt::format("{}", fmt::join(flat.sizes().vec(), "x"));
  if (flat.numel() > kLongestText) return fmt::format("{}#{:016x}", shape, fingerprint(flat));
  // Widening is exact, and the shortest text that reads back as the same double is unique.
  const auto wide = flat.to(at::kDouble).flatten();
  const auto* const begin = wide.const_data_ptr<double>();
  return shape + join(std::vector<double>(begin, begin + wide.numel()));
}

std::string state_of(const at::Generator& generator) { return fmt::format("{:016x}", fingerprint(generator)); }

}  // namespace accel::programs
