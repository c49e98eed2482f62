// Chooses the backend of a real rank: an explicit name, or NCCL if a GPU is usable and the CPU was not requested, else
// Gloo. A process without a launcher gets a world of one, which needs no connections.
#include "sim/programs/runtime/real_rank.hpp"

#include "backends/gloo/gloo_backend.hpp"
#include "backends/nccl/nccl_backend.hpp"
#include "reference/config/environment.hpp"
#include "reference/core/errors.hpp"

namespace accel::programs {

std::chrono::milliseconds collective_timeout() {
  const auto seconds = environment_int({"ACCEL_TIMEOUT_SECONDS"});
  check_config(seconds.value_or(1) >= 1, "ACCEL_TIMEOUT_SECONDS: expected 1 or more, got {}", seconds.value_or(0));
  return seconds ? std::chrono::milliseconds(std::chrono::seconds(*seconds)) : std::chrono::minutes(30);
}

std::unique_ptr<RankContext> make_real_rank(const std::string& backend) {
  const auto launch = read_launch_environment();
  const bool uses_gpu =
      backend.empty() && nccl::is_available() && !environment_flag("ACCELERATE_USE_CPU").value_or(false);
  if (!launch.is_launched && backend.empty()) {
    auto alone = make_single_rank();
    if (uses_gpu) {
      nccl::use_gpu(*alone);
      nccl::offer_graphs(*alone);
    }
    return alone;
  }
  // Gloo advertises the address of the interface that reaches the master: the host's name may resolve to loopback.
  const gloo::GlooOptions options{.timeout = collective_timeout(),
                                  .hostname = gloo::local_address_for(launch.master_address)};
  const auto chosen = environment("ACCEL_BACKEND");
  check_config(!chosen || *chosen == "nccl" || *chosen == "gloo", "ACCEL_BACKEND: expected nccl or gloo, got '{}'",
               chosen.value_or(""));
  check_config(chosen != "nccl" || !environment_flag("ACCELERATE_USE_CPU").value_or(false),
               "ACCEL_BACKEND is nccl, but ACCELERATE_USE_CPU asks for the CPU; unset one of them");
  if (backend == "nccl" || (backend.empty() && chosen.value_or(uses_gpu ? "nccl" : "gloo") == "nccl"))
    return nccl::make_rank(launch, options);
  auto rank = gloo::make_rank(launch, options);
  if (uses_gpu) nccl::use_gpu(*rank);  // ranks over Gloo may share a GPU
  return rank;
}

void keep_until_exit(std::unique_ptr<RankContext> context) {
  // Allocated and never destroyed: the connections must stay open until the kernel closes them with the process.
  static auto* const kept = new std::vector<std::unique_ptr<RankContext>>;
  kept->push_back(std::move(context));
}

}  // namespace accel::programs
