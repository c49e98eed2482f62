// Collects what goes wrong in a run. Several ranks fail at about the same time; this class decides which
// failure is the run's and which diagnosis explains it.
#include "sim/engine/failure_record.hpp"

#include <algorithm>

namespace accel::sim {
namespace {

bool may_stop(const AppliedFault& strike) { return strike.may_stop; }

// Only a DiagnosedError carries a diagnosis; the error of a rank's own code has none.
std::optional<Diagnosis> diagnosis_of(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const DiagnosedError& diagnosed) {
    return diagnosed.diagnosis();
  } catch (...) {
    return std::nullopt;
  }
}

}  // namespace

std::exception_ptr FailureRecord::failure() const {
  const MutexLock lock(mutex_);
  return failure_;
}

void FailureRecord::throw_if_failed() const {
  if (has_failed_) std::rethrow_exception(failure());
}

// `failure_` is set before `has_failed_`: a rank that reads the flag without the lock then finds the error.
bool FailureRecord::set_failure(const std::exception_ptr& error) {
  {
    const MutexLock lock(mutex_);
    if (failure_) return false;
    failure_ = error;
    if (auto diagnosis = diagnosis_of(error)) diagnosis_ = std::move(diagnosis);
  }
  has_failed_ = true;
  log_.append("fail", /*rank=*/-1);
  return true;
}

// Attributes a failure to the last strike that may stop a run: the others had their effect and the run
// continued. The diagnosis keeps what the engine found (who waited for what) and only adds the fault as the cause.
std::optional<Diagnosis> FailureRecord::diagnosis() const {
  const MutexLock lock(mutex_);
  const auto strike = std::find_if(strikes_.rbegin(), strikes_.rend(), may_stop);
  if (strike == strikes_.rend()) return diagnosis_;
  auto diagnosis = diagnosis_.value_or(Diagnosis{});
  diagnosis.kind = Diagnosis::Kind::kFault;
  diagnosis.fault = strike->name;
  diagnosis.ranks = strike->ranks;
  if (diagnosis.op.empty() && strike->call) name_call(diagnosis, *strike->call, strike->group, strike->sequence);
  diagnosis.text =
      fmt::format("injected fault: {}{}{}", strike->text, diagnosis.text.empty() ? "" : "\n", diagnosis.text);
  return diagnosis;
}

void FailureRecord::add_diagnosis(Diagnosis diagnosis) {
  const MutexLock lock(mutex_);
  if (!diagnosis_) diagnosis_ = std::move(diagnosis);
}

void FailureRecord::note(AppliedFault strike) {
  log_.append({.what = "fault", .rank = strike.ranks.empty() ? -1 : strike.ranks.front(), .text = strike.text});
  const MutexLock lock(mutex_);
  strikes_.push_back(std::move(strike));
}

// A fault may turn out to be fatal only later: a delayed message is harmless until its delays exceed the time-out.
void FailureRecord::blame(const std::string& text) {
  const MutexLock lock(mutex_);
  for (auto& strike : strikes_) strike.may_stop = strike.may_stop || strike.text == text;
}

std::vector<AppliedFault> FailureRecord::strikes() const {
  const MutexLock lock(mutex_);
  return strikes_;
}

bool FailureRecord::has_strike_that_may_stop() const {
  const MutexLock lock(mutex_);
  return std::any_of(strikes_.begin(), strikes_.end(), may_stop);
}

// Findings repeat on every step and rank, so equal texts are kept once, and no more than kMost in total.
void FailureRecord::warn(std::string finding) {
  constexpr std::size_t kMost = 100;
  const MutexLock lock(mutex_);
  if (findings_.size() < kMost && std::find(findings_.begin(), findings_.end(), finding) == findings_.end())
    findings_.push_back(std::move(finding));
}

std::vector<std::string> FailureRecord::findings() const {
  const MutexLock lock(mutex_);
  auto sorted = findings_;
  std::sort(sorted.begin(), sorted.end());  // independent of the order in which threads reported
  return sorted;
}

}  // namespace accel::sim
