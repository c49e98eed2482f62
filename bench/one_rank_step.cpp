// The overhead of the Accelerator: the same training loop on plain LibTorch and through the Accelerator. Both use the
// same optimizer and shuffled data, so the difference is loader, prepare, accumulate and backward.
#include "bench/one_rank_step.hpp"

namespace accel::bench {
namespace {

// Shuffles by one permutation and index_select, the cheapest way to shuffle in LibTorch, so that the baseline is fast.
double plain_loop(const Data& data, const Job& job, StepTimer timer) {
  auto net = make_equal(job.make_of_libtorch);
  auto optimizer = adam_of(net);
  for (;;) {
    const auto order = torch::randperm(data.images.size(0), at::kLong);
    for (int row = 0; row + job.batch <= order.size(0); row += job.batch) {
      const auto rows = order.slice(0, row, row + job.batch);
      const auto images = data.images.index_select(0, rows);
      const auto labels = data.labels.index_select(0, rows);
      auto loss = nn::functional::cross_entropy(net->forward(images), labels);
      loss.backward();
      optimizer.step();
      optimizer.zero_grad();
      if (timer.step_ends()) return timer.seconds();
    }
  }
}

double accelerated_loop(const Data& data, const Job& job, StepTimer timer) {
  const auto context = make_single_rank();
  context->num_threads = 1;
  const RankScope scope(*context);
  Accelerator accelerator;
  auto net = make_equal(job.make);
  auto adam = adam_of(net);
  DataLoader loader(TensorDataset(data.images, data.labels), {.batch_size = job.batch, .shuffle = true});
  auto [model, optimizer, batches] = accelerator.prepare(net, adam, loader);
  for (;;) {
    for (auto& [images, labels] : batches) {
      auto window = accelerator.accumulate(model);
      auto loss = nn::functional::cross_entropy(model(images), labels);
      accelerator.backward(loss);
      optimizer.step();
      optimizer.zero_grad();
      if (timer.step_ends()) return timer.seconds();
    }
  }
}

}  // namespace

Rows one_rank_rows(const std::shared_ptr<const Data>& data) {
  struct Case {
    const Job& job;
    int steps;
    bool compared;
  };
  Rows rows;
  for (const auto& [job, steps, compared] :
       {Case{kMlp, 300, true}, Case{kCnn, 100, true}, Case{kLargeCnn, 30, false}}) {
    const StepTimer timer(steps);
    const auto name = "step/" + job.name, plain = name + "/libtorch";
    rows.push_back({.name = name + "/accelerator",
                    .measure = [data, &job = job, timer] { return accelerated_loop(*data, job, timer); },
                    .beside = plain,
                    .compared = compared});
    rows.push_back({.name = plain, .measure = [data, &job = job, timer] { return plain_loop(*data, job, timer); }});
  }
  return rows;
}

}  // namespace accel::bench
