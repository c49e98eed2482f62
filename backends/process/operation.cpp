#include "backends/process/operation.hpp"

namespace accel::process {
namespace {

using Lists = std::vector<std::vector<PlacedTensor>>;

void write_lists(MessageWriter& message, const Lists& lists) {
  message.put(static_cast<std::uint64_t>(lists.size()));
  for (const auto& list : lists) {
    message.put(static_cast<std::uint64_t>(list.size()));
    for (const auto& tensor : list) message << tensor;
  }
}

Lists read_lists(MessageReader& message) {
  Lists lists(message.get<std::uint64_t>());
  for (auto& list : lists) {
    list.resize(message.get<std::uint64_t>());
    for (auto& tensor : list) tensor = read_placed_tensor(message);
  }
  return lists;
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
  message.put(operation.method).put(operation.group).put(operation.reduce_op).put(operation.root).put(operation.tag);
  write_lists(message, operation.inputs);
  write_lists(message, operation.outputs);
  return message.put_list(operation.sizes).put_list(operation.input_splits).put_list(operation.output_splits);
}

Operation read_operation(MessageReader& message) {
  Operation operation;
  operation.method = message.get<Method>();
  operation.group = message.get<std::uint32_t>();
  operation.reduce_op = message.get<int>();
  operation.root = message.get<int>();
  operation.tag = message.get<int>();
  operation.inputs = read_lists(message);
  operation.outputs = read_lists(message);
  operation.sizes = message.list();
  operation.input_splits = message.list();
  operation.output_splits = message.list();
  return operation;
}

}  // namespace accel::process
