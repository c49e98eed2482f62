#include "reference/prepared/prepared_model.hpp"

#include <c10/util/Type.h>

#include "reference/core/errors.hpp"

namespace accel {

void ModelWrapper::check_is_whole(const char* what) const {
  check_state(!sharded,
              "{}: the model is sharded, so its parameters here are this rank's parts; use accelerator.save_model, or "
              "save_state and load_state",
              what);
}

void detail::refuse_outputs(const std::type_info& type, const ModelWrapper& wrapper) {
  const auto name = c10::demangle(type.name());
  const auto* why = wrapper.sharded    ? "a sharded model"
                    : wrapper.autocast ? "mixed precision"
                                       : "find_unused_parameters or static_graph";
  throw ArgumentError(
      fmt::format("model(...): forward returns {0}, in which no tensors can be found, and {1} must see them; name its "
                  "members in one line beside the struct: "
                  "template <> inline constexpr auto accel::tree_members<{0}> = std::tuple(&{0}::first, &{0}::second);",
                  name, why));
}

}  // namespace accel
