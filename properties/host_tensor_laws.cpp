// Ranks that are processes compute collectives on HostTensor, without LibTorch. The bits must be those of at::Tensor,
// for every collective, dtype and layout in memory.
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <rapidcheck.h>

#include <numeric>

#include "sim/backend/torch_tensors.hpp"
#include "sim/collectives/tensors/host_tensor.hpp"
#include "tests/support/property.hpp"
#include "tests/support/torch.hpp"

namespace accel::testing::host_tensor_laws {
namespace {

using sim::HostTensor;
using sim::Reduction;

const std::vector<at::ScalarType> kDtypes{at::kFloat, at::kDouble,       at::kHalf,         at::kBFloat16,
                                          at::kChar,  at::kByte,         at::kInt,          at::kLong,
                                          at::kBool,  at::kComplexFloat, at::kComplexDouble};

// Tensors of any layout: dimensions in any order in memory, with gaps between rows.
at::Tensor random_tensor(at::ScalarType dtype, std::vector<std::int64_t> sizes, bool is_dense,
                         at::Generator& generator) {
  std::vector<std::int64_t> order(sizes.size());
  std::iota(order.begin(), order.end(), 0);
  for (std::size_t i = order.size(); i > 1; --i) std::swap(order[i - 1], order[pick<std::size_t>(0, i)]);
  auto in_memory = sizes;
  for (std::size_t dim = 0; dim < sizes.size(); ++dim) in_memory[dim] = sizes[order[dim]];
  const bool has_gaps = !is_dense && !sizes.empty() && one_in(3);
  if (has_gaps) in_memory.back() += 2;
  auto memory = at::empty(in_memory, at::TensorOptions().dtype(dtype));
  const auto bits = at::randint(0, 256, {static_cast<std::int64_t>(memory.nbytes())}, generator,
                                at::TensorOptions().dtype(at::kByte));
  if (dtype == at::kBool) {
    memory.copy_(bits.view(memory.sizes()).remainder(2) == 1);
  } else if (at::isIntegralType(dtype, /*includeBool=*/false) && memory.numel() > 0) {
    memory.view({-1}).view(at::kByte).copy_(bits);
  } else if (memory.numel() > 0) {
    memory.copy_(at::randn(memory.sizes(), generator, at::TensorOptions().dtype(at::kDouble)).to(dtype));
    if (at::isComplexType(dtype)) memory.mul_(c10::complex<double>(1, -2));
    if (one_in(4)) memory.view({-1})[0] = std::numeric_limits<double>::quiet_NaN();
    if (one_in(4)) memory.view({-1})[-1] = -std::numeric_limits<double>::infinity();
    if (one_in(4)) memory.view({-1})[memory.numel() / 2] = -0.0;
  }
  if (has_gaps) memory = memory.narrow(-1, 1, in_memory.back() - 2);
  std::vector<std::int64_t> back(sizes.size());
  for (std::size_t dim = 0; dim < order.size(); ++dim)
    back[static_cast<std::size_t>(order[dim])] = static_cast<std::int64_t>(dim);
  return memory.permute(back);
}

// The same layout over a copy of the memory.
at::Tensor twin_of(const at::Tensor& tensor) {
  const auto storage = at::empty({0}, tensor.options()).set_(tensor.storage()).clone();
  return storage.as_strided(tensor.sizes(), tensor.strides(), tensor.storage_offset());
}

HostTensor host_view(const at::Tensor& tensor) {
  if (tensor.layout() == at::kSparse)
    return HostTensor::sparse(tensor.sizes().vec(), host_view(tensor._indices()), host_view(tensor._values()));
  return {std::make_shared<at::Tensor>(tensor), tensor.data_ptr(), tensor.scalar_type(), tensor.sizes().vec(),
          tensor.strides().vec()};
}

// NaNs may differ in sign and payload: the compiler's choice of operand order decides those.
bool same_bits(const at::Tensor& left, const at::Tensor& right) {
  const auto a = left.contiguous(), b = right.contiguous();
  if (a.is_complex()) return same_bits(at::view_as_real(a), at::view_as_real(b));
  if (a.sizes() != b.sizes() || a.scalar_type() != b.scalar_type()) return false;
  if (a.numel() == 0) return true;
  const auto nans = a.isnan();
  if (!nans.equal(b.isnan())) return false;
  return a.masked_fill(nans, 0).view({-1}).view(at::kByte).equal(b.masked_fill(nans, 0).view({-1}).view(at::kByte));
}

struct Sides {
  std::vector<sim::BuffersOf<at::Tensor>> torch;
  std::vector<sim::BuffersOf<HostTensor>> host;
  std::vector<at::Tensor> of_torch, of_host;  // memory that the collective may have changed

