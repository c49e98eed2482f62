// Faults of messages in transit: the messages of a collective's algorithm, or one that the program sends.
#include <algorithm>
#include <set>

#include "sim/faults/fault_effect.hpp"
#include "sim/faults/fault_plan.hpp"

namespace accel::sim {
namespace {

using Ends = std::pair<int, int>;  // group ranks of sender and receiver

bool has_link(const Traffic& traffic, const Ends& ends) {
  bool found = false;
  traffic.visit_links([&](int from, int to) { found = found || Ends(from, to) == ends; });
  return found;
}

// The base of faults on one link: acts on every collective or message in which something is sent along the link.
class LinkEffect : public FaultEffect {
 public:
  using FaultEffect::FaultEffect;
  void on_traffic(Traffic& traffic) override {
    const auto& group = *traffic.site.group;
    const Ends ends{group.group_rank_of(fault_.link->from), group.group_rank_of(fault_.link->to)};
    if (ends.first >= 0 && ends.second >= 0 && has_link(traffic, ends)) on_link(traffic, ends);
  }

 protected:
  bool strike_link(const Traffic& traffic, bool may_stop) {
    return strike(traffic.world, {fault_.link->from, fault_.link->to}, may_stop, traffic.site);
  }
  // The receiver's step decides: it is the rank that waits for the message.
  bool strike_first(const Traffic& traffic) {
    return is_due(traffic.world, fault_.link->to, traffic.site.sequence) && strike_link(traffic, true);
  }
  // Delays the receiver by the sum of the delays on its link; other links are not affected. Beyond the time-out
  // the receiver has given up, so the message counts as lost, and the earlier, harmless strike is blamed.
  void delay(Traffic& traffic, const Ends& ends, double seconds) {
    auto& delays = traffic.faults.delays;
    delays.resize(traffic.site.group->ranks.size());
    const double late = traffic.delays[ends] += seconds;
    delays[ends.second] = std::max(delays[ends.second], late);
    const bool is_too_long = late > seconds_of(traffic.world.timeout());
    strike_link(traffic, is_too_long);
    if (!is_too_long) return;
    {
      const MutexLock lock(run_.strike_mutex);
      traffic.world.failures().blame(describe(fault_));
    }
    lose({fault_.link->to}, traffic.faults);
  }

 private:
  virtual void on_link(Traffic& traffic, const Ends& ends) = 0;
};

// The hit is the call's number, so the same messages are late in every schedule.
class MessageDelay : public LinkEffect {
  using LinkEffect::LinkEffect;
  void on_link(Traffic& traffic, const Ends& ends) override {
    if (strikes(fault_, fault_.link->from, traffic.site.sequence)) delay(traffic, ends, *fault_.seconds);
  }
};

// With a network model the link itself is slower (FaultInjectorOptions); without one a delay approximates it.
class SlowLink : public LinkEffect {
  using LinkEffect::LinkEffect;
  void on_link(Traffic& traffic, const Ends& ends) override {
    constexpr double kBytesPerSecond = 1e9;  // assumed for a link if no network is described
    const auto& call = *traffic.site.call;
    if (run_.options.network_has_slow_links) {
      strike_link(traffic, /*may_stop=*/false);
    } else {
      // A ring all-reduce sends the buffer about twice over each link; a message crosses it once.
      const int num_passes = call.op == Collective::kRecv ? 1 : 2;
      delay(traffic, ends, (*fault_.factor - 1) * num_passes * static_cast<double>(call.bytes) / kBytesPerSecond);
    }
  }
};

class MessageLoss : public LinkEffect {
  using LinkEffect::LinkEffect;
  void on_link(Traffic& traffic, const Ends& /*ends*/) override {
    if (strike_first(traffic)) lose({fault_.link->to}, traffic.faults);
  }
};

// Both ends see the reset; all others see that a peer has closed its connection, as over TCP.
class ConnectionReset : public LinkEffect {
  using LinkEffect::LinkEffect;
  void on_link(Traffic& traffic, const Ends& /*ends*/) override {
    if (!strike_first(traffic)) return;
    traffic.faults.error = [link = *fault_.link](int rank) {
      if (rank != link.from && rank != link.to) return connection_closed(link.to);
      return std::make_exception_ptr(
          GlooError(fmt::format("Connection reset by peer [rank {}]", rank == link.from ? link.to : link.from)));
    };
    traffic.world.disconnect({fault_.link->from, fault_.link->to}, traffic.faults.error);
  }
};

// Stays in force after its first strike: every later message across the cut is lost as well.
class Partition : public FaultEffect {
 public:
  using FaultEffect::FaultEffect;
  void on_traffic(Traffic& traffic) override {
    if (!has_struck() && !is_due(traffic.world, traffic.joined, traffic.site.sequence)) return;
    const auto receivers = cut_off_by(traffic);
    if (receivers.empty()) return;
    strike(traffic.world, *fault_.ranks, /*may_stop=*/true, traffic.site);
    lose(receivers, traffic.faults);
  }

 private:
  // Returns the ranks to which something is sent across the cut.
  [[nodiscard]] std::vector<int> cut_off_by(const Traffic& traffic) const {
    const auto& ranks = traffic.site.group->ranks;
    const auto is_inside = [&](int member) {
      return std::find(fault_.ranks->begin(), fault_.ranks->end(), ranks[member]) != fault_.ranks->end();
    };
    std::set<int> receivers;
    traffic.visit_links([&](int from, int to) {
      if (is_inside(from) != is_inside(to) && (is_inside(from) || !fault_.one_way)) receivers.insert(ranks[to]);
    });
    return {receivers.begin(), receivers.end()};
  }
};

}  // namespace

std::unique_ptr<FaultEffect> make_message_effect(const Fault& fault, FaultedRun& run) {
  switch (fault.kind) {
    case FaultKind::kMessageDelay: return std::make_unique<MessageDelay>(fault, run);
    case FaultKind::kMessageLoss: return std::make_unique<MessageLoss>(fault, run);
    case FaultKind::kConnectionReset: return std::make_unique<ConnectionReset>(fault, run);
    case FaultKind::kPartition: return std::make_unique<Partition>(fault, run);
    case FaultKind::kSlowLink: return std::make_unique<SlowLink>(fault, run);
    default: throw InternalError(fmt::format("{} has no effect on messages", rule_of(fault.kind).name));
  }
}

}  // namespace accel::sim
