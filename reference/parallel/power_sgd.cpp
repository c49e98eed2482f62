#include "reference/parallel/power_sgd.hpp"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>

#include "reference/core/errors.hpp"
#include "reference/parallel/comm_hook.hpp"
#include "reference/rank_local/random.hpp"

namespace accel {
namespace {

// Note [PowerSGD waits]
// Python's hook starts the second and third all-reduce of a step from callbacks of the first. On Gloo these run on
// Gloo's threads: with several buckets, ranks may start them in different orders, and callbacks that wait for each
// other exhaust Gloo's two threads. Here the rank's thread waits between the stages, so every rank follows the order of
// the buckets, and a simulated rank calls its collectives on its own thread. The numbers are the same. During warm-up,
// and in other hooks, nothing waits before the end of backward.

// Tensors of one shape, in the order in which the shapes first occurred.
struct SameShape {
  std::vector<at::Tensor> tensors;
};

// A unit of compression: one gradient tensor, or a stack of several of one shape, with its P and Q.
struct Factored {
  at::Tensor tensor, p, q;               // (batch, n, m), (batch, n, rank), (batch, m, rank)
  const SameShape* originals = nullptr;  // set for a stack, which is a copy: see decompress
};

struct Sizes {
  std::int64_t n, m, rank;
};

// A bucket's gradients, split into those that are sent unchanged and those that are compressed.
struct SortedGradients {
  std::vector<at::Tensor> plain = {};
  std::vector<SameShape> shapes = {};
  std::int64_t size_of_ps = 0, size_of_qs = 0;
};

class PowerSGDHook : public CommHook {
 public:
  PowerSGDHook(const PowerSGDOptions& options, const Group& group) : state_(options, group) {}

  BucketReduction reduce(c10d::GradBucket& bucket) override {
    auto buffer = bucket.getBuffer();
    if (state_.is_warming_up()) {
      state_.count_step(bucket);
      return reduce_plainly(state_.group, buffer);
    }
    const auto before = state_.add_error(bucket, buffer);
    // The order of stages is that of powerSGD_hook, and so are the three collectives (uncompressed gradients, Ps, Qs):
    // random numbers, sums and error feedback depend on it.
    const auto gradients = sorted(bucket);
    const bool are_new = state_.make_factors(bucket, buffer, {gradients.size_of_ps}, {gradients.size_of_qs});
    auto& all_ps = state_.ps[bucket.getIndex()];
    auto& all_qs = state_.qs[bucket.getIndex()];
    const auto parts = factored(gradients.shapes, all_ps, all_qs);
    begin_qs(parts, are_new);
    compute_ps(parts);
    average_plain(gradients.plain, buffer.options());
    state_.sum(all_ps);
    for (const auto& part : parts) orthogonalize(part.p, state_.options.orthogonalization_epsilon);
    compute_qs(parts);
    state_.sum(all_qs);
    // Only Q is divided: P was orthonormalized, so the scale of its sum does not matter.
    all_qs.div_(state_.group.size());
    for (const auto& part : parts) decompress(part);
    state_.keep_error(bucket, before, buffer);
    state_.end_step(bucket);
    return {.sent = buffer};
  }

 private:
  [[nodiscard]] Sizes sizes_of(const at::Tensor& matrix) const {
    const auto n = matrix.size(-2), m = matrix.size(-1);
    return {n, m, std::min<std::int64_t>({n, m, state_.options.matrix_approximation_rank})};
  }

  // Biases and other vectors never are: as an (n, 1) matrix they have rank 1, and P alone is as large as they are.
  [[nodiscard]] bool is_worth_compressing(std::int64_t n, std::int64_t m, std::int64_t rank) const {
    return static_cast<double>((n + m) * rank) * state_.options.min_compression_rate < static_cast<double>(n * m);
  }

  // The buffer's slices are views, so writing the gradients later writes the bucket.
  [[nodiscard]] SortedGradients sorted(c10d::GradBucket& bucket) const {
    SortedGradients gradients;
    for (const auto& gradient : bucket.getGradients()) {
      if (gradient.numel() == 0) {  // has no second size to infer; Python's hook fails
        gradients.plain.push_back(gradient);
        continue;
      }
      const auto matrix = gradient.dim() == 0 ? gradient.view({1, 1}) : gradient.view({gradient.size(0), -1});
      const auto [n, m, rank] = sizes_of(matrix);
      if (!is_worth_compressing(n, m, rank)) {
        gradients.plain.push_back(gradient);
        continue;
      }
      gradients.size_of_ps += n * rank;
      gradients.size_of_qs += m * rank;
      add(gradients.shapes, matrix);
    }
    return gradients;
  }

