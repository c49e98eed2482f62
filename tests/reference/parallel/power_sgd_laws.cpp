// PowerSGD compared with its definition. The hook runs on several ranks, in buckets and batches; the definition has
// the gradients of all ranks in one place and computes one matrix product after the other.
#include <gtest/gtest.h>

#include <cmath>

#include "reference/accelerator/accelerator.hpp"
#include "reference/parallel/power_sgd.hpp"
#include "reference/rank_local/random.hpp"
#include "tests/support/property.hpp"
#include "tests/support/run_ranks.hpp"
#include "tests/support/torch.hpp"

namespace accel::testing {
namespace {

using Gradients = std::vector<at::Tensor>;

// A random training: its options, its ranks and its buckets.
struct PowerSgdRun {
  std::string hook;
  PowerSGDOptions options;
  int num_ranks = 1, steps = 4;
  bool has_two_buckets = false;
  std::uint64_t seed = 0;

  // The second kind is larger than 1 MiB each.
  [[nodiscard]] std::vector<std::vector<std::int64_t>> shapes() const {
    if (has_two_buckets) return {{400, 350}, {360, 390}};
    return {{8, 6}, {5, 7}, {8, 6}, {3}};
  }
  // The tensors of each bucket. After the first step, buckets hold the gradients in the order in which they are
  // computed, so the last parameters come first.
  [[nodiscard]] std::vector<std::vector<std::size_t>> buckets(int step) const {
    if (step == 0)
      return has_two_buckets ? std::vector<std::vector<std::size_t>>{{0, 1}}
                             : std::vector<std::vector<std::size_t>>{{0, 1, 2, 3}};
    if (has_two_buckets) return {{1}, {0}};
    return {{3, 2, 1, 0}};
  }
};

// The gradients of one rank and step, in the order of the parameters.
Gradients gradients_of(const PowerSgdRun& run, int rank, int step) {
  const auto generator = make_generator(run.seed * 1000 + rank * 100 + step);
  Gradients gradients;
  for (const auto& shape : run.shapes()) gradients.push_back(at::randn(shape, generator, at::kDouble));
  return gradients;
}

// A model whose gradients are exactly the tensors in the batch, so that the test chooses them.
struct FactorsImpl : torch::nn::Module {
  explicit FactorsImpl(const Gradients& like) {
    for (std::size_t place = 0; place < like.size(); ++place)
      register_parameter("p" + std::to_string(place), at::zeros_like(like[place]));
  }
  at::Tensor forward(const Gradients& factors) {
    auto sum = at::zeros({}, at::kDouble);
    for (std::size_t place = 0; place < factors.size(); ++place)
      sum = sum + (parameters()[place] * factors[place]).sum();
    return sum;
  }
};
TORCH_MODULE(Factors);

// The gradients of each step on this rank, after the hook.
std::vector<Gradients> reduced_by_hook(RankContext& rank, const PowerSgdRun& run) {
  Accelerator accelerator({.ddp_kwargs = {.bucket_cap_mb = 1, .comm_hook = run.hook, .comm_state_option = run.options}},
                          rank);
  Factors net(gradients_of(run, 0, 0));
  auto model = accelerator.prepare(net);
  std::vector<Gradients> reduced;
  for (int step = 0; step < run.steps; ++step) {
    net->zero_grad();
    accelerator.backward(model(gradients_of(run, rank.rank, step)));
    reduced.emplace_back();
    for (const auto& parameter : net->parameters()) reduced.back().push_back(parameter.grad().clone());
  }
  return reduced;
}

// PowerSGD as its authors define it, for all ranks in one place.
class Definition {
 public:
  explicit Definition(const PowerSgdRun& run)
      : run_(run),
        random_(static_cast<std::uint32_t>(run.options.random_seed)),
        errors_(run.num_ranks),
        paddings_(run.num_ranks),
        qs_(run.buckets(/*step=*/1).size()) {}

