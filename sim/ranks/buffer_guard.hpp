#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "sim/engine/world.hpp"

/// Watches the tensors that a rank has passed to collectives. Between the call and `wait()` the program must not touch
/// what a collective writes, nor change what it reads. Real backends have a race there and usually give the right
/// numbers.
///
/// Whoever sees the program's operators reports them (ThreadGuard in sim/backend, or the process of a rank). Accesses
/// that bypass the operators (raw pointers) are found by samples of the bytes, taken at the call and again when all
/// ranks have arrived.
///
/// Thread rule: the rank's thread.
namespace accel::sim {

/// Memory that a collective uses, from the first byte to the last.
struct PendingMemory {
  const char* begin = nullptr;
  const char* end = nullptr;
  bool is_written = false;                   ///< by the collective
  std::function<bool()> is_freed = nullptr;  ///< the memory may belong to another tensor; null: never
};

class BufferGuard {
 public:
  BufferGuard(World& world, int rank) : world_(world), rank_(rank) {}
  virtual ~BufferGuard() = default;
  BufferGuard(const BufferGuard&) = delete;
  BufferGuard& operator=(const BufferGuard&) = delete;

  /// Starts watching the memory of a collective, as it was before the call: the collective may have ended, and have
  /// given a tensor other memory. Reports it if it overlaps with that of another pending collective.
  void issue(std::shared_ptr<Meeting> meeting, const Call& call, std::vector<PendingMemory> memory);
  /// Stops watching: `wait()` has returned.
  void release(const Meeting& meeting);
  /// Stops watching what groups use whose connection is broken: the rank has closed them, so that nothing arrives any
  /// more.
  void release_closed();
  /// Stops watching when the meeting ends, because a future and not `wait()` is used.
  void release_at_end(const Meeting& meeting);
  /// Reports the meeting if it is watched: its tensor is "read by add", "changed" or the like, which the guard does
  /// not see.
  void report_touch(const Meeting& meeting, const std::string& what);
  /// Keeps watching memory with partial results, as after a reduce on a rank that is not the root: reading it is
  /// reported.
  void hold_partial(const Meeting& meeting, std::vector<PendingMemory> memory);

 protected:
  /// The program's operator `op` is about to read or write this memory.
  void touch(const char* begin, const char* end, bool writes, const char* op);
  void clear();

 private:
  struct InFlight {
    std::shared_ptr<Meeting> meeting;
    SourceLine where;
    std::vector<PendingMemory> memory;
    bool ends_with_meeting = false;
    bool is_partial = false;
  };

  /// Called when something is watched, and when nothing is any more.
  virtual void start() {}
  virtual void stop() {}
  void stop_if_idle();
  // Returns whether the run has ended.
  bool report(const InFlight& in_flight, const std::string& what);

  World& world_;
  int rank_;
  std::vector<InFlight> in_flight_;
};

}  // namespace accel::sim
