#pragma once

#include <c10/core/Allocator.h>

#include <cstddef>
#include <memory>

/// Replaces the allocator of CPU tensors within a scope.
///
///     const MemoryScope scope(source);
///     auto tensor = at::empty({1 << 20});   // source->allocate(...)
///
/// The first scope of the process permanently installs an allocator in front of LibTorch's CPU allocator, to which it
/// forwards. Thread rule: a scope belongs to its thread; memory may be freed on any thread.
namespace accel::sharded {

class MemorySource {
 public:
  virtual ~MemorySource() = default;
  /// Returns memory of `bytes` > 0, aligned as `below` aligns it. Null: `below` allocates it, and this source is not
  /// called when it is freed.
  virtual void* allocate(std::size_t bytes, c10::Allocator& below) = 0;
  virtual void free(void* data, std::size_t bytes, c10::DeleterFnPtr free_below) = 0;
};

class MemoryScope {
 public:
  /// With null the scope has no effect. An inner scope replaces the outer one.
  explicit MemoryScope(std::shared_ptr<MemorySource> source);
  ~MemoryScope();
  MemoryScope(const MemoryScope&) = delete;
  MemoryScope& operator=(const MemoryScope&) = delete;

 private:
  std::shared_ptr<MemorySource> around_;
  bool does_nothing_;
};

/// The source of the memory block that starts at `data`; null if LibTorch allocated it.
std::shared_ptr<MemorySource> source_of(const void* data);

}  // namespace accel::sharded
