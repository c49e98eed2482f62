#include "reference/tensor_parallel/layers.hpp"

#include "reference/core/errors.hpp"
#include "reference/core/input/listed.hpp"
#include "reference/tensor_parallel/operators.hpp"
#include <ATen/ATen.h>
#include <c10/core/GradMode.h>

namespace accel::parallel {
namespace {

namespace nn = torch::nn;

nn::LinearOptions whole_layer(const ParallelLinearOptions& options) {
  return nn::LinearOptions(options.in, options.out).bias(options.bias);
}

ParameterCut cut_of(const char* layer, std::int64_t dim, std::int64_t size, std::vector<std::int64_t> sections,
                    Group group) {
  if (sections.empty()) sections = {size};
  std::vector<std::string> problems;
  std::int64_t sum = 0;
  const auto num_parts = group.size();
  const auto is_empty = [&](int part) {
    return part_of_length(size, {.index = part, .num_parts = num_parts}).size() < 1;
  };
  if (sections.size() == 1 && sections[0] == size && is_empty(num_parts - 1))
    problems.push_back(
        fmt::format("{} features over {} tensor-parallel ranks, by {} each, leave the last rank without any; use a "
                    "smaller tp_size",
                    size, num_parts, part_of_length(size, {.index = 0, .num_parts = num_parts}).size()));
  for (const auto section : sections) {
    if (sections.size() > 1 && section % group.size() != 0)
      problems.push_back(
          fmt::format("{} features do not divide over {} tensor-parallel ranks; expected a multiple of {}", section,
                      group.size(), group.size()));
    sum += section;
  }
  if (sum != size) problems.push_back(fmt::format("the sections have {} features in all; expected {}", sum, size));
  check_config(problems.empty(), "{}: {}", layer, listed(problems, "; "));
  return {.axis = std::string(name_of(kTensorAxis)),
          .group = std::move(group),
          .dim = dim,
          .sections = std::move(sections)};
}

// set_data, so that the module's member and its registered parameter remain one tensor.
void keep_part(at::Tensor& parameter, const ParameterCut& cut) {
  if (parameter.defined() && cut.group.size() > 1) parameter.set_data(cut.part_of(parameter.detach()));
}

// What the outputs of a layer have as Sharded::uneven_length.
std::int64_t uneven_length_of(const ParameterCut& cut) {
  const auto length = cut.shard().length();
  return length % cut.group.size() == 0 ? 0 : length;
}

using Cuts = std::map<std::string, ParameterCut>;
Cuts if_divided(const ParameterCut& cut, Cuts cuts) { return cut.group.size() == 1 ? Cuts() : cuts; }

// Targets are equal on all ranks, so all throw. On a GPU the check would wait for the device.
void check_targets(const at::Tensor& counted, std::int64_t vocab) {
  if (!counted.is_cpu() || counted.numel() == 0) return;
  const auto least = counted.min().item<std::int64_t>(), largest = counted.max().item<std::int64_t>();
  check_argument(least >= 0 && largest < vocab,
                 "vocab_parallel_cross_entropy: targets from {} to {}; expected 0 to {}, or ignore_index", least,
                 largest, vocab - 1);
}

// The largest logit of each row. On the CPU, every rank also learns whether all have the numbers of columns that are
// expected: parts that do not divide need Sharded::uneven_length, which a program can lose by taking `local`.
at::Tensor largest_of_all(const at::Tensor& logits, const Group& group, std::optional<std::int64_t> uneven_columns) {
  const auto own = std::get<0>(logits.max(-1));
  const auto columns = static_cast<double>(logits.size(-1));
  const auto excess = uneven_columns ? columns - static_cast<double>(*uneven_columns) : columns;
  auto largest = at::cat({own, at::tensor({excess, -excess}, own.options())});
  group.all_reduce(largest, ReduceOp::kMax).wait();
  if (largest.is_cpu()) {
    const auto most = largest[-2].item<double>(), least = -largest[-1].item<double>();
    check_argument(
        most == least && (!uneven_columns || most == 0),
        "vocab_parallel_cross_entropy: the ranks have other numbers of columns than expected, this one {}; set "
        "uneven_length of the logits to the size of a vocabulary that does not divide over {} ranks",
        columns, group.size());
  }
  return largest.narrow(0, 0, own.size(0));
}

}  // namespace

ColumnParallelLinearImpl::ColumnParallelLinearImpl(const ParallelLinearOptions& options, Group group)
    : LinearImpl(whole_layer(options)),
      cut_(cut_of("ColumnParallelLinear", 0, options.out, options.sections, std::move(group))) {
  keep_part(weight, cut_);
  keep_part(bias, cut_);
}

Sharded<-1> ColumnParallelLinearImpl::forward(const Copied& input) {
  return {LinearImpl::forward(input.local), uneven_length_of(cut_)};
}

Cuts ColumnParallelLinearImpl::cuts() const {
  return if_divided(cut_, bias.defined() ? Cuts{{"weight", cut_}, {"bias", cut_}} : Cuts{{"weight", cut_}});
}

void ColumnParallelLinearImpl::save(torch::serialize::OutputArchive& archive) const {
  check_is_complete("torch::save");
  LinearImpl::save(archive);
}

void ColumnParallelLinearImpl::load(torch::serialize::InputArchive& archive) {
  check_is_complete("torch::load");
  LinearImpl::load(archive);
}

RowParallelLinearImpl::RowParallelLinearImpl(const ParallelLinearOptions& options, Group group)
    : LinearImpl(whole_layer(options)),
      cut_(cut_of("RowParallelLinear", 1, options.in, options.sections, std::move(group))) {
  keep_part(weight, cut_);
}

// Without the bias, which is added to the sum.
Partial RowParallelLinearImpl::product(const Sharded<-1>& input) const {
  if (computes_in_float8(*this)) {
    const auto layers = Float8Scope::current();
    layers->mark_ran();
    return {float8_linear(input.local, weight, {}, layers->config())};
  }
  return {at::linear(input.local, weight)};
}

Replicated RowParallelLinearImpl::forward(const Sharded<-1>& input) {
  if (cut_.group.size() == 1) return {LinearImpl::forward(input.local)};
  auto sum = reduce(product(input), cut_.group);
  return bias.defined() ? Replicated{sum.local + bias} : sum;
}

// Each rank adds the bias to its own positions, so the bias's gradient is summed over the ranks.
Sharded<1> RowParallelLinearImpl::forward(const Sharded<-1>& input, ToSequence) {
  if (cut_.group.size() == 1) return {LinearImpl::forward(input.local)};
  auto sum = reduce_scatter<1>(product(input), cut_.group);
  return bias.defined() ? Sharded<1>{sum.local + shared_parameter(bias, cut_.group)} : sum;
}

Cuts RowParallelLinearImpl::cuts() const { return if_divided(cut_, {{"weight", cut_}}); }

void RowParallelLinearImpl::save(torch::serialize::OutputArchive& archive) const {
  check_is_complete("torch::save");
  LinearImpl::save(archive);
}

void RowParallelLinearImpl::load(torch::serialize::InputArchive& archive) {
  check_is_complete("torch::load");
  LinearImpl::load(archive);
}

VocabParallelEmbeddingImpl::VocabParallelEmbeddingImpl(const nn::EmbeddingOptions& options, Group group)
    : EmbeddingImpl(options),
      cut_(cut_of("VocabParallelEmbedding", 0, options.num_embeddings(), {}, std::move(group))) {
  check_config(cut_.group.size() == 1 || (!options.sparse() && !options.max_norm() && !options.scale_grad_by_freq()),
               "VocabParallelEmbedding: sparse, max_norm and scale_grad_by_freq are unsupported on several ranks; "
               "leave them out");
  keep_part(weight, cut_);
}

// Tokens of other ranks' rows contribute zeros, which also stops their gradients.
Partial VocabParallelEmbeddingImpl::looked_up(const at::Tensor& tokens) {
  // Tokens are equal on all ranks, so all throw. On a GPU the check would wait for the device.
  if (tokens.is_cpu() && tokens.numel() > 0) {
    const auto least = tokens.min().item<std::int64_t>(), largest = tokens.max().item<std::int64_t>();
    check_argument(least >= 0 && largest < options.num_embeddings(),
                   "VocabParallelEmbedding: tokens from {} to {}; expected 0 to {}", least, largest,
                   options.num_embeddings() - 1);
  }
  const auto own =
      part_of_length(options.num_embeddings(), {.index = cut_.group.rank(), .num_parts = cut_.group.size()});
  const auto rows = own.size();
  const auto local = tokens - own.begin;
  const auto is_elsewhere = local.lt(0).logical_or(local.ge(rows));
  const auto padding = options.padding_idx() ? *options.padding_idx() - own.begin : -1;
  const auto values =
      at::embedding(weight, local.masked_fill(is_elsewhere, 0), padding >= 0 && padding < rows ? padding : -1);
  return {values.masked_fill(is_elsewhere.unsqueeze(-1), 0)};
}

Replicated VocabParallelEmbeddingImpl::forward(const at::Tensor& tokens) {
  if (cut_.group.size() == 1) return {EmbeddingImpl::forward(tokens)};
  return reduce(looked_up(tokens), cut_.group);
}

Sharded<1> VocabParallelEmbeddingImpl::forward(const at::Tensor& tokens, ToSequence) {
  if (cut_.group.size() == 1) return {EmbeddingImpl::forward(tokens)};
  return reduce_scatter<1>(looked_up(tokens), cut_.group);
}

Cuts VocabParallelEmbeddingImpl::cuts() const { return if_divided(cut_, {{"weight", cut_}}); }

void VocabParallelEmbeddingImpl::save(torch::serialize::OutputArchive& archive) const {
  check_is_complete("torch::save");
  EmbeddingImpl::save(archive);
}

void VocabParallelEmbeddingImpl::load(torch::serialize::InputArchive& archive) {
  check_is_complete("torch::load");
  EmbeddingImpl::load(archive);
}

Replicated vocab_parallel_cross_entropy(const Sharded<-1>& logits, const at::Tensor& targets, const Group& group,
                                        const VocabCrossEntropyOptions& options) {
  check_argument(logits.local.dim() == 2 && targets.dim() == 1 && logits.local.size(0) == targets.size(0),
                 "vocab_parallel_cross_entropy: got logits of {} dimensions and targets of {}; expected (N, V / size) "
                 "and (N)",
                 logits.local.dim(), targets.dim());
  check_argument(options.reduction == "mean" || options.reduction == "sum" || options.reduction == "none",
                 "vocab_parallel_cross_entropy: reduction: expected mean, sum or none, got '{}'", options.reduction);
  const auto exact = logits.local.to(at::promote_types(logits.local.scalar_type(), at::kFloat));
  const auto columns = exact.size(-1);
  const auto vocab = logits.uneven_length > 0 ? logits.uneven_length : columns * group.size();
  const auto own_range = part_of_length(vocab, {.index = group.rank(), .num_parts = group.size()});
  const auto is_counted = targets.ne(options.ignore_index);
  check_targets(targets.masked_select(is_counted), vocab);
  auto largest =
      largest_of_all(exact.detach(), group, logits.uneven_length > 0 ? std::optional(own_range.size()) : std::nullopt);
  const auto shifted = exact - largest.unsqueeze(-1);
  const auto local = targets - own_range.begin;
  const auto is_elsewhere = local.lt(0).logical_or(local.ge(columns));
  const auto own = shifted.gather(-1, local.masked_fill(is_elsewhere, 0).unsqueeze(-1)).squeeze(-1);
  // One collective for both sums.
  const auto sums = reduce({at::stack({shifted.exp().sum(-1), own.masked_fill(is_elsewhere, 0)})}, group).local;
  const auto losses = (sums[0].log() - sums[1]).masked_fill(is_counted.logical_not(), 0);
  if (options.reduction == "none") return {losses};
  return {options.reduction == "sum" ? losses.sum() : losses.sum() / is_counted.sum()};
}

at::Tensor shared_parameter(const at::Tensor& parameter, const Group& group) { return copy({parameter}, group).local; }

}  // namespace accel::parallel
