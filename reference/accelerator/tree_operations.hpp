#pragma once

#include <ATen/core/Tensor.h>

#include <iterator>
#include <optional>
#include <source_location>
#include <string>
#include <utility>
#include <vector>

#include "reference/accelerator/accelerator_state.hpp"
#include "reference/accelerator/metric_rows.hpp"
#include "reference/accelerator/operations.hpp"
#include "reference/core/call_site.hpp"
#include "reference/core/tree_rows.hpp"
#include "reference/state/objects.hpp"

namespace accel {

/// The Accelerator's collectives on trees of tensors: see operations.hpp for those on one tensor.
///
/// Numbers and strings are no tensors, and refused at compile time. Source: accelerate/accelerator.py;
/// accelerate/utils/operations.py.
class TreeOperations : public virtual AcceleratorState {
 public:
  /// (n, ...) -> (P * n, ...) for every tensor, in the order of the ranks. Collective.
  /// Numbers and strings in a tree are no tensors, and refused at compile time, as Python's TypeError.
  template <typename T>
  std::remove_cvref_t<T> gather(const T& tree, std::source_location where = std::source_location::current()) const {
    static_assert(detail::TensorTree<T>,
                  "gather: a number, string or unknown type has no counterpart on other ranks; gather a tensor "
                  "(torch::tensor(number)), or use gather_object");
    const CallSite site(where);
    verify("gather", tree);
    return with_each(tree, [&](const at::Tensor& tensor) { return operations::gather(context_->world, tensor); });
  }
  /// `gather`, without the duplicates that fill the last step of the active loader. Vectors without tensors, one entry
  /// per sample, are gathered as objects; containers keep their shape. Collective. Throws ArgumentError on such a step
  /// for values that do not hold one row per sample. Without even_batches a last step has no duplicates: of tensors
  /// that pad_across_processes made alike, the rows behind its samples are left out.
  template <typename T>
  std::remove_cvref_t<T> gather_for_metrics(const T& tree,
                                            std::source_location where = std::source_location::current()) const {
    static_assert(RowTree<T>,
                  "gather_for_metrics: a number, string or unknown type has no row per sample; gather a tensor with "
                  "one row per sample, or a std::vector of entries");
    if constexpr (RowTree<T>) {
      const CallSite site(where);
      return gather_rows_for_metrics(tree);
    } else {
      return tree;
    }
  }
  struct GatherOptions {
    bool use_gather_object =
        false;  ///< entries of a vector are gathered as objects, tensors of different shapes included
  };
  template <Tree T>
  std::vector<T> gather_for_metrics(const std::vector<T>& entries, GatherOptions options,
                                    std::source_location where = std::source_location::current()) const {
    const CallSite site(where);
    if (options.use_gather_object) return gather_list_for_metrics(entries);
    if constexpr (RowTree<std::vector<T>>) {
      return gather_for_metrics(entries);
    } else {
      throw ArgumentError(
          "gather_for_metrics: entries with numbers or strings beside tensors have no rows; set use_gather_object");
    }
  }
  /// A reduced copy: see operations::reduce. Collective.
  template <typename T>
  std::remove_cvref_t<T> reduce(const T& tree, const std::string& reduction = "sum", double scale = 1.0,
                                std::source_location where = std::source_location::current()) const {
    static_assert(detail::TensorTree<T>,
                  "reduce: a number, string or unknown type has no counterpart on other ranks; reduce the tensor: "
                  "accelerator.reduce(loss.detach(), \"mean\").item<double>(), or torch::tensor(number)");
    const CallSite site(where);
    verify("reduce", tree);
    return with_each(
        tree, [&](const at::Tensor& tensor) { return operations::reduce(context_->world, tensor, reduction, scale); });
  }
  /// See operations::pad_across_processes. Collective.
  template <typename T>
  std::remove_cvref_t<T> pad_across_processes(const T& tree, operations::PadOptions options = {},
                                              std::source_location where = std::source_location::current()) const {
    static_assert(detail::TensorTree<T>,
                  "pad_across_processes: a number, string or unknown type has no dimension to pad; pass tensors");
    const CallSite site(where);
    return with_each(tree, [&](const at::Tensor& tensor) {
      return operations::pad_across_processes(context_->world, tensor, options);
    });
  }
  /// In place, and returned. Collective.
  template <typename T>
  T& broadcast(T& tree, int from_process = 0, std::source_location where = std::source_location::current()) const {
    static_assert(detail::TensorTree<T>,
                  "broadcast: a number, string or unknown type is not sent; use a tensor (torch::tensor(number)), or "
                  "accel::broadcast_object_list");
    const CallSite site(where);
    verify("broadcast", tree);
    if constexpr (detail::TensorTree<T>)
      for_each_tensor(tree, [&](at::Tensor& tensor) { operations::broadcast(context_->world, tensor, from_process); });
    return tree;
  }

