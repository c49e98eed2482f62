#include "sim/backend/sim_elastic_ranks.hpp"

#include <ATen/ATen.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <numeric>
#include <utility>

#include "sim/backend/sim_backend.hpp"

namespace accel::sim {
namespace {

class SimElasticRanks : public elastic::ElasticRanks {
 public:
  SimElasticRanks(RankContext& context, Member member, std::shared_ptr<ReplicaComparison> comparison, int min_ranks)
      : context_(context), member_(std::move(member)), comparison_(std::move(comparison)), min_ranks_(min_ranks) {
    member_.world->is_elastic() = true;
    ranks_.resize(context.world_size);
    std::iota(ranks_.begin(), ranks_.end(), 0);
  }

  // Sets of living ranks shrink, so a group that breaks while it is formed has another name than the next one.
  std::optional<elastic::View> next_world() override {
    while (true) {
      const auto living = living_ranks();
      if (static_cast<int>(living.size()) < min_ranks_)
        throw elastic::NotAMember(elastic::EndReason::kTooFew, "elastic: fewer ranks than min_ranks are left");
      const auto name = fmt::format("world of view {}, ranks {}", number_ + 1, fmt::join(living, " "));
      const accel::Group group(name, make_process_group(member_, name, living));
      if (living_ranks() != living) continue;  // one that ended before the group existed has not broken it
      try {
        const auto positions = group.all_gather(at::full({1}, position_, at::kLong));
        return enter(living, group, positions);
      } catch (const CommError& error) {
        if (!has_lost_one_of(living)) throw;
      }
    }
  }

  // No view is formed without this rank, so it may always change its state.
  bool complete(const elastic::View& /*view*/, std::int64_t position, const std::function<void()>& change) override {
    change();
    position_ = position;
    return true;
  }

  // An error of a group is a CommError, one of c10d's own functions that of Gloo.
  [[nodiscard]] bool is_loss(const std::exception& error) const override {
    const bool is_of_transport =
        dynamic_cast<const CommError*>(&error) != nullptr || dynamic_cast<const GlooError*>(&error) != nullptr;
    return is_of_transport && has_lost_one_of(ranks_);
  }
  void finish() override {}

 private:
  [[nodiscard]] std::vector<int> living_ranks() const {
    std::vector<int> living;
    const auto ended = member_.world->ended_processes();
    for (int rank = 0; rank < member_.world->num_ranks(); ++rank) {
      const auto is_rank = [&](const EndedProcess& process) { return process.rank == rank; };
      if (std::none_of(ended.begin(), ended.end(), is_rank)) living.push_back(rank);
    }
    return living;
  }

  [[nodiscard]] bool has_lost_one_of(const std::vector<int>& ranks) const {
    if (member_.world->failures().has_failed()) return false;
    const auto ended = member_.world->ended_processes();
    return std::any_of(ended.begin(), ended.end(), [&](const EndedProcess& process) {
      return std::find(ranks.begin(), ranks.end(), process.rank) != ranks.end();
    });
  }

  elastic::View enter(const std::vector<int>& living, const accel::Group& group, const at::Tensor& positions) {
    wait_until_noticed(living);
    member_.guard->release_closed();
    ++number_;
    ranks_ = living;
    comparison_->set_ranks(living);
    context_.rank = group.rank();
    context_.world_size = group.size();
    context_.world.replace_everywhere(group);
    context_.new_group = [member = member_, living, number = number_,
                          count = 0](const std::vector<int>& ranks) mutable {
      const auto name = fmt::format("group{} of view {}", ++count, number);
      std::vector<int> of_run;
      for (const int rank : ranks) of_run.push_back(living.at(rank));
      member.world->group(name, of_run);
      const bool is_member = std::find(of_run.begin(), of_run.end(), member.rank) != of_run.end();
      return is_member ? accel::Group(name, make_process_group(member, name, of_run)) : accel::Group();
    };
    const auto most = positions.argmax().item<std::int64_t>();
    return {.number = number_,
            .members = {living.begin(), living.end()},
            .steps = positions[most].item<std::int64_t>(),
            .source = living[most]};
  }

  void wait_until_noticed(const std::vector<int>& living) const {
    double seconds = 0;
    for (const auto& ended : member_.world->ended_processes()) {
      const bool is_new = std::find(ranks_.begin(), ranks_.end(), ended.rank) != ranks_.end() &&
                          std::find(living.begin(), living.end(), ended.rank) == living.end();
      if (is_new) seconds = std::max(seconds, ended.notice_seconds);
    }
    member_.world->clocks().advance(member_.rank, seconds);
  }

  RankContext& context_;
  const Member member_;
  std::shared_ptr<ReplicaComparison> comparison_;
  const int min_ranks_;
  std::vector<int> ranks_;  // of the view, by group rank
  std::int64_t number_ = -1, position_ = 0;
};

}  // namespace

std::unique_ptr<elastic::ElasticRanks> join_elastic(RankContext& context, const Member& member,
                                                    std::shared_ptr<ReplicaComparison> comparison, int min_ranks) {
  return std::make_unique<SimElasticRanks>(context, member, std::move(comparison), min_ranks);
}

}  // namespace accel::sim
