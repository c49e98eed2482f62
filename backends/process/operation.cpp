#include "backends/process/operation.hpp"

namespace accel::process {
namespace {

void write_tensors(MessageWriter& message, const std::vector<PlacedTensor>& tensors) {
  message.put(static_cast<std::uint64_t>(tensors.size()));
  for (const auto& tensor : tensors) message << tensor;
}

std::vector<PlacedTensor> read_tensors(MessageReader& message) {
  std::vector<PlacedTensor> tensors(message.get<std::uint64_t>());
  for (auto& tensor : tensors) tensor = read_placed_tensor(message);
  return tensors;
}

}  // namespace

MessageWriter& operator<<(MessageWriter& message, const PlacedTensor& placed) {
  return message.put(placed.offset).put(placed.bytes).put(placed.dtype).put_list(placed.sizes).put_list(placed.strides);
}

PlacedTensor read_placed_tensor(MessageReader& message) {
  PlacedTensor placed;
  placed.offset = message.get<std::uint64_t>();
  placed.bytes = message.get<std::uint64_t>();
  placed.dtype = message.get<int>();
  placed.sizes = message.list();
  placed.strides = message.list();
  return placed;
}

MessageWriter& operator<<(MessageWriter& message, const Operation& operation) {
  message.put(operation.collective)
      .put(operation.group)
      .put(operation.reduce_op)
      .put(operation.root)
      .put(operation.tag);
  message.put(operation.is_in_gloo).put(operation.is_sparse);
  write_tensors(message, operation.inputs);
  write_tensors(message, operation.outputs);
  return message.put_list(operation.sizes).put_list(operation.input_splits).put_list(operation.output_splits);
}

Operation read_operation(MessageReader& message) {
  Operation operation;
  operation.collective = message.get<Collective>();
  operation.group = message.get<std::uint32_t>();
  operation.reduce_op = message.get<int>();
  operation.root = message.get<int>();
  operation.tag = message.get<int>();
  operation.is_in_gloo = message.get<bool>();
  operation.is_sparse = message.get<bool>();
  operation.inputs = read_tensors(message);
  operation.outputs = read_tensors(message);
  operation.sizes = message.list();
  operation.input_splits = message.list();
  operation.output_splits = message.list();
  return operation;
}

}  // namespace accel::process
