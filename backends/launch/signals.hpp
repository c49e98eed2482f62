#pragma once

#include <signal.h>

#include <optional>

/// The signals that are meant for a launcher's children too, kept until it asks for them.
///
///     SignalGate signals;                       // from now on they wait
///     poll({signals.descriptor(), POLLIN});     // readable when one has come, or when a child has ended
///     while (const auto signal = signals.next()) processes.signal(signal->number);
///
/// Thread rule: the thread that made it; other threads of the process keep what they had.
namespace accel::launcher {

struct CaughtSignal {
  int number = 0;
  bool is_of_terminal = false;  ///< every process of this one's group has got it
};

class SignalGate {
 public:
  SignalGate();
  ~SignalGate();
  SignalGate(const SignalGate&) = delete;
  SignalGate& operator=(const SignalGate&) = delete;

  [[nodiscard]] int descriptor() const { return descriptor_; }
  /// What was blocked before: children begin with it.
  [[nodiscard]] const sigset_t& mask_before() const { return before_; }
  /// The next of TERM, INT, HUP, QUIT, USR1, USR2 that has come. One that nobody asked for does what it does when this
  /// value goes.
  std::optional<CaughtSignal> next();

 private:
  int descriptor_ = -1;
  sigset_t before_{};
};

/// Whether it asks for the end.
bool ends_a_run(int signal);

}  // namespace accel::launcher