  // One step, from the gradients of each rank. All ranks get the same result.
  Gradients reduce(int step) {
    std::vector<Gradients> before;
    for (int rank = 0; rank < run_.num_ranks; ++rank) {
      before.push_back(gradients_of(run_, rank, step));
      for (std::size_t place = 0; place < errors_[rank].size(); ++place)
        before[rank][place] = before[rank][place] + errors_[rank][place];
    }
    if (step < run_.options.start_powerSGD_iter) return mean(before);
    auto after = mean(before);
    const auto buckets = run_.buckets(step);
    for (std::size_t bucket = 0; bucket < buckets.size(); ++bucket) {
      if (run_.hook == "power_sgd")
        compress_tensors(before, buckets[bucket], qs_[bucket], after);
      else
        compress_square(before, buckets, bucket, after);
    }
    for (int rank = 0; run_.options.use_error_feedback && rank < run_.num_ranks; ++rank) {
      errors_[rank].clear();
      for (std::size_t place = 0; place < after.size(); ++place)
        errors_[rank].push_back(before[rank][place] - after[place]);
    }
    return after;
  }

 private:
  static Gradients mean(const std::vector<Gradients>& of_ranks) {
    Gradients result;
    for (std::size_t place = 0; place < of_ranks[0].size(); ++place) {
      Gradients same;
      for (const auto& gradients : of_ranks) same.push_back(gradients[place]);
      result.push_back(at::stack(same).mean(0));
    }
    return result;
  }

  // The mean of matrices of shape (batch, n, m), one of each rank, approximated with as many columns as `q` has.
  static at::Tensor approximation(const Gradients& of_ranks, at::Tensor& q, double epsilon) {
    orthogonalize(q, epsilon);
    auto p = at::zeros({q.size(0), of_ranks[0].size(1), q.size(2)}, at::kDouble);
    for (const auto& matrices : of_ranks) p += at::bmm(matrices, q);
    orthogonalize(p, epsilon);
    q = at::zeros_like(q);
    for (const auto& matrices : of_ranks)
      q += at::bmm(matrices.transpose(1, 2), p) / static_cast<double>(of_ranks.size());
    return at::bmm(p, q.transpose(1, 2));
  }

  static std::int64_t columns(const PowerSGDOptions& options, std::int64_t n, std::int64_t m) {
    return std::min<std::int64_t>({n, m, options.matrix_approximation_rank});
  }

  // Compresses the tensors that are worth it, in stacks of equal shapes.
  [[nodiscard]] std::vector<std::vector<std::size_t>> parts_of(const std::vector<std::size_t>& bucket,
                                                               const Gradients& like) const {
    std::vector<std::vector<std::size_t>> parts;
    for (const auto place : bucket) {
      if (like[place].dim() < 2) continue;
      const auto n = like[place].size(0), m = like[place].size(1);
      if (static_cast<double>((n + m) * columns(run_.options, n, m)) * run_.options.min_compression_rate >=
          static_cast<double>(n * m))
        continue;
      auto same = std::find_if(parts.rbegin(), parts.rend(),
                               [&](const auto& part) { return like[part[0]].sizes() == like[place].sizes(); });
      if (same != parts.rend() && run_.options.batch_tensors_with_same_shape)
        same->push_back(place);
      else
        parts.insert(same == parts.rend() ? parts.end() : same.base(), {place});
    }
    return parts;
  }

