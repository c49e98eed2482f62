#pragma once

#include <c10/core/Allocator.h>

#include <cstddef>
#include <memory>

/// Whose hands memory of tensors goes through, while a scope says so.
///
///     const MemoryScope scope(source);
///     auto tensor = at::empty({1 << 20});   // source->allocate(...)
///
/// Puts an allocator in the place of LibTorch's for the CPU, which it calls; for good, from the first scope of the
/// process on. Thread rule: a scope is its thread's; memory may be freed on any.
namespace accel::sharded {

class MemorySource {
 public:
  virtual ~MemorySource() = default;
  /// Memory of `bytes` > 0, aligned as `below` aligns it; null: `below` is to give it, and this source is not asked
  /// when it is freed.
  virtual void* allocate(std::size_t bytes, c10::Allocator& below) = 0;
  virtual void free(void* data, std::size_t bytes, c10::DeleterFnPtr free_below) = 0;
};

class MemoryScope {
 public:
  /// Null: the scope does nothing. It stands in for one around it.
  explicit MemoryScope(std::shared_ptr<MemorySource> source);
  ~MemoryScope();
  MemoryScope(const MemoryScope&) = delete;
  MemoryScope& operator=(const MemoryScope&) = delete;

 private:
  std::shared_ptr<MemorySource> around_;
  bool does_nothing_;
};

/// The source of memory that a tensor begins with; null: it is LibTorch's.
std::shared_ptr<MemorySource> source_of(const void* data);

}  // namespace accel::sharded
