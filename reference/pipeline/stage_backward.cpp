// Note [Two halves of a backward pass] Seen from the outputs, a stage's graph has a trunk, the nodes through which its
// inputs are reached, and branches, which end in weights. A junction is a node of the trunk from which a branch starts.
// The first half runs the trunk and keeps the gradients that enter the junctions; the second half runs each branch from
// its junction. Source: torch/distributed/pipelining/_backward.py.
#include "reference/pipeline/stage_backward.hpp"

#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <unordered_map>
#include <unordered_set>
#include <utility>

namespace accel::pipeline {
namespace {

using torch::autograd::Edge;
using torch::autograd::edge_list;
using torch::autograd::Node;
using torch::autograd::variable_list;

Edge edge_of(const at::Tensor& tensor) { return torch::autograd::impl::gradient_edge(tensor); }

variable_list run(const edge_list& roots, const variable_list& gradients, bool keeps_graph, bool accumulates,
                  const edge_list& ends) {
  return torch::autograd::Engine::get_default_engine().execute(roots, gradients, keeps_graph, /*create_graph=*/false,
                                                               accumulates, ends);
}

// A depth-first search without recursion, because graphs are deep.
class Graph {
 public:
  Graph(const edge_list& roots, const std::unordered_set<const Node*>& inputs) : inputs_(inputs) {
    for (const auto& root : roots) visit(root.function.get());
  }

  [[nodiscard]] bool is_trunk(const Node* node) const { return is_trunk_.at(node); }
  /// Nodes before their children.
  [[nodiscard]] const std::vector<Node*>& nodes() const { return nodes_; }

 private:
  void visit(Node* root) {
    struct Visit {
      Node* node;
      std::size_t next_edge = 0;
    };
    if (is_trunk_.contains(root)) return;
    std::vector<Visit> path;
    const auto enter = [&](Node* node) {
      is_trunk_[node] = inputs_.contains(node);
      path.push_back({node});
    };
    enter(root);
    while (!path.empty()) {
      auto& [node, next_edge] = path.back();
      const auto& edges = node->next_edges();
      if (next_edge == edges.size()) {
        for (const auto& edge : edges) {
          if (edge.is_valid() && is_trunk_.at(edge.function.get())) is_trunk_[node] = true;
        }
        nodes_.push_back(node);
        path.pop_back();
        continue;
      }
      auto* const child = edges[next_edge++].function.get();
      if (child != nullptr && !is_trunk_.contains(child)) enter(child);
    }
  }

  const std::unordered_set<const Node*>& inputs_;
  std::unordered_map<const Node*, bool> is_trunk_;
  std::vector<Node*> nodes_;
};

// The weights at the ends of the branches that start at a node.
edge_list weights_from(const Graph& graph, const Node* start) {
  edge_list weights;
  std::unordered_set<const Node*> seen;
  std::vector<const Node*> waiting{start};
  while (!waiting.empty()) {
    const auto* const node = waiting.back();
    waiting.pop_back();
    for (const auto& edge : node->next_edges()) {
      const auto* const child = edge.function.get();
      if (child == nullptr || graph.is_trunk(child) || !seen.insert(child).second) continue;
      if (child->next_edges().empty()) weights.push_back(edge);
      waiting.push_back(child);
    }
  }
  return weights;
}

struct Roots {
  edge_list edges;
  variable_list gradients;
};

Roots roots_of(const std::vector<at::Tensor>& outputs, const std::vector<at::Tensor>& gradients) {
  Roots roots;
  for (std::size_t index = 0; index < outputs.size(); ++index) {
    if (!outputs[index].requires_grad() || !gradients[index].defined()) continue;
    roots.edges.push_back(edge_of(outputs[index]));
    roots.gradients.push_back(gradients[index]);
  }
  return roots;
}

// The inputs that need a gradient.
struct Ends {
  edge_list edges;
  std::vector<std::size_t> places;
  std::unordered_set<const Node*> nodes;
};

Ends ends_of(const std::vector<at::Tensor>& inputs) {
  Ends ends;
  for (std::size_t index = 0; index < inputs.size(); ++index) {
    if (!inputs[index].requires_grad()) continue;
    ends.edges.push_back(edge_of(inputs[index]));
    ends.places.push_back(index);
    ends.nodes.insert(ends.edges.back().function.get());
  }
  return ends;
}

// Where the second half begins: at a node, with the gradients that enter it.
struct Branches {
  edge_list starts;
  variable_list gradients;  // empty until the first half has run, unless the node is an output
  edge_list weights;
};

}  // namespace

struct StageBackward::Halves {
  Roots roots;
  std::vector<Branches> branches;
  edge_list all_weights;
  bool is_shared = false;  // a weight hangs on several junctions, whose branches cannot be run apart
  bool is_first_done = false;

