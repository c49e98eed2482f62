// `agree` runs for every call of every collective, so it only compares fields. Texts are built for errors and
// diagnoses only.
#include "reference/diagnosis/collective_call.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <string_view>

namespace accel {

// `bytes` is left out because ranks may contribute different amounts to an all-to-all and to a sparse sum, and `where`
// because an if and its else may call the same collective from two lines.
bool agree(const Call& a, const Call& b) {
  return a.op == b.op && a.reduce_op == b.reduce_op && a.dtype == b.dtype && a.shapes == b.shapes &&
         a.strides == b.strides && a.root == b.root && a.sparse_dim == b.sparse_dim && a.is_on_gpu == b.is_on_gpu &&
         a.library_call == b.library_call;
}

std::string describe(const SourceLine& where) {
  return where.line == 0 ? "" : fmt::format("{}:{}", where.file, where.line);
}

// File names are compared as text: each translation unit has its own copy of a header's name.
bool same_source_line(const SourceLine& a, const SourceLine& b) {
  return a.line == b.line && std::string_view(a.file) == b.file;
}

std::string describe(const Call& call) {
  std::vector<std::string> details;
  if (!call.reduce_op.empty()) details.emplace_back(call.reduce_op);
  for (const auto& shape : call.shapes) details.push_back(fmt::format("{} [{}]", call.dtype, fmt::join(shape, ", ")));
  if (call.sparse_dim >= 0) details.push_back(fmt::format("sparse_dim {}", call.sparse_dim));
  for (const auto& strides : call.strides) details.push_back(fmt::format("strides [{}]", fmt::join(strides, ", ")));
  if (call.root >= 0) details.push_back(fmt::format("root {}", call.root));
  const auto by = call.library_call.empty() ? "" : fmt::format(" of {}", call.library_call);
  return fmt::format("{}({}){}", name_of(call.op), fmt::join(details, ", "), by);
}

// Ranges keep messages readable on thousands of ranks.
std::string describe_ranks(const std::vector<int>& ranks) {
  std::vector<std::string> ranges;
  for (std::size_t first = 0; first < ranks.size();) {
    auto last = first;
    while (last + 1 < ranks.size() && ranks[last + 1] == ranks[last] + 1) ++last;
    ranges.push_back(first == last ? fmt::format("{}", ranks[first]) : fmt::format("{}-{}", ranks[first], ranks[last]));
    first = last + 1;
  }
  return fmt::format("{} {}", ranks.size() == 1 ? "rank" : "ranks", fmt::join(ranges, ", "));
}

}  // namespace accel
