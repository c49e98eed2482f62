#pragma once

#include <ATen/record_function.h>

#include <string>
#include <vector>

namespace accel::testing {

/// Records the operators that this thread calls while the object lives, in order, with names such as
/// "aten::_foreach_add_.List". Operators that other operators call are left out. LibTorch's callbacks have no
/// state, so the list is one per thread.
class OutermostOperators {
 public:
  OutermostOperators() {
    names().clear();
    depth() = 0;
    handle_ = at::addThreadLocalCallback(at::RecordFunctionCallback(&begin, &end).scopes({at::RecordScope::FUNCTION}));
  }
  ~OutermostOperators() { at::removeCallback(handle_); }
  OutermostOperators(const OutermostOperators&) = delete;
  OutermostOperators& operator=(const OutermostOperators&) = delete;

  static std::vector<std::string>& names() {
    static thread_local std::vector<std::string> names;
    return names;
  }

 private:
  static int& depth() {
    static thread_local int depth = 0;
    return depth;
  }
  static std::unique_ptr<at::ObserverContext> begin(const at::RecordFunction& function) {
    if (depth()++ == 0) {
      const auto name = function.operator_name();
      names().push_back(name ? c10::toString(*name) : function.name());
    }
    return nullptr;
  }
  static void end(const at::RecordFunction&, at::ObserverContext*) { --depth(); }

  at::CallbackHandle handle_;
};

}  // namespace accel::testing
