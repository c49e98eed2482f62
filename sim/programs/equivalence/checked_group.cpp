// A c10d backend around Gloo's that compares the ranks' calls before it forwards them. The comparison is a collective
// of its own, with messages of a fixed size, so it cannot fail on the difference that it looks for. It sends a hash of
// each call; only ranks that have found a difference exchange the texts.
#include "sim/programs/equivalence/checked_group.hpp"

#include <ATen/ops/empty.h>
#include <ATen/record_function.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include <algorithm>
#include <cstring>
#include <numeric>
#include <vector>

#include "reference/comm/collective_backend.hpp"
#include "reference/core/error_text.hpp"
#include "reference/core/errors.hpp"
#include "reference/rank_local/call_site.hpp"
#include "sim/backend/torch_tensors.hpp"

namespace accel::programs {
namespace {

using Tensors = std::vector<at::Tensor>;
using WorkPtr = c10::intrusive_ptr<c10d::Work>;

// The sizes of the texts that ranks exchange, each with a final 0.
constexpr std::size_t kCallBytes = 768, kLineBytes = 256;

// FNV-1a, which is equal on all machines of a job.
std::uint64_t hash_of(std::string_view text) {
  return std::accumulate(text.begin(), text.end(), 14695981039346656037ULL, [](std::uint64_t hash, char letter) {
    return (hash ^ static_cast<unsigned char>(letter)) * 1099511628211ULL;
  });
}

// Converts the errors of LibTorch and Gloo. Errors of this library pass through unchanged.
template <typename F>
auto without_frames(const std::string& what, F&& call) {
  try {
    return call();
  } catch (const Error&) {
    throw;
  } catch (const std::exception& error) {
    throw comm_error(what, std::runtime_error(message_without_frames(error)));
  }
}

// describe() prints the dtype with the shapes, but an all-to-all has none here: they may differ between ranks.
std::string full_text_of(const Call& call) {
  if (call.shapes.empty() && !call.dtype.empty()) return fmt::format("{}({})", accel::name_of(call.op), call.dtype);
  return describe(call);
}

// What one rank is about to do.
struct Offer {
  std::string call;
  std::string where = {};
  std::exception_ptr problem = {};  // the rank's arguments are wrong, and it cannot make the call
};

// Arguments that are wrong on one rank are a difference between the ranks, which only the comparison can report to all.
template <typename Describe>
Offer offer_of(Describe&& describe_call) {
  const auto where = describe(CallSite::current());
  try {
    return {full_text_of(describe_call()), where};
  } catch (const std::exception& error) {
    const auto message = message_without_frames(error);
    return {"wrong arguments: " + message, where, std::make_exception_ptr(ArgumentError(message))};
  }
}

}  // namespace

/// Compares the calls of the ranks of one group.
class CallCheck {
 public:
  CallCheck(std::string name, c10::intrusive_ptr<c10d::Backend> gloo)
      : name_(std::move(name)), gloo_(std::move(gloo)) {}

  void begin_case(std::int64_t number) {
    case_ = number;
    next_call_ = 0;
  }

  /// Returns how errors name the call. Collective; throws the same CommError on every rank if the offers differ, and
  /// the rank's own problem if every rank has one.
  std::string compare(const Offer& offer) {
    const Message own{case_, next_call_++, offer.problem ? 0 : hash_of(offer.call)};
    const auto what = fmt::format("rank {}: {}, {}", gloo_->getRank(), offer.call.substr(0, kCallBytes), place_of(own));
    without_frames(what, [&] {
      const auto all = exchange(own);
      if (std::count(all.begin(), all.end(), own) < gloo_->getSize()) throw CommError(describe_difference(all, offer));
    });
    if (offer.problem) std::rethrow_exception(offer.problem);
    return what;
  }

 private:
  struct Message {
    std::int64_t case_number = 0, call = 0;
    std::uint64_t hash = 0;  // of the call; 0 if the arguments are wrong
    bool operator==(const Message&) const = default;
  };
  struct Text {
    char call[kCallBytes] = {}, where[kLineBytes] = {};
  };

  [[nodiscard]] std::string place_of(const Message& message) const {
    return fmt::format("call #{} of group {} in case {}", message.call, name_, message.case_number);
  }

  // Returns the items of all ranks, in rank order.
  template <typename Item>
  std::vector<Item> exchange(const Item& own) {
    const c10::NoGradGuard no_grad;
    const at::DisableRecordFunctionGuard unwatched;
    std::vector<Item> all(static_cast<std::size_t>(gloo_->getSize()));
    auto input = at::empty({sizeof(Item)}, at::TensorOptions(at::kByte).device(at::kCPU));
    auto output = at::empty({input.numel() * gloo_->getSize()}, input.options());
    std::memcpy(input.mutable_data_ptr(), &own, sizeof(Item));
    gloo_->_allgather_base(output, input, {})->wait();
    std::memcpy(all.data(), output.const_data_ptr(), output.nbytes());
    return all;
  }

