#include "reference/config/options.hpp"

#include <fmt/format.h>

namespace accel {

std::vector<std::string> problems_of(const DataLoaderConfiguration& config) {
  std::vector<std::string> problems;
  if (config.order != "accelerate" && !config.is_elastic()) {
    problems.push_back(fmt::format("dataloader_config: order: expected 'accelerate' or 'elastic', got '{}'", config.order));
  }
  if (config.is_elastic() && !config.even_batches) {
    problems.emplace_back("dataloader_config: order: elastic fills up the last step, and excludes even_batches: false");
  }
  return problems;
}

}  // namespace accel
