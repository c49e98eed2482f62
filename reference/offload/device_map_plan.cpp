#include <algorithm>
#include <limits>

#include "reference/core/errors.hpp"
#include "reference/offload/device_map.hpp"
#include "reference/offload/module_sizes.hpp"

// The greedy planner of infer_auto_device_map. It works on a queue of modules and tensors, and either places the first
// one on the current device, or splits it, or moves on to the next device. The order of these attempts, and what counts
// as used, are Accelerate's: other choices would also be valid, but give other device maps than Python.
namespace accel {
namespace {

using offload::is_within;
using offload::Node;
using Nodes = std::vector<Node>;

constexpr auto kNoLimit = std::numeric_limits<std::int64_t>::max();

// Invariants between iterations: a node is in `waiting_` or in the device map, never in both; `current_` only grows;
// disk, without a limit, is last, so the loop in plan() ends.
class DeviceMapPlanner {
 public:
  DeviceMapPlanner(const ModelDescription& model, const DeviceMapOptions& options)
      : options_(options),
        sizes_(compute_module_sizes(model, {.dtype = options.dtype, .special_dtypes = options.special_dtypes})),
        buffer_sizes_(compute_module_sizes(
            model, {.dtype = options.dtype, .special_dtypes = options.special_dtypes, .buffers_only = true})),
        tied_(find_tied_parameters(model)),
        waiting_(offload::parts_of(model.root)) {
    for (const auto& [device, size] : get_max_memory(options.max_memory))
      devices_.push_back({device, device.is_disk() ? kNoLimit : size.bytes});
    // get_max_memory sorts devices: GPUs, CPU, disk.
    if (devices_.empty() || !devices_.back().device.is_disk()) devices_.push_back({"disk", kNoLimit});
    update_largest_layer(waiting_);
  }

  DeviceMapPlan plan() {
    while (!waiting_.empty()) {
      const auto node = waiting_.front();
      waiting_.erase(waiting_.begin());
      forget_largest(node.name);
      // In this order. If all fail, the device is full and the node waits for the next one.
      if (place(node) || split_tied(node) || split(node) || fall_back(node)) continue;
      // The device stays empty, which usually means that its limit is too low; the plan reports what would have been
      // enough.
      if (device().used == 0) plan_.minimum_bytes.emplace(device().device, size_with_ties(node, waiting_) + reserve());
      // The reserve counts as used from now on: check_buffers_fit must not give it away.
      device().used += reserve();
      waiting_.insert(waiting_.begin(), node);
      ++current_;
    }
    if (options_.clean_result) plan_.device_map = clean_device_map(std::move(plan_.device_map));
    check_buffers_fit();
    return std::move(plan_);
  }

 private:
  struct Device {
    MapDevice device;
    std::int64_t limit;
    std::int64_t used = 0;
  };

  Device& device() { return devices_[current_]; }

  // The first GPU and main memory run offloaded modules one layer at a time, and need room for the largest layer.
  [[nodiscard]] std::int64_t reserve() const {
    const auto& device = devices_[current_].device;
    return device.is_cpu() || (device.is_gpu() && current_ == 0) ? largest_bytes_ : 0;
  }
  [[nodiscard]] std::int64_t available() const {
    return devices_[current_].limit == kNoLimit ? kNoLimit : devices_[current_].limit - reserve();
  }

  void update_largest_layer(const Nodes& nodes) {
    auto [bytes, layers] = offload::largest_layer(nodes, sizes_, options_.no_split_module_classes);
    largest_bytes_ = bytes;
    largest_layers_ = std::move(layers);
  }
  // Single tensors are not considered, because nothing else is moved together with them.
  void update_largest_module() {
    Nodes modules;
    std::copy_if(waiting_.begin(), waiting_.end(), std::back_inserter(modules),
                 [](const Node& node) { return node.module != nullptr; });
    update_largest_layer(modules);
  }
  void forget_largest(const std::string& name) {
    // Once a largest layer is placed, the reserve may shrink; recomputed only when none of them is left.
    std::erase_if(largest_layers_, [&](const auto& layer) { return is_within(layer, name); });
    if (largest_layers_.empty()) update_largest_module();
  }

  // The transitive closure of `others` that share a parameter with the node: they must go where it goes.
  [[nodiscard]] Nodes tied_to(const Node& node, const Nodes& others) const {
    Nodes group{node};
    for (std::size_t next = 0; next < group.size(); ++next) {
      for (const auto& names : tied_) {
        if (std::none_of(names.begin(), names.end(),
                         [&](const auto& name) { return is_within(name, group[next].name); }))
          continue;
        for (const auto& other : others) {
          const bool is_tied =
              std::any_of(names.begin(), names.end(), [&](const auto& name) { return is_within(name, other.name); });
          const bool is_known =
              std::any_of(group.begin(), group.end(), [&](const auto& known) { return known.name == other.name; });
          if (is_tied && !is_known) group.push_back(other);
        }
      }
    }
    group.erase(group.begin());
    return group;
  }
  // A shared parameter is counted at its first place only, so that the sum counts it once.
  [[nodiscard]] std::int64_t size_with_ties(const Node& node, const Nodes& others) const {
    auto bytes = sizes_.of(node.name);
    for (const auto& tied : tied_to(node, others)) bytes += sizes_.of(tied.name);
    return bytes;
  }
  // Not `<`, unlike in split(): Accelerate compares differently in the two places.
  [[nodiscard]] bool fits(std::int64_t bytes) {
    return available() == kNoLimit || device().used + bytes <= available();
  }