  void add(Branches added) {
    for (const auto& weight : added.weights) {
      const auto* const node = weight.function.get();
      is_shared |= std::any_of(all_weights.begin(), all_weights.end(),
                               [&](const Edge& other) { return other.function.get() == node; });
      all_weights.push_back(weight);
    }
    branches.push_back(std::move(added));
  }

  void find_branches(const Graph& graph) {
    for (auto* const node : graph.nodes()) {
      if (!graph.is_trunk(node)) continue;
      auto weights = weights_from(graph, node);
      if (weights.empty()) continue;
      edge_list starts;
      for (std::uint32_t input = 0; input < node->num_inputs(); ++input) starts.emplace_back(node->getptr(), input);
      add({.starts = std::move(starts), .gradients = {}, .weights = std::move(weights)});
    }
    for (std::size_t index = 0; index < roots.edges.size(); ++index) {
      const auto& root = roots.edges[index];
      const auto* const node = root.function.get();
      if (graph.is_trunk(node)) continue;
      auto weights = node->next_edges().empty() ? edge_list{root} : weights_from(graph, node);
      add({.starts = {root}, .gradients = {roots.gradients[index]}, .weights = std::move(weights)});
    }
  }
};

StageBackward::StageBackward(std::vector<at::Tensor> outputs, std::vector<at::Tensor> inputs)
    : outputs_(std::move(outputs)), inputs_(std::move(inputs)) {}
StageBackward::~StageBackward() = default;
StageBackward::StageBackward(StageBackward&&) noexcept = default;
StageBackward& StageBackward::operator=(StageBackward&&) noexcept = default;

std::vector<at::Tensor> StageBackward::complete(const std::vector<at::Tensor>& gradients) {
  halves_ = std::make_unique<Halves>(Halves{.roots = roots_of(outputs_, gradients)});
  outputs_.clear();
  return run_all();
}

// The gradients of inputs and weights.
std::vector<at::Tensor> StageBackward::run_all() {
  const auto& roots = halves_->roots;
  if (!roots.edges.empty()) run(roots.edges, roots.gradients, /*keeps_graph=*/false, /*accumulates=*/true, {});
  std::vector<at::Tensor> of_inputs;
  for (auto& input : inputs_) {
    of_inputs.push_back(input.grad());
    input.mutable_grad().reset();
  }
  return of_inputs;
}

std::vector<at::Tensor> StageBackward::of_inputs(const std::vector<at::Tensor>& gradients) {
  halves_ = std::make_unique<Halves>(Halves{.roots = roots_of(outputs_, gradients)});
  outputs_.clear();
  const auto& roots = halves_->roots;
  const auto inputs = ends_of(inputs_);
  std::vector<at::Tensor> of_inputs(inputs_.size());
  if (inputs.edges.empty() || roots.edges.empty()) return of_inputs;

  halves_->find_branches(Graph(roots.edges, inputs.nodes));
  halves_->is_first_done = true;
  if (halves_->is_shared) {
    halves_->branches.clear();
    return run_all();
  }
  auto ends = inputs.edges;
  for (const auto& branches : halves_->branches) {
    if (branches.gradients.empty()) ends.insert(ends.end(), branches.starts.begin(), branches.starts.end());
  }
  const auto captured = run(roots.edges, roots.gradients, /*keeps_graph=*/true, /*accumulates=*/false, ends);
  auto next = captured.begin();
  for (const auto place : inputs.places) of_inputs[place] = *next++;
  for (auto& [starts, entering, weights] : halves_->branches) {
    if (!entering.empty()) continue;
    const auto end = next + static_cast<std::ptrdiff_t>(starts.size());
    entering.assign(next, end);
    next = end;
  }
  return of_inputs;
}

void StageBackward::of_weights() {
  if (!halves_->is_first_done) (void)run_all();
  for (const auto& [starts, gradients, weights] : halves_->branches)
    run(starts, gradients, /*keeps_graph=*/false, /*accumulates=*/true, weights);
  halves_ = nullptr;
}

}  // namespace accel::pipeline