  void compress_tensors(const std::vector<Gradients>& before, const std::vector<std::size_t>& bucket, Gradients& qs,
                        Gradients& after) {
    const auto parts = parts_of(bucket, after);
    const bool begins = qs.empty() || !run_.options.warm_start;
    std::optional<at::Generator> generator;
    if (begins) {
      generator = make_generator(random_.randint(1'000'000'000));
      qs.clear();
    }
    for (std::size_t part = 0; part < parts.size(); ++part) {
      Gradients of_ranks;
      for (const auto& gradients : before) {
        Gradients stack;
        for (const auto place : parts[part]) stack.push_back(gradients[place]);
        of_ranks.push_back(at::stack(stack));
      }
      const auto batch = of_ranks[0].size(0), n = of_ranks[0].size(1), m = of_ranks[0].size(2);
      if (begins) qs.push_back(at::randn({batch, m, columns(run_.options, n, m)}, generator, at::kDouble));
      const auto approximated = approximation(of_ranks, qs[part], run_.options.orthogonalization_epsilon);
      for (std::size_t place = 0; place < parts[part].size(); ++place)
        after[parts[part][place]] = approximated[static_cast<std::int64_t>(place)];
    }
  }

  // The numbers that fill up the square are 0 at first. Like the gradients they have an error, which is added in
  // the next step.
  void compress_square(const std::vector<Gradients>& before, const std::vector<std::vector<std::size_t>>& buckets,
                       std::size_t bucket, Gradients& after) {
    auto& qs = qs_[bucket];
    std::int64_t length = 0;
    for (const auto place : buckets[bucket]) length += after[place].numel();
    const auto side = static_cast<std::int64_t>(std::ceil(std::sqrt(static_cast<double>(length))));
    Gradients of_ranks;
    for (std::size_t rank = 0; rank < before.size(); ++rank) {
      Gradients flat;
      for (const auto place : buckets[bucket]) flat.push_back(before[rank][place].flatten());
      paddings_[rank].resize(buckets.size(), at::zeros({}, at::kDouble));
      flat.push_back(paddings_[rank][bucket].expand({side * side - length}));
      of_ranks.push_back(at::cat(flat).view({1, side, side}));
    }
    if (qs.empty() || !run_.options.warm_start) {
      qs = {at::randn({1, side, columns(run_.options, side, side)}, make_generator(random_.randint(1'000'000'000)),
                      at::kDouble)};
    }
    const auto approximated = approximation(of_ranks, qs[0], /*epsilon=*/0).flatten();
    for (std::size_t rank = 0; run_.options.use_error_feedback && rank < before.size(); ++rank) {
      paddings_[rank][bucket] = (of_ranks[rank].flatten() - approximated).slice(0, length);
    }
    std::int64_t begin = 0;
    for (const auto place : buckets[bucket]) {
      after[place] = approximated.slice(0, begin, begin + after[place].numel()).view(after[place].sizes());
      begin += after[place].numel();
    }
  }

  const PowerSgdRun& run_;
  NumpyRandomState random_;
  std::vector<Gradients> errors_, paddings_;  // by rank
  std::vector<Gradients> qs_;                 // by bucket
};

PowerSgdRun any_run() {
  const auto coin = [] { return pick(0, 2) == 1; };
  PowerSgdRun run{.hook = coin() ? "power_sgd" : "batched_power_sgd",
                  .num_ranks = pick(1, 5),
                  .steps = pick(3, 7),
                  .has_two_buckets = pick(0, 4) == 0,
                  .seed = pick<std::uint64_t>(0, 1000)};
  auto& options = run.options;
  options.use_error_feedback = coin();
  options.warm_start = coin();
  options.start_powerSGD_iter = options.use_error_feedback || options.warm_start ? pick(2, 4) : pick(0, 4);
  options.matrix_approximation_rank = pick(1, 5);
  options.min_compression_rate = pick(1, 3);
  options.orthogonalization_epsilon = coin() ? 0 : 0.125;
  options.random_seed = pick(0, 100);
  options.batch_tensors_with_same_shape = coin();
  return run;
}

// The sums have another order than in the hook, so their last bits differ. A division by a short column may enlarge
// the difference by a few powers of ten.
constexpr double kTolerance = 1e-8;

// Error feedback and warm start carry state from step to step, so several steps are compared.
TEST(PowerSgdLaws, GradientsEqualThoseOfTheDefinition) {
  expect_property(40, [] {
    const auto run = any_run();
    RC_LOG() << run.hook << ", " << run.num_ranks << " ranks, " << run.steps << " steps, seed " << run.seed
             << ", from step " << run.options.start_powerSGD_iter << ", " << run.options.matrix_approximation_rank
             << " columns, rate " << run.options.min_compression_rate << ", epsilon "
             << run.options.orthogonalization_epsilon << (run.has_two_buckets ? ", two buckets" : "")
             << (run.options.use_error_feedback ? ", error feedback" : "")
             << (run.options.warm_start ? ", warm start" : "")
             << (run.options.batch_tensors_with_same_shape ? ", batched" : "") << '\n';
    const auto of_ranks =
        collect_ranks(Backend::kSim, run.num_ranks, [&](RankContext& rank) { return reduced_by_hook(rank, run); });
    Definition definition(run);
    for (int step = 0; step < run.steps; ++step) {
      const auto expected = definition.reduce(step);
      for (const auto& reduced : of_ranks) {
        for (std::size_t place = 0; place < expected.size(); ++place) {
          const auto difference = (reduced[step][place] - expected[place]).abs().max().item<double>();
          RC_LOG() << "step " << step << ", parameter " << place << ": " << difference << '\n';
          RC_ASSERT(difference < kTolerance);
        }
      }
    }
  });
}

}  // namespace
}  // namespace accel::testing
