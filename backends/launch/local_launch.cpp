#include "backends/launch/local_launch.hpp"

#include "reference/core/errors.hpp"

namespace accel::launcher {

LocalLaunchResult launch_local(const LocalLaunchOptions& options) {
  check_config(options.master_port >= 0 && options.master_port <= 65535,
               "MASTER_PORT: {} is not a port; expected 1 to 65535", options.master_port);
  // Checked here, since otherwise rank 0 would fail later and its message would be one of many.
  const PortClaim port(options.master_port);
  check_config(port.holds(), "MASTER_PORT: port {} is in use; choose another, or unset MASTER_PORT for a free one",
               port.port());
  const auto job = run_job({.command = options.command,
                            .machines = {.num_processes = options.num_processes, .main_port = port.port()},
                            .environment = options.environment,
                            .default_environment = {{"OMP_NUM_THREADS", "1"}},  // ranks share the cores
                            .prefix = options.prefix_output ? "rank" : "",
                            .progress_fd = options.progress_fd});
  return {job.failure.exit_code, job.failure.rank, job.failure.message, job.peak_rss_bytes};
}

}  // namespace accel::launcher
