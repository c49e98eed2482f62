// The law of law_test.cpp as a program, for any launcher: `sim-run --ranks 4 -- ./law`,
// `sim-run --backend gloo --ranks 4 -- ./law`, or `accel launch --num_processes 4 ./law` over Gloo or NCCL, on several
// machines too. Every process makes the same cases from a seed. Two runs with the same number of ranks print the same
// lines on every backend.
#include <torch/torch.h>

#include <accel/accel.hpp>

#include "check_case.hpp"

// A number that differs, with near certainty, between two lists of batches.
std::int64_t digest_of(const Batches& batches) {
  std::uint64_t digest = 0;
  for (const auto& batch : batches) {
    for (const auto sample : batch) digest = digest * 1000003 + static_cast<std::uint64_t>(sample) + 2;
    digest = digest * 1000003 + 1;
  }
  return static_cast<std::int64_t>(digest);
}

int check_law(int, char**) {
  accel::Accelerator accelerator;
  constexpr int kCases = 25;
  for (const auto& one : accel::testing::loader_cases::make_cases(kCases, accelerator.num_processes(), /*seed=*/1)) {
    const auto digests = accelerator.gather(torch::tensor({digest_of(check_case(one))}, torch::kLong));
    accelerator.print(accel::testing::loader_cases::describe(one));
    for (int rank = 0; rank < accelerator.num_processes(); ++rank)
      accelerator.print("  rank", rank, "digest", digests[rank].item<std::int64_t>());
  }
  return 0;
}

int main(int argc, char** argv) { return accel::run(argc, argv, check_law); }
