#pragma once

#include <ATen/core/Formatting.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <source_location>
#include <sstream>
#include <string>
#include <vector>

#include "reference/accelerator/accelerator_state.hpp"

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

/// The Accelerator's barriers, printing, and functions that run on selected ranks.
class ProcessControl : public virtual AcceleratorState {
 public:
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

  /// Sets a flag that check_trigger reports to all ranks, for example to stop early. Not collective.
  void set_trigger() { trigger_ = true; }
  /// Returns whether any rank has set the trigger, and resets it. Collective.
  [[nodiscard]] bool check_trigger(std::source_location where = std::source_location::current());

 private:
  bool trigger_ = false;
};

}  // namespace accel
