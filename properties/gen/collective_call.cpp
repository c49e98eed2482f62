// Random collectives and their execution through c10d's C++ interface, the one that DDP and FSDP use. Both backends
// run the same calls. An operation that is missing here is not compared with Gloo.
#include "properties/gen/collective_call.hpp"

#include <fmt/format.h>

#include <cstring>
#include <iterator>

#include "reference/core/errors.hpp"
#include "tests/support/property.hpp"

namespace accel::testing {
namespace {

using Tensors = std::vector<at::Tensor>;

constexpr const char* kNames[] = {"all_reduce",
                                  "all_reduce_coalesced",
                                  "reduce",
                                  "broadcast",
                                  "all_gather",
                                  "all_gather_into_tensor",
                                  "all_gather_coalesced",
                                  "gather",
                                  "scatter",
                                  "reduce_scatter",
                                  "reduce_scatter_tensor",
                                  "all_to_all_single",
                                  "all_to_all_uneven",
                                  "send_recv",
                                  "barrier"};
static_assert(std::size(kNames) == static_cast<std::size_t>(Op::kCount));

// Returns the values of one rank. They depend on the seed and the stream only, so every backend gets the same
// inputs.
at::Tensor values(const CollectiveCall& call, std::int64_t numel, int stream) {
  auto generator = make_generator(call.seed * 1000 + static_cast<std::uint64_t>(stream));
  if (call.dtype == at::kBool) return at::randint(0, 2, {numel}, generator, at::kLong).to(at::kBool);
  // Products of values up to 100 overflow int8 on purpose: wrap-around must match Gloo's too.
  if (!c10::isFloatingType(call.dtype)) return at::randint(-100, 100, {numel}, generator, at::kLong).to(call.dtype);
  auto tensor = at::randn({numel}, generator, at::kDouble);
  if (call.special_values && numel > 0) {
    // About one element in eight becomes special, so that most sums keep finite elements as well.
    const auto kind = at::randint(0, 40, {numel}, generator, at::kLong);
    tensor.masked_fill_(kind == 0, std::numeric_limits<double>::infinity());
    tensor.masked_fill_(kind == 1, -std::numeric_limits<double>::infinity());
    tensor.masked_fill_(kind == 2, std::numeric_limits<double>::quiet_NaN());
    tensor.masked_fill_(kind == 3, 0.0);
    tensor.masked_fill_(kind == 4, 1e-7);  // subnormal in float16, where conversions may flush to zero
  }
  return tensor.to(call.dtype);
}

}  // namespace

const char* name_of(Op op) { return kNames[static_cast<int>(op)]; }

std::string describe(const CollectiveCall& call) {
  return fmt::format("{}({} elements of {}, reduction {}, root {}, seed {}{})", name_of(call.op), call.numel,
                     c10::toString(call.dtype), static_cast<int>(call.reduction), call.root, call.seed,
                     call.special_values ? ", special values" : "");
}

rc::Gen<CollectiveCall> collective_call(int num_ranks, std::int64_t max_numel) {
  return rc::gen::exec([=] {
    CollectiveCall call;
    // One more quarter of all calls are all-reduces: the other operations copy, or are built on the same ring.
    call.op = one_in(4) ? Op::kAllReduce : static_cast<Op>(pick(0, static_cast<int>(Op::kCount)));
    call.dtype = pick_from(
        {at::kFloat, at::kDouble, at::kHalf, at::kBFloat16, at::kChar, at::kByte, at::kBool, at::kInt, at::kLong});
    using R = c10d::ReduceOp;
    const bool floating = c10::isFloatingType(call.dtype);
    call.reduction = floating ? pick_from({R::SUM, R::PRODUCT, R::MIN, R::MAX, R::AVG})
                              : pick_from({R::SUM, R::PRODUCT, R::MIN, R::MAX, R::BAND, R::BOR, R::BXOR});
    // Sizes around multiples of the number of ranks decide how Gloo cuts chunks, and some chunks may be empty.
    const std::int64_t ranks = num_ranks;
    switch (pick(0, 8)) {
      case 0:
      case 1: call.numel = pick_from<std::int64_t>({1, 2, 3, ranks, 2 * ranks - 1, 2 * ranks, 2 * ranks + 1}); break;
      case 2: call.numel = pick<std::int64_t>(5000, 60000); break;
      default: call.numel = pick<std::int64_t>(1, 5000);
    }
    call.numel = std::min(call.numel, max_numel);
    call.root = pick(0, num_ranks);
    call.seed = pick<std::uint64_t>(0, 1000000);
    // AVG divides on the backend, and the sign of a NaN is then the compiler's choice.
    call.special_values = floating && call.reduction != R::AVG && one_in(4);
    return call;
  });
}

// Makes the call on one rank, with inputs that depend on the seed and the rank, and returns everything that it
// writes.
Tensors perform(const CollectiveCall& call, const RankContext& rank) {
  auto& group = *rank.world.process_group();
  const int me = rank.rank, ranks = rank.world_size;
  const auto n = call.numel;
  const auto empty = [&](std::int64_t numel) { return at::zeros({numel}, call.dtype); };
  const auto list = [&](int count) {
    Tensors tensors;
    // Streams of one rank are 100 apart: at most 64 tensors per rank are used.
    for (int i = 0; i < count; ++i) tensors.push_back(values(call, n, me * 100 + i));
    return tensors;
  };
  const auto outputs = [&](int count) {
    Tensors tensors;
    for (int i = 0; i < count; ++i) tensors.push_back(empty(n));
    return tensors;
  };
  Tensors in{values(call, n, me)};
  switch (call.op) {
    case Op::kAllReduce: {
      c10d::AllreduceOptions options;
      options.reduceOp = call.reduction;
      group.allreduce(in, options)->wait();
      // All operations return what they wrote, inputs included where Gloo uses them as work space.
      return in;
    }
    case Op::kAllReduceCoalesced: {
      auto tensors = list(3);
      c10d::AllreduceCoalescedOptions options;
      options.reduceOp = call.reduction;
      group.getBackend(c10::DeviceType::CPU)->allreduce_coalesced(tensors, options)->wait();
      return tensors;
    }
    case Op::kReduce: {
      c10d::ReduceOptions options;
      options.reduceOp = call.reduction;
      options.rootRank = call.root;
      group.reduce(in, options)->wait();
      // The buffers of other ranks are compared too, because the simulator copies Gloo's partial sums.
      return in;
    }
    case Op::kBroadcast: {
      c10d::BroadcastOptions options;
      options.rootRank = call.root;
      group.broadcast(in, options)->wait();
      return in;
    }
    case Op::kAllGather: {
      std::vector<Tensors> out{outputs(ranks)};
      group.allgather(out, in)->wait();
      return out[0];
    }
    case Op::kAllGatherIntoTensor: {
      auto out = empty(n * ranks);
      group.getBackend(c10::DeviceType::CPU)->_allgather_base(out, in[0])->wait();
      return {out};
    }
    case Op::kAllGatherCoalesced: {
      auto inputs = list(2);
      std::vector<Tensors> out;
      for (int i = 0; i < ranks; ++i) out.push_back(outputs(2));
      group.getBackend(c10::DeviceType::CPU)->allgather_coalesced(out, inputs)->wait();
      Tensors all;
      for (auto& tensors : out) all.insert(all.end(), tensors.begin(), tensors.end());
      return all;
    }
    case Op::kGather: {
      std::vector<Tensors> out;
      if (me == call.root) out.push_back(outputs(ranks));
      c10d::GatherOptions options;
      options.rootRank = call.root;
      group.gather(out, in, options)->wait();
      return out.empty() ? in : out[0];
    }
    case Op::kScatter: {
      auto out = outputs(1);
      std::vector<Tensors> inputs;
      if (me == call.root) inputs.push_back(list(ranks));
      c10d::ScatterOptions options;
      options.rootRank = call.root;
      group.scatter(out, inputs, options)->wait();
      return out;
    }
    case Op::kReduceScatter: {
      auto out = outputs(1);
      std::vector<Tensors> inputs{list(ranks)};
      c10d::ReduceScatterOptions options;
      options.reduceOp = call.reduction;
      group.getBackend(c10::DeviceType::CPU)->reduce_scatter(out, inputs, options)->wait();
      return out;
    }
    case Op::kReduceScatterTensor: {
      auto out = empty(n);
      auto input = values(call, n * ranks, me);
      c10d::ReduceScatterOptions options;
      options.reduceOp = call.reduction;
      group.getBackend(c10::DeviceType::CPU)->_reduce_scatter_base(out, input, options)->wait();
      // The input is returned too, because it must stay unchanged.
      return {out, input};
    }
    case Op::kAllToAllSingle: {
      auto out = empty(n * ranks);
      auto input = values(call, n * ranks, me);
      std::vector<std::int64_t> even_out, even_in;
      group.alltoall_base(out, input, even_out, even_in)->wait();
      return {out};
    }
    case Op::kAllToAllUneven: {  // rank r sends (r + s) % 3 + 1 rows to rank s, symmetric in r and s
      std::vector<std::int64_t> splits;
      std::int64_t rows = 0;
      for (int other = 0; other < ranks; ++other) rows += splits.emplace_back((me + other) % 3 + 1);
      auto input = values(call, rows, me);
      auto out = empty(rows);
      auto splits_in = splits;
      group.alltoall_base(out, input, splits, splits_in)->wait();
      return {out};
    }
    case Op::kSendRecv: {  // one step around the ring
      auto out = outputs(1);
      auto sent = group.send(in, (me + 1) % ranks, /*tag=*/7);
      group.recv(out, (me + ranks - 1) % ranks, /*tag=*/7)->wait();
      sent->wait();
      return out;
    }
    case Op::kBarrier: group.getDefaultBackend()->barrier()->wait(); return {};  // see Group::barrier
    case Op::kCount: break;
  }
  throw InternalError("an operation has no case");
}

// NaNs may differ in their bits, since processors choose them freely; everything else must be equal.
bool same_bytes(const at::Tensor& a, const at::Tensor& b) {
  if (a.scalar_type() != b.scalar_type() || a.sizes() != b.sizes()) return false;
  const auto x = a.contiguous(), y = b.contiguous();
  if (std::memcmp(x.const_data_ptr(), y.const_data_ptr(), x.nbytes()) == 0) return true;
  // The slow path only accepts NaNs on both sides. All other elements must still match in every byte, also -0.0 and
  // 0.0.
  if (!a.is_floating_point()) return false;
  const auto as_bytes = [](const at::Tensor& tensor) {
    return tensor.view(at::kByte).view({tensor.numel(), tensor.element_size()});
  };
  const auto equal = (as_bytes(x) == as_bytes(y)).all(1).view(x.sizes());
  return equal.logical_or(x.isnan().logical_and(y.isnan())).all().item<bool>();
}

void showValue(const CollectiveCall& call, std::ostream& out) { out << describe(call); }

}  // namespace accel::testing
