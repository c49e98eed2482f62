#pragma once

#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <cstddef>
#include <exception>
#include <initializer_list>
#include <string>
#include <utility>
#include <vector>

#include "tests/support/budget.hpp"

/// Properties over generated cases (RapidCheck), with seeds and replay.
///
/// Example: `expect_property(200, [] { const auto n = pick(1, 9); RC_ASSERT(f(n) > 0); });`
///
/// Half of the cases have a fixed seed and half a fresh one, which is printed and which ACCEL_FRESH_SEED sets; under
/// `--long` all cases have the fresh one. ACCEL_PROPERTY_SEED sets the only seed. The message of a failure
/// contains the shrunk case and ends in a line such as `./dev test data_laws --replay TOKEN`, which runs only it.
/// Under another ctest the line sets ACCEL_PROPERTY_REPLAY=TOKEN and starts the program.
/// Lines `TOKEN  # comment` in properties/regressions/*.seeds are cases that run first, before any generated one.
///
/// Thread rule: the thread of the test.
namespace accel::testing {

namespace detail {

void expect_property(int cases, const rc::detail::Property& property);

// `thrown` contains the message of the first exception of the property, or "".
void expect_property_fails(const std::string& bug, int cases, const rc::detail::Property& property,
                           const std::string& thrown);

}  // namespace detail

/// Returns a number in [begin, end), uniformly distributed. RapidCheck's own ranges grow with the number of the
/// case.
template <typename T>
T pick(T begin, T end) {
  return *rc::gen::resize(rc::kNominalSize, rc::gen::inRange<T>(begin, end));
}

/// Returns one of the values. Shrinks to the first.
template <typename T>
T pick_from(std::initializer_list<T> values) {
  return values.begin()[pick<std::size_t>(0, values.size())];
}

template <typename T>
const T& pick_from(const std::vector<T>& values) {
  return values[pick<std::size_t>(0, values.size())];
}

/// Returns true in one of `n` cases. Shrinks to false.
inline bool one_in(int n) { return pick(0, n) == n - 1; }

/// Checks a RapidCheck property on `cases` generated cases (ten times as many under `--long`).
template <typename Property>
void expect_property(int cases, Property&& property) {
  detail::expect_property(cases, rc::detail::toProperty(std::forward<Property>(property)));
}

/// Checks that a failed RC_ASSERT finds a planted bug. An exception does not count: a program that fails in another
/// way does not prove that the assertions detect the bug.
template <typename Property>
void expect_property_fails(const std::string& bug, int cases, Property&& property) {
  std::string thrown;
  const auto asserting = [&] {
    try {
      property();
    } catch (const rc::GenerationFailure&) {
      throw;
    } catch (const std::exception& error) {
      if (thrown.empty()) thrown = error.what();
    }
  };
  detail::expect_property_fails(bug, cases, rc::detail::toProperty(asserting), thrown);
}

}  // namespace accel::testing
