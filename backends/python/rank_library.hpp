#pragma once

#include <stddef.h>
#include <stdint.h>

/// The rank's end of the channel to the simulator as a C library: without LibTorch and without Python, so that one
/// build serves every version of both. simranks/channel.py calls it through ctypes.
///
///     void* area = accel_area_attach(descriptor);
///     accel_become(area, /*rank=*/3);                      // in the process of the rank
///     const int64_t group = accel_group("world", ranks, 4, "train.py", 12);
///     const int64_t work = accel_call(words, "train.py", 13);
///     if (accel_wait(work, NULL, "train.py", 13) == ACCEL_FAILED) puts(accel_error());
///
/// A function that returns int64_t returns ACCEL_FAILED if it fails; the text is then in accel_error(). `file` and
/// `line` are the program's; line 0: unknown.
///
/// Tensors are described by int64_t words:
///
///     tensor: address, bytes per element, at::ScalarType, dimensions, sizes..., strides...
///     call:   Collective, group, c10d::ReduceOp::RedOpType, root or peer (-1: none), tag, flags (ACCEL_*),
///             number of inputs, outputs, sizes of a sparse tensor, input splits, output splits;
///             then inputs, outputs, sizes, input splits, output splits
///     update: number of parameters; for each: number of sizes, sizes..., gradient (ParameterState::Gradient), a tensor
///             (the parameter, contiguous); then, if `gradient` is kPresent, its sample fingerprint (0: unknown)
///
/// Thread rule: any thread; several may wait at a time. A process that was forked by a rank is no rank: requests fail
/// there.
extern "C" {

#define ACCEL_FAILED INT64_MIN
#define ACCEL_IS_ASYNC 1      /* the caller does not wait at once */
#define ACCEL_IS_SPARSE 2     /* the inputs are the indices and the values of one tensor */
#define ACCEL_WRITES_INPUTS 4 /* an in-place collective */
#define ACCEL_NOT_IN_GLOO 8   /* the Gloo of the rank's torch lacks the collective */

/// The text of the last failure in this thread.
const char* accel_error(void);

// --- the shared memory, for the process that forks the ranks; NULL: failed -------------------------------------------
void* accel_area_create(int num_ranks);
void* accel_area_attach(int descriptor);
void accel_area_close(void* area);
int accel_area_descriptor(void* area);
int accel_area_num_ranks(void* area);
/// The ranks are about to start.
void accel_area_set_ready(void* area);
void accel_area_set_pid(void* area, int rank, int pid);
/// Records how the process of a rank has ended, by the status of wait().
void accel_area_record_end(void* area, int rank, int status);
/// The same for every rank that has no end yet.
void accel_area_record_lost_ends(void* area, int status);

// --- the rank --------------------------------------------------------------------------------------------------------
/// This process is a rank from here on. It must be none now: it may have left another world, or a rank has forked it.
int64_t accel_become(void* area, int rank);
/// This process is no rank any more. The simulator takes it for a rank that has ended its program.
void accel_leave(void);
/// 1 if this process is a rank, and not one that a rank has forked; else 0.
int accel_is_rank(void);

/// How many threads the program has that may call these functions. A thread that has called one is known without this.
void accel_set_num_threads(int num_threads);

/// Reports a group to the simulator and returns its number. `ranks` are those of the world.
int64_t accel_group(const char* name, const int64_t* ranks, int num_ranks, const char* file, uint32_t line);
/// Posts a call of a collective and returns the number of the work. Copies what the collective reads; the memory of
/// its tensors must stay where it is until `accel_wait` or `accel_abandon`.
int64_t accel_call(const int64_t* words, const char* file, uint32_t line);
/// Waits for a work, copies the results to the tensors of the call, and forgets the work. Returns the source rank of a
/// message (-1: none), or the number of entries of a sparse sum. `addresses`: where the tensors of the call are now;
/// NULL: where they were; 0: a tensor has lost its memory.
int64_t accel_wait(int64_t work, const int64_t* addresses, const char* file, uint32_t line);
/// Posts a call that the program waits for at once, and waits: `accel_call` and `accel_wait` in one.
int64_t accel_run(const int64_t* words, const char* file, uint32_t line);
/// Copies the sparse sum of a work, after `accel_wait`, to two tensors (words): its indices and its values.
int64_t accel_sum(int64_t work, const int64_t* words);
/// Returns 1 if a work has ended, else 0.
int64_t accel_poll(int64_t work, const char* file, uint32_t line);
/// The program has dropped a work without waiting for it. Its memory is used again after its end. Never fails.
void accel_abandon(int64_t work);
/// 1 if a work is neither over nor abandoned and freed; else 0. Asks nobody.
int accel_is_pending(int64_t work);
/// Reports that the program touches a tensor of a pending work too early. Ignored if the work is over.
int64_t accel_touch(int64_t work, const char* how);
/// The wait for a work does not report that its tensors have changed since the call. Never fails.
void accel_allow_changes(int64_t work);

int64_t accel_phase(const char* name, const char* file, uint32_t line);
int64_t accel_backward(double loss, const char* file, uint32_t line);
int64_t accel_update(const char* file, uint32_t line);
/// After an update, whose step is at this line. `names`: of the parameters, each ends with a zero byte.
int64_t accel_updated(const int64_t* words, const char* names, const void* generator, size_t generator_bytes,
                      const char* file, uint32_t line);
int64_t accel_end_join(const char* file, uint32_t line);
int64_t accel_divide(const char* name, uint64_t hash, const char* file, uint32_t line);
int64_t accel_report(const char* check, const char* text, const char* file, uint32_t line);
/// The program has ended by this error; nothing is answered after it.
int64_t accel_fail(const char* text, const char* file, uint32_t line);

/// As accel::fingerprint and accel::sample_fingerprint.
uint64_t accel_fingerprint(const void* data, size_t num_bytes);
uint64_t accel_sample_fingerprint(const void* data, size_t num_bytes);

}  // extern "C"
