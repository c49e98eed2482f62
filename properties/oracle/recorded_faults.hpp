#pragma once

#include <ATen/ops/arange.h>

#include <cstdlib>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "properties/gen/data_sources.hpp"
#include "reference/core/errors.hpp"
#include "reference/data/data_loader.hpp"

/// Reads what is recorded of Accelerate's known faults, and holds what the tests next to it share.
namespace accel::testing {

using Batches = std::vector<Ids>;

/// Returns what Accelerate's ranks saw, rank by rank.
inline nlohmann::json recorded(const std::string& fault) {
  std::ifstream in(std::string(std::getenv("ACCEL_SOURCE_DIR")) + "/properties/oracle/recorded/faults.jsonl");
  for (std::string line; std::getline(in, line);) {
    const auto json = nlohmann::json::parse(line);
    if (json.value("fault", "") == fault) return json["expected"];
  }
  throw Error("no record of the fault " + fault);
}

template <typename Loader>
Batches batches_of(Loader&& loader) {
  Batches batches;
  for (auto& batch : loader)
    for_each_tensor(batch, [&](const at::Tensor& tensor) { batches.push_back(ids_of(tensor)); });
  return batches;
}

inline auto numbers(std::int64_t length) { return TensorDataset(at::arange(length)); }

struct SizedStream {
  std::int64_t length = 0, place = 0;
  [[nodiscard]] std::int64_t size() const { return length; }
  void reset() { place = 0; }
  std::optional<std::int64_t> next() { return place < length ? std::optional(place++) : std::nullopt; }
};

}  // namespace accel::testing
