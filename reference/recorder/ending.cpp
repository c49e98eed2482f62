#include "reference/recorder/ending.hpp"

#include <cstring>
#include <string_view>
#include <thread>

#include "reference/diagnosis/diagnosis_json.hpp"

namespace accel::recorder {

// The list of waiting ranks, of which the text says the same, is left out where there is no room for it.
void publish_ending(const JobRecord& record, Diagnosis diagnosis) {
  auto& ending = record.ending();
  std::uint32_t none = 0;
  if (ending.state.compare_exchange_strong(none, 1)) {
    auto json = diagnosis_json(diagnosis);
    if (json.size() > sizeof ending.diagnosis) {
      diagnosis.waiting.clear();
      diagnosis.text.resize(std::min<std::size_t>(diagnosis.text.size(), 4096));
      json = diagnosis_json(diagnosis);
    }
    std::memcpy(ending.diagnosis, json.data(), std::min(json.size(), sizeof ending.diagnosis));
    ending.length = static_cast<std::uint32_t>(json.size());
    ending.state.store(2, std::memory_order_release);
  }
  while (ending.state.load(std::memory_order_acquire) != 2) std::this_thread::yield();
}

std::optional<Diagnosis> ending_of(const JobRecord& record) {
  const auto& ending = record.ending();
  if (ending.state.load(std::memory_order_acquire) != 2) return std::nullopt;
  return diagnosis_of_json(std::string_view(ending.diagnosis, ending.length));
}

bool claim_to_print_ending(const JobRecord& record) { return !record.ending().is_printed.exchange(true); }

}  // namespace accel::recorder
