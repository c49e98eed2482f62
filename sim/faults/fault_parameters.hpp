#pragma once

#include <array>
#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <variant>

#include "sim/faults/fault.hpp"

/// The parameters of faults other than place and time, in one table, which the reader and the writer of fault files,
/// the plan and the texts use.
///
/// A new parameter needs a field of Fault, a flag of FaultRule::Parameter, and its row here. Thread rule: constants.
namespace accel::sim {

/// What a draw decides. The numbers are part of the meaning of a seed: never change one.
enum class Draw : std::uint32_t {
  kRank = 0,
  kLink = 1,
  kWhen = 2,
  kSideSize = 3,
  kSide = 4,
  kBit = 5,
  kAfterBytes = 6,
  kWhat = 7,
  kStrikes = 8,
  kJitter = 9,
  kBytes = 10,
};

/// The forms of parameters. An absent number is the kind's default; an absent count or choice is drawn, if it has a
/// draw; a choice without a draw defaults to its first name.
struct NumberForm {
  std::optional<double> Fault::*member;
  double least = 0, most = std::numeric_limits<double>::infinity();
};
struct CountForm {  // 0 or more
  std::optional<std::int64_t> Fault::*member;
  std::optional<Draw> draw = {};
  std::int64_t drawn_below = 0;
};
struct TextForm {
  std::optional<std::string> Fault::*member;
};
template <typename Enum>
struct ChoiceForm {
  std::optional<Enum> Fault::*member;
  std::span<const std::string_view> names;  // as spelled in the file, in the order of the enumeration
  std::optional<Draw> draw = {};
};
struct FlagForm {
  bool Fault::*member;
};

using ParameterForm =
    std::variant<NumberForm, CountForm, TextForm, ChoiceForm<WrongCall>, ChoiceForm<BadValue>, FlagForm>;
/// Describes the allowed values, e.g. "a number in [0, 1]".
std::string allowed_values(const ParameterForm& form);

/// A parameter other than place and time.
struct FaultParameter {
  FaultRule::Parameter parameter{};
  const char* name = "";
  ParameterForm form;
  std::string_view meaning;  // with its unit
};

inline constexpr std::array<std::string_view, 6> kWrongCalls{"op", "size", "dtype", "order", "reduce_op", "shape"};
inline constexpr std::array<std::string_view, 2> kBadValues{"nan", "inf"};

/// In the order in which they are written to a file.
inline constexpr FaultParameter kFaultParameters[] = {
    {FaultRule::kSeconds, "seconds", NumberForm{&Fault::seconds}, "delay in seconds"},
    {FaultRule::kFactor, "factor", NumberForm{&Fault::factor, 1}, "factor by which it takes longer"},
    {FaultRule::kProbability, "probability", NumberForm{&Fault::probability, 0, 1}, "probability per message"},
    {FaultRule::kBit, "bit", CountForm{&Fault::bit, Draw::kBit, 1LL << 32},
     "bit of the result, modulo its size; bit b is bit b % 8 of byte b / 8"},
    {FaultRule::kBytes, "bytes", CountForm{&Fault::bytes}, "bytes of the torn write that reach the disk"},
    // Less than the state of one random generator, which every rank saves, so that a drawn fault always strikes.
    {FaultRule::kAfterBytes, "after_bytes", CountForm{&Fault::after_bytes, Draw::kAfterBytes, 4096},
     "bytes that still fit on the disk"},
    {FaultRule::kFile, "file", TextForm{&Fault::file}, "part of the path of a file"},
    {FaultRule::kWhat, "what", ChoiceForm<WrongCall>{&Fault::what, kWrongCalls, Draw::kWhat},
     "what differs in the call"},
    {FaultRule::kValue, "value", ChoiceForm<BadValue>{&Fault::value, kBadValues}, "the value in the gradient"},
    {FaultRule::kOneWay, "one_way", FlagForm{&Fault::one_way}, "only messages from `ranks` are lost"},
    {FaultRule::kAway, "away", FlagForm{&Fault::away}, "no rank reaches the store"},
};

}  // namespace accel::sim
