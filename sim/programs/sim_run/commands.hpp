#pragma once

namespace accel::programs {

/// `sim-run compare --a BACKEND --b BACKEND [options] EXPERIMENT.yaml | -- PROGRAM [ARGS...]`: runs a program on two
/// backends and prints where they diverge first. Returns the exit code: 0 if they are equal, 1 if not.
int compare_main(int argc, char** argv);

/// `sim-run explore --schedules N [options] EXPERIMENT.yaml | -- PROGRAM [ARGS...]`: runs a program under many
/// schedules and shrinks the first that fails or computes a different result. Returns the exit code: 0 if none was
/// found.
int explore_main(int argc, char** argv);

/// `sim-run prove --ranks N [options] EXPERIMENT.yaml | -- PROGRAM [ARGS...]`: runs a program under layouts of a mesh
/// and on one rank, and prints the first tensor that differs. Returns the exit code: 0 if all layouts are equal, 1 if
/// not.
int prove_main(int argc, char** argv);

/// `sim-run layouts --ranks N --network FILE [options] EXPERIMENT.yaml`: predicts step time and memory per rank under
/// every layout of a mesh. Returns the exit code: 0 if a layout fits, 1 if none does.
int layouts_main(int argc, char** argv);

/// `sim-run plan`: answers the requests of a file, or one request made of flags. `argv[0]` is "plan". Returns the exit
/// code; throws ConfigError for wrong usage.
int plan_main(int argc, char** argv);

}  // namespace accel::programs
