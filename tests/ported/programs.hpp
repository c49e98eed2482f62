#pragma once

#include <span>
#include <string>

/// Programs of the shapes that people port: each as a plain LibTorch loop for one process, and as the same loop with
/// accel for any number of ranks. Both print the same digits on one process; for that, loaders have a generator of
/// their own, as each pass over one draws a number from it, like Python's and unlike LibTorch's.
///
///     ported gan --plain FOLDER
///     sim-run --ranks 4 -- ported gan FOLDER
namespace accel::ported {

struct Arguments {
  std::string folder;  ///< for checkpoints; empty: none are written
  int num_epochs = 3;  ///< where to stop, so that another process goes on
};

struct Program {
  const char* name;
  int (*plain)(const Arguments&);  ///< returns the process's exit code
  int (*train)(const Arguments&);
};

extern const Program kStackModule, kGan, kStructOutput, kTransformer, kLstm, kStopOnLoss;

}  // namespace accel::ported