  struct SplitOptions {
    bool apply_padding = false;  ///< the last item again, on ranks that have one less
  };
  /// This rank's items: contiguous, the first ranks one more where they do not divide; empty where there are fewer
  /// items than ranks. Of a tensor rows, of a vector entries, of a map or struct each of its members. Not a collective.
  /// Throws ArgumentError if members differ in their number of items. Source: accelerate/state.py,
  /// split_between_processes.
  template <RowTree T>
  [[nodiscard]] T split_between_processes(const T& inputs, SplitOptions options = {false}) const {
    const auto items = num_rows(inputs).value_or(0);
    if (num_processes() == 1) return inputs;
    const auto own = operations::split_items(items, num_processes(), process_index());
    auto part = slice_rows(inputs, {.begin = own.begin, .end = own.end});
    const auto largest = operations::split_items(items, num_processes(), /*rank=*/0);
    const bool is_short = own.end - own.begin < largest.end - largest.begin;
    return options.apply_padding && is_short
               ? concatenate(std::vector<T>{std::move(part), slice_rows(inputs, {.begin = items - 1, .end = items})})
               : part;
  }

 protected:
  std::optional<Group> debug_group_;  // none outside debug mode

 private:
  // In debug mode, over a group of its own: the user's has no collective that a program does not make.
  template <typename T>
  void verify(const char* operation, const T& tree) const {
    if constexpr (Tree<T>) {
      if (debug_group_) operations::verify(*debug_group_, operation, context_->device, tensors_of(tree));
    }
  }
  // `f` of every tensor. What is no tree of tensors has been refused by a static_assert, to which the compiler is to
  // add nothing.
  template <typename T, typename F>
  static std::remove_cvref_t<T> with_each(const T& tree, F&& f) {
    if constexpr (detail::TensorTree<T>) {
      return map_tensors(tree, f);
    } else {
      return tree;
    }
  }

  template <RowTree T>
  std::remove_cvref_t<T> gather_rows_for_metrics(const T& tree) const {
    const auto rows = tensor_metric_rows(context_->gradient_state, data_parallel_, device());
    for_each_tensor(tree, [&](const at::Tensor& tensor) {
      const auto num_rows = tensor.dim() > 0 ? std::optional(tensor.size(0)) : std::nullopt;
      rows.check(rows.fit(num_rows), num_rows);
    });
    verify("gather_for_metrics", tree);
    auto result = tree;
    detail::for_each_rows(result, [&](auto& leaf) {
      if constexpr (TensorLeaf<decltype(leaf)>) {
        leaf = rows.cut(operations::gather(data_parallel_.group, leaf));
      } else {
        leaf = gather_list_for_metrics(leaf);
      }
    });
    return result;
  }
  template <Tree T>
  std::vector<T> gather_list_for_metrics(const std::vector<T>& list) const {
    const auto rows = metric_rows(context_->gradient_state, data_parallel_);
    std::vector<T> all;
    const bool fits = rows.fit(static_cast<std::int64_t>(list.size()));
    for (auto& [of_rank, its_fits] : detail::gather_trees(data_parallel_.group, device(), std::pair(list, fits))) {
      rows.check(its_fits,
                 static_cast<std::int64_t>(of_rank.size()));  // every rank sees what each thinks: all throw or none
      all.insert(all.end(), std::make_move_iterator(of_rank.begin()), std::make_move_iterator(of_rank.end()));
    }
    return rows.cut(std::move(all));
  }
};

}  // namespace accel
