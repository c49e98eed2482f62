#pragma once

#include <stddef.h>
#include <stdint.h>

/// The watch of a job of real ranks as a C library, for simranks/recorder.py: as rank_library.hpp, whose words and
/// errors it has. A call that must fail because the job has to end returns ACCEL_DIAGNOSED, with the diagnosis in
/// accel_error().
///
///     accel_watch_start(rank, 4, local_rank, 4, 0, &store);
///     const int64_t group = accel_watch_group("world", ranks, 4);
///     int64_t call[ACCEL_CALL_WORDS];
///     accel_watch_begin(group, words, "train.py", 13, call);
///     void* wait = accel_watch_wait(call);
///     while (!is_over()) accel_watch_look(call);
///     accel_watch_end_wait(wait, call, 1);
///     accel_watch_end(ACCEL_LEFT, "");
///
/// Thread rule: any thread.
extern "C" {

#define ACCEL_DIAGNOSED (INT64_MIN + 1)
#define ACCEL_CALL_WORDS 4

/// How a program ends.
#define ACCEL_LEFT 0      /* it has returned */
#define ACCEL_RAISED 1    /* by an error */
#define ACCEL_CONDEMNED 2 /* by an error that was ACCEL_DIAGNOSED */

/// The store at which the ranks meet. The functions are called from any thread, and return ACCEL_FAILED if it is out of
/// reach.
struct AccelStore {
  int64_t (*set)(const char* key, const char* value, size_t bytes);
  int64_t (*get)(const char* key);             /* waits until it is set; calls accel_watch_answer */
  int64_t (*has)(const char* keys, int count); /* 1 or 0; each key ends with a zero byte */
  int64_t (*erase)(const char* key);
};
/// The value that `get` has read.
void accel_watch_answer(const char* value, size_t bytes);

/// The host's name: equal for processes that can open each other's files in /proc.
const char* accel_watch_host(void);

/// Watches this process, which is a rank, until accel_watch_end. Returns 1; 0 if there is nothing to watch, as in a job
/// of one rank. Collective over the ranks of a host. `is_served_by_rank_0`: the store is.
int64_t accel_watch_start(int rank, int world_size, int local_rank, int local_world_size, int is_served_by_rank_0,
                          const struct AccelStore* store);
/// Announces a group that the rank has joined, and returns its number; -1 if there is no room for its calls. `ranks`
/// are those of the world.
int64_t accel_watch_group(const char* name, const int64_t* ranks, int num_ranks);
/// Records a call of a collective, and compares it with those of the other ranks. `words`: of accel_call, with the
/// number of the group's ranks in place of the group.
int64_t accel_watch_begin(int64_t group, const int64_t* words, const char* file, uint32_t line, int64_t* call);
/// The rank begins to wait for the end of a call. `num_threads`: how many threads the program has.
void* accel_watch_wait(const int64_t* call, int num_threads);
/// The rank waits no longer. `has_ended`: because it has seen the end of the call.
void accel_watch_end_wait(void* wait, const int64_t* call, int has_ended);
/// Fails if a waiting rank need not wait any longer.
int64_t accel_watch_look(const int64_t* call);
/// Fails with the cause of the error by which the transport has failed in a call.
int64_t accel_watch_explain(const int64_t* call, const char* message);
/// The program has ended. Returns 1 if its error is on record already and need not be printed, else 0.
int64_t accel_watch_end(int how, const char* message);

}  // extern "C"
