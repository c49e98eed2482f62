// The program `ported`: runs one of the programs of programs.hpp by its name.
#include <accel/accel.hpp>
#include <cstdio>
#include <cstring>

#include "tests/ported/programs.hpp"

// Finds the program by its name and parses --plain, the folder and the number of epochs.
int main(int argc, char** argv) {
  using namespace accel::ported;
  for (const auto* program : std::initializer_list<const Program*>{&kStackModule, &kGan, &kStructOutput, &kTransformer,
                                                                   &kLstm, &kStopOnLoss}) {
    if (argc < 2 || std::strcmp(argv[1], program->name) != 0) continue;
    const bool is_plain = argc > 2 && std::strcmp(argv[2], "--plain") == 0;
    const int rest = is_plain ? 3 : 2;
    const Arguments arguments{.folder = argc > rest ? argv[rest] : "",
                              .num_epochs = argc > rest + 1 ? std::atoi(argv[rest + 1]) : 3};
    if (is_plain) return program->plain(arguments);
    return accel::run(argc, argv, [&](int, char**) { return program->train(arguments); });
  }
  std::fprintf(stderr, "usage: ported PROGRAM [--plain] [FOLDER [EPOCHS]]\n");
  return 2;
}
