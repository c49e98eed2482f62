#pragma once

#include <span>
#include <string>

/// Programs of the forms that people port: each as a plain LibTorch loop for one process, and as the same loop with
/// accel for any number of ranks. Both print the same digits on one process. For this, the loaders have their own
/// generator, since each pass over a loader draws a number from it, as in Python and unlike in LibTorch.
///
///     ported gan --plain FOLDER
///     sim-run --ranks 4 -- ported gan FOLDER
namespace accel::ported {

struct Arguments {
  std::string folder;  ///< for checkpoints; empty: none are written
  int num_epochs = 3;  ///< where to stop, so that another process can continue
};

struct Program {
  const char* name;
  int (*plain)(const Arguments&);  ///< returns the process's exit code
  int (*train)(const Arguments&);
};

extern const Program kStackModule, kGan, kStructOutput, kTransformer, kLstm, kStopOnLoss;

}  // namespace accel::ported
