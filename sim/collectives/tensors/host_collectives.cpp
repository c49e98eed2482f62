// The collectives of ranks that are processes. An instantiation, since HostTensor needs no LibTorch.
#include "sim/collectives/tensors/collectives_of.hpp"
#include "sim/collectives/tensors/host_tensor.hpp"

namespace accel::sim {

template std::vector<SplitMismatch> split_mismatches(Collective, AllBuffersOf<HostTensor>);
template void compute(const CollectiveOfAll&, AllBuffersOf<HostTensor>, const ParallelFor&);
template std::vector<bool> nans_of_result(const CollectiveOfAll&, AllBuffersOf<HostTensor>, std::size_t);

}  // namespace accel::sim
