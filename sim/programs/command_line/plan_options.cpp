#include "sim/programs/command_line/plan_options.hpp"

#include <CLI/CLI.hpp>

namespace accel::programs {

void add_loader_options(CLI::App& app, PlanRequest& request) {
  app.add_option("--length", request.length, "Number of samples; sample i is the number i");
  app.add_option("--batch-size", request.batch_size, "Samples of a batch");
  app.add_flag("--iterable", request.iterable, "A stream of no known length");
  app.add_flag("--drop-last", request.drop_last, "Drop the last batch if it is short");
  app.add_flag("--shuffle", request.shuffle, "Shuffle every epoch");
  app.add_option("--seed", request.seed, "Given to set_seed")->capture_default_str();
  app.add_option("--data-seed", request.data_seed, "Of the seedable sampler");
  app.add_flag("--split-batches", request.split_batches, "Cut one batch over the ranks");
  app.add_flag("--even-batches,!--no-even-batches", request.even_batches,
               "Fill up, so that every rank has as many batches (default)");
  app.add_option("--dispatch-batches", request.dispatch_batches, "true: rank 0 reads for all; false: every rank reads");
  app.add_flag("--use-seedable-sampler,!--no-use-seedable-sampler", request.use_seedable_sampler,
               "The order is a function of seed and epoch");
}

}  // namespace accel::programs
