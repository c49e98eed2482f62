#include "backends/python/rank_library.hpp"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "backends/process/operation.hpp"
#include "backends/process/request.hpp"
#include "backends/process/update_report.hpp"
#include "backends/process/watched_writes.hpp"
#include "backends/python/guarded.hpp"
#include "backends/python/words.hpp"
#include "reference/comm/fingerprint.hpp"
#include "reference/core/errors.hpp"
#include "reference/core/system/futex.hpp"

namespace accel::process {
namespace {

using python::error_of_this_thread;
using python::guarded;
using python::RawTensor;
using python::Words;

constexpr std::size_t kAbandonedMax = 16;  // works that were never waited for, before their memory is looked after
constexpr std::int32_t kPresent = 2;       // ParameterState::Gradient

// A tensor of a call, and the shared memory that stands for it.
struct RawBuffer {
  RawTensor tensor;
  std::uint64_t offset = 0, bytes = 0;
  bool is_dense = false;
  bool is_written = false;              // by the collective
  std::optional<std::uint64_t> sample;  // hash at the call: the program must not change it before its wait
};

// What this process knows of its rank.
struct Rank {
  std::shared_ptr<SharedArea> area;
  std::shared_ptr<RankLink> link;
  int rank = -1;
  pid_t process = 0;
  std::mutex mutex;  // guards the rest; not held while the process waits
  std::map<std::int64_t, std::vector<RawBuffer>> works;
  std::vector<std::int64_t> abandoned;
  std::int64_t last_number = 0;  // of a work or a group
};
// An std::atomic of a shared_ptr, which LLVM's library lacks.
class CurrentRank {
 public:
  std::shared_ptr<Rank> load() {
    const std::lock_guard lock(mutex_);
    return rank_;
  }
  void store(std::shared_ptr<Rank> next) {
    const std::lock_guard lock(mutex_);
    rank_.swap(next);
  }

