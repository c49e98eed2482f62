#pragma once

#include <iterator>
#include <source_location>
#include <string>
#include <vector>

#include "reference/rank_local/call_site.hpp"
#include "reference/state/rank_context.hpp"
#include "reference/tree/tree_bytes.hpp"

/// Exchange of objects between ranks. Objects are trees of any content and may differ in size between ranks. They are
/// sent as bytes in two collectives, sizes first.
///
///     auto names = accel::gather_object(my_names);          // of all ranks, in rank order
///     accel::broadcast_object_list(settings);               // of rank 0
///
/// Collective over the world. Thread rule: the rank's thread.
/// Source: accelerate/utils/operations.py, gather_object and broadcast_object_list.
namespace accel {

namespace detail {
std::vector<std::string> all_gather_bytes(const Group& group, const std::string& bytes);
/// The same on the group's first rank, by one message from each other rank, to which it returns nothing.
std::vector<std::string> gather_bytes_on_first(const Group& group, const std::string& bytes);
/// Whether all ranks of the group have the same number.
bool is_equal_on_all(const Group& group, std::uint64_t value);
/// Returns the `bytes` of rank `root` on every rank.
std::string broadcast_bytes(RankContext& context, std::string bytes, int root);
}  // namespace detail

namespace detail {

/// Returns the trees of all ranks, in rank order of the group.
template <Tree T>
std::vector<T> gather_trees(const Group& group, const T& tree) {
  std::vector<T> trees;
  for (const auto& bytes : all_gather_bytes(group, pack(tree))) trees.push_back(unpack<T>(bytes));
  return trees;
}

}  // namespace detail

/// Returns the entries of all ranks' lists, in rank order.
template <Tree T>
std::vector<T> gather_object(RankContext& context, const std::vector<T>& objects,
                             std::source_location where = std::source_location::current()) {
  const CallSite site(where, "gather_object");
  std::vector<T> all;
  for (auto& list : detail::gather_trees(context.world, objects))
    all.insert(all.end(), std::make_move_iterator(list.begin()), std::make_move_iterator(list.end()));
  return all;
}
template <Tree T>
std::vector<T> gather_object(const std::vector<T>& objects,
                             std::source_location where = std::source_location::current()) {
  return gather_object(current_rank(), objects, where);
}

/// Replaces `objects` by those of rank `from_process`. The number of objects may change.
/// Throws ArgumentError if there is no such rank.
template <Tree T>
std::vector<T>& broadcast_object_list(RankContext& context, std::vector<T>& objects, int from_process = 0,
                                      std::source_location where = std::source_location::current()) {
  const CallSite site(where, "broadcast_object_list");
  check_argument(from_process >= 0 && from_process < context.world_size,
                 "broadcast_object_list: from_process is {}; expected 0 or more and less than the world size {}",
                 from_process, context.world_size);
  const auto bytes =
      detail::broadcast_bytes(context, context.rank == from_process ? pack(objects) : std::string(), from_process);
  if (context.rank != from_process) objects = unpack<std::vector<T>>(bytes);
  return objects;
}
template <Tree T>
std::vector<T>& broadcast_object_list(std::vector<T>& objects, int from_process = 0,
                                      std::source_location where = std::source_location::current()) {
  return broadcast_object_list(current_rank(), objects, from_process, where);
}

}  // namespace accel
