#include "reference/checkpoint/distributed/metadata.hpp"
#include "reference/checkpoint/pickler.hpp"
#include "reference/checkpoint/torch_dtypes.hpp"

namespace accel::checkpoint {
namespace {

const std::string kModule = "torch.distributed.checkpoint.metadata";

// Writes an object with attributes: begin(), then name and value of each, then end().
class ObjectPickling {
 public:
  ObjectPickling(Pickler& pickler, const std::string& module, const std::string& name) : pickler_(pickler) {
    pickler_.begin_object(module, name);
    pickler_.begin_dict(false);
  }
  Pickler& operator[](const std::string& attribute) {
    pickler_.text(attribute);
    return pickler_;
  }
  void end() {
    pickler_.end_dict();
    pickler_.end_object();
  }

 private:
  Pickler& pickler_;
};

// The attributes after the dtype have been ignored since torch 2.3, but are expected: layout, requires_grad, memory
// format, pin_memory.
void write_properties(Pickler& pickler, at::ScalarType dtype) {
  pickler.begin_object(kModule, "TensorProperties");
  pickler.begin_tuple();
  pickler.global("torch", torch_dtype_names(dtype).name);
  pickler.begin_call("torch.serialization", "_get_layout");
  pickler.text("torch.strided");
  pickler.end_call();
  pickler.boolean(false);
  pickler.begin_call(kModule, "_MEM_FORMAT_ENCODING");
  pickler.integer(0);
  pickler.end_call();
  pickler.boolean(false);
  pickler.end_tuple();
  pickler.end_object();
}

void write_tensor(Pickler& pickler, const DistributedTensor& tensor) {
  ObjectPickling object(pickler, kModule, "TensorStorageMetadata");
  write_properties(object["properties"], tensor.dtype);
  object["size"].torch_size(tensor.sizes);
  object["chunks"].begin_list();
  for (const auto& chunk : tensor.chunks) {
    ObjectPickling box(pickler, kModule, "ChunkStorageMetadata");
    box["offsets"].torch_size(chunk.box.offsets);
    box["sizes"].torch_size(chunk.box.sizes);
    box.end();
  }
  pickler.end_list();
  object.end();
}

void write_items(Pickler& pickler, const DistributedMetadata& metadata) {
  pickler.begin_dict(false);
  for (const auto& [name, tensor] : metadata.tensors) {
    pickler.text(name);
    write_tensor(pickler, tensor);
  }
  for (const auto& [name, place] : metadata.objects) {
    pickler.text(name);
    ObjectPickling(pickler, kModule, "BytesStorageMetadata").end();
  }
  pickler.end_dict();
}

void write_paths(Pickler& pickler, const std::map<std::string, StatePath>& paths) {
  pickler.begin_dict(false);
  for (const auto& [name, path] : paths) {
    pickler.text(name);
    pickler.begin_tuple();
    for (const auto& step : path) {
      if (const auto* index = std::get_if<std::int64_t>(&step))
        pickler.integer(*index);
      else
        pickler.text(std::get<std::string>(step));
    }
    pickler.end_tuple();
  }
  pickler.end_dict();
}

// `chunk`: its index among the tensor's; null for an object.
void write_place(Pickler& pickler, const std::string& name, const StoredPlace& place, const Box* box,
                 std::size_t chunk) {
  ObjectPickling key(pickler, kModule, "MetadataIndex");
  key["fqn"].text(name);
  box != nullptr ? key["offset"].torch_size(box->offsets) : key["offset"].none();
  box != nullptr ? key["index"].integer(static_cast<std::int64_t>(chunk)) : key["index"].none();
  key.end();
  ObjectPickling info(pickler, "torch.distributed.checkpoint.filesystem", "_StorageInfo");
  info["relative_path"].text(place.file);
  info["offset"].integer(place.offset);
  info["length"].integer(place.length);
  info.end();
}

void write_places(Pickler& pickler, const DistributedMetadata& metadata) {
  pickler.begin_dict(false);
  for (const auto& [name, tensor] : metadata.tensors) {
    for (std::size_t i = 0; i < tensor.chunks.size(); ++i)
      write_place(pickler, name, tensor.chunks[i].place, &tensor.chunks[i].box, i);
  }
  for (const auto& [name, place] : metadata.objects) write_place(pickler, name, place, nullptr, 0);
  pickler.end_dict();
}

}  // namespace

std::string write_metadata(const DistributedMetadata& metadata) {
  Pickler pickler;
  ObjectPickling object(pickler, kModule, "Metadata");
  write_items(object["state_dict_metadata"], metadata);
  write_paths(object["planner_data"], metadata.paths);
  write_places(object["storage_data"], metadata);
  object["storage_meta"].none();
  object["version"].text("1.0.0");
  object.end();
  return pickler.finish();
}

}  // namespace accel::checkpoint
