#pragma once

#include <utility>

/// Setters of options structs that have more than six fields. They chain, and need no order:
///
///     accel::Accelerator accelerator(accel::AcceleratorOptions().set_project_dir("runs").set_mixed_precision("bf16"));
///
/// In a struct, ACCEL_SETTERS(a, b, c); follows the fields a, b and c, and declares set_a, set_b and set_c. A setter
/// accepts the type of its field and returns the struct. The structs remain aggregates: {.a = 1, .b = 2} works too, in
/// the order of the fields, which the comment above the struct lists.
#define ACCEL_SETTERS(...)                                              \
  __VA_OPT__(ACCEL_EXPAND_64_TIMES(ACCEL_SETTERS_OF_EACH(__VA_ARGS__))) \
  static_assert(true)

#define ACCEL_SETTER(field)                  \
  auto& set_##field(decltype(field) value) { \
    field = std::move(value);                \
    return *this;                            \
  }

// A macro cannot expand itself, but a later pass over its expansion can: each pass below expands one more field.
#define ACCEL_SETTERS_OF_EACH(field, ...) \
  ACCEL_SETTER(field)                     \
  __VA_OPT__(ACCEL_SETTERS_OF_THE_REST ACCEL_PARENTHESES(__VA_ARGS__))
#define ACCEL_SETTERS_OF_THE_REST() ACCEL_SETTERS_OF_EACH
#define ACCEL_PARENTHESES ()
#define ACCEL_EXPAND_64_TIMES(...) \
  ACCEL_EXPAND_16_TIMES(ACCEL_EXPAND_16_TIMES(ACCEL_EXPAND_16_TIMES(ACCEL_EXPAND_16_TIMES(__VA_ARGS__))))
#define ACCEL_EXPAND_16_TIMES(...) \
  ACCEL_EXPAND_4_TIMES(ACCEL_EXPAND_4_TIMES(ACCEL_EXPAND_4_TIMES(ACCEL_EXPAND_4_TIMES(__VA_ARGS__))))
#define ACCEL_EXPAND_4_TIMES(...) ACCEL_EXPAND(ACCEL_EXPAND(ACCEL_EXPAND(ACCEL_EXPAND(__VA_ARGS__))))
#define ACCEL_EXPAND(...) __VA_ARGS__