  static void add(std::vector<SameShape>& shapes, const at::Tensor& matrix) {
    auto place = std::find_if(shapes.begin(), shapes.end(),
                              [&](const auto& shape) { return shape.tensors.front().sizes() == matrix.sizes(); });
    if (place == shapes.end()) place = shapes.insert(place, SameShape{});
    place->tensors.push_back(matrix);
  }

  // All Ps lie in one tensor and all Qs in another, so that each needs one collective per bucket.
  [[nodiscard]] std::vector<Factored> factored(const std::vector<SameShape>& shapes, const at::Tensor& all_ps,
                                               const at::Tensor& all_qs) const {
    std::vector<Factored> parts;
    std::int64_t p_begin = 0, q_begin = 0;
    const auto add_part = [&](const at::Tensor& tensor, const SameShape* originals) {
      const auto [n, m, rank] = sizes_of(tensor);
      const auto batch = tensor.size(0);
      parts.push_back({.tensor = tensor,
                       .p = all_ps.slice(0, p_begin, p_begin + batch * n * rank).view({batch, n, rank}),
                       .q = all_qs.slice(0, q_begin, q_begin + batch * m * rank).view({batch, m, rank}),
                       .originals = originals});
      p_begin += batch * n * rank;
      q_begin += batch * m * rank;
    };
    for (const auto& shape : shapes) {
      if (state_.options.batch_tensors_with_same_shape && shape.tensors.size() > 1) {
        add_part(at::stack(shape.tensors), &shape);
      } else {
        for (const auto& tensor : shape.tensors) add_part(tensor.unsqueeze(0), nullptr);
      }
    }
    return parts;
  }

  // The initial guess: the last step's Q, or a random one that is equal on all ranks. Random numbers are drawn on the
  // CPU, as in Python, so that the values do not depend on the device.
  void begin_qs(const std::vector<Factored>& parts, bool are_new) {
    std::optional<at::Generator> generator;
    if (are_new) generator = state_.next_generator();
    for (const auto& [tensor, p, q, _] : parts) {
      if (generator) q.copy_(at::randn(q.sizes(), generator, q.options().device(at::kCPU)));
      orthogonalize(q, state_.options.orthogonalization_epsilon);
    }
  }

  static void compute_ps(const std::vector<Factored>& parts) {
    for (const auto& part : parts) {
      auto product = part.p;
      at::bmm_out(product, part.tensor, part.q);
    }
  }

  static void compute_qs(const std::vector<Factored>& parts) {
    for (const auto& part : parts) {
      auto product = part.q;
      at::bmm_out(product, part.tensor.transpose(1, 2), part.p);
    }
  }

  // Sends all uncompressed gradients as one message. Python's hook does so even if there are none; `sum` skips empty
  // ones.
  void average_plain(const std::vector<at::Tensor>& plain, const at::TensorOptions& options) {
    std::vector<at::Tensor> flat;
    for (const auto& gradient : plain) flat.push_back(gradient.view({-1}));
    const auto together = flat.empty() ? at::empty({0}, options) : at::cat(flat);
    state_.sum(together);
    together.div_(state_.group.size());
    std::int64_t begin = 0;
    for (const auto& tensor : plain) {
      tensor.copy_(together.slice(0, begin, begin + tensor.numel()).view_as(tensor));
      begin += tensor.numel();
    }
  }

  // A lone tensor is a view of the bucket and gets the product directly; a stack is a copy, so its rows are copied
  // back.
  static void decompress(const Factored& part) {
    auto product = part.tensor;
    at::bmm_out(product, part.p, part.q.transpose(1, 2));
    if (part.originals == nullptr) return;
    for (std::size_t place = 0; place < part.originals->tensors.size(); ++place)
      part.originals->tensors[place].copy_(product[static_cast<std::int64_t>(place)]);
  }

  PowerSGDState state_;
};

// Treats the bucket as one square matrix: fewer and larger products, at the price of a worse approximation.
class BatchedPowerSGDHook : public CommHook {
 public:
  BatchedPowerSGDHook(const PowerSGDOptions& options, const Group& group) : state_(options, group) {}

