#include "reference/recorder/call_facts.hpp"

#include <algorithm>
#include <array>
#include <functional>
#include <numeric>

#include "reference/recorder/hash.hpp"

namespace accel::recorder {
namespace {

void add_hash(std::uint64_t& hash, std::span<const std::int64_t> numbers) {
  hash = mixed(hash, numbers.size() + 1);
  for (const auto number : numbers) hash = mixed(hash, static_cast<std::uint64_t>(number));
}

// Hashes what `agree` compares: the list of shapes, and the list of strides.
void add_shape(CallFacts& facts, std::span<const std::int64_t> sizes, std::span<const std::int64_t> strides) {
  if (have_equal_shapes(facts.op)) add_hash(facts.shapes_hash, sizes);
  if (!strides.empty()) add_hash(facts.strides_hash, strides);
  facts.is_cut = facts.is_cut || facts.num_numbers + 1 + sizes.size() + strides.size() > kNumbers;
  if (facts.is_cut) return;
  const auto add = [&](std::int64_t number) { facts.numbers[facts.num_numbers++] = number; };
  add(static_cast<std::int64_t>(sizes.size()) + (strides.empty() ? 0 : CallFacts::kHasStrides));
  std::for_each(sizes.begin(), sizes.end(), add);
  std::for_each(strides.begin(), strides.end(), add);
}

// The stride of a dimension of size 1 is arbitrary.
void add_with_strides(CallFacts& facts, const TensorFacts& tensor) {
  std::array<std::int64_t, kNumbers> strides{};
  const auto dims = std::min(tensor.sizes.size(), strides.size());
  for (std::size_t dim = 0; dim < dims; ++dim) strides[dim] = tensor.sizes[dim] == 1 ? 0 : tensor.strides[dim];
  add_shape(facts, tensor.sizes, std::span(strides).first(dims));
}

}  // namespace

CallFacts facts_of(Collective op, std::uint8_t reduce_op, std::int32_t root) {
  CallFacts facts{.op = op};
  const auto& traits = traits_of(op);
  if (traits.reduces) facts.reduce_op = reduce_op;
  if (traits.has_root) facts.root = root;
  return facts;
}

void add_tensor(CallFacts& facts, const TensorFacts& tensor) {
  if (facts.op == Collective::kBarrier || facts.op == Collective::kMonitoredBarrier) return;
  facts.dtype = tensor.dtype;
  facts.bytes += tensor.bytes;
  if (!have_equal_shapes(facts.op)) return add_shape(facts, tensor.sizes, {});
  if (tensor.sparse_dim >= 0) facts.sparse_dim = tensor.sparse_dim;
  if (traits_of(facts.op).is_in_place && !tensor.strides.empty())
    add_with_strides(facts, tensor);
  else
    add_shape(facts, tensor.sizes, {});
}

std::int64_t elements_of(std::span<const std::int64_t> sizes) {
  return std::accumulate(sizes.begin(), sizes.end(), std::int64_t{1}, std::multiplies<>());
}

std::vector<Part> parts_of_rows(std::span<const std::int64_t> sizes, std::span<const std::int64_t> splits,
                                std::size_t num_ranks) {
  const auto of_row = elements_of(sizes.subspan(1));
  std::vector<Part> parts(num_ranks);
  for (std::size_t rank = 0; rank < num_ranks; ++rank) {
    const auto rows = splits.empty() ? sizes[0] / static_cast<std::int64_t>(num_ranks) : splits[rank];
    parts[rank] = {.rows = rows, .elements = rows * of_row};
  }
  return parts;
}

Part part_of(std::span<const std::int64_t> sizes) {
  const auto elements = elements_of(sizes);
  return {.rows = elements, .elements = elements};
}

}  // namespace accel::recorder