  at::Tensor add(const at::Tensor& tensor, std::vector<at::Tensor>& to, std::vector<HostTensor>& host_to) {
    auto twin = twin_of(tensor);
    to.push_back(tensor);
    host_to.push_back(host_view(twin));
    of_torch.push_back(tensor);
    of_host.push_back(twin);
    return tensor;
  }
};

template <typename Tensor>
void compute(const sim::CollectiveOfAll& collective, std::vector<sim::BuffersOf<Tensor>>& ranks) {
  std::vector<sim::BuffersOf<Tensor>*> all;
  for (auto& rank : ranks) all.push_back(&rank);
  const sim::ParallelFor serial = [](std::int64_t count, const std::function<void(std::int64_t)>& body) {
    for (std::int64_t index = 0; index < count; ++index) body(index);
  };
  sim::compute<Tensor>(collective, all, serial);
}

std::vector<std::int64_t> random_sizes() {
  std::vector<std::int64_t> sizes;
  for (int dims = pick(0, 4); dims > 0; --dims) sizes.push_back(pick<std::int64_t>(0, 6));
  return sizes;
}

std::vector<std::int64_t> with_rows(std::vector<std::int64_t> sizes, std::int64_t rows) {
  sizes.insert(sizes.begin(), rows);
  return sizes;
}

// Any order of the memory is equal on all ranks, as the rules of Gloo demand.
void fill(Sides& sides, Collective op, at::ScalarType dtype, int num_ranks, int root, at::Generator& generator) {
  const auto sizes = random_sizes();
  const auto like = random_tensor(dtype, sizes, /*is_dense=*/true, generator);
  const auto in_place = [&] {
    auto tensor = random_tensor(dtype, sizes, /*is_dense=*/true, generator).contiguous();
    return at::empty_strided(like.sizes(), like.strides(), like.options()).copy_(tensor);
  };
  const auto any = [&](const std::vector<std::int64_t>& of) {
    return random_tensor(dtype, of, /*is_dense=*/false, generator);
  };
  const auto contiguous = [&](const std::vector<std::int64_t>& of) { return any(of).contiguous().clone(); };
  const int num_coalesced = pick(1, 4);
  std::vector<std::vector<std::int64_t>> rows(num_ranks);  // sent, by sender and receiver
  for (auto& of_sender : rows) {
    for (int to = 0; to < num_ranks; ++to) of_sender.push_back(pick<std::int64_t>(0, 4));
  }
  for (int rank = 0; rank < num_ranks; ++rank) {
    auto& torch = sides.torch[rank];
    auto& host = sides.host[rank];
    const auto input = [&](const at::Tensor& tensor) { sides.add(tensor, torch.inputs, host.inputs); };
    const auto output = [&](const at::Tensor& tensor) { sides.add(tensor, torch.outputs, host.outputs); };
    switch (op) {
      case Collective::kAllReduce:
      case Collective::kReduce:
      case Collective::kBroadcast: input(in_place()); break;
      case Collective::kAllReduceCoalesced:
        for (int item = 0; item < num_coalesced; ++item) input(any(with_rows(sizes, item + 1)));
        break;
      case Collective::kAllGather:
        input(any(sizes));
        for (int from = 0; from < num_ranks; ++from) output(any(sizes));
        break;
      case Collective::kAllGatherIntoTensor:
        input(any(sizes));
        output(any(with_rows(sizes, num_ranks)));
        break;
      case Collective::kGather:
        input(any(sizes));
        for (int from = 0; from < num_ranks && rank == root; ++from) output(any(sizes));
        break;
      case Collective::kScatter:
        output(any(sizes));
        for (int to = 0; to < num_ranks && rank == root; ++to) input(any(sizes));
        break;
      case Collective::kReduceScatter:
        output(contiguous(sizes));
        for (int to = 0; to < num_ranks; ++to) input(any(sizes));
        break;
      case Collective::kReduceScatterTensor:
        input(any(with_rows(sizes, num_ranks)));
        output(any(sizes));
        break;
      default: {  // kAllToAllSingle
        std::vector<std::int64_t> received;
        for (int from = 0; from < num_ranks; ++from) received.push_back(rows[from][rank]);
        torch.input_splits = host.input_splits = rows[rank];
        torch.output_splits = host.output_splits = received;
        const auto total = [](const auto& counts) {
          return std::accumulate(counts.begin(), counts.end(), std::int64_t{0});
        };
        input(contiguous(with_rows(sizes, total(rows[rank]))));
        output(contiguous(with_rows(sizes, total(received))));
      }
    }
  }
}

TEST(HostTensorLaws, CollectivesHaveTheBitsOfLibTorchsTensors) {
  expect_property(400, [] {
    const auto op =
        pick_from({Collective::kAllReduce, Collective::kAllReduceCoalesced, Collective::kReduce, Collective::kBroadcast,
                   Collective::kAllGather, Collective::kAllGatherIntoTensor, Collective::kGather, Collective::kScatter,
                   Collective::kReduceScatter, Collective::kReduceScatterTensor, Collective::kAllToAllSingle});
    const auto dtype = pick_from(kDtypes);
    const int num_ranks = pick(1, 6), root = pick(0, num_ranks);
    sim::ReduceKind kind{pick_from({Reduction::kSum, Reduction::kProduct, Reduction::kMin, Reduction::kMax})};
    if (at::isComplexType(dtype)) kind.reduction = Reduction::kSum;
    // The rank itself divides complex numbers.
    kind.average = kind.reduction == Reduction::kSum && at::isFloatingType(dtype) && one_in(2);
    auto generator = at::make_generator<at::CPUGeneratorImpl>(pick<std::uint64_t>(0, 1U << 31));
    Sides sides{.torch = std::vector<sim::BuffersOf<at::Tensor>>(num_ranks),
                .host = std::vector<sim::BuffersOf<HostTensor>>(num_ranks)};
    fill(sides, op, dtype, num_ranks, root, generator);
    const sim::CollectiveOfAll collective{.op = op, .kind = kind, .root = root};
    compute(collective, sides.torch);
    compute(collective, sides.host);
    for (std::size_t index = 0; index < sides.of_torch.size(); ++index) {
      const auto &torch = sides.of_torch[index], &host = sides.of_host[index];
      RC_LOG(fmt::format("{} of {} on {} ranks, reduction {}, mean {}, tensor {}: sizes [{}], strides [{}]\n{}\n{}",
                         name_of(op), c10::toString(dtype), num_ranks, static_cast<int>(kind.reduction), kind.average,
                         index, fmt::join(torch.sizes(), ", "), fmt::join(torch.strides(), ", "), c10::str(torch),
                         c10::str(host)));
      RC_ASSERT(same_bits(torch, host));
    }
  });
}

TEST(HostTensorLaws, ASumOfSparseTensorsHasTheBitsOfLibTorch) {
  expect_property(100, [] {
    const auto dtype = pick_from({at::kFloat, at::kDouble, at::kBFloat16, at::kLong, at::kByte, at::kComplexFloat});
    const int num_ranks = pick(1, 5), sparse_dim = pick(1, 3);
    auto generator = at::make_generator<at::CPUGeneratorImpl>(pick<std::uint64_t>(0, 1U << 31));
    const std::vector<std::int64_t> sizes =
        sparse_dim == 1 ? std::vector<std::int64_t>{7, 3} : std::vector<std::int64_t>{4, 5, 2};
    Sides sides{.torch = std::vector<sim::BuffersOf<at::Tensor>>(num_ranks),
                .host = std::vector<sim::BuffersOf<HostTensor>>(num_ranks)};
    for (int rank = 0; rank < num_ranks; ++rank) {
      const auto count = pick<std::int64_t>(0, 6);
      auto sizes_of_values = sizes;
      sizes_of_values.erase(sizes_of_values.begin(), sizes_of_values.begin() + sparse_dim);
      sizes_of_values.insert(sizes_of_values.begin(), count);
      std::vector<at::Tensor> rows;
      for (int dim = 0; dim < sparse_dim; ++dim)
        rows.push_back(at::randint(0, sizes[dim], {count}, generator, at::TensorOptions().dtype(at::kLong)));
      auto values = at::randn(sizes_of_values, generator, at::TensorOptions().dtype(at::kDouble)).mul(3).to(dtype);
      if (values.numel() > 0 && one_in(2)) values.view({-1})[0] = -0.0;
      const auto tensor = at::sparse_coo_tensor(at::stack(rows), values, sizes).coalesce();
      sides.torch[rank].inputs = {tensor};
      sides.torch[rank].outputs = {tensor.clone()};
      sides.host[rank].inputs = sides.host[rank].outputs = {host_view(tensor)};
    }
    compute({.op = Collective::kAllReduce}, sides.torch);
    compute({.op = Collective::kAllReduce}, sides.host);
    for (const auto& rank : sides.torch) rank.inputs[0]._values().fill_(77);  // the sum must not be a rank's own memory
    for (int rank = 0; rank < num_ranks; ++rank) {
      const auto& torch = sides.torch[rank].outputs[0];
      const auto& host = sides.host[rank].outputs[0];
      const auto tensor_of = [](const HostTensor& part) {
        return at::from_blob(part.data(), part.sizes(), part.strides(), at::TensorOptions().dtype(part.scalar_type()));
      };
      RC_LOG(fmt::format("{} on {} ranks\n{}\n{}", c10::toString(dtype), num_ranks, c10::str(torch._values()),
                         c10::str(tensor_of(host.values()))));
      RC_ASSERT(torch._indices().equal(tensor_of(host.indices())));
      RC_ASSERT(same_bits(torch._values(), tensor_of(host.values())));
    }
  });
}

TEST(HostTensorLaws, ItIsDescribedAsLibTorchsTensor) {
  expect_property(300, [] {
    auto generator = at::make_generator<at::CPUGeneratorImpl>(pick<std::uint64_t>(0, 1U << 31));
    const auto tensor = random_tensor(pick_from(kDtypes), random_sizes(), /*is_dense=*/false, generator);
    const auto host = host_view(tensor);
    const auto left = sim::TensorInspection<at::Tensor>::description_of(tensor),
               right = sim::TensorInspection<HostTensor>::description_of(host);
    RC_ASSERT(left.dtype == right.dtype && left.sizes == right.sizes && left.strides == right.strides);
    RC_ASSERT(left.is_contiguous == right.is_contiguous && left.is_dense == right.is_dense);
    RC_ASSERT(left.layout == right.layout && left.sparse_dim == right.sparse_dim);
    RC_ASSERT(left.element_bytes == right.element_bytes && left.bytes == right.bytes);
    RC_ASSERT(sim::TensorInspection<at::Tensor>::sample_of(tensor) ==
              sim::TensorInspection<HostTensor>::sample_of(host));
    RC_ASSERT(sim::TensorAlgebra<at::Tensor>::nans_of(tensor) == sim::TensorAlgebra<HostTensor>::nans_of(host));
  });
}

}  // namespace
}  // namespace accel::testing::host_tensor_laws
