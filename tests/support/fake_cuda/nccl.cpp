// The part of NCCL that LibTorch calls, as a library to preload.
#include <cuda_runtime_api.h>
#include <nccl.h>
#include <unistd.h>

#include <cstring>
#include <random>
#include <utility>

#include "tests/support/fake_cuda/communicator.hpp"
#include "tests/support/fake_cuda/export.hpp"
#include "tests/support/fake_cuda/journal.hpp"

namespace fake = accel::testing::fake_cuda;

namespace {

fake::Communicator& communicator_of(ncclComm_t comm) { return *reinterpret_cast<fake::Communicator*>(comm); }

struct Call {
  fake::Communicator* communicator;
  fake::Stream* stream;
  fake::Operation operation;
};

thread_local int group_depth = 0;
thread_local std::vector<Call> group_calls;

bool is_transfer(const fake::Operation& operation) {
  return operation.kind == fake::OperationKind::kSend || operation.kind == fake::OperationKind::kReceive;
}

// Transfers of a group over one communicator run together; collectives run one after the other.
void enqueue_group() {
  const auto calls = std::exchange(group_calls, {});
  std::vector<Call> transfers;
  const auto send = [&] {
    if (transfers.empty()) return;
    std::vector<fake::Operation> together;
    for (const auto& call : transfers) together.push_back(call.operation);
    transfers.front().communicator->enqueue(std::move(together), *transfers.front().stream);
    transfers.clear();
  };
  for (const auto& call : calls) {
    const bool fits = transfers.empty() || transfers.front().communicator == call.communicator;
    if (!is_transfer(call.operation) || !fits) send();
    if (is_transfer(call.operation))
      transfers.push_back(call);
    else
      call.communicator->enqueue({call.operation}, *call.stream);
  }
  send();
}

ncclResult_t enqueue(ncclComm_t comm, cudaStream_t stream, const fake::Operation& operation) {
  auto& on = fake::stream_of(stream);
  fake::log("nccl " + fake::name_of(operation) + " of " + std::to_string(operation.count) + " on device " +
            std::to_string(on.device()));
  if (on.device() != fake::current_device()) return ncclInvalidUsage;
  if (!is_transfer(operation)) fake::count_collective();
  group_calls.push_back({&communicator_of(comm), &on, operation});
  if (group_depth == 0) enqueue_group();
  return ncclSuccess;
}

const char* in(const void* pointer) { return static_cast<const char*>(pointer); }
char* out(void* pointer) { return static_cast<char*>(pointer); }

}  // namespace

