// Runs of optimizers, for the comparison with Python: print-optimizer-runs REQUESTS.jsonl ANSWERS.jsonl, a line for a line.
#include "properties/gen/optimizer_runs.hpp"
#include "properties/oracle/answer_lines.hpp"

int main(int argc, char** argv) { return accel::testing::answer_lines(argc, argv, accel::testing::run_optimizer); }
