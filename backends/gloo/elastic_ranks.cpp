// Note [A world of survivors]
// Each view has a separate world: new groups, over a new store, since the old ones may wait for the lost rank.
// Forming it waits for the other members, of which one may end meanwhile; a thread does that, and is left to itself if
// the view changes. Operations of the old groups may still write to tensors. They end when all survivors close these
// groups, and the rank waits for that, but for a limited time: a rank that is stopped keeps its connections open.
#include "backends/gloo/elastic_ranks.hpp"

#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <condition_variable>
#include <cstdlib>
#include <filesystem>
#include <future>
#include <mutex>
#include <random>
#include <thread>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>
#include <utility>

#include "backends/elastic/mailbox.hpp"
#include "backends/elastic/member.hpp"
#include "backends/elastic/members_file.hpp"
#include "backends/recorded/c10d_store.hpp"
#include "backends/sockets/listening_socket.hpp"
#include "backends/watch/watched_rank.hpp"
#include "reference/core/error_text.hpp"
#include "reference/core/system/resource_limits.hpp"
#include "reference/recorder/rank_recorder.hpp"

namespace accel::gloo {
namespace {

using elastic::Contact;
using elastic::MemberId;
using elastic::View;
using Store = c10::intrusive_ptr<c10d::Store>;

constexpr std::chrono::milliseconds kLookInterval{20};
constexpr std::chrono::seconds kClosingTime{2};
constexpr int kAttempts = 3;  // of views with the same members

int port_of(int descriptor) {
  sockaddr_storage address{};
  socklen_t length = sizeof address;
  auto* const any = reinterpret_cast<sockaddr*>(&address);
  ensure(getsockname(descriptor, any, &length) == 0, "a store has no address");
  return ntohs(address.ss_family == AF_INET6 ? reinterpret_cast<const sockaddr_in6*>(any)->sin6_port
                                             : reinterpret_cast<const sockaddr_in*>(any)->sin_port);
}

c10d::TCPStoreOptions store_options(int port, std::chrono::milliseconds timeout) {
  c10d::TCPStoreOptions options;
  options.port = static_cast<std::uint16_t>(port);
  options.waitWorkers = false;
  options.timeout = timeout;
  return options;
}

Store serve_store(const std::string& host, std::chrono::milliseconds timeout) {
  const int descriptor = checked_descriptor(sockets::listen_on(host, 0), fmt::format("a store at {}", host));
  auto options = store_options(port_of(descriptor), timeout);
  options.isServer = true;
  options.masterListenFd = descriptor;  // the store owns it
  return c10::make_intrusive<c10d::TCPStore>(host, options);
}

int port_of(const Store& server) { return static_cast<c10d::TCPStore&>(*server).getPort(); }

// What another thread forms.
struct Forming {
  std::mutex mutex;
  std::condition_variable changed;
  Group group;
  Store store;
  GlooOptions options;
  std::string error;
  bool has_group = false, has_failed = false;
};

void close_group(Group group) {
  auto closed = std::make_shared<std::promise<void>>();
  std::thread([closing = std::move(group), closed]() mutable {
    closing = Group();
    closed->set_value();
  }).detach();
  closed->get_future().wait_for(kClosingTime);
}

class GlooRanks : public elastic::ElasticRanks {
 public:
  GlooRanks(RankContext& context, const Store& store, GlooOptions options, int min_ranks)
      : context_(context), options_(std::move(options)), server_(serve_store(options_.hostname, options_.timeout)) {
    if (options_.job_size == 0) options_.job_size = context.world_size;
    mailbox_ = std::make_unique<elastic::Mailbox>(options_.hostname);
    const Contact own{.id = id_of_this_rank(),
                      .pid = getpid(),
                      .machine = recorder::host_name(),
                      .mailbox = mailbox_->address(),
                      .host = options_.hostname,
                      .store_port = port_of(server_)};
    auto member = is_joining() ? known_members(own) : met_members(own, store);
    member.membership.min_ranks = min_ranks;
    job_ = member.job;
    if (!is_first_run())
      forbid_joins();
    else if (!is_joining())
      note_members(member.members);
    member_ = std::make_shared<elastic::Member>(member, *mailbox_);
    if (options_.recorder) options_.recorder->set_may_be_lost(true);
  }

  std::optional<View> next_world() override {
    std::vector<MemberId> failed_members;
    for (int failures = 0;;) {
      const auto view = member_->next_view();
      if (!view) return std::nullopt;
      const auto forming = form(*view);
      if (!forming) continue;
      if (forming->has_group) {
        enter(*view, *forming);
        return view;
      }
      failures = view->members == failed_members ? failures + 1 : 1;
      failed_members = view->members;
      if (failures == kAttempts) throw CommError(forming->error);
    }
  }

  bool complete(const View& view, std::int64_t position, const std::function<void()>& change) override {
    return member_->complete(view, position, change);
  }

  [[nodiscard]] int rank_of(MemberId member) const override { return static_cast<int>(member % options_.job_size); }

  [[nodiscard]] bool is_loss(const std::exception& error) const override {
    return dynamic_cast<const elastic::RankLost*>(&error) != nullptr;
  }

  void finish() override {
    member_->finish();
    if (is_first_run()) forbid_joins();
    if (options_.recorder) options_.recorder->set_may_be_lost(false);
    member_.reset();
  }

