#include "reference/prepared/parallel_model.hpp"

#include <c10/util/Type.h>

#include "reference/core/errors.hpp"

namespace accel {

void ParallelModel::check_is_unsharded(const char* what) const {
  check_state(!is_sharded(),
              "{}: the model is sharded, so its parameters here are this rank's parts; use accelerator.save_model, or "
              "save_state and load_state",
              what);
}

void ParallelModel::check_outputs_need_no_tree(const std::type_info& output) const {
  if (!sees_outputs()) return;
  throw ArgumentError(
      fmt::format("model(...): forward returns {0}, in which no tensors can be found, and {1} must see them; name its "
                  "members in one line beside the struct: "
                  "template <> inline constexpr auto accel::tree_members<{0}> = std::tuple(&{0}::first, &{0}::second);",
                  c10::demangle(output.name()), reason_to_see_outputs()));
}

}  // namespace accel
