#include "sim/ranks/backend_rules.hpp"

#include <fmt/ranges.h>

#include "reference/comm/dtypes.hpp"
#include "reference/core/errors.hpp"

namespace accel::sim {
namespace {

enum class Dtypes {
  kNumbers,            // those that the library has
  kNumbersAndComplex,  // complex numbers are sent and summed as pairs
  kAll                 // bytes are sent, without a look at the dtype
};

enum class Memory {
  kAny,
  kDense,        // each element of a block once, in any order; the order must be equal on all ranks
  kNotPermuted,  // contiguous, or with gaps, which are copied first; a dense tensor is read in the order of memory
  kContiguous,
};

struct Rule {
  Dtypes dtypes;
  Memory input = Memory::kAny, output = Memory::kAny;
};

Rule gloo_rule(Collective op) {
  switch (op) {
    case Collective::kAllReduce:
    case Collective::kBroadcast:
    case Collective::kReduce: return {Dtypes::kNumbersAndComplex, Memory::kDense};
    case Collective::kAllReduceCoalesced: return {Dtypes::kNumbersAndComplex};
    case Collective::kAllGather:
    case Collective::kAllGatherIntoTensor:
    case Collective::kAllGatherCoalesced:
    case Collective::kAllGatherIntoTensorCoalesced:
    case Collective::kGather:
    case Collective::kAllToAll: return {Dtypes::kNumbers};
    case Collective::kScatter:
    case Collective::kAllToAllSingle: return {Dtypes::kNumbers, Memory::kContiguous, Memory::kContiguous};
    case Collective::kReduceScatter: return {Dtypes::kNumbersAndComplex, Memory::kNotPermuted, Memory::kContiguous};
    case Collective::kReduceScatterTensor: return {Dtypes::kNumbersAndComplex};
    case Collective::kSend:
    case Collective::kRecv: return {Dtypes::kAll, Memory::kContiguous, Memory::kContiguous};
    case Collective::kBarrier:
    case Collective::kMonitoredBarrier:
    case Collective::kCount: break;
  }
  return {Dtypes::kAll};
}

// ProcessGroupNCCL checks that tensors are contiguous in their own memory format. It has no bitwise reductions, but
// tensors that the program has copied to the CPU are reduced by Gloo, and here all tensors are on the CPU.
Rule nccl_rule(Collective op) {
  const auto rule = gloo_rule(op);
  if (traits_of(op).is_in_place) return {rule.dtypes, Memory::kDense};
  return {Dtypes::kNumbers, Memory::kContiguous, Memory::kContiguous};
}

Rule rule_of(Library library, Collective op) { return library == Library::kNccl ? nccl_rule(op) : gloo_rule(op); }

std::string_view name_of(Library library) { return library == Library::kNccl ? "NCCL" : "Gloo"; }

bool is_number_of(Library library, c10::ScalarType dtype) {
  switch (dtype) {
    case c10::ScalarType::Float8_e5m2:
    case c10::ScalarType::Float8_e4m3fn:
    case c10::ScalarType::Float8_e5m2fnuz:
    case c10::ScalarType::Float8_e4m3fnuz: return library == Library::kNccl;
    default: return is_exchanged(dtype);
  }
}

bool accepts(Library library, Dtypes dtypes, c10::ScalarType dtype) {
  switch (dtypes) {
    case Dtypes::kNumbers: return is_number_of(library, dtype);
    case Dtypes::kNumbersAndComplex: return is_number_of(library, dtype) || is_complex(dtype);
    case Dtypes::kAll: break;
  }
  return true;
}

bool accepts(Memory memory, const TensorDescription& tensor) {
  switch (memory) {
    case Memory::kAny: break;
    case Memory::kDense: return tensor.is_dense;
    case Memory::kNotPermuted: return tensor.is_contiguous || !tensor.is_dense;
    case Memory::kContiguous: return tensor.is_contiguous;
  }
  return true;
}

void check(Library library, Collective op, Memory memory, const TensorDescription& tensor) {
  const auto dtypes = rule_of(library, op).dtypes;
  check_argument(accepts(library, dtypes, tensor.dtype),
                 "{}: {} does not support dtype {}; expected float16, bfloat16, float32, float64, int8, uint8, int32, "
                 "int64{} or bool; convert the tensor, or send its bytes: tensor.view(uint8)",
                 accel::name_of(op), name_of(library), dtype_name(tensor.dtype),
                 dtypes == Dtypes::kNumbersAndComplex ? ", complex" : "");
  const bool is_strided = tensor.layout == "Strided";
  check_argument(is_strided || (tensor.sparse_dim > 0 && op == Collective::kAllReduce),
                 "{}: expected a dense tensor, got a {} one; only all_reduce accepts sparse tensors (COO), as with "
                 "Gloo; call tensor.to_dense()",
                 accel::name_of(op), tensor.layout);
  check_argument(!is_strided || accepts(memory, tensor),
                 "{}: the {} tensor of shape [{}] {}, and {} would refuse it or exchange the wrong elements; pass "
                 "tensor.contiguous()",
                 accel::name_of(op), dtype_name(tensor.dtype), fmt::join(tensor.sizes, ", "),
                 tensor.is_dense ? "is not contiguous" : "has gaps or overlapping elements", name_of(library));
}

}  // namespace

void check_supported(Library library, Collective op, bool is_in_gloo) {
  check_argument(library != Library::kGloo || is_in_gloo,
                 "{}: Gloo has it from torch 2.12 on; use all_to_all_single, with split sizes for parts of different "
                 "sizes",
                 accel::name_of(op));
}

void check_accepted_peer(Library library, Collective op, int peer, int rank) {
  check_argument(library != Library::kGloo || !is_message(op) || peer != rank,
                 "{}: rank {} is the caller itself, which Gloo does not support; copy the tensor instead",
                 accel::name_of(op), rank);
}

void check_accepted_parts(Library library, Collective op, const std::vector<TensorDescription>& inputs,
                          const std::vector<TensorDescription>& outputs) {
  if (library != Library::kGloo || op != Collective::kAllToAll) return;
  for (const auto* tensors : {&inputs, &outputs}) {
    for (const auto& tensor : *tensors) {
      check_argument(tensor.sizes == inputs.front().sizes,
                     "{}: got tensors of shapes [{}] and [{}]; Gloo expects one shape; use all_to_all_single, with "
                     "split sizes for parts of different sizes",
                     accel::name_of(op), fmt::join(inputs.front().sizes, ", "), fmt::join(tensor.sizes, ", "));
    }
  }
}

void check_accepted(Library library, Collective op, const std::vector<TensorDescription>& inputs) {
  for (const auto& input : inputs) check(library, op, rule_of(library, op).input, input);
}

void check_accepted_output(Library library, Collective op, const TensorDescription& output) {
  check(library, op, rule_of(library, op).output, output);
}

void check_accepted_reduction(Library library, Collective op, std::string_view reduce_op, c10::ScalarType dtype) {
  const bool is_pair = is_complex(dtype);
  check_argument(!is_pair || reduce_op == "sum" || (reduce_op == "mean" && dtype != c10::ScalarType::ComplexHalf),
                 "{}: {} has no {} of dtype {}; expected a sum", accel::name_of(op), name_of(library), reduce_op,
                 dtype_name(dtype));
  check_argument(reduce_op != "mean" || is_floating(dtype) || is_pair,
                 "{}: mean: got dtype {}, which cannot store the quotient; expected a floating dtype",
                 accel::name_of(op), dtype_name(dtype));
  check_argument(!reduce_op.starts_with('b') || is_integer(dtype),
                 "{}: bitwise reductions (band, bor, bxor) require an integer dtype, got {}", accel::name_of(op),
                 dtype_name(dtype));
}

}  // namespace accel::sim
