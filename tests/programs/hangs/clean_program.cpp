// Random programs without a mistake, for ranks of any backend: `clean_program FIRST_SEED COUNT`. All ranks draw the
// same plan from the seed: collectives and messages of several groups, awaited at once or later, from one thread or
// two, while some ranks are slow. Every result is checked.
#include <chrono>
#include <cmath>
#include <iostream>
#include <random>
#include <stdexcept>
#include <string>
#include <thread>

#include <accel/accel.hpp>

namespace {

using accel::Group;
using accel::ReduceOp;

constexpr int kSteps = 12;
constexpr auto kSlow = std::chrono::milliseconds(1700);  // more than the --hang_seconds of the test

void expect(const at::Tensor& tensor, double value) {
  if (!at::allclose(tensor.to(at::kDouble), at::full_like(tensor, value, at::kDouble)))
    throw std::runtime_error("a collective gave a wrong number");
}

// The steps of one program. Every member of the group runs the same.
class Steps {
 public:
  Steps(Group group, unsigned seed, bool may_be_slow)
      : group_(std::move(group)), random_(seed), may_be_slow_(may_be_slow) {}

  void run() {
    for (int step = 0; step < kSteps; ++step) run_one();
  }

 private:
  int draw(int count) { return static_cast<int>(random_() % static_cast<unsigned>(count)); }

  void run_one() {
    const int kind = draw(9), slow_rank = draw(group_.size()), size = 1 + draw(2000), root = draw(group_.size());
    const bool is_slow = draw(150) == 0;
    if (may_be_slow_ && is_slow && group_.rank() == slow_rank) std::this_thread::sleep_for(kSlow);
    const int n = group_.size(), sum = n * (n + 1) / 2;
    auto own = at::full({size}, group_.rank() + 1.0);
    switch (kind) {
      case 0: return all_reduce(own, sum);
      case 1: return several_at_a_time(own, sum);
      case 2: group_.broadcast(own, root).wait(); return expect(own, root + 1);
      case 3: return expect(group_.all_gather(own).sum(), static_cast<double>(sum) * size);
      case 4: return group_.barrier();
      case 5: return ring(own);
      case 6: return tags_in_another_order();
      case 7: {
        auto all = at::zeros({n});
        group_.all_to_all(all, at::arange(n, at::kFloat)).wait();
        return expect(all, group_.rank());
      }
      default: {
        auto part = at::zeros({3});
        group_.reduce_scatter(part, at::ones({3 * n})).wait();
        return expect(part, n);
      }
    }
  }

  void all_reduce(at::Tensor& own, int sum) {
    group_.all_reduce(own).wait();
    expect(own, sum);
  }

  // Three collectives in flight, awaited in the opposite order.
  void several_at_a_time(const at::Tensor& own, int sum) {
    auto a = own.clone(), b = own.clone(), c = own.clone();
    auto first = group_.all_reduce(a), second = group_.all_reduce(b, ReduceOp::kMax), third = group_.broadcast(c);
    third.wait();
    second.wait();
    first.wait();
    expect(a, sum);
    expect(b, group_.size());
    expect(c, 1);
  }

  // Each rank sends to the next one, which has posted its receive before or after its own send.
  void ring(at::Tensor& own) {
    const int n = group_.size(), next = (group_.rank() + 1) % n, before = (group_.rank() + n - 1) % n;
    auto got = at::zeros_like(own);
    if (draw(2) == 0) {
      auto received = group_.recv(got, before);
      group_.send(own, next).wait();
      received.wait();
    } else {
      auto sent = group_.send(own, next);
      group_.recv(got, before).wait();
      sent.wait();
    }
    expect(got, before + 1);
  }

  void tags_in_another_order() {
    if (group_.size() < 2 || group_.rank() > 1) return;
    auto a = at::full({2}, 1.0), b = at::full({2}, 2.0);
    if (group_.rank() == 0) {
      auto first = group_.send(a, 1, 7), second = group_.send(b, 1, 8);
      first.wait();
      second.wait();
    } else {
      auto late = group_.recv(b, 0, 8), early = group_.recv(a, 0, 7);
      late.wait();
      early.wait();
      expect(a, 1);
      expect(b, 2);
    }
  }

  Group group_;
  std::mt19937 random_;
  const bool may_be_slow_;
};

void run_program(accel::RankContext& rank, const std::vector<Group>& groups, unsigned seed) {
  const auto& mine = groups[seed % groups.size()];
  const auto& other = groups[(seed + 1) % groups.size()];
  std::exception_ptr problem;
  // A second thread with a group of its own.
  std::thread helper;
  if (seed % 3 == 0 && other.process_group()) {
    helper = std::thread([&] {
      try {
        const accel::RankScope scope(rank);
        Steps(other, seed + 1'000'000, /*may_be_slow=*/false).run();
      } catch (...) {
        problem = std::current_exception();
      }
    });
  }
  if (mine.process_group()) Steps(mine, seed, /*may_be_slow=*/true).run();
  if (helper.joinable()) helper.join();
  if (problem) std::rethrow_exception(problem);
  Steps(rank.world, seed + 2'000'000, /*may_be_slow=*/true).run();
}

int train(int argc, char** argv) {
  if (argc != 3) throw std::invalid_argument("usage: clean_program FIRST_SEED COUNT");
  accel::Accelerator accelerator;
  auto& rank = accel::current_rank();
  const std::vector<Group> groups{rank.new_group({0, 1, 2, 3}), rank.new_group({0, 1}), rank.new_group({2, 3}),
                                  rank.new_group({0, 2, 3})};
  const auto first = static_cast<unsigned>(std::stoul(argv[1])), count = static_cast<unsigned>(std::stoul(argv[2]));
  for (unsigned seed = first; seed < first + count; ++seed) run_program(rank, groups, seed);
  return 0;
}

}  // namespace

int main(int argc, char** argv) { return accel::run(argc, argv, train); }
