#pragma once

#include "reference/comm/operator_watch.hpp"
#include "sim/ranks/buffer_guard.hpp"

namespace accel::sim {

/// The guard of a rank that is a thread: inspects every LibTorch operator that the thread calls while collectives are
/// pending. By its schema, views are harmless, reads and writes are not.
///
/// Thread rule: the rank's thread.
class ThreadGuard : public BufferGuard, private OperatorWatch {
 public:
  using BufferGuard::BufferGuard;
  ~ThreadGuard() override {
    clear();
    OperatorWatch::stop();
  }

 private:
  void touch(const MemoryRange& range, bool writes, const char* op) override {
    BufferGuard::touch(range.begin, range.end, writes, op);
  }
  void start() override { OperatorWatch::start(); }
  void stop() override { OperatorWatch::stop(); }
};

}  // namespace accel::sim
