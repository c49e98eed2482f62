#include "backends/process/process_backend.hpp"

#include <ATen/ATen.h>

#include <atomic>
#include <cstring>
#include <numeric>

#include "backends/process/pending_works.hpp"
#include "reference/comm/tensor_fingerprint.hpp"
#include "reference/core/errors.hpp"

namespace accel::process {
namespace {

// Of this process; a work or a group is named by its number.
std::uint64_t next_number() {
  static std::atomic<std::uint64_t> last{0};
  return ++last;
}

constexpr std::size_t kAbandonedMax = 16;  // works that were never waited for, before their memory is looked after

// A sparse result is no buffer: only its parts are exchanged.
std::vector<UsedMemory> memory_of(const std::vector<Buffer>& buffers, const ProcessWork::Results& results) {
  std::vector<UsedMemory> memory;
  for (const auto& list : results) {
    if (!list.empty() && list.front().layout() == at::kSparse) memory = used_memory(list, /*are_written=*/true);
  }
  for (const auto& buffer : buffers) {
    for (auto& used : used_memory({buffer.tensor}, buffer.is_written)) memory.push_back(std::move(used));
  }
  return memory;
}

int kind_of(const c10d::ReduceOp& op) { return static_cast<int>(static_cast<c10d::ReduceOp::RedOpType>(op)); }

}  // namespace

ProcessBackend::ProcessBackend(std::shared_ptr<RankLink> link, std::shared_ptr<const ProgramHooks> hooks, int rank,
                               int size)
    : CollectiveBackend(rank, size), link_(std::move(link)), hooks_(std::move(hooks)) {}

void ProcessBackend::set_group(std::string name, std::vector<int> ranks) {
  name_ = std::move(name);
  ranks_ = std::move(ranks);
}

// PyTorch fills in the options after the constructor; no ranks mean all of them.
std::uint32_t ProcessBackend::group() {
  if (group_ != 0) return group_;
  if (name_.empty()) {
    for (const auto rank : options_->global_ranks_in_group) ranks_.push_back(static_cast<int>(rank));
    name_ = options_->group_name;
  }
  if (ranks_.empty()) {
    ranks_.resize(getSize());
    std::iota(ranks_.begin(), ranks_.end(), 0);
  }
  // The name of the default group in PyTorch is a number.
  const bool is_world = getSize() == link_->num_ranks() && (name_.empty() || name_ == "0");
  const auto number = static_cast<std::uint32_t>(next_number());
  link_->ask(begin_request(Request::kGroup, *hooks_)
                 .put(number)
                 .put(is_world ? std::string_view("world") : std::string_view(name_))
                 .put_list(ranks_));
  return group_ = number;
}

PlacedTensor ProcessBackend::place(const at::Tensor& tensor, bool is_read, bool is_written, bool is_async,
                                   std::vector<Buffer>& buffers) const {
  check_argument(
      tensor.layout() == at::kStrided,
      "expected a dense tensor, got a {} one; only all_reduce accepts sparse tensors (COO), as with Gloo; call "
      "tensor.to_dense()",
      c10::str(tensor.layout()));
  check_argument(tensor.device().is_cpu(), "a rank that is a process exchanges tensors of the CPU, got one on {}",
                 tensor.device().str());
  auto placed = take_place(*link_, tensor);
  // A tensor with gaps is also read where it is written: the bytes between its elements go there and back.
  if (is_read || !tensor.is_non_overlapping_and_dense())
    std::memcpy(link_->at(placed.offset), tensor.const_data_ptr(), placed.bytes);
  buffers.push_back({.tensor = tensor,
                     .offset = placed.offset,
                     .bytes = placed.bytes,
                     .is_written = is_written,
                     .sample = is_async ? sample_fingerprint(tensor) : 0});
  return placed;
}

ProcessBackend::WorkPtr ProcessBackend::start(CollectiveArgs args) {
  Operation operation{.collective = args.collective,
                      .group = group(),
                      .reduce_op = kind_of(args.reduce_op),
                      .root = args.root,
                      .tag = args.tag,
                      .is_in_gloo = is_in_gloo(args.collective),
                      .is_sparse = is_sparse(args),
                      .input_splits = args.input_splits,
                      .output_splits = args.output_splits};
  if (link_->num_abandoned() >= kAbandonedMax) free_abandoned(*link_, *hooks_);
  auto results = results_of(args);
  const auto type = op_type_of(args);
  bool are_inputs_written = writes_inputs(args.collective, args.root, getRank());
  if (operation.is_sparse) {
    const auto sum = args.inputs.front().detach().coalesce();
    operation.sizes = sum.sizes().vec();
    args.inputs = {sum.indices(), sum.values()};
    are_inputs_written = false;  // the work fetches the sum
  }
  std::vector<Buffer> buffers;
  try {
    for (const auto& tensor : args.inputs)
      operation.inputs.push_back(place(tensor, /*is_read=*/true, are_inputs_written, args.is_async, buffers));
    for (const auto& tensor : args.outputs)
      operation.outputs.push_back(place(tensor, /*is_read=*/false, /*is_written=*/true, args.is_async, buffers));
  } catch (...) {
    for (const auto& buffer : buffers) link_->give(buffer.offset);
    throw;
  }
  const bool averages = traits_of(args.collective).reduces && args.reduce_op == c10d::ReduceOp::AVG;
  for (auto& buffer : buffers) {
    if (averages && buffer.is_written && buffer.tensor.is_complex()) buffer.divisor = getSize();
  }
  auto memory = memory_of(buffers, results);
  pending_works::check(memory, c10d::opTypeToString(type));
  ++sequence_;
  const auto number = next_number();
  auto message = begin_request(Request::kCall, *hooks_).put(number);
  message << operation;
  // A call that is not asynchronous waits at once: the proxy is woken once for both.
  args.is_async ? link_->post(message) : link_->post_before_next(message);
  auto work = c10::make_intrusive<ProcessWork>(link_, hooks_, number, type, std::move(buffers), std::move(results));
  if (args.is_async) pending_works::add(link_, number, std::move(memory));
  return work;
}

}  // namespace accel::process
