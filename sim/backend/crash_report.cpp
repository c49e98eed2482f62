// Simulated ranks are threads, so a crash of one ends all, and the process's exit status does not name the rank. The
// handler calls only async-signal-safe functions. It reads what the rank's thread itself has recorded, without locks:
// that thread is the one that has stopped here.
#include "sim/backend/crash_report.hpp"

#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <charconv>
#include <cstring>
#include <mutex>
#include <string_view>

#include "sim/engine/rank_states.hpp"
#include "sim/engine/world.hpp"

namespace accel::sim {
namespace {

constexpr int kSignals[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT, SIGTRAP, SIGSYS};
constexpr std::size_t kStackBytes = 64 << 10;

struct RunningRank {
  World* world = nullptr;  // null: no rank runs on this thread
  int rank = 0;
};
thread_local RunningRank thread_rank;
std::atomic<int> num_ranks_running = 0;

// A line of bounded length, without allocation.
class Line {
 public:
  Line& operator<<(std::string_view text) {
    const auto count = std::min(text.size(), bytes_.size() - size_);
    std::memcpy(bytes_.data() + size_, text.data(), count);
    size_ += count;
    return *this;
  }
  Line& operator<<(std::int64_t number) {
    std::array<char, 24> digits{};
    const auto end = std::to_chars(digits.data(), digits.data() + digits.size(), number).ptr;
    return *this << std::string_view(digits.data(), static_cast<std::size_t>(end - digits.data()));
  }
  void print() const { (void)!write(STDERR_FILENO, bytes_.data(), size_); }

 private:
  std::array<char, 1024> bytes_{};
  std::size_t size_ = 0;
};

std::string_view name_of_signal(int signal) {
  switch (signal) {
    case SIGSEGV: return "Segmentation fault";
    case SIGBUS: return "Bus error";
    case SIGFPE: return "Floating point exception";
    case SIGILL: return "Illegal instruction";
    case SIGABRT: return "Aborted";
    case SIGTRAP: return "Trace/breakpoint trap";
    default: return "Bad system call";
  }
}

void append_rank(Line& line, World& world, int rank) {
  line << "rank " << rank;
  if (const auto step = world.clocks().step(rank); step >= 0) line << ", step " << step;
  line << ", phase " << world.clocks().phase(rank);
  const auto& call = world.own_last_call_of(rank);
  if (!call.op) {
    line << ", before its first collective";
    return;
  }
  line << "; its last call: " << name_of(*call.op) << " #" << call.sequence << " of group " << call.group->name;
  if (call.where.line != 0) {
    const std::string_view file = call.where.file;
    line << " (" << file.substr(file.rfind('/') + 1) << ":" << std::int64_t{call.where.line} << ")";
  }
}

void report(int signal) {
  if (num_ranks_running > 0) {
    Line line;
    line << "accel: error: ";
    if (thread_rank.world != nullptr)
      append_rank(line, *thread_rank.world, thread_rank.rank);
    else
      line << "a thread that is not a rank";
    line << ": signal " << signal << " (" << name_of_signal(signal)
         << ") ends all ranks, which share this process; with sim-run --processes each rank has a process of its own\n";
    line.print();
  }
  // The default action follows when the handler returns, also for a signal that another process has sent.
  ::signal(signal, SIG_DFL);
  raise(signal);
}

// Once per process and for good: a program may install its own handlers later, and these stay then.
void install_once() {
  static std::once_flag done;
  std::call_once(done, [] {
    for (const int signal : kSignals) {
      struct sigaction before {};
      if (sigaction(signal, nullptr, &before) != 0 || (before.sa_flags & SA_SIGINFO) != 0 ||
          before.sa_handler != SIG_DFL)
        continue;
      struct sigaction ours {};
      ours.sa_handler = &report;
      ours.sa_flags = SA_ONSTACK;
      sigaction(signal, &ours, nullptr);
    }
  });
}

}  // namespace

CrashScope::CrashScope(World& world, int rank) : stack_(kStackBytes) {
  install_once();
  stack_t stack{};
  stack.ss_sp = stack_.data();
  stack.ss_size = stack_.size();
  sigaltstack(&stack, nullptr);
  thread_rank = {&world, rank};
  ++num_ranks_running;
}

CrashScope::~CrashScope() {
  --num_ranks_running;
  thread_rank = {};
  stack_t none{};
  none.ss_flags = SS_DISABLE;
  sigaltstack(&none, nullptr);
}

}  // namespace accel::sim
