#pragma once

#include <ATen/core/Tensor.h>

#include <iterator>
#include <optional>
#include <source_location>
#include <string>
#include <utility>
#include <vector>

#include "reference/accelerator/accelerator_base.hpp"
#include "reference/accelerator/metric_rows.hpp"
#include "reference/accelerator/operations.hpp"
#include "reference/rank_local/call_site.hpp"
#include "reference/state/objects.hpp"
#include "reference/tree/tree_rows.hpp"

namespace accel {

/// The Accelerator's collectives on trees of tensors. See operations.hpp for those on a single tensor.
///
/// Numbers and strings are not tensors and are rejected at compile time, where Python raises TypeError. Source:
/// accelerate/accelerator.py; accelerate/utils/operations.py.
class TreeOperations : public virtual AcceleratorBase {
 public:
  /// Concatenates every tensor over the ranks, in rank order: (n, ...) -> (P * n, ...). The result has no gradients.
  /// Collective.
  template <typename T>
  std::remove_cvref_t<T> gather(const T& tree, std::source_location where = std::source_location::current()) const {
    static_assert(detail::TensorTree<T>,
                  "gather: does not support numbers, strings and unknown types; gather a tensor "
                  "(torch::tensor(number)), or use gather_object");
    const CallSite site(where, "gather");
    verify("gather", tree);
    return observed("gather", with_each(tree, [&](const at::Tensor& tensor) {
                      return operations::gather(context_->world, tensor);
                    }));
  }
  struct GatherTensorsOptions {
    bool with_gradients = false;  ///< for a loss over the rows of all ranks, such as a contrastive one
  };
  /// With `with_gradients` the result is part of the graph: `backward` sums what the losses of all ranks contribute to
  /// a rank's rows, and averaging the model's gradients then gives those of the mean loss. It gathers over the
  /// data-parallel ranks, and its backward is collective too. Throws StateError under context parallelism.
  ///
  ///     const auto keys = accelerator.gather(features, {.with_gradients = true});
  ///     accelerator.backward(contrastive_loss(features, keys));
  template <typename T>
  std::remove_cvref_t<T> gather(const T& tree, GatherTensorsOptions options,
                                std::source_location where = std::source_location::current()) const {
    if (!options.with_gradients) return gather(tree, where);
    static_assert(detail::TensorTree<T>, "gather: with_gradients does not support numbers, strings and unknown types");
    check_state(!mesh().config().cp_enabled(),
                "gather: with_gradients does not support context parallelism, whose ranks hold parts of a sample");
    const CallSite site(where, "gather(with_gradients)");
    verify("gather", tree);
    return with_each(tree,
                     [&](const at::Tensor& tensor) { return operations::gather_with_gradients(mesh()["dp"], tensor); });
  }
  /// Gathers like `gather`, and drops the duplicates that fill the last step of the active loader. Vectors without
  /// tensors, with one entry per sample, are gathered as objects; containers keep their shape. Collective. On a step
  /// with duplicates, throws ArgumentError for values that do not have one row per sample. Without even_batches the
  /// last step has no duplicates; there it drops the rows that pad_across_processes added.
  template <typename T>
  std::remove_cvref_t<T> gather_for_metrics(const T& tree,
                                            std::source_location where = std::source_location::current()) const {
    static_assert(RowTree<T>,
                  "gather_for_metrics: does not support numbers, strings and unknown types; gather a tensor with one "
                  "row per sample, or a std::vector with one entry per sample");
    if constexpr (RowTree<T>) {
      const CallSite site(where, "gather_for_metrics");
      return observed("gather_for_metrics", gather_rows_for_metrics(tree));
    } else {
      return tree;
    }
  }
  struct GatherOptions {
    bool use_gather_object =
        false;  ///< gather the entries of a vector as objects; they may be tensors of different shapes
  };
  template <Tree T>
  std::vector<T> gather_for_metrics(const std::vector<T>& entries, GatherOptions options,
                                    std::source_location where = std::source_location::current()) const {
    const CallSite site(where,
                        options.use_gather_object ? "gather_for_metrics(use_gather_object)" : "gather_for_metrics");
    if (options.use_gather_object) return gather_list_for_metrics(entries);
    if constexpr (RowTree<std::vector<T>>) {
      return gather_for_metrics(entries);
    } else {
      throw ArgumentError(
          "gather_for_metrics: entries that mix tensors with numbers or strings have no rows; set use_gather_object: "
          "true");
    }
  }
  /// Returns a reduced copy. See operations::reduce. Collective.
  template <typename T>
  std::remove_cvref_t<T> reduce(const T& tree, const std::string& reduction = "sum", double scale = 1.0,
                                std::source_location where = std::source_location::current()) const {
    static_assert(detail::TensorTree<T>,
                  "reduce: does not support numbers, strings and unknown types; reduce a tensor: "
                  "accelerator.reduce(loss.detach(), \"mean\").item<double>(), or torch::tensor(number)");
    const auto call = fmt::format("reduce({}, scale {})", reduction, scale);
    const CallSite site(where, call);
    verify("reduce", tree);
    return with_each(
        tree, [&](const at::Tensor& tensor) { return operations::reduce(context_->world, tensor, reduction, scale); });
  }
  /// Pads every tensor to the largest size over all ranks. See operations::pad_across_processes. Collective.
  template <typename T>
  std::remove_cvref_t<T> pad_across_processes(const T& tree, operations::PadOptions options = {},
                                              std::source_location where = std::source_location::current()) const {
    static_assert(detail::TensorTree<T>,
                  "pad_across_processes: does not support numbers, strings and unknown types; pass tensors");
    const auto call = fmt::format("pad_across_processes(dim {}, pad_index {}, pad_first {})", options.dim,
                                  options.pad_index, options.pad_first);
    const CallSite site(where, call);
    verify("pad_across_processes", tree, operations::Compared::kNumDimensions);
    return with_each(tree, [&](const at::Tensor& tensor) {
      return operations::pad_across_processes(context_->world, tensor, options);
    });
  }
  /// Copies every tensor from rank `from_process` to all ranks, in place, and returns `tree`. Collective.
  template <typename T>
  T& broadcast(T& tree, int from_process = 0, std::source_location where = std::source_location::current()) const {
    static_assert(detail::TensorTree<T>,
                  "broadcast: does not support numbers, strings and unknown types; use a tensor "
                  "(torch::tensor(number)), or accel::broadcast_object_list");
    const CallSite site(where, "broadcast");
    verify("broadcast", tree);
    if constexpr (detail::TensorTree<T>)
      for_each_tensor(tree, [&](at::Tensor& tensor) { operations::broadcast(context_->world, tensor, from_process); });
    return tree;
  }
  /// Returns the tensor that exactly one rank passes; the others pass nullopt and need not know its shape. Collective.
  /// See operations::copy_tensor_to_devices.
  [[nodiscard]] at::Tensor copy_tensor_to_devices(const std::optional<at::Tensor>& tensor,
                                                  std::source_location where = std::source_location::current()) const {
    const CallSite site(where);
    return operations::copy_tensor_to_devices(*context_, tensor);
  }

