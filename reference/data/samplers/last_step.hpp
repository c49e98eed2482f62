#pragma once

namespace accel {

/// What the ranks whose numbers of batches are planned together do in the step in which this rank gets its last batch.
enum class LastStep {
  kOfAllRanks,     ///< all ranks get their last batch
  kOthersEnded,    ///< some ranks got their last batch one step earlier, and no rank gets another one
  kOthersContinue  ///< some ranks get one more batch
};

}  // namespace accel
