#pragma once

#include <c10/core/StorageImpl.h>

#include <memory>
#include <string>
#include <vector>

#include "backends/process/link.hpp"
#include "reference/comm/operator_watch.hpp"

namespace accel::process {

/// What a call uses until the program waits for it.
struct UsedMemory {
  MemoryRange range;
  bool is_written = false;                            ///< by the collective
  c10::weak_intrusive_ptr<c10::StorageImpl> storage;  ///< expired: the memory may belong to another tensor
};

/// The asynchronous calls of this process that nobody has waited for. Tells the proxy of what touches their tensors too
/// early: operators, and further calls. Thread rule: any thread; operators are seen in threads that have made such
/// calls.
namespace pending_works {

void add(const std::shared_ptr<RankLink>& link, std::uint64_t number, std::vector<UsedMemory> memory);
/// A call `op` is about to use this memory.
void check(const std::vector<UsedMemory>& memory, const std::string& op);
/// The program has waited for the work.
void forget(std::uint64_t number);

}  // namespace pending_works
}  // namespace accel::process
