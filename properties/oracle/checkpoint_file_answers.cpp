// Checkpoint files, exchanged with files.py. A request is
//   {"read": FILE}                                       the value of a file of torch.save
//   {"copy": FILE, "to": FILE, "types": {PLACE: TYPE}}   read and written again
//   {"weights": PATH}                                    all tensors of a model's files
//   {"distributed": FOLDER, "boxes": {NAME: [OFFSETS, SIZES]}}   a distributed checkpoint, and parts of its tensors
//   {"write_distributed": FILE, "to": FOLDER, "types": {PLACE: TYPE}}   a file of torch.save, written as such a folder
//   {"save": FILE, "names": [...], "to": FOLDER, "max_shard_size": "1MB", "safe_serialization": true}
#include <map>

#include "properties/gen/value_json.hpp"
#include "properties/oracle/answers.hpp"
#include "reference/checkpoint/distributed/distributed_checkpoint.hpp"
#include "reference/checkpoint/torch_file.hpp"
#include "reference/checkpoint/weights_files.hpp"

namespace accel::testing {
namespace {

// The Python types that a Value cannot express. The request names the places where they belong.
const std::map<std::string, PythonType> kTypes{
    {"tuple", PythonType::kTuple}, {"integer_keys", PythonType::kIntegerKeys}, {"ordered", PythonType::kOrderedDict}};

TorchFileOptions types_of(const Json& request) {
  TorchFileOptions options;
  for (const auto& [place, type] : request["types"].items()) options.types[place] = kTypes.at(type.get<std::string>());
  return options;
}

Json copy(const Json& request) {
  PosixFiles files;
  write_torch_file(files, request["to"], read_torch_file(request["copy"]), types_of(request));
  return Json::object();
}

Json distributed(const Json& request) {
  const DistributedCheckpoint saved(request["distributed"]);
  Json tensors = Json::object(), boxes = Json::object();
  for (const auto& [name, tensor] : read_distributed_checkpoint(saved.folder())) tensors[name] = json_of(tensor);
  for (const auto& [name, box] : request["boxes"].items())
    boxes[name] =
        json_of(saved.load(name, {box[0].get<std::vector<std::int64_t>>(), box[1].get<std::vector<std::int64_t>>()}));
  return {{"value", json_of(saved.state_dict())}, {"tensors", tensors}, {"boxes", boxes}};
}

Json write_distributed(const Json& request) {
  PosixFiles files;
  write_distributed_checkpoint(files, request["to"], read_torch_file(request["write_distributed"]), types_of(request));
  return Json::object();
}

Json save(const Json& request) {
  PosixFiles files;
  const auto tensors = read_torch_file(request["save"]);
  NamedTensors named;
  for (const auto& name : request["names"]) named.emplace_back(name, tensors.at(name).as<at::Tensor>());
  const WeightsPlanOptions options{.max_shard_bytes = parse_size(request["max_shard_size"].get<std::string>()),
                                   .safe_serialization = request["safe_serialization"]};
  return {{"same_as", write_weights(files, request["to"], named, options)}};
}

Json weights(const Json& request) {
  auto result = Json::object();
  for (const auto& [name, weight] : read_weights(request["weights"])) result[name] = json_of(weight.load());
  return result;
}

}  // namespace

Json checkpoint_file_answer(const Json& request) {
  if (request.contains("read")) return {{"value", json_of(read_torch_file(request["read"]))}};
  if (request.contains("copy")) return copy(request);
  if (request.contains("distributed")) return distributed(request);
  if (request.contains("write_distributed")) return write_distributed(request);
  if (request.contains("save")) return save(request);
  return {{"value", weights(request)}};
}

}  // namespace accel::testing
