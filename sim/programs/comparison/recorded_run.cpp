#include "sim/programs/comparison/recorded_run.hpp"

#include <ATen/ops/empty.h>
#include <c10/util/accumulate.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "reference/core/errors.hpp"

namespace accel::programs {
namespace {

at::ScalarType dtype_of(const std::string& name) {
  for (int type = 0; type < static_cast<int>(at::ScalarType::NumOptions); ++type) {
    if (c10::toString(static_cast<at::ScalarType>(type)) == name) return static_cast<at::ScalarType>(type);
  }
  throw Error(fmt::format("a recording has a tensor of the unknown dtype '{}'", name));
}

}  // namespace

RecordedRun::RecordedRun(const std::string& folder, int num_ranks)
    : recording_(read_recording(folder, num_ranks)), keys_(num_ranks), places_(num_ranks) {
  for (int rank = 0; rank < num_ranks; ++rank) {
    std::map<ObservationKey, int> counts;
    for (std::size_t place = 0; place < recording_[rank].size(); ++place) {
      const auto& seen = recording_[rank][place];
      ObservationKey key{.step = seen.step, .kind = seen.kind, .name = seen.name};
      key.count = counts[key]++;
      places_[rank].emplace(key, place);
      keys_[rank].push_back(std::move(key));
    }
    std::ifstream in(values_file(folder, rank), std::ios::binary);
    values_.emplace_back(std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>());
  }
}

const Observation* RecordedRun::find(int rank, const ObservationKey& key) const {
  const auto place = places_[rank].find(key);
  return place == places_[rank].end() ? nullptr : &recording_[rank][place->second];
}

at::Tensor RecordedRun::tensor(int rank, const RecordedTensor& stored) const {
  auto tensor = at::empty(stored.sizes, at::TensorOptions(dtype_of(stored.dtype)));
  const auto size = static_cast<std::size_t>(tensor.nbytes()), offset = static_cast<std::size_t>(stored.offset);
  if (offset + size > values_[rank].size()) throw Error("a recording lacks the elements of a tensor");
  std::memcpy(tensor.data_ptr(), values_[rank].data() + offset, size);
  return tensor.is_floating_point() ? tensor.to(at::kDouble) : tensor;
}

}  // namespace accel::programs