  // The rows are those of the simulator's report: the calls, that of the most ranks first. Collective.
  std::string describe_difference(const std::vector<Message>& all, const Offer& offer) {
    Text own;
    offer.call.copy(own.call, kCallBytes - 1);
    if (offer.call.size() >= kCallBytes) std::memcpy(own.call + kCallBytes - 4, "...", 4);
    // The end of a path is the part that matters.
    const auto kept = std::min(offer.where.size(), kLineBytes - 1);
    offer.where.copy(own.where, kept, offer.where.size() - kept);
    const auto texts = exchange(own);
    std::vector<std::vector<int>> sides;
    for (int rank = 0; rank < gloo_->getSize(); ++rank) {
      const auto side = std::find_if(sides.begin(), sides.end(), [&](const std::vector<int>& ranks) {
        return all[ranks[0]] == all[rank] && std::strcmp(texts[ranks[0]].call, texts[rank].call) == 0;
      });
      (side == sides.end() ? sides.emplace_back() : *side).push_back(rank);
    }
    std::stable_sort(sides.begin(), sides.end(), [](auto& a, auto& b) { return a.size() > b.size(); });
    const auto& named = all[sides[0][0]];
    auto text = place_of(named) + ": the ranks' calls differ; expected one call, equal on every rank";
    for (const auto& ranks : sides) {
      const auto& place = all[ranks[0]];
      const auto& [call, where] = texts[ranks[0]];
      text += fmt::format("\n  {}: {}", describe_ranks(ranks), &call[0]);
      if (where[0] != '\0') text += fmt::format(" at {}", &where[0]);
      if (place.case_number != named.case_number || place.call != named.call)
        text += fmt::format(" (call #{} in case {})", place.call, place.case_number);
    }
    return text;
  }

  const std::string name_;
  const c10::intrusive_ptr<c10d::Backend> gloo_;
  std::int64_t case_ = 0;
  std::int64_t next_call_ = 0;
};

namespace {

/// Gloo's handle on a collective, with errors that name the call.
class CheckedWork : public c10d::Work {
 public:
  CheckedWork(WorkPtr work, std::string what)
      : c10d::Work(-1, work->retrieveOpType()), work_(std::move(work)), what_(std::move(what)) {}

  bool wait(std::chrono::milliseconds timeout) override {
    return without_frames(what_, [&] { return work_->wait(timeout); });
  }
  bool isCompleted() override { return work_->isCompleted(); }
  bool isSuccess() const override { return work_->isSuccess(); }
  Tensors result() override { return work_->result(); }
  void synchronize() override { work_->synchronize(); }
  std::exception_ptr exception() const override {
    const auto error = work_->exception();
    try {
      if (error) without_frames(what_, [&] { std::rethrow_exception(error); });
    } catch (...) {
      return std::current_exception();
    }
    return nullptr;
  }
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override {
    const auto value_of = [what = what_](c10::ivalue::Future& done) -> c10::IValue {
      return without_frames(what, [&] { return done.value(); });
    };
    if (!future_) future_ = work_->getFuture()->then(value_of, work_->getFuture()->elementType());
    return future_;
  }

 private:
  WorkPtr work_;
  std::string what_;
  c10::intrusive_ptr<c10::ivalue::Future> future_;
};

/// Compares and forwards the collectives of one rank. The checks of arguments are those of SimBackend, so that both
/// backends judge a call alike.
class CheckedBackend : public CollectiveBackend {
 public:
  CheckedBackend(c10::intrusive_ptr<c10d::Backend> gloo, std::shared_ptr<CallCheck> check)
      : CollectiveBackend(gloo->getRank(), gloo->getSize()), gloo_(std::move(gloo)), check_(std::move(check)) {}

  const std::string getBackendName() const override { return gloo_->getBackendName(); }
  c10::intrusive_ptr<Options> getBackendOptions() override { return gloo_->getBackendOptions(); }
  void setTimeout(std::chrono::milliseconds timeout) override { gloo_->setTimeout(timeout); }
  void abort() override { gloo_->abort(); }

  WorkPtr start(CollectiveArgs args) override {
    const auto what = agreed_name_of(args);
    const auto forward = [&] { return start_on(*gloo_, args); };
    return c10::make_intrusive<CheckedWork>(without_frames(what, forward), what);
  }

  WorkPtr refuse(Collective /*collective*/, std::exception_ptr problem) override {
    check_->compare(offer_of([&]() -> Call { std::rethrow_exception(problem); }));
    throw InternalError("wrong arguments were accepted");
  }

 private:
  // Compares this rank's call with those of the others and returns its name for errors. Only two ranks take part in a
  // message, so there is nothing that the group could compare.
  std::string agreed_name_of(const CollectiveArgs& args) {
    if (args.collective == Collective::kSend) return fmt::format("rank {}: send to rank {}", getRank(), args.root);
    if (args.collective == Collective::kRecv) return fmt::format("rank {}: recv from rank {}", getRank(), args.root);
    return check_->compare(offer_of([&] { return sim::call_of(args); }));
  }

  c10::intrusive_ptr<c10d::Backend> gloo_;
  std::shared_ptr<CallCheck> check_;
};

}  // namespace

CheckedGroup::CheckedGroup(const std::string& name, c10::intrusive_ptr<c10d::Store> store, int rank, int size,
                           const gloo::GlooOptions& options) {
  const auto gloo = gloo::make_backend(name, store, rank, size, options);
  check_ = std::make_shared<CallCheck>(name, gloo);
  const auto backend = c10::make_intrusive<CheckedBackend>(gloo, check_);
  auto process_group =
      c10::make_intrusive<c10d::ProcessGroup>(c10::make_intrusive<c10d::PrefixStore>(name, store), rank, size);
  for (const auto device : {c10::DeviceType::CPU, c10::DeviceType::CUDA})
    process_group->setBackend(device, c10d::ProcessGroup::BackendType::GLOO, backend);
  process_group->setDefaultBackend(c10d::ProcessGroup::BackendType::GLOO);
  process_group->setGroupName(name);
  group_ = Group(name, std::move(process_group));
}

void CheckedGroup::begin_case(std::int64_t number) { check_->begin_case(number); }

void CheckedGroup::end_case() { check_->compare({.call = "end of the case"}); }

std::string message_without_frames(const std::exception& error) {
  if (const auto* const own = dynamic_cast<const Error*>(&error)) return own->what();
  const std::string text = accel::text_of(error);
  return text.substr(0, text.find('\n'));
}

}  // namespace accel::programs