 private:
  std::mutex mutex_;
  std::shared_ptr<Rank> rank_ = std::make_shared<Rank>();  // never null
};
CurrentRank& current_rank() {
  static auto* rank = new CurrentRank;  // outlives the threads that end after main
  return *rank;
}
std::shared_ptr<Rank> this_rank() { return current_rank().load(); }

bool is_rank(const Rank& rank) { return rank.link != nullptr && rank.process == getpid(); }

// A forked process has a copy of this one's memory, its locks included, and shares the channel: what it sent would be
// taken for the rank's.
std::shared_ptr<Rank> checked_rank() {
  auto rank = this_rank();
  check_state(rank->link != nullptr, "this process is not a simulated rank; start it by sim-run");
  check_state(
      rank->process == getpid(),
      "process {} was forked by rank {} (process {}) and is not a rank; expected calls of torch.distributed only "
      "in the rank itself; make them there, not in a worker of a DataLoader or of multiprocessing",
      getpid(), rank->rank, rank->process);
  return rank;
}

std::int64_t next_number(Rank& rank) {
  const std::lock_guard lock(rank.mutex);
  return ++rank.last_number;
}

std::int64_t requested(const auto& function) {
  return guarded([&]() -> std::int64_t { return function(*checked_rank()); }, ACCEL_FAILED);
}

MessageWriter request(Request kind, const char* file = "", std::uint32_t line = 0) {
  return begin_request_at(kind, file, line);
}

void give_all(RankLink& link, const std::vector<RawBuffer>& buffers) {
  for (const auto& buffer : buffers) link.give(buffer.offset);
}

std::vector<RawBuffer> take_work(Rank& rank, std::int64_t number) {
  const std::lock_guard lock(rank.mutex);
  auto work = rank.works.extract(number);
  check_state(!work.empty(), "work {} is over", number);
  return std::move(work.mapped());
}

// Frees the memory of works that were never waited for and have ended.
void free_abandoned(Rank& rank, const char* file, std::uint32_t line) {
  std::vector<std::int64_t> abandoned;
  {
    const std::lock_guard lock(rank.mutex);
    if (rank.abandoned.size() < kAbandonedMax) return;
    abandoned.swap(rank.abandoned);
  }
  for (const auto number : abandoned) {
    if (rank.link->ask(request(Request::kPoll, file, line).put(static_cast<std::uint64_t>(number))) == 0) {
      const std::lock_guard lock(rank.mutex);
      rank.abandoned.push_back(number);
      continue;
    }
    rank.link->post_before_next(request(Request::kForget).put(static_cast<std::uint64_t>(number)));
    give_all(*rank.link, take_work(rank, number));
  }
}

// A tensor with gaps is also read where it is written: the bytes between its elements go there and back.
PlacedTensor place(RankLink& link, RawTensor tensor, bool is_read, bool is_written, bool is_async,
                   std::vector<RawBuffer>& buffers) {
  PlacedTensor placed{.bytes = tensor.bytes(), .dtype = tensor.dtype, .sizes = tensor.sizes, .strides = tensor.strides};
  placed.offset = link.take(placed.bytes);
  auto& buffer = buffers.emplace_back();
  buffer = {.tensor = std::move(tensor), .offset = placed.offset, .bytes = placed.bytes, .is_written = is_written};
  buffer.is_dense = buffer.tensor.is_dense();
  if (placed.bytes == 0) return placed;
  if (is_read || !buffer.is_dense) std::memcpy(link.at(placed.offset), buffer.tensor.address, placed.bytes);
  if (is_async && buffer.is_dense) buffer.sample = sample_fingerprint(buffer.tensor.address, placed.bytes);
  return placed;
}

std::int64_t call(Rank& rank, Words words, const char* file, std::uint32_t line) {
  free_abandoned(rank, file, line);
  auto& link = *rank.link;
  Operation operation{.collective = static_cast<Collective>(words.number()),
                      .group = static_cast<std::uint32_t>(words.number())};
  operation.reduce_op = static_cast<int>(words.number());
  operation.root = static_cast<int>(words.number());
  operation.tag = static_cast<int>(words.number());
  const auto flags = words.number();
  const bool is_async = (flags & ACCEL_IS_ASYNC) != 0, writes_inputs = (flags & ACCEL_WRITES_INPUTS) != 0;
  operation.is_sparse = (flags & ACCEL_IS_SPARSE) != 0;
  operation.is_in_gloo = (flags & ACCEL_NOT_IN_GLOO) == 0;
  const auto num_inputs = words.number(), num_outputs = words.number(), num_sizes = words.number();
  const auto num_input_splits = words.number(), num_output_splits = words.number();
  std::vector<RawBuffer> buffers;
  try {
    for (std::int64_t i = 0; i < num_inputs; ++i)
      operation.inputs.push_back(place(link, words.tensor(), /*is_read=*/true, writes_inputs, is_async, buffers));
    for (std::int64_t i = 0; i < num_outputs; ++i) {
      operation.outputs.push_back(
          place(link, words.tensor(), /*is_read=*/false, /*is_written=*/true, is_async, buffers));
    }
  } catch (...) {
    give_all(link, buffers);
    throw;
  }
  operation.sizes = words.list(num_sizes);
  operation.input_splits = words.list(num_input_splits);
  operation.output_splits = words.list(num_output_splits);
  const auto number = next_number(rank);
  auto message = request(Request::kCall, file, line).put(static_cast<std::uint64_t>(number));
  message << operation;
  // A call that is not asynchronous waits at once: the proxy is woken once for both.
  is_async ? link.post(message) : link.post_before_next(message);
  const std::lock_guard lock(rank.mutex);
  rank.works.emplace(number, std::move(buffers));
  return number;
}

bool has_changed(const RawBuffer& buffer) {
  return buffer.sample && buffer.tensor.address != nullptr &&
         sample_fingerprint(buffer.tensor.address, buffer.bytes) != *buffer.sample;
}

// Copies the elements of a tensor with gaps, and nothing between them.
void copy_elements(const RawTensor& tensor, std::byte* to, const std::byte* from, std::size_t dim = 0) {
  if (dim == tensor.sizes.size()) {
    std::memcpy(to, from, static_cast<std::size_t>(tensor.item_bytes));
    return;
  }
  const auto step = tensor.strides[dim] * tensor.item_bytes;
  for (std::int64_t i = 0; i < tensor.sizes[dim]; ++i) copy_elements(tensor, to + i * step, from + i * step, dim + 1);
}

// After a good answer nobody uses the payload any more. After an error another rank may still write to it, so this
// memory is not used again.
std::int64_t wait(Rank& rank, std::int64_t number, const std::int64_t* addresses,
                  const MessageWriter& request_of_wait) {
  auto& link = *rank.link;
  auto buffers = take_work(rank, number);
  if (addresses != nullptr) {
    for (auto& buffer : buffers) buffer.tensor.address = reinterpret_cast<std::byte*>(*addresses++);
  }
  if (std::any_of(buffers.begin(), buffers.end(), has_changed))
    link.post_before_next(request(Request::kTouch).put(static_cast<std::uint64_t>(number)).put("changed"));
  const auto value = link.ask(request_of_wait);
  for (const auto& buffer : buffers) {
    if (!buffer.is_written || buffer.bytes == 0 || buffer.tensor.address == nullptr) continue;
    if (buffer.is_dense)
      std::memcpy(buffer.tensor.address, link.at(buffer.offset), buffer.bytes);
    else
      copy_elements(buffer.tensor, buffer.tensor.address, link.at(buffer.offset));
  }
  give_all(link, buffers);
  return value;
}

std::int64_t take_sum(RankLink& link, std::int64_t number, Words words) {
  std::vector<RawBuffer> buffers;
  auto message = request(Request::kSum).put(static_cast<std::uint64_t>(number));
  for (int part = 0; part < 2; ++part)
    message << place(link, words.tensor(), /*is_read=*/false, /*is_written=*/true, /*is_async=*/false, buffers);
  link.ask(message);
  for (const auto& buffer : buffers) {
    if (buffer.bytes > 0) std::memcpy(buffer.tensor.address, link.at(buffer.offset), buffer.bytes);
  }
  give_all(link, buffers);
  return 0;
}

UpdateReport read_report(Words words, const char* names, std::uint64_t generator) {
  UpdateReport report{.generator = generator, .parameters = {}};
  report.parameters.resize(static_cast<std::size_t>(words.number()));
  for (auto& parameter : report.parameters) {
    parameter.name = names;
    names += parameter.name.size() + 1;
    parameter.sizes = words.list(words.number());
    parameter.state.gradient = static_cast<std::int32_t>(words.number());
    const auto tensor = words.tensor();
    parameter.state.dtype = static_cast<std::int8_t>(tensor.dtype);
    parameter.state.hash = fingerprint(tensor.address, tensor.bytes());
    if (parameter.state.gradient == kPresent)
      parameter.state.gradient_hash = static_cast<std::uint64_t>(words.number());
  }
  return report;
}

SharedArea& area_of(void* area) { return **static_cast<std::shared_ptr<SharedArea>*>(area); }

template <typename Make>
void* new_area(Make&& make) {
  return guarded([&]() -> void* { return new std::shared_ptr<SharedArea>(make()); }, nullptr);
}

}  // namespace
}  // namespace accel::process

