#include "backends/launch/signals.hpp"

#include <pthread.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "reference/core/errors.hpp"

namespace accel::launcher {

SignalGate::SignalGate() {
  sigset_t signals;
  sigemptyset(&signals);
  for (const int signal : {SIGTERM, SIGINT, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2, SIGCHLD}) sigaddset(&signals, signal);
  descriptor_ = signalfd(-1, &signals, SFD_CLOEXEC | SFD_NONBLOCK);
  ensure(descriptor_ >= 0, "signalfd: {}", std::strerror(errno));
  pthread_sigmask(SIG_BLOCK, &signals, &before_);
}

SignalGate::~SignalGate() {
  close(descriptor_);
  pthread_sigmask(SIG_SETMASK, &before_, nullptr);
}

std::optional<CaughtSignal> SignalGate::next() {
  signalfd_siginfo info{};
  while (read(descriptor_, &info, sizeof(info)) == sizeof(info)) {
    if (info.ssi_signo != SIGCHLD) return CaughtSignal{static_cast<int>(info.ssi_signo), info.ssi_code == SI_KERNEL};
  }
  return std::nullopt;
}

bool ends_a_run(int signal) { return signal != SIGUSR1 && signal != SIGUSR2; }

}  // namespace accel::launcher