 private:
  [[nodiscard]] bool is_joining() const { return options_.elastic_restarts > 0; }
  // A process that joins runs the program from its beginning, so it meets the first training.
  [[nodiscard]] bool is_first_run() const { return options_.num_elastic_runs == 1; }
  [[nodiscard]] MemberId id_of_this_rank() const {
    const auto rank = options_.members.empty() ? context_.rank : options_.members[context_.rank];
    return rank + MemberId{options_.elastic_restarts} * options_.job_size;
  }
  [[nodiscard]] elastic::MemberOptions known_members(const Contact& own) const {
    auto [job, members] = elastic::read_members(options_.members_file);
    return {.self = own, .job = job, .members = std::move(members), .joins = true};
  }
  // Collective.
  [[nodiscard]] elastic::MemberOptions met_members(const Contact& own, const Store& store) const {
    recorder::C10dStore meeting(c10::make_intrusive<c10d::PrefixStore>("elastic", store), /*ends_with_rank_0=*/true);
    if (context_.rank == 0)
      meeting.set("job", std::to_string(std::random_device()() + (1ULL << 32) * std::random_device()()));
    meeting.set(std::to_string(context_.rank), text_of(own));
    elastic::MemberOptions member{.self = own};
    for (int rank = 0; rank < context_.world_size; ++rank)
      member.members.push_back(elastic::contact_of(meeting.get(std::to_string(rank))));
    member.job = std::stoull(meeting.get("job"));
    return member;
  }
  void note_members(const std::vector<Contact>& members) const {
    if (!options_.members_file.empty()) elastic::write_members(options_.members_file, {job_, members});
  }
  void forbid_joins() const {
    std::error_code is_gone_already;
    if (!options_.members_file.empty()) std::filesystem::remove(options_.members_file, is_gone_already);
  }

  // Null if the view has changed meanwhile, or the training has ended.
  std::shared_ptr<Forming> form(const View& view) {
    auto options = options_;
    options.members.clear();
    for (const auto member : view.members) options.members.push_back(rank_of(member));
    options.elastic_restarts = 0;
    options.wait_state = [member = std::weak_ptr(member_), view] {
      const auto living = member.lock();
      if (!living) return WaitState::kOver;
      return living->is_current(view) ? WaitState::kContinue : WaitState::kGiveUp;
    };
    auto forming = std::make_shared<Forming>();
    forming->options = options;
    const auto own = std::find(view.members.begin(), view.members.end(), member_->id()) - view.members.begin();
    std::thread([forming, options, contact = member_->contact(view.members.front()), name = world_name(view.number),
                 rank = static_cast<int>(own), size = static_cast<int>(view.members.size())] {
      std::string error;
      Group group;
      Store store;
      try {
        store = c10::make_intrusive<c10d::PrefixStore>(
            name,
            c10::make_intrusive<c10d::TCPStore>(contact.host, store_options(contact.store_port, options.timeout)));
        group = make_group(name, store, rank, size, options);
      } catch (const std::exception& caught) {
        error = caught.what();
      }
      const std::lock_guard lock(forming->mutex);
      forming->group = std::move(group);
      forming->store = std::move(store);
      forming->error = std::move(error);
      forming->has_failed = !forming->error.empty();
      forming->has_group = !forming->has_failed;
      forming->changed.notify_all();
    }).detach();
    std::unique_lock lock(forming->mutex);
    while (!forming->has_group && !forming->has_failed) {
      if (!member_->is_current(view) || member_->has_finished_peer()) return nullptr;
      forming->changed.wait_for(lock, kLookInterval);
    }
    return forming;
  }

  void enter(const View& view, Forming& forming) {
    context_.rank = forming.group.rank();
    context_.world_size = forming.group.size();
    std::vector<Contact> members;
    for (const auto member : view.members) members.push_back(member_->contact(member));
    const auto own = members.begin() + context_.rank;
    const auto is_here = [&](const Contact& member) { return member.machine == own->machine; };
    context_.local_rank = static_cast<int>(std::count_if(members.begin(), own, is_here));
    context_.local_world_size = static_cast<int>(std::count_if(members.begin(), members.end(), is_here));
    if (is_first_run() && context_.local_rank == 0) note_members(members);
    context_.joins_elastic = false;
    options_.elastic_restarts = 0;
    close_group(context_.world.replace_everywhere(forming.group));
    forming.group = Group();
    auto& options = forming.options;
    offer_groups(context_, forming.store, options, make_group, world_name(view.number) + ", ");
    // Whoever uses the groups needs the store that this rank serves.
    context_.join_elastic = [server = server_, join = context_.join_elastic](RankContext& rank, int least) {
      return join(rank, least);
    };
  }

  [[nodiscard]] std::string world_name(std::int64_t view) const {
    return fmt::format("world {}.{}", options_.num_elastic_runs, view);
  }

  RankContext& context_;
  GlooOptions options_;
  Store server_;
  std::unique_ptr<elastic::Mailbox> mailbox_;
  std::uint64_t job_ = 0;
  std::shared_ptr<elastic::Member> member_;
};

}  // namespace

std::unique_ptr<elastic::ElasticRanks> join_elastic(RankContext& context, Store store, const GlooOptions& options,
                                                    int min_ranks) {
  return std::make_unique<GlooRanks>(context, store, options, min_ranks);
}

}  // namespace accel::gloo