  BucketReduction reduce(c10d::GradBucket& bucket) override {
    auto buffer = bucket.getBuffer();
    if (state_.is_warming_up()) {
      state_.count_step(bucket);
      return reduce_plainly(state_.group, buffer);
    }
    const auto length = buffer.size(0);
    // Pads the bucket with zeros to a square. The growth is undone below: the reducer expects its own size back.
    const auto side = static_cast<std::int64_t>(std::ceil(std::sqrt(static_cast<double>(length))));
    buffer.resize_({side * side});
    buffer.slice(0, length).fill_(0);
    const auto before = state_.add_error(bucket, buffer);
    auto matrix = buffer.view({side, side});
    // At most as many columns as the matrix has rows: a bucket with few elements makes torch's version fail here.
    const auto rank = std::min<std::int64_t>(side, state_.options.matrix_approximation_rank);
    if (state_.make_factors(bucket, buffer, {side, rank}, {side, rank})) {
      const auto generator = state_.next_generator();
      state_.qs[bucket.getIndex()].copy_(at::randn({side, rank}, generator, buffer.options().device(at::kCPU)));
    }
    auto &p = state_.ps[bucket.getIndex()], &q = state_.qs[bucket.getIndex()];
    orthogonalize(q);
    at::matmul_out(p, matrix, q);
    state_.sum(p);
    orthogonalize(p);
    at::matmul_out(q, matrix.t(), p);
    state_.sum(q);
    q.div_(state_.group.size());
    at::matmul_out(matrix, p, q.t());
    state_.keep_error(bucket, before, buffer);
    buffer.resize_({length});
    state_.end_step(bucket);
    return {.sent = buffer};
  }

 private:
  PowerSGDState state_;
};

// Modified Gram-Schmidt: a column is removed from all later ones before these are normalized. Steps as in torch's
// _orthogonalize_gram_schmidt; another order of operations would round differently.
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

std::unique_ptr<CommHook> make_power_sgd_hook(const PowerSGDOptions& options, const Group& group) {
  return std::make_unique<PowerSGDHook>(options, group);
}

std::unique_ptr<CommHook> make_batched_power_sgd_hook(const PowerSGDOptions& options, const Group& group) {
  return std::make_unique<BatchedPowerSGDHook>(options, group);
}

void orthogonalize(at::Tensor matrices, double epsilon) {
  if (matrices.dim() == 2) matrices = matrices.unsqueeze(0);
  ensure(matrices.dim() == 3 && matrices.size(2) <= matrices.size(1),
         "orthogonalize: expected matrices with at most as many columns as rows");
  const auto rank = matrices.size(2);
  // QR has no half-precision kernels, and costs more than Gram-Schmidt for one or two columns.
  if (rank <= 2 || matrices.scalar_type() == at::kHalf || matrices.scalar_type() == at::kBFloat16)
    return gram_schmidt(matrices, epsilon);
  auto triangle = at::empty({matrices.size(0), rank, rank}, matrices.options());
  at::linalg_qr_out(matrices, triangle, matrices);
}

PowerSGDState::PowerSGDState(const PowerSGDOptions& options_of_user, Group group_of_ranks)
    : options(options_of_user),
      group(std::move(group_of_ranks)),
      random(static_cast<std::uint32_t>(options_of_user.random_seed)) {}

// The hook runs once per bucket; only the last one ends a step.
void PowerSGDState::count_step(const c10d::GradBucket& bucket) {
  if (bucket.isLast()) ++step;
}

std::optional<at::Tensor> PowerSGDState::add_error(const c10d::GradBucket& bucket, at::Tensor& buffer) {
  if (!options.use_error_feedback) return std::nullopt;
  if (const auto error = errors.find(bucket.getIndex()); error != errors.end()) buffer.add_(error->second);
  return buffer.clone();
}

void PowerSGDState::keep_error(const c10d::GradBucket& bucket, const std::optional<at::Tensor>& before,
                               const at::Tensor& after) {
  if (before) errors[bucket.getIndex()] = *before - after;
}

bool PowerSGDState::make_factors(const c10d::GradBucket& bucket, const at::Tensor& like,
                                 const std::vector<std::int64_t>& shape_of_p,
                                 const std::vector<std::int64_t>& shape_of_q) {
  const auto index = bucket.getIndex();
  if (options.warm_start && ps.contains(index)) return false;
  ps[index] = at::empty(shape_of_p, like.options());
  qs[index] = at::empty(shape_of_q, like.options());
  return true;
}

void PowerSGDState::end_step(const c10d::GradBucket& bucket) {
  if (!options.warm_start) {
    ps.clear();
    qs.clear();
  }
  count_step(bucket);
}

at::Generator PowerSGDState::next_generator() { return make_generator(random.randint(1'000'000'000)); }

// Sizes are equal on all ranks, so all of them skip an empty tensor, or none does.
void PowerSGDState::sum(const at::Tensor& tensor) const {
  if (tensor.numel() > 0) sum_over_ranks(group, tensor)->wait();
}

}  // namespace accel
