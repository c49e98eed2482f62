#pragma once

#include <c10/util/Exception.h>

#include <functional>
#include <string>
#include <vector>

#include "reference/core/errors.hpp"
#include "reference/files/files.hpp"
#include "reference/state/objects.hpp"
#include "reference/state/rank_context.hpp"

/// Errors that may occur on one rank alone. Thrown there, they would leave the other ranks waiting in their next
/// collective; so each becomes a text that all ranks share.
///
///     agree(context, "load_state", problem_of([&] { read(file); }));
///
/// Thread rule: the rank's thread.
namespace accel {

/// Runs `act` and returns the message of its error, "" without one: of the file system, of contents that do not match,
/// or of functions of the program. Other errors of this library end this rank: it died, or a collective failed.
template <typename Act>
std::string problem_of(const Act& act) {
  try {
    act();
  } catch (const FileError& error) {
    return error.what();
  } catch (const CheckpointError& error) {
    return error.what();
  } catch (const ConfigError& error) {  // a file that cannot be opened
    return error.what();
  } catch (const ArgumentError& error) {  // a value that cannot be stored in a file
    return error.what();
  } catch (const Error&) {
    throw;
  } catch (const c10::DistError&) {
    throw;
  } catch (const c10::Error& error) {
    return error.what_without_backtrace();
  } catch (const std::exception& error) {
    return error.what();
  }
  return "";
}

/// Throws the same CheckpointError, which begins with `what`, on all ranks if any rank has a problem. Equal problems of
/// several ranks are reported once, with the ranks that have them. Collective.
void agree(RankContext& context, const std::string& what, const std::string& problem);

/// Runs `act` on the ranks that act alone for all, shares their problem, and returns rank 0's result on every rank.
/// Collective.
template <typename Result>
Result result_of_one_rank(RankContext& context, const std::string& what, bool acts,
                          const std::function<Result()>& act) {
  std::vector<Result> result(1);
  agree(context, what, acts ? problem_of([&] { result.front() = act(); }) : "");
  broadcast_object_list(context, result);
  return result.front();
}

}  // namespace accel
