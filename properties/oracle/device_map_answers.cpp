// Answers the requests of device_maps.py: the device map of a described model. No module is built, because the plan
// depends on sizes and names only.
#include <map>
#include <optional>

#include "properties/oracle/answers.hpp"
#include "reference/offload/device_map.hpp"

namespace accel::testing {
namespace {

const std::map<std::string, std::pair<std::string, int>> kDtypes{
    {"float32", {"Float", 4}}, {"float16", {"Half", 2}}, {"int64", {"Long", 8}}, {"bool", {"Bool", 1}}};

// Builds a ModelDescription from JSON. Tensors are numbered in the request, so equal numbers express tied parameters.
class Builder {
 public:
  explicit Builder(const Json& request) : tensors_(request["tensors"]) { model.root = module(request["model"], ""); }
  ModelDescription model;

 private:
  ModuleDescription module(const Json& described, const std::string& name) {
    // C++ class names end in Impl, which is_class() ignores when it compares with no_split_module_classes.
    ModuleDescription made{.name = name, .class_name = described["class"].get<std::string>() + "Impl"};
    for (const auto& entry : described["parameters"]) {
      made.keys.push_back(entry[0]);
      made.parameters.push_back(place(entry[1], made.name_of(entry[0]), parameters_, model.parameters));
    }
    for (const auto& entry : described["buffers"])
      made.buffers.push_back({entry[0], place(entry[1], made.name_of(entry[0]), buffers_, model.buffers)});
    for (const auto& entry : described["children"]) made.children.push_back(module(entry[1], made.name_of(entry[0])));
    return made;
  }

  // Returns the index of a tensor; the first place that mentions it determines its name, as in Python.
  std::size_t place(int number, const std::string& name, std::map<int, std::size_t>& places,
                    std::vector<ParameterDescription>& descriptions) {
    const auto [found, is_new] = places.emplace(number, descriptions.size());
    if (is_new) {
      const auto& [dtype, size] = kDtypes.at(tensors_[number]["dtype"]);
      descriptions.push_back({.shape = {name, tensors_[number]["shape"]}, .dtype = dtype, .element_size = size});
    }
    return found->second;
  }

  const Json& tensors_;
  std::map<int, std::size_t> parameters_, buffers_;
};

MapDevice device_in(const Json& device) {
  return device.is_number() ? MapDevice(device.get<int>()) : MapDevice(device.get<std::string>());
}

}  // namespace

Json device_map_answer(const Json& request) {
  const auto model = Builder(request).model;
  // The order of limits does not matter in Python either: devices are filled in the order of MapDevice.
  MaxMemory limits;
  for (const auto& limit : request["max_memory"]) limits.emplace(device_in(limit[0]), limit[1].get<std::int64_t>());
  const std::vector<std::string> no_split = request["no_split_module_classes"];
  const auto dtype = request["dtype"].is_null() ? std::optional<at::ScalarType>() : at::kHalf;
  Json result{{"sizes", Json::object()},
              {"map", Json::object()},
              {"balanced", Json::object()},
              {"tied", find_tied_parameters(model)}};
  const auto maximum = calculate_maximum_sizes(model);
  result["maximum"] = {maximum.total_bytes, maximum.largest_layer_bytes, maximum.largest_layers};
  for (const auto& [name, bytes] : compute_module_sizes(model, {.dtype = dtype}).entries())
    result["sizes"][name] = bytes;
  const auto map = infer_auto_device_map(model, {.max_memory = limits,
                                                 .no_split_module_classes = no_split,
                                                 .dtype = dtype,
                                                 .clean_result = request["clean_result"],
                                                 .offload_buffers = request["offload_buffers"],
                                                 .fallback_allocation = request["fallback_allocation"]});
  for (const auto& [name, device] : map) result["map"][name] = device.name();
  for (const auto& [device, size] : get_balanced_memory(model, {.max_memory = limits,
                                                               .no_split_module_classes = no_split,
                                                               .dtype = dtype,
                                                               .low_zero = request["low_zero"]})) {
    result["balanced"][device.name()] = size.bytes;
  }
  return result;
}

}  // namespace accel::testing
