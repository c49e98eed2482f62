#pragma once

#include <memory>
#include <string_view>
#include <vector>

#include "backends/process/link.hpp"
#include "reference/comm/operator_watch.hpp"

namespace accel::process {

/// The asynchronous calls of this process that nobody has waited for. Tells the proxy of what touches their tensors too
/// early: operators, and further calls. Thread rule: any thread; operators are seen in threads that have made such
/// calls.
namespace pending_works {

void add(const std::shared_ptr<RankLink>& link, std::uint64_t number, std::vector<UsedMemory> memory);
/// A call `op` is about to use this memory.
void check(const std::vector<UsedMemory>& memory, std::string_view op);
/// The program has waited for the work.
void forget(std::uint64_t number);

}  // namespace pending_works
}  // namespace accel::process
