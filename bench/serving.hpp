#pragma once

#include <iosfwd>

#include "bench/rows.hpp"

namespace accel::bench {

/// Takes single samples on request, so that against/sampling.py can alternate between the programs of two builds within
/// a fraction of a second. Answers each line of `in` with one line:
///
/// - "rows": name and unit of the rows whose `compared` is true, as JSON
/// - "origin": the record of this program's run (record.hpp), as JSON
/// - the name of a row: one sample
///
/// A failure is answered by a line that begins with "error: ". Ends at the end of `in`.
void answer_requests(const Rows& rows, std::istream& in, std::ostream& out);

}  // namespace accel::bench
