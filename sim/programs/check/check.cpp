#include "sim/programs/check/check.hpp"

namespace accel::programs {

const char* name_of(Verdict verdict) {
  switch (verdict) {
    case Verdict::kPass: return "pass";
    case Verdict::kFail: return "fail";
    case Verdict::kFinding: return "finding";
    case Verdict::kNotApplicable: break;
  }
  return "not_applicable";
}

const std::vector<Check>& checks() {
  static const std::vector<Check> kChecks{
      {"runs", "Does it start and end on 1 and on N ranks, also if N does not divide the data?", judge_runs},
      {"deterministic", "Do two runs compute the same, bit by bit?", judge_determinism},
      {"samples", "Do the ranks read every sample once per epoch, in a new order, with different augmentations?",
       judge_samples},
      {"world_size", "Do N ranks compute what one rank computes from the same batches, up to rounding?",
       judge_world_size},
      {"replicas", "Are models, optimizer states and schedules equal on all ranks at the end?", judge_replicas},
      {"random_streams", "Do initial weights agree and random numbers of training differ between ranks?",
       judge_random_streams},
      {"metrics", "Does what is gathered count each evaluation sample once?", judge_metrics},
      {"calls", "Do all ranks make the same calls, under other schedules and with uneven data?", judge_calls},
      {"resume", "Interrupted and started again, does it end with the bits of the uninterrupted run?", judge_resume},
      {"crash", "Killed in a save, does the next start find a complete state?", judge_crash},
      {"files", "Does one rank alone write each file and print each line?", judge_files},
      {"failure", "If a rank dies, do all others end?", judge_failure},
      {"scaling", "How long does a step take on more ranks, and what costs most?", judge_scaling},
  };
  return kChecks;
}

}  // namespace accel::programs
