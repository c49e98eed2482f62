// Transfers bytes between ranks. Collectives need equal shapes on all ranks, so the sizes travel first and the
// bytes are padded to the largest one.
#include "reference/state/objects.hpp"

#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>

#include <cstring>

namespace accel::detail {
namespace {

at::Tensor tensor_of_bytes(const std::string& bytes, std::int64_t size) {
  auto tensor = at::zeros({size}, at::kByte);
  if (!bytes.empty()) std::memcpy(tensor.mutable_data_ptr(), bytes.data(), bytes.size());
  return tensor;
}

std::string bytes_of(const at::Tensor& tensor, std::int64_t size) {
  return {static_cast<const char*>(tensor.const_data_ptr()), static_cast<std::size_t>(size)};
}

}  // namespace

std::vector<std::string> all_gather_bytes(const Group& group, const std::string& bytes) {
  const auto size = at::full({1}, static_cast<std::int64_t>(bytes.size()), at::kLong);
  const auto sizes = group.all_gather(size);
  const auto largest = sizes.max().item<std::int64_t>();
  const auto padded = group.all_gather(tensor_of_bytes(bytes, largest).unsqueeze(0));
  std::vector<std::string> all;
  for (std::int64_t rank = 0; rank < sizes.size(0); ++rank)
    all.push_back(bytes_of(padded[rank], sizes[rank].item<std::int64_t>()));
  return all;
}

std::vector<std::string> gather_bytes_on_first(const Group& group, const std::string& bytes) {
  const auto device = current_rank().device;
  const auto own_size = static_cast<std::int64_t>(bytes.size());
  const auto sizes = group.all_gather(at::full({1}, own_size, at::TensorOptions(at::kLong).device(device))).cpu();
  if (group.rank() > 0) {
    auto sent = tensor_of_bytes(bytes, own_size).to(device);
    group.send(sent, 0).wait();
    return {};
  }
  std::vector<std::string> all{bytes};
  for (int rank = 1; rank < group.size(); ++rank) {
    const auto size = sizes[rank].item<std::int64_t>();
    auto received = at::empty({size}, at::TensorOptions(at::kByte).device(device));
    group.recv(received, rank).wait();
    all.push_back(bytes_of(received.cpu(), size));
  }
  return all;
}

bool is_equal_on_all(const Group& group, std::uint64_t value) {
  const auto own = at::full({1}, static_cast<std::int64_t>(value), at::TensorOptions(at::kLong));
  const auto all = group.all_gather(own.to(current_rank().device)).cpu();
  return all.eq(all[0]).all().item<bool>();
}

// Two broadcasts. Ranks other than the root pass an empty string; an empty object needs no second broadcast.
std::string broadcast_bytes(RankContext& context, std::string bytes, int root) {
  auto size = at::full({1}, static_cast<std::int64_t>(bytes.size()), at::kLong);
  context.world.broadcast(size, root).wait();
  const auto num_bytes = size.item<std::int64_t>();
  if (num_bytes == 0) return {};
  bytes.resize(num_bytes);  // changes nothing on the root
  auto carrier = tensor_of_bytes(bytes, num_bytes);
  context.world.broadcast(carrier, root).wait();
  return bytes_of(carrier, num_bytes);
}

}  // namespace accel::detail