using namespace accel::process;  // NOLINT(google-build-using-namespace): the functions below are C's

extern "C" {

ACCEL_EXPORT const char* accel_error() { return error_of_this_thread().c_str(); }

ACCEL_EXPORT void* accel_area_create(int num_ranks) {
  return new_area([&] { return SharedArea::create(num_ranks); });
}
ACCEL_EXPORT void* accel_area_attach(int descriptor) {
  return new_area([&] { return SharedArea::attach(descriptor); });
}
ACCEL_EXPORT void accel_area_close(void* area) { delete static_cast<std::shared_ptr<SharedArea>*>(area); }
ACCEL_EXPORT int accel_area_descriptor(void* area) { return area_of(area).descriptor(); }
ACCEL_EXPORT int accel_area_num_ranks(void* area) { return area_of(area).num_ranks(); }
ACCEL_EXPORT void accel_area_set_ready(void* area) {
  area_of(area).ready() = 1;
  accel::futex_wake(area_of(area).ready(), accel::FutexScope::kProcesses);
}
ACCEL_EXPORT void accel_area_set_pid(void* area, int rank, int pid) { area_of(area).channel(rank).end.pid = pid; }
ACCEL_EXPORT void accel_area_record_end(void* area, int rank, int status) { area_of(area).record_end(rank, status); }
ACCEL_EXPORT void accel_area_record_lost_ends(void* area, int status) { area_of(area).record_lost_ends(status); }

ACCEL_EXPORT int64_t accel_become(void* area, int rank) {
  return guarded(
      [&]() -> int64_t {
        const auto before = this_rank();
        accel::check_state(!is_rank(*before), "this process is rank {} already", before->rank);
        // In a forked process another thread of the parent may have held the lock of its rank, which is kept.
        if (before->link != nullptr) new std::shared_ptr<Rank>(before);
        auto self = std::make_shared<Rank>();
        self->link = std::make_shared<RankLink>(*static_cast<std::shared_ptr<SharedArea>*>(area), rank);
        self->area = *static_cast<std::shared_ptr<SharedArea>*>(area);
        self->rank = rank;
        self->process = getpid();
        self->last_number = before->last_number;  // a work of another world may still be abandoned
        watch_writes(self->link);
        current_rank().store(std::move(self));
        return 0;
      },
      ACCEL_FAILED);
}
ACCEL_EXPORT void accel_leave() {
  const auto rank = this_rank();
  if (!is_rank(*rank)) return;
  unwatch_writes();
  auto next = std::make_shared<Rank>();
  next->last_number = next_number(*rank);
  current_rank().store(std::move(next));
  rank->area->record_end(rank->rank, /*status=*/0);
}
ACCEL_EXPORT int accel_is_rank() { return is_rank(*this_rank()) ? 1 : 0; }

ACCEL_EXPORT void accel_set_num_threads(int num_threads) {
  const auto rank = this_rank();
  if (is_rank(*rank)) rank->link->set_num_threads(static_cast<std::uint32_t>(num_threads));
}

ACCEL_EXPORT int64_t accel_group(const char* name, const int64_t* ranks, int num_ranks, const char* file,
                                 uint32_t line) {
  return requested([&](Rank& rank) {
    const auto number = next_number(rank);
    rank.link->ask(request(Request::kGroup, file, line)
                       .put(static_cast<std::uint32_t>(number))
                       .put(std::string_view(name))
                       .put_list(std::vector<std::int64_t>(ranks, ranks + num_ranks)));
    return number;
  });
}
ACCEL_EXPORT int64_t accel_call(const int64_t* words, const char* file, uint32_t line) {
  return requested([&](Rank& rank) { return call(rank, Words(words), file, line); });
}
ACCEL_EXPORT int64_t accel_wait(int64_t work, const int64_t* addresses, const char* file, uint32_t line) {
  return requested([&](Rank& rank) {
    return wait(rank, work, addresses, request(Request::kWait, file, line).put(static_cast<std::uint64_t>(work)));
  });
}
ACCEL_EXPORT int64_t accel_run(const int64_t* words, const char* file, uint32_t line) {
  return requested([&](Rank& rank) {
    const auto work = call(rank, Words(words), file, line);
    return wait(rank, work, nullptr, request(Request::kWait, file, line).put(static_cast<std::uint64_t>(work)));
  });
}
ACCEL_EXPORT int64_t accel_sum(int64_t work, const int64_t* words) {
  return requested([&](Rank& rank) { return take_sum(*rank.link, work, Words(words)); });
}
ACCEL_EXPORT int64_t accel_poll(int64_t work, const char* file, uint32_t line) {
  return requested([&](Rank& rank) {
    return rank.link->ask(request(Request::kPoll, file, line).put(static_cast<std::uint64_t>(work)));
  });
}
ACCEL_EXPORT void accel_abandon(int64_t work) {
  const auto rank = this_rank();
  if (!is_rank(*rank)) return;
  const std::lock_guard lock(rank->mutex);
  if (rank->works.contains(work)) rank->abandoned.push_back(work);
}
ACCEL_EXPORT int accel_is_pending(int64_t work) {
  const auto rank = this_rank();
  if (!is_rank(*rank)) return 0;
  const std::lock_guard lock(rank->mutex);
  return rank->works.contains(work) ? 1 : 0;
}
ACCEL_EXPORT int64_t accel_touch(int64_t work, const char* how) {
  return requested([&](Rank& rank) -> int64_t {
    if (accel_is_pending(work) == 0) return 0;
    rank.link->post_before_next(
        request(Request::kTouch).put(static_cast<std::uint64_t>(work)).put(std::string_view(how)));
    return 0;
  });
}

ACCEL_EXPORT void accel_allow_changes(int64_t work) {
  const auto rank = this_rank();
  if (!is_rank(*rank)) return;
  const std::lock_guard lock(rank->mutex);
  const auto found = rank->works.find(work);
  if (found == rank->works.end()) return;
  for (auto& buffer : found->second) buffer.sample.reset();
}

ACCEL_EXPORT int64_t accel_phase(const char* name, const char* file, uint32_t line) {
  return requested([&](Rank& rank) -> int64_t {
    rank.link->post(request(Request::kPhase, file, line).put(std::string_view(name)));
    return 0;
  });
}
ACCEL_EXPORT int64_t accel_backward(double loss, const char* file, uint32_t line) {
  return requested([&](Rank& rank) { return rank.link->ask(request(Request::kBackward, file, line).put(loss)); });
}
ACCEL_EXPORT int64_t accel_update(const char* file, uint32_t line) {
  return requested([&](Rank& rank) { return rank.link->ask(request(Request::kUpdate, file, line)); });
}
// The request is made before hashing, which is not part of the program.
ACCEL_EXPORT int64_t accel_updated(const int64_t* words, const char* names, const void* generator,
                                   size_t generator_bytes, const char* file, uint32_t line) {
  return requested([&](Rank& rank) {
    auto message = request(Request::kUpdated, file, line);
    auto report = read_report(Words(words), names, accel::fingerprint(generator, generator_bytes));
    report.processor_seconds = processor_seconds();
    return rank.link->ask(message << report);
  });
}
ACCEL_EXPORT int64_t accel_end_join(const char* file, uint32_t line) {
  return requested([&](Rank& rank) { return rank.link->ask(request(Request::kEndJoin, file, line)); });
}
ACCEL_EXPORT int64_t accel_divide(const char* name, uint64_t hash, const char* file, uint32_t line) {
  return requested([&](Rank& rank) -> int64_t {
    rank.link->post_before_next(
        request(Request::kDivide).put(std::string_view(name)).put(hash).put(std::string_view(file)).put(line));
    return 0;
  });
}
ACCEL_EXPORT int64_t accel_report(const char* check, const char* text, const char* file, uint32_t line) {
  return requested([&](Rank& rank) -> int64_t {
    rank.link->post(request(Request::kWarn, file, line).put(std::string_view(check)).put(std::string_view(text)));
    return 0;
  });
}
ACCEL_EXPORT int64_t accel_fail(const char* text, const char* file, uint32_t line) {
  return requested([&](Rank& rank) -> int64_t {
    unwatch_writes();
    rank.link->post(request(Request::kFail, file, line).put(std::string_view(text)));
    return 0;
  });
}

ACCEL_EXPORT uint64_t accel_fingerprint(const void* data, size_t num_bytes) {
  return accel::fingerprint(data, num_bytes);
}
ACCEL_EXPORT uint64_t accel_sample_fingerprint(const void* data, size_t num_bytes) {
  return accel::sample_fingerprint(data, num_bytes);
}

}  // extern "C"
