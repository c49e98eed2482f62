#pragma once

#include <memory>
#include <string>

#include "backends/process/link.hpp"

/// Faults of the files of a rank that is a process.
namespace accel::process {

/// Decides about a write of `bytes` at `offset`: how many of them are written; 0: none, because the disk is full;
/// -1 - n: the process dies after n of them.
using WriteDecision = long long (*)(const char* path, unsigned long long offset, unsigned long long bytes);

/// The library to load before a program (LD_PRELOAD) whose writes are judged; beside the program in lib/.
std::string write_watcher(const std::string& program_folder);

/// From here on `decide` is asked about this process's writes to files, if the watcher was loaded; null: nobody.
void judge_writes(WriteDecision decide);
/// From here on this process's proxy judges its writes to files, if the watcher was loaded. Once per process.
void watch_writes(std::shared_ptr<RankLink> link);
/// No more: the program has failed, and its proxy answers nothing after that.
void unwatch_writes();

}  // namespace accel::process
