#pragma once

#include <caffe2/serialize/inline_container.h>

#include <string>
#include <utility>
#include <vector>

/// Builds archives of torch.save with pickles written by hand.
namespace accel::testing {

using Records = std::vector<std::pair<std::string, std::string>>;

inline std::string archive_of(const Records& records) {
  std::string bytes;
  caffe2::serialize::PyTorchStreamWriter writer([&](const void* data, std::size_t size) {
    bytes.append(static_cast<const char*>(data), size);
    return size;
  });
  for (const auto& [name, content] : records) writer.writeRecord(name, content.data(), content.size());
  writer.writeEndOfFile();
  return bytes;
}

/// `pickled` is the part between the protocol and the end opcode.
inline std::string torch_file_of(const std::string& pickled, Records records = {}) {
  records.insert(records.begin(), {"data.pkl", "\x80\x02" + pickled + "."});
  return archive_of(records);
}

}  // namespace accel::testing
