#pragma once

#include <ATen/core/Formatting.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <source_location>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "reference/accelerator/operations.hpp"
#include "reference/state/rank_context.hpp"
#include "reference/tree/tree_rows.hpp"

namespace accel::detail {

/// Formats a value with fmt if it is formattable, else with operator<<, which covers tensors and their sizes.
template <typename T>
std::string printed(const T& value) {
  if constexpr (fmt::is_formattable<T>::value) {
    return fmt::format("{}", value);
  } else {
    std::ostringstream text;
    text << value;
    return std::move(text).str();
  }
}

}  // namespace accel::detail

namespace accel {

enum class DistributedType { kNo, kMultiCpu, kMultiGpu, kFsdp, kDeepSpeed, kMegatronLm };

/// The rank that this thread runs: its index, its device, barriers, printing, and functions that run on selected ranks.
///
///     const accel::PartialState state;
///     const auto part = state.split_between_processes(prompts);
///     state.on_main_process([&] { download(); });
///     state.wait_for_everyone();
///
/// An Accelerator is a PartialState too. Copies refer to one rank. Thread rule: the rank's thread.
/// Source: accelerate/state.py, PartialState.
class PartialState {
 public:
  /// Throws StateError outside `accel::run` and `run_ranks`.
  PartialState() : PartialState(current_rank()) {}
  explicit PartialState(RankContext& context) : context_(&context) {}

  [[nodiscard]] c10::Device device() const { return context_->device; }
  /// "gloo", "nccl", "sim", or "none" for one process without a group.
  [[nodiscard]] const std::string& backend() const { return context_->backend; }
  [[nodiscard]] DistributedType distributed_type() const;
  [[nodiscard]] int num_processes() const { return context_->world_size; }
  [[nodiscard]] int process_index() const { return context_->rank; }
  [[nodiscard]] int local_process_index() const { return context_->local_rank; }
  [[nodiscard]] bool is_main_process() const { return process_index() == 0 && !context_->joins_elastic; }
  [[nodiscard]] bool is_local_main_process() const { return local_process_index() == 0 && !context_->joins_elastic; }
  [[nodiscard]] bool is_last_process() const {
    return process_index() == num_processes() - 1 && !context_->joins_elastic;
  }
  [[nodiscard]] bool use_distributed() const { return num_processes() > 1; }
  [[nodiscard]] RankContext& context() const { return *context_; }

  /// Waits until all ranks have called it. Collective.
  void wait_for_everyone(std::source_location where = std::source_location::current()) const {
    context_->world.barrier(where);
  }
  /// Prints the arguments on one line, separated by spaces, on the local main process only. Tensors appear as LibTorch
  /// prints them.
  template <typename... Args>
  void print(const Args&... args) const {
    if (is_local_main_process())
      context_->print(fmt::format("{}\n", fmt::join(std::vector<std::string>{detail::printed(args)...}, " ")));
  }
  template <typename F>
  void on_main_process(F&& f) const {
    if (is_main_process()) f();
  }
  template <typename F>
  void on_local_main_process(F&& f) const {
    if (is_local_main_process()) f();
  }
  template <typename F>
  void on_last_process(F&& f) const {
    if (is_last_process()) f();
  }
  template <typename F>
  void on_process(int index, F&& f) const {
    if (process_index() == index || !use_distributed()) f();
  }
  template <typename F>
  void on_local_process(int index, F&& f) const {
    if (local_process_index() == index || !use_distributed()) f();
  }

  /// A scope that the main process runs first and the other ranks run afterwards. Collective.
  class MainFirst {
   public:
    MainFirst(const Group& world, bool is_main, std::source_location where);
    ~MainFirst() noexcept(false);
    MainFirst(const MainFirst&) = delete;
    MainFirst& operator=(const MainFirst&) = delete;

   private:
    const Group& world_;
    bool is_main_;
    std::source_location where_;
    int uncaught_;
  };
  [[nodiscard]] MainFirst main_process_first(std::source_location where = std::source_location::current()) const {
    return {context_->world, is_main_process(), where};
  }
  [[nodiscard]] MainFirst local_main_process_first(std::source_location where = std::source_location::current()) const {
    return {context_->world, is_local_main_process(), where};
  }

  struct SplitOptions {
    bool apply_padding = false;  ///< repeat the last item on ranks that have one item less than the first
  };
  /// Returns this rank's contiguous part of the items: rows of a tensor, entries of a vector, and the same part of each
  /// member of a map or struct. The first ranks get one item more if the items do not divide evenly; with fewer items
  /// than ranks some parts are empty. Ranks that share a batch (tensor, sequence or context parallel) get the same part
  /// once an Accelerator has a mesh. Not collective. Throws ArgumentError if members have different numbers of items.
  /// Source: accelerate/state.py, split_between_processes.
  template <RowTree T>
  [[nodiscard]] T split_between_processes(const T& inputs, SplitOptions options = {false}) const {
    const auto items = num_rows(inputs).value_or(0);
    const auto [num_parts, index] = context_->batch_place.value_or(BatchPlace{num_processes(), process_index()});
    if (num_parts == 1) return inputs;
    const auto own = operations::split_items(items, num_parts, index);
    auto part = slice_rows(inputs, {.begin = own.begin, .end = own.end});
    const auto largest = operations::split_items(items, num_parts, /*rank=*/0);
    const bool is_short = own.end - own.begin < largest.end - largest.begin;
    return options.apply_padding && is_short
               ? concatenate(std::vector<T>{std::move(part), slice_rows(inputs, {.begin = items - 1, .end = items})})
               : part;
  }

 protected:
  RankContext* context_ = nullptr;
};

}  // namespace accel
