#include "reference/parallel/orthogonalize.hpp"

#include <ATen/ATen.h>

#include "reference/core/errors.hpp"

namespace accel {
namespace {

void gram_schmidt(const at::Tensor& matrices, double epsilon) {
  const auto num_columns = matrices.size(2);
  for (std::int64_t place = 0; place < num_columns; ++place) {
    auto column = matrices.slice(2, place, place + 1);
    auto norm = at::linalg_vector_norm(column, 2, at::IntArrayRef{1}, /*keepdim=*/true);
    column.div_(epsilon == 0 ? norm : norm + epsilon);
    if (place + 1 == num_columns) break;
    auto rest = matrices.slice(2, place + 1);
    rest.sub_(at::sum(column * rest, at::IntArrayRef{1}, /*keepdim=*/true) * column);
  }
}

}  // namespace

void orthogonalize(at::Tensor matrices, double epsilon) {
  if (matrices.dim() == 2) matrices = matrices.unsqueeze(0);
  ensure(matrices.dim() == 3 && matrices.size(2) <= matrices.size(1),
         "matrices of more columns than rows are not orthogonalized");
  const auto rank = matrices.size(2);
  if (rank <= 2 || matrices.scalar_type() == at::kHalf || matrices.scalar_type() == at::kBFloat16)
    return gram_schmidt(matrices, epsilon);
  auto triangle = at::empty({matrices.size(0), rank, rank}, matrices.options());
  at::linalg_qr_out(matrices, triangle, matrices);
}

}  // namespace accel