 protected:
  std::optional<Group> debug_group_;  // set only in debug mode

 private:
  // Debug mode: compares the tensors of all ranks, over a separate group, so that the user's groups contain only the
  // collectives that the program makes.
  template <typename T>
  void verify(const char* operation, const T& tree,
              operations::Compared compared = operations::Compared::kShapes) const {
    if constexpr (Tree<T>) {
      if (debug_group_) operations::verify(*debug_group_, operation, context_->device, tensors_of(tree), compared);
    }
  }
  // Reports the rows of a result that was gathered.
  template <typename T>
  T observed(const char* call, T result) const {
    if constexpr (Tree<T>) {
      if (context_->program_observer) {
        std::vector<std::int64_t> rows;
        for_each_tensor(result, [&](const at::Tensor& tensor) {
          if (tensor.dim() > 0) rows.push_back(tensor.size(0));
        });
        context_->program_observer->gather(call, rows);
      }
    }
    return result;
  }
  // Applies `f` to every tensor. Other types have already failed a static_assert; returning them unchanged keeps the
  // compiler from adding errors to it.
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
    const auto rows = tensor_metric_rows(context_->gradient_state, data_parallel());
    for_each_tensor(tree, [&](const at::Tensor& tensor) {
      const auto num_rows = tensor.dim() > 0 ? std::optional(tensor.size(0)) : std::nullopt;
      rows.check(rows.fit(num_rows), num_rows);
    });
    verify("gather_for_metrics", tree);
    auto result = tree;
    detail::for_each_rows(result, [&](auto& leaf) {
      if constexpr (TensorLeaf<decltype(leaf)>) {
        leaf = rows.cut(operations::gather(data_parallel().group, leaf));
      } else {
        leaf = gather_list_for_metrics(leaf);
      }
    });
    return result;
  }
  template <Tree T>
  std::vector<T> gather_list_for_metrics(const std::vector<T>& list) const {
    const auto rows = metric_rows(context_->gradient_state, data_parallel());
    std::vector<T> all;
    const bool fits = rows.fit(static_cast<std::int64_t>(list.size()));
    for (auto& [of_rank, its_fits] : detail::gather_trees(data_parallel().group, std::pair(list, fits))) {
      rows.check(its_fits,
                 static_cast<std::int64_t>(of_rank.size()));  // every rank checks all ranks: all throw or none does
      all.insert(all.end(), std::make_move_iterator(of_rank.begin()), std::make_move_iterator(of_rank.end()));
    }
    return rows.cut(std::move(all));
  }
};

}  // namespace accel
