// Loaded into test programs by `./dev messages` (LD_PRELOAD): appends the message of every exception of this library
// to the file $ACCEL_MESSAGES, so that all messages can be read in one go. A throw is the one place that every message
// passes, whether a test expects it, catches it by type or reads it from the standard error of a program.
#include <cxxabi.h>
#include <dlfcn.h>

#include <cstdlib>
#include <exception>
#include <string>
#include <string_view>
#include <typeinfo>

#include "tests/support/recorders/append_line.hpp"

namespace {

using Throw = void (*)(void*, std::type_info*, void (*)(void*));

void append(const std::type_info& type, const char* message) {
  int status = 0;
  char* const name = abi::__cxa_demangle(type.name(), nullptr, nullptr, &status);
  std::string line = std::string(status == 0 ? name : type.name()) + '\t';
  std::free(name);
  for (const char letter : std::string_view(message))
    line += letter == '\n' ? std::string("\\n") : std::string(1, letter);
  accel::testing::append_line("ACCEL_MESSAGES", line);
}

}  // namespace

extern "C" void __cxa_throw(void* object, std::type_info* type, void (*destroy)(void*)) {
  static const auto real = reinterpret_cast<Throw>(dlsym(RTLD_NEXT, "__cxa_throw"));
  void* base = object;
  // Names in namespace accel are mangled as N5accel...; type_info can tell whether std::exception is a base, and where.
  if (std::string_view(type->name()).starts_with("N5accel") &&
      typeid(std::exception).__do_catch(type, &base, /*outer=*/1)) {
    append(*type, static_cast<const std::exception*>(base)->what());
  }
  real(object, type, destroy);
  std::abort();  // not reached: the real function does not return
}
