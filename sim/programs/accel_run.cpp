#include <iostream>

#include "reference/config/environment.hpp"
#include "reference/core/errors.hpp"
#include "reference/run.hpp"
#include "sim/programs/real_rank.hpp"

namespace accel {
namespace {

int report(const std::exception& error, int exit_code, std::unique_ptr<RankContext> context) {
  std::cerr << "error: " << error.what() << std::endl;
  programs::keep_until_exit(std::move(context));
  return exit_code;
}

}  // namespace

int run(int argc, char** argv, const std::function<int(int, char**)>& train) {
  std::unique_ptr<RankContext> context;
  try {
    check_config(!environment("ACCEL_SIM"), "ACCEL_SIM: running a program of your own on simulated ranks is not built yet");
    verify_interposition();
    context = programs::make_real_rank("");
    const RankScope scope(*context);
    return train(argc, argv);
  } catch (const ConfigError& error) {
    return report(error, 2, std::move(context));
  } catch (const std::exception& error) {
    return report(error, 1, std::move(context));
  }
}

}  // namespace accel
