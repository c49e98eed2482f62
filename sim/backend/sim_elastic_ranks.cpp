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
  SimElasticRanks(RankContext& context, Member member, SharedByRanks shared, int min_ranks)
      : context_(context), member_(std::move(member)), shared_(std::move(shared)), min_ranks_(min_ranks) {
    member_.world->is_elastic() = true;
    if (context.joins_elastic) position_ = -1;
  }

  // Named by what has changed so far: a group that breaks while it is formed has another name than the next one.
  std::optional<elastic::View> next_world() override {
    while (true) {
      const auto changes = member_.world->process_changes();
      const auto living = living_after(changes);
      if (static_cast<int>(living.size()) < min_ranks_)
        throw elastic::NotAMember(elastic::EndReason::kTooFew, "elastic: fewer ranks than min_ranks are left");
      const auto name = world_name(changes.size());
      const accel::Group group(name, make_process_group(member_, name, living));
      // One that ended before the group existed has not broken it.
      if (member_.world->process_changes().size() != changes.size()) continue;
      try {
        const auto positions = group.all_gather(at::full({1}, position_, at::kLong));
        return enter(changes, living, group, positions);
      } catch (const CommError& error) {
        if (!has_changed_after(changes.size())) throw;
      }
    }
  }

  // No view is formed without this rank, so it may always change its state, unless another one joins before this step.
  bool complete(const elastic::View& /*view*/, std::int64_t position, const std::function<void()>& change) override {
    if (!shared_.newcomers->may_complete(position, num_changes_)) return false;
    change();
    position_ = position;
    return true;
  }

  [[nodiscard]] int rank_of(elastic::MemberId member) const override { return static_cast<int>(member); }

  // An error of a group is a CommError, one of c10d's own functions that of Gloo.
  [[nodiscard]] bool is_loss(const std::exception& error) const override {
    const bool is_of_transport =
        dynamic_cast<const CommError*>(&error) != nullptr || dynamic_cast<const GlooError*>(&error) != nullptr;
    return is_of_transport && has_changed_after(num_changes_);
  }
  void finish() override { shared_.newcomers->close(); }

 private:
  [[nodiscard]] std::string world_name(std::size_t num_changes) const {
    return fmt::format("world {}.{}", shared_.num_elastic_runs, num_changes);
  }

  [[nodiscard]] std::vector<int> living_after(const std::vector<ProcessChange>& changes) const {
    std::vector<int> living;
    for (int rank = 0; rank < member_.world->num_ranks(); ++rank) {
      if (runs_after(changes, rank)) living.push_back(rank);
    }
    return living;
  }

  [[nodiscard]] bool has_changed_after(std::size_t num_changes) const {
    return !member_.world->failures().has_failed() && member_.world->process_changes().size() > num_changes;
  }

  elastic::View enter(const std::vector<ProcessChange>& changes, const std::vector<int>& living,
                      const accel::Group& group, const at::Tensor& positions) {
    const auto most = positions.argmax().item<std::int64_t>();
    elastic::View view{.number = static_cast<std::int64_t>(changes.size()),
                       .members = {living.begin(), living.end()},
                       .steps = positions[most].item<std::int64_t>(),
                       .source = living[most]};
    double seconds = 0;  // until all know the changes
    for (auto change = changes.begin() + static_cast<std::ptrdiff_t>(num_changes_); change != changes.end(); ++change) {
      seconds = std::max(seconds, change->notice_seconds);
      if (change->is_start && view.contains(change->rank)) view.joined.push_back(change->rank);
    }
    member_.world->clocks().advance(member_.rank, seconds);
    member_.guard->release_closed();
    num_changes_ = changes.size();
    if (std::exchange(context_.joins_elastic, false))
      shared_.comparison->join(member_.rank, living);
    else
      shared_.comparison->set_ranks(living);
    context_.rank = context_.local_rank = group.rank();
    context_.world_size = context_.local_world_size = group.size();
    context_.world.replace_everywhere(group);
    context_.new_group = group_maker(member_, living, " of " + world_name(changes.size()), shared_.faults);
    return view;
  }

  RankContext& context_;
  const Member member_;
  const SharedByRanks shared_;
  const int min_ranks_;
  std::size_t num_changes_ = 0;  // of processes, before the view
  std::int64_t position_ = 0;
};

}  // namespace

std::unique_ptr<elastic::ElasticRanks> join_elastic(RankContext& context, const Member& member, SharedByRanks shared,
                                                    int min_ranks) {
  return std::make_unique<SimElasticRanks>(context, member, std::move(shared), min_ranks);
}

}  // namespace accel::sim
