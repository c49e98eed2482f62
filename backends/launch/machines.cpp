// The protocol between launchers. Machine 0 decides: it collects reports and sends verdicts, so all machines agree even
// if several ranks fail at once. Only when machine 0 is lost do the others decide alone.
#include "backends/launch/machines.hpp"

#include <fmt/chrono.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <sstream>

#include "backends/launch/ports.hpp"
#include "backends/launch/secret.hpp"
#include "reference/core/errors.hpp"

namespace accel::launcher {
namespace {

// Note [Messages between launchers]
// A connection begins with "challenge NONCE" from machine 0, "join MACHINE MACHINES PROCESSES NONCE PROOF" to it, and
// "welcome PROOF" or "refused" as its answer. The proofs show that both sides hold the secret of the job; with an empty
// secret they still show that the other side is a launcher and not a stranger that has sent a line by chance.
// Then, to machine 0: "done ATTEMPT", "failed ATTEMPT FINAL RANK CODE MESSAGE", and "lost ATTEMPT RANK CODE MESSAGE" if
// an elastic training has lost all ranks of the machine. From machine 0: "begin ATTEMPT MAX_RESTARTS PORT", "over
// RESTARTS RANK CODE MESSAGE". From both: "alive".
// A message about an attempt other than the current one is late and ignored.

// kConnectTimeout applies only until machine 0 has answered: a SYN into a network without such a machine is never
// answered, and a new attempt may reach it.
constexpr auto kConnectRetryInterval = std::chrono::milliseconds(200);
constexpr auto kConnectTimeout = std::chrono::seconds(3);
constexpr auto kFarewell = std::chrono::seconds(2);
constexpr auto kTimeToJoin = std::chrono::seconds(5);
constexpr int kNewcomersMax = 64;  // accepted per round; kept beyond the number of machines

// The message of a failure contains spaces, so it is the last field of its line.
std::string rest_of(std::istringstream& words) {
  std::string text;
  std::getline(words >> std::ws, text, '\0');  // may have several lines
  return text;
}

// What a machine proves about itself.
std::string join_text(int machine, int num_machines, int num_processes, const std::string& nonce) {
  return fmt::format("join {} {} {} {}", machine, num_machines, num_processes, nonce);
}

std::string seconds_text(std::chrono::milliseconds time) {
  return fmt::format("{:.3g} s", std::chrono::duration<double>(time).count());
}

}  // namespace

Machines::Machines(const MachinesOptions& options) : options_(options) {
  if (is_main() && options_.num_machines > 1)
    listener_ = std::make_unique<LauncherListener>(options_.main_address, options_.main_port);
}

// close() on a socket with unread data sends a reset, which discards the outcome that the peer has not read yet. So
// machine 0 closes only its sending direction and reads until the others have closed, for a limited time.
Machines::~Machines() {
  if (!is_main()) return;
  const auto until = Clock::now() + kFarewell;
  for (auto& [machine, peer] : peers_) peer.link.finish();
  for (auto& [machine, peer] : peers_) {
    while (!peer.link.is_lost() && Clock::now() < until) {
      pollfd waiting{peer.link.descriptor(), POLLIN, 0};
      poll(&waiting, 1, /*timeout_ms=*/50);
      peer.link.receive();
    }
  }
}

// Every machine calls it before each attempt, also before the first.
void Machines::join() {
  attempt_.reset();
  outcome_.reset();
  joined_ = true;
  done_ = is_elastic_ = has_success_ = false;
  lost_.reset();
  join_started_at_ = Clock::now();
  for (auto& [machine, peer] : peers_) peer.done = false;
  if (is_main()) {
    begin_if_all_joined();
  } else if (peers_.contains(0)) {
    peers_.erase(0);  // a new connection per attempt: the old one may still carry messages of the last attempt
  }
}

void Machines::begin_if_all_joined() {
  if (!joined_ || attempt_ || outcome_) return;
  int joined = 1;
  for (const auto& [machine, peer] : peers_) joined += peer.joined ? 1 : 0;
  if (joined < options_.num_machines) return;
  const int number = attempts_++;
  // A restart needs another port, since sockets of killed ranks may hold the old one. On several machines main_port is
  // used by this launcher's listener.
  const bool is_first_here = number == 0 && options_.num_machines == 1;
  store_port_ = is_first_here ? nullptr : std::make_unique<PortClaim>(0);
  attempt_ = Attempt{number, options_.max_restarts, store_port_ ? store_port_->port() : options_.main_port};
  for (auto& [machine, peer] : peers_) {
    peer.joined = false;
    peer.link.send(fmt::format("begin {} {} {}", attempt_->number, attempt_->max_restarts, attempt_->store_port));
  }
  joined_ = false;
}

void Machines::report_done() {
  if (outcome_) return;
  done_ = has_success_ = true;
  if (is_main())
    end_if_all_done();
  else if (peers_.contains(0))
    peers_.at(0).link.send(fmt::format("done {}", attempt_->number));
  else if (is_elastic_)
    outcome_ = JobOutcome();
}

void Machines::report_lost(const RankFailure& failure) {
  if (outcome_) return;
  done_ = true;
  lost_ = lost_.value_or(failure);
  if (is_main())
    end_if_all_done();
  else if (peers_.contains(0))
    peers_.at(0).link.send(
        fmt::format("lost {} {} {} {}", attempt_->number, failure.rank, failure.exit_code, failure.message));
  else
    outcome_ = JobOutcome{false, failure};
}

// Success needs all machines, of an elastic job one; failure only one: see report_failure.
void Machines::end_if_all_done() {
  if (!done_ || !attempt_ || outcome_) return;
  for (const auto& [machine, peer] : peers_) {
    if (!peer.done) return;
  }
  if (lost_ && !has_success_) return fail(*lost_, /*is_final=*/false);
  decide({});
}

void Machines::report_failure(const RankFailure& failure, bool is_final) {
  if (outcome_) return;
  if (is_main()) {
    fail(failure, is_final);
    return;
  }
  if (peers_.contains(0)) {
    peers_.at(0).link.send(fmt::format("failed {} {} {} {} {}", attempt_ ? attempt_->number : -1, is_final ? 1 : 0,
                                       failure.rank, failure.exit_code, failure.message));
  }
  // A final failure ends this machine even if machine 0 cannot be reached.
  if (is_final) outcome_ = JobOutcome{false, failure};
}

// Only on machine 0. Restarts are counted here, so all machines agree on how many are left.
void Machines::fail(const RankFailure& failure, bool is_final) {
  decide({.restarts = !is_final && attempt_ && attempt_->number < attempt_->max_restarts, .failure = failure});
}

// The first outcome of an attempt counts. Later failures are usually consequences of it.
void Machines::decide(JobOutcome outcome) {
  if (outcome_) return;
  outcome_ = std::move(outcome);
  const auto& failure = outcome_->failure;
  for (auto& [machine, peer] : peers_)
    peer.link.send(
        fmt::format("over {} {} {} {}", outcome_->restarts ? 1 : 0, failure.rank, failure.exit_code, failure.message));
}

void Machines::add_to(std::vector<pollfd>& waiting) const {
  if (listener_ && listener_->is_ready()) waiting.push_back({listener_->descriptor(), POLLIN, 0});
  for (const auto& newcomer : newcomers_) waiting.push_back({newcomer.link.descriptor(), POLLIN, 0});
  for (const auto& [machine, peer] : peers_) {
    if (!peer.link.is_lost()) waiting.push_back({peer.link.descriptor(), POLLIN, 0});
  }
}

void Machines::advance() {
  if (options_.num_machines == 1) return;
  if (is_main())
    advance_main();
  else
    advance_other();
  send_alive();
  check_join_timeout();
}

void Machines::send_alive() {
  if (Clock::now() - alive_sent_at_ < options_.alive_interval) return;
  alive_sent_at_ = Clock::now();
  for (auto& [machine, peer] : peers_) {
    if (peer.is_trusted) peer.link.send("alive");
  }
}

void Machines::check_join_timeout() {
  // Applies to restarts too: a machine that failed must join again within the join time-out.
  const bool is_waiting = !attempt_ && !outcome_;
  if (!is_waiting || Clock::now() - join_started_at_ < options_.join_timeout) return;
  const auto time = seconds_text(options_.join_timeout);
  const auto text = is_main() ? fmt::format(
                                    "{} of {} did not join within {}; start `accel launch` there, with "
                                    "--main_process_ip and --main_process_port of machine 0{}",
                                    missing_machines(), options_.num_machines, time, last_refusal_)
                              : fmt::format(
                                    "machine 0 did not answer at {}:{} within {}; check --main_process_ip and "
                                    "--main_process_port, and that its launcher runs",
                                    options_.main_address, options_.main_port, time);
  decide({.restarts = false, .failure = {-1, 1, text}});
}

std::string Machines::missing_machines() const {
  std::vector<int> missing;
  for (int machine = 1; machine < options_.num_machines; ++machine) {
    const auto peer = peers_.find(machine);
    if (peer == peers_.end() || !peer->second.joined) missing.push_back(machine);
  }
  return fmt::format("machine{} {}", missing.size() > 1 ? "s" : "", fmt::join(missing, ", "));
}

// --- machine 0 -----------------------------------------------------------------------------------------------------

// Lost machines are collected first and handled afterwards, since lose() changes the map that the loop iterates over.
void Machines::advance_main() {
  accept_joins();
  std::vector<int> lost;
  for (auto& [machine, peer] : peers_) {
    for (const auto& line : peer.link.receive()) hear(machine, line);
    if (peer.link.is_lost() || peer.link.silence() > options_.alive_missed_max * options_.alive_interval)
      lost.push_back(machine);
  }
  for (const int machine : lost) lose(machine);
  begin_if_all_joined();
}

// Anyone can connect to the port. A connection becomes a peer only with a valid proof; others are closed. Flooding
// evicts the oldest newcomers first: a launcher answers within a round trip, and connects again if it was too slow.
void Machines::accept_joins() {
  for (int count = 0; count < kNewcomersMax; ++count) {
    auto link = listener_->accept();
    if (!link) break;
    auto& newcomer =
        newcomers_.emplace_back(Newcomer{.link = std::move(*link), .nonce = make_nonce(), .accepted_at = Clock::now()});
    newcomer.link.send("challenge " + newcomer.nonce);
  }
  while (newcomers_.size() > static_cast<std::size_t>(kNewcomersMax + options_.num_machines)) newcomers_.pop_front();
  for (auto& newcomer : newcomers_) hear_newcomer(newcomer);
  std::erase_if(newcomers_, [](const Newcomer& newcomer) {
    return newcomer.is_over || newcomer.link.is_lost() || Clock::now() - newcomer.accepted_at > kTimeToJoin;
  });
}

void Machines::hear_newcomer(Newcomer& newcomer) {
  const auto lines = newcomer.link.receive();
  if (lines.empty()) return;
  newcomer.is_over = true;  // the first line decides
  std::istringstream words(lines.front());
  std::string verb, nonce, proof;
  int machine = -1, num_machines = 0, num_processes = 0;
  words >> verb >> machine >> num_machines >> num_processes >> nonce >> proof;
  const auto claim = join_text(machine, num_machines, num_processes, nonce);
  if (verb != "join" || !is_equal(proof, proof_of(options_.secret, newcomer.nonce + " " + claim)) || machine < 1) {
    last_refusal_ = fmt::format("; a connection from {} was refused: {}", newcomer.link.peer_address(),
                                verb == "join" ? "its secret or its version of accel differs" : "it is not a launcher");
    newcomer.link.send("refused");
    return;
  }
  if (is_elastic_ && attempt_ && !outcome_) return;  // the others continue without its ranks
  // A machine that joins during an attempt has been restarted: its ranks of this attempt no longer exist.
  if (attempt_ && !outcome_) fail({-1, 1, fmt::format("machine {} joined again", machine)}, /*is_final=*/false);
  peers_.erase(machine);
  auto& peer =
      peers_.emplace(machine, Peer{.link = std::move(newcomer.link), .joined = true, .is_trusted = true}).first->second;
  peer.link.send("welcome " + proof_of(options_.secret, nonce));
  if (num_machines != options_.num_machines || num_processes != options_.num_processes || machine >= num_machines) {
    decide({.restarts = false,
            .failure = {
                -1, 2,
                fmt::format("machine {} was started with --num_machines {} --num_processes {}, machine 0 with {} and "
                            "{}; expected the same values on all machines",
                            machine, num_machines, num_processes, options_.num_machines, options_.num_processes)}});
  }
}

// "alive" has no number and is ignored here; receiving it has already updated the link's time.
void Machines::hear(int machine, const std::string& line) {
  std::istringstream words(line);
  std::string verb;
  int number = -1;
  words >> verb >> number;
  if (!attempt_ || number != attempt_->number) return;
  if (verb == "done") {
    peers_.at(machine).done = has_success_ = true;
    end_if_all_done();
  } else if (verb == "lost") {
    RankFailure failure;
    words >> failure.rank >> failure.exit_code;
    failure.message = rest_of(words);
    peers_.at(machine).done = true;
    lost_ = lost_.value_or(failure);
    end_if_all_done();
  } else if (verb == "failed") {
    RankFailure failure;
    int is_final = 0;
    words >> is_final >> failure.rank >> failure.exit_code;
    failure.message = rest_of(words);
    fail(failure, is_final != 0);
  }
}

// Not final: the machine may join again, if restarts are left.
void Machines::lose(int machine) {
  const bool is_silent = !peers_.at(machine).link.is_lost();
  peers_.erase(machine);
  if (!attempt_ || outcome_) return;
  const auto time = options_.alive_missed_max * options_.alive_interval;
  const RankFailure failure{-1, 1,
                            is_silent ? fmt::format("machine {} has not responded for {}", machine, seconds_text(time))
                                      : fmt::format("the launcher of machine {} has closed its connection", machine)};
  if (!is_elastic_) return fail(failure, /*is_final=*/false);
  lost_ = lost_.value_or(failure);
  end_if_all_done();
}

// --- the other machines --------------------------------------------------------------------------------------------

void Machines::advance_other() {
  const auto now = Clock::now();
  const auto patience = options_.alive_missed_max * options_.alive_interval;
  const bool is_waiting = joined_ && !attempt_ && !outcome_;
  if (!peers_.contains(0)) {
    if (!is_waiting || now - last_connect_at_ < kConnectRetryInterval) return;
    last_connect_at_ = now;
    auto link = LauncherLink::connect_to(options_.main_address, options_.main_port, num_connects_++);
    peers_.emplace(0, Peer{.link = std::move(link)});
  }
  auto& peer = peers_.at(0);
  for (const auto& line : peer.link.receive()) {
    handle_main_message(peer, line);
  }
  const bool is_silent = peer.link.silence() > (peer.joined ? patience : std::chrono::milliseconds(kConnectTimeout));
  if (!peer.link.is_lost() && !is_silent) return;
  peers_.erase(0);
  if (!attempt_ || outcome_) return;
  // Machine 0 can no longer decide. It loses this machine too and, by the same rule, restarts or ends.
  const auto text = is_silent ? fmt::format("machine 0 ({}:{}) has not responded for {}", options_.main_address,
                                            options_.main_port, seconds_text(patience))
                              : std::string("the launcher of machine 0 has closed its connection");
  const RankFailure failure{-1, 1, text};
  if (!is_elastic_)
    outcome_ = JobOutcome{attempt_->number < attempt_->max_restarts, failure};
  else if (done_)
    outcome_ = has_success_ ? JobOutcome() : JobOutcome{false, failure};
}

// A outcome that this machine has reached on its own stays.
void Machines::handle_main_message(Peer& peer, const std::string& line) {
  std::istringstream words(line);
  std::string verb, text;
  words >> verb;
  if (verb == "challenge" && peer.nonce.empty()) {
    words >> text;
    peer.nonce = make_nonce();
    const auto claim = join_text(options_.machine_rank, options_.num_machines, options_.num_processes, peer.nonce);
    peer.link.send(claim + " " + proof_of(options_.secret, text + " " + claim));
  } else if (verb == "welcome") {
    words >> text;
    peer.is_trusted = !peer.nonce.empty() && is_equal(text, proof_of(options_.secret, peer.nonce));
    peer.joined = peer.is_trusted;  // machine 0 has answered, so the longer time-out applies from here
  } else if (verb == "refused" && !peer.is_trusted && !outcome_) {
    outcome_ =
        JobOutcome{false,
                   {-1, 2,
                    fmt::format("machine 0 has refused machine {}: its secret or its version of accel differs; "
                                "expected the same ACCEL_LAUNCH_SECRET or ACCEL_LAUNCH_SECRET_FILE on all machines",
                                options_.machine_rank)}};
  } else if (!peer.is_trusted) {
    return;
  } else if (verb == "begin") {
    Attempt attempt;
    words >> attempt.number >> attempt.max_restarts >> attempt.store_port;
    attempt_ = attempt;
    joined_ = false;
  } else if (verb == "over" && !outcome_) {
    JobOutcome outcome;
    int restarts = 0;
    words >> restarts >> outcome.failure.rank >> outcome.failure.exit_code;
    outcome.restarts = restarts != 0;
    outcome.failure.message = rest_of(words);
    outcome_ = std::move(outcome);
  }
}

}  // namespace accel::launcher
