#pragma once

#include <cstdint>
#include <exception>
#include <memory>
#include <string>

#include "backends/gloo/gloo_backend.hpp"
#include "reference/comm/group.hpp"

namespace accel::programs {

class CallCheck;

/// A Gloo group whose ranks compare their calls before each collective, as the simulator does: operation, reduce
/// operation, dtype, shape and root must be equal. If the calls differ, every rank gets the same CommError, before any
/// tensor is sent; it names the call of each rank, by group rank. Messages between two ranks and the splits of an
/// all-to-all are not compared.
///
///     CheckedGroup world("world", store, rank, num_ranks, {.timeout = std::chrono::seconds(60)});
///     context.world = world.group();
///     world.begin_case(7);
///     observations = observe_case(context, one);
///     world.end_case();
///
/// Every collective waits until all ranks have called it; only its result is asynchronous. Ranks must therefore call
/// the collectives of all their groups in one order. Arguments that are wrong on every rank are an ArgumentError, as in
/// the simulator. All errors of Gloo and LibTorch are CommError without stack frames.
///
/// Thread rule: used by the rank's thread and its autograd threads, one at a time.
class CheckedGroup {
 public:
  /// Joins a group. Collective; throws as gloo::make_group.
  CheckedGroup(const std::string& name, c10::intrusive_ptr<c10d::Store> store, int rank, int size,
               const gloo::GlooOptions& options);

  [[nodiscard]] Group group() const { return group_; }

  /// Sets the number that messages and checks use, and counts the calls from 0. Does not communicate.
  void begin_case(std::int64_t number);
  /// Checks that all ranks have ended the case. Collective. Throws CommError on every rank if some of them are in
  /// another call. After an error, either every rank calls it or none does.
  void end_case();

 private:
  std::shared_ptr<CallCheck> check_;
  Group group_;
};

/// Returns what an error says, without the stack frames that LibTorch adds: all of an accel::Error, the first line of
/// any other error.
std::string message_without_frames(const std::exception& error);

}  // namespace accel::programs