  bool place(const Node& node) {
    const auto bytes = size_with_ties(node, waiting_);
    if (!fits(bytes)) return false;
    auto group = tied_to(node, waiting_);
    group.push_back(node);
    device().used += bytes;
    for (const auto& member : group) {
      plan_.device_map.insert_or_assign(member.name, device().device);
      std::erase_if(waiting_, [&](const Node& other) { return other.name == member.name; });
      if (!options_.offload_buffers && !device().device.is_gpu())
        plan_.offloaded_buffer_bytes += buffer_sizes_.of(member.name);
    }
    return true;
  }

  // The parts take the node's position in the queue, which keeps the order of the model.
  void replace_by_parts(Nodes::iterator node) {
    auto parts = offload::parts_of(*node->module);
    node = waiting_.erase(node);
    waiting_.insert(node, parts.begin(), parts.end());
  }

  // The node fits alone, but not together with the modules tied to it. Splitting one of these may separate the tied
  // parameter from the rest.
  bool split_tied(const Node& node) {
    const auto tied = tied_to(node, waiting_);
    if (tied.empty() || !fits(sizes_.of(node.name))) return false;
    for (const auto& other : tied) {
      // One tied module is split per attempt; the node is then tried again from the start.
      if (!other.can_be_split(options_.no_split_module_classes)) continue;
      replace_by_parts(std::find_if(waiting_.begin(), waiting_.end(),
                                    [&](const Node& waiting) { return waiting.name == other.name; }));
      waiting_.insert(waiting_.begin(), node);
      update_largest_module();
      return true;
    }
    return false;
  }

  // Splits only if the node itself is too large: a node that fits alone was rejected because of its ties. `<` and not
  // `<=`, as in Accelerate.
  bool split(const Node& node) {
    if (device().used + sizes_.of(node.name) < available() || !node.can_be_split(options_.no_split_module_classes))
      return false;
    waiting_.insert(waiting_.begin(), node);
    replace_by_parts(waiting_.begin());
    update_largest_module();
    return true;
  }

  // Finds the first module that fits where `node` does not, in the order of the model and then of parts, and puts it in
  // front of the queue. Only for a device that would otherwise stay empty.
  bool fall_back(const Node& node) {
    if (!options_.fallback_allocation || device().used > 0 || device().device.is_disk()) return false;
    // `node` itself will be offloaded and run here, so it counts for the reserve.
    const auto limit = device().limit - std::max(largest_bytes_, size_with_ties(node, waiting_));
    auto search = waiting_;
    for (std::size_t i = 0; i < search.size(); ++i) {
      const auto candidate = search[i];
      auto others = waiting_;
      others.push_back(node);
      if (size_with_ties(candidate, others) <= limit) {
        const auto chosen = take(candidate.name);
        waiting_.insert(waiting_.begin(), {chosen, node});
        return true;
      }
      if (!candidate.can_be_split(options_.no_split_module_classes)) continue;
      const auto parts = offload::parts_of(*candidate.module);
      search.insert(search.begin() + static_cast<std::ptrdiff_t>(i) + 1, parts.begin(), parts.end());
    }
    return false;
  }
  // Removes a node from the queue, splitting the modules that contain it.
  Node take(const std::string& name) {
    while (true) {
      const auto around =
          std::find_if(waiting_.begin(), waiting_.end(), [&](const Node& node) { return is_within(name, node.name); });
      ensure(around != waiting_.end(), "device map: '{}' is not waiting", name);
      if (around->name == name) {
        auto taken = *around;
        waiting_.erase(around);
        return taken;
      }
      replace_by_parts(around);
    }
  }

  // Buffers of offloaded modules stay on a GPU; the plan reports whether one has room for all of them.
  void check_buffers_fit() {
    const auto num_gpus =
        std::count_if(devices_.begin(), devices_.end(), [](const Device& device) { return device.device.is_gpu(); });
    if (plan_.offloaded_buffer_bytes == 0 || num_gpus == 0) return;
    plan_.offloaded_buffers_fit = std::any_of(devices_.begin(), devices_.begin() + num_gpus, [&](const Device& device) {
      return device.limit >= plan_.offloaded_buffer_bytes + device.used;
    });
  }

  const DeviceMapOptions& options_;
  ModuleSizes sizes_, buffer_sizes_;
  std::vector<std::vector<std::string>> tied_;
  Nodes waiting_;
  std::vector<Device> devices_;
  std::size_t current_ = 0;
  std::int64_t largest_bytes_ = 0;
  std::vector<std::string> largest_layers_;
  DeviceMapPlan plan_;
};

}  // namespace

DeviceMapPlan plan_device_map(const ModelDescription& model, const DeviceMapOptions& options) {
  return DeviceMapPlanner(model, options).plan();
}

}  // namespace accel