FAKE_CUDA_EXPORT ncclResult_t ncclGetVersion(int* version) { return *version = NCCL_VERSION_CODE, ncclSuccess; }
FAKE_CUDA_EXPORT ncclResult_t ncclGetUniqueId(ncclUniqueId* id) {
  std::random_device random;
  const auto text = "/fake_nccl_" + std::to_string(getpid()) + "_" + std::to_string(random());
  *id = {};
  std::strncpy(id->internal, text.c_str(), sizeof(id->internal) - 1);
  return ncclSuccess;
}
FAKE_CUDA_EXPORT ncclResult_t ncclCommInitRankConfig(ncclComm_t* comm, int size, ncclUniqueId id, int rank,
                                                     ncclConfig_t* /*config*/) {
  fake::log("nccl init of rank " + std::to_string(rank) + " of " + std::to_string(size) + " on device " +
            std::to_string(fake::current_device()));
  *comm = reinterpret_cast<ncclComm_t>(new fake::Communicator(id.internal, rank, size));
  return ncclSuccess;
}
FAKE_CUDA_EXPORT ncclResult_t ncclCommInitRank(ncclComm_t* comm, int size, ncclUniqueId id, int rank) {
  return ncclCommInitRankConfig(comm, size, id, rank, nullptr);
}
FAKE_CUDA_EXPORT ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t* error) {
  return *error = communicator_of(comm).error(), ncclSuccess;
}
FAKE_CUDA_EXPORT ncclResult_t ncclCommAbort(ncclComm_t comm) {
  fake::log("nccl abort");
  return communicator_of(comm).abort(), ncclSuccess;
}
FAKE_CUDA_EXPORT ncclResult_t ncclCommFinalize(ncclComm_t comm) {
  fake::log("nccl finalize");
  return communicator_of(comm).finish(), ncclSuccess;
}
// A communicator is not deleted: its thread may still read it.
FAKE_CUDA_EXPORT ncclResult_t ncclCommDestroy(ncclComm_t comm) {
  fake::log("nccl destroy");
  return communicator_of(comm).finish(), ncclSuccess;
}
FAKE_CUDA_EXPORT ncclResult_t ncclCommCount(const ncclComm_t comm, int* size) {
  return *size = communicator_of(comm).size(), ncclSuccess;
}
FAKE_CUDA_EXPORT ncclResult_t ncclCommUserRank(const ncclComm_t comm, int* rank) {
  return *rank = communicator_of(comm).rank(), ncclSuccess;
}
FAKE_CUDA_EXPORT ncclResult_t ncclGroupStart() { return ++group_depth, ncclSuccess; }
FAKE_CUDA_EXPORT ncclResult_t ncclGroupEnd() {
  if (--group_depth == 0) enqueue_group();
  return ncclSuccess;
}
FAKE_CUDA_EXPORT ncclResult_t ncclAllReduce(const void* input, void* output, std::size_t count, ncclDataType_t type,
                                            ncclRedOp_t reduction, ncclComm_t comm, cudaStream_t stream) {
  return enqueue(comm, stream, {fake::OperationKind::kAllReduce, in(input), out(output), count, type, reduction});
}
FAKE_CUDA_EXPORT ncclResult_t ncclReduce(const void* input, void* output, std::size_t count, ncclDataType_t type,
                                         ncclRedOp_t reduction, int root, ncclComm_t comm, cudaStream_t stream) {
  return enqueue(comm, stream, {fake::OperationKind::kReduce, in(input), out(output), count, type, reduction, root});
}
FAKE_CUDA_EXPORT ncclResult_t ncclBroadcast(const void* input, void* output, std::size_t count, ncclDataType_t type,
                                            int root, ncclComm_t comm, cudaStream_t stream) {
  return enqueue(comm, stream, {fake::OperationKind::kBroadcast, in(input), out(output), count, type, ncclSum, root});
}
FAKE_CUDA_EXPORT ncclResult_t ncclBcast(void* buffer, std::size_t count, ncclDataType_t type, int root, ncclComm_t comm,
                                        cudaStream_t stream) {
  return ncclBroadcast(buffer, buffer, count, type, root, comm, stream);
}
FAKE_CUDA_EXPORT ncclResult_t ncclAllGather(const void* input, void* output, std::size_t count, ncclDataType_t type,
                                            ncclComm_t comm, cudaStream_t stream) {
  return enqueue(comm, stream, {fake::OperationKind::kAllGather, in(input), out(output), count, type});
}
FAKE_CUDA_EXPORT ncclResult_t ncclReduceScatter(const void* input, void* output, std::size_t count, ncclDataType_t type,
                                                ncclRedOp_t reduction, ncclComm_t comm, cudaStream_t stream) {
  return enqueue(comm, stream, {fake::OperationKind::kReduceScatter, in(input), out(output), count, type, reduction});
}
FAKE_CUDA_EXPORT ncclResult_t ncclAlltoAll(const void* input, void* output, std::size_t count, ncclDataType_t type,
                                           ncclComm_t comm, cudaStream_t stream) {
  return enqueue(comm, stream, {fake::OperationKind::kAllToAll, in(input), out(output), count, type});
}
FAKE_CUDA_EXPORT ncclResult_t ncclSend(const void* input, std::size_t count, ncclDataType_t type, int peer,
                                       ncclComm_t comm, cudaStream_t stream) {
  return enqueue(comm, stream, {fake::OperationKind::kSend, in(input), nullptr, count, type, ncclSum, peer});
}
FAKE_CUDA_EXPORT ncclResult_t ncclRecv(void* output, std::size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                                       cudaStream_t stream) {
  return enqueue(comm, stream, {fake::OperationKind::kReceive, nullptr, out(output), count, type, ncclSum, peer});
}
FAKE_CUDA_EXPORT ncclResult_t ncclMemAlloc(void** pointer, std::size_t bytes) {
  return cudaMalloc(pointer, bytes) == cudaSuccess ? ncclSuccess : ncclUnhandledCudaError;
}
FAKE_CUDA_EXPORT ncclResult_t ncclMemFree(void* pointer) { return cudaFree(pointer), ncclSuccess; }
FAKE_CUDA_EXPORT const char* ncclGetErrorString(ncclResult_t error) {
  switch (error) {
    case ncclSuccess: return "no error";
    case ncclInvalidUsage: return "invalid usage";
    case ncclRemoteError: return "remote process exited or there was a network error";
    default: return "error of the simulated NCCL";
  }
}
FAKE_CUDA_EXPORT const char* ncclGetLastError(ncclComm_t) { return ""; }
