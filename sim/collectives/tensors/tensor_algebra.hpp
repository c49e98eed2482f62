#pragma once

/// What the functions of collectives need of a kind of tensor, beside its methods sizes, size, dim, numel,
/// element_size, nbytes, scalar_type, is_contiguous and is_non_overlapping_and_dense. Specialised for HostTensor and,
/// in sim/backend, for at::Tensor:
///
///     Unobserved                     scope in which operations are not the program's
///     is_on_host, is_sparse, data    of the tensor
///     as_real                        a complex tensor as pairs of real numbers
///     in_memory_order                a view of a dense tensor as a vector, in the order of memory
///     host_contiguous, host_clone    on the host, contiguous: the tensor itself if it is so, or a copy
///     empty_like                     contiguous, on the host
///     joined                         the elements of several tensors in one vector on the host
///     view, reshape                  other sizes; reshape copies if it must
///     rows                           a view of rows begin to end - 1
///     copy                           all elements, as copy_; copy_bytes keeps a bool that is neither 0 nor 1
///     coalesced, copy_of             a sparse tensor without duplicates; a copy with the same layout
///     parts_of                       views of `count` equal parts, each with the sizes of `part` if possible
///     divide                         in place, as div_
///     nans_of                        per element, in logical order
///     sum_sparse, assign_sparse      of coalesced tensors, in order; replaces the entries of a tensor
///
/// Thread rule: as at::Tensor.
namespace accel::sim {

template <typename Tensor>
struct TensorAlgebra;

}  // namespace accel::sim
