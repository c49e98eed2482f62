#pragma once

#include <string>
#include <vector>

#include "sim/report/verification_report.hpp"

/// The sections of the page of a verification. Each function returns a <section>. Thread rule: any thread.
namespace accel::sim::report {

std::string equivalence_section(const VerificationReport& report);
std::string generators_section(const VerificationReport& report);
std::string mutants_section(const VerificationReport& report);
std::string benchmarks_section(const VerificationReport& report);
std::string fault_runs_section(const VerificationReport& report);
std::string differences_section(const VerificationReport& report);

/// Returns the comparison that stands for a law and two sides: one with a difference, else the one with the most cases.
/// Null if there is none.
const LawComparison* comparison_of(const VerificationReport& report, const std::string& law, const std::string& left,
                                   const std::string& right);

/// Columns of the matrix: 1 to 16 ranks, then ranges such as "17-32".
std::string rank_column(int ranks);

/// Cells of the matrix without a case. A cell counts if another comparison of its law reached it.
std::size_t num_empty_cells(const VerificationReport& report, const LawComparison& one);

/// Number of the mutants that were run.
std::int64_t num_run(const std::vector<MutantResult>& mutants);
/// Share of the mutants that were run that an assertion killed; 0 if none was run.
double mutation_score(const std::vector<MutantResult>& mutants);

/// "Command: ./dev test; commit abc, 2026-11-25", as HTML.
std::string origin_line(const ResultOrigin& origin);

}  // namespace accel::sim::report
