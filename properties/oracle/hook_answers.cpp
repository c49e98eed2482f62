// Answers the requests of hooks.py: the calls of random hooks on random modules.
#include <torch/nn/modules/container/sequential.h>

#include <map>

#include "properties/oracle/answers.hpp"
#include "reference/modules/hooks.hpp"
#include "tests/support/torch.hpp"

namespace accel::testing {
namespace {

struct SignImpl : torch::nn::Module {
  SignImpl(double sign, double shift)
      : weight(register_parameter("weight", torch::full({1}, sign, torch::kDouble))), shift(shift) {}
  at::Tensor forward(const at::Tensor& x) { return x * weight + shift; }
  at::Tensor weight;
  double shift;
};

// Calls its children, which are of three types, in their order.
struct ChainImpl : torch::nn::Module {
  explicit ChainImpl(const std::vector<std::shared_ptr<torch::nn::Module>>& children) {
    for (std::size_t place = 0; place < children.size(); ++place)
      register_module(std::to_string(place), children[place]);
  }
  at::Tensor forward(at::Tensor x);
};

at::Tensor call_any(torch::nn::Module& module, const at::Tensor& x) {
  if (auto* leaf = module.as<SignImpl>()) return call(*leaf, x);
  if (auto* chain = module.as<ChainImpl>()) return call(*chain, x);
  return call(*module.as<torch::nn::SequentialImpl>(), x);
}

at::Tensor ChainImpl::forward(at::Tensor x) {
  for (const auto& child : children()) x = call_any(*child, x) + 1;
  return x;
}

std::shared_ptr<torch::nn::Module> build(const Json& described) {
  std::vector<std::shared_ptr<torch::nn::Module>> children;
  for (const auto& child : described["children"]) children.push_back(build(child));
  if (described["kind"] == "leaf")
    return std::make_shared<SignImpl>(described["sign"].get<double>(), described["shift"].get<double>());
  if (described["kind"] == "block") return std::make_shared<ChainImpl>(children);
  torch::nn::Sequential sequential;
  for (const auto& child : children) {
    // An element keeps its type, by which the Sequential calls it.
    if (auto leaf = std::dynamic_pointer_cast<SignImpl>(child))
      sequential->push_back(leaf);
    else
      sequential->push_back(std::dynamic_pointer_cast<ChainImpl>(child));
  }
  return sequential.ptr();
}

// Notes every call, and adds a number to inputs and outputs.
class NotingHook : public ModelHook {
 public:
  NotingHook(int number, const Json& described, const std::map<const torch::nn::Module*, std::string>& names,
             Json& events)
      : number_(number), described_(described), names_(names), events_(events) {}
  [[nodiscard]] bool no_grad() const override { return described_["no_grad"]; }
  void init_hook(torch::nn::Module& module) override { note("init", module, 0); }
  void pre_forward(torch::nn::Module& module, CallValues& arguments) override {
    add("pre", module, arguments, described_["before"]);
  }
  void post_forward(torch::nn::Module& module, CallValues& output) override {
    add("post", module, output, described_["after"]);
  }
  void detach_hook(torch::nn::Module& module) override { note("detach", module, 0); }

 private:
  void add(const char* what, const torch::nn::Module& module, const CallValues& values, double number) {
    note(what, module, values.tensors().at(0).item<std::int64_t>());
    values.map_tensors([&](const at::Tensor& tensor) { return tensor + number; });
  }
  void note(const char* what, const torch::nn::Module& module, std::int64_t value) {
    events_.push_back({what, number_, names_.at(&module), value, c10::GradMode::is_enabled()});
  }

  int number_;
  const Json& described_;
  const std::map<const torch::nn::Module*, std::string>& names_;
  Json& events_;
};

}  // namespace

Json hook_answer(const Json& request) {
  const auto root = build(request["model"]);
  std::map<std::string, std::shared_ptr<torch::nn::Module>> modules{{"", root}};
  for (const auto& item : root->named_modules("", /*include_self=*/false)) modules.emplace(item.key(), item.value());
  std::map<const torch::nn::Module*, std::string> names;
  for (const auto& [name, module] : modules) names.emplace(module.get(), name);
  Json result{{"events", Json::array()}, {"outputs", Json::array()}};
  std::vector<std::shared_ptr<ModelHook>> hooks;
  for (const auto& described : request["hooks"]) {
    if (!described.contains("parts")) {
      hooks.push_back(std::make_shared<NotingHook>(static_cast<int>(hooks.size()), described, names, result["events"]));
      continue;
    }
    std::vector<std::shared_ptr<ModelHook>> parts;
    for (const auto& part : described["parts"]) parts.push_back(hooks.at(part));
    hooks.push_back(std::make_shared<SequentialHook>(parts));
  }
  for (const auto& action : request["actions"]) {
    auto& module = *modules.at(action[1]);
    if (action[0] == "add") {
      add_hook_to_module(module, hooks.at(action[2]), {.append = action[3]});
    } else if (action[0] == "remove") {
      remove_hook_from_module(module, {.recurse = action[2]});
    } else {
      const auto output = call_any(module, torch::full({1}, 3, torch::kDouble));
      result["outputs"].push_back({output.item<std::int64_t>(), output.requires_grad()});
    }
  }
  const auto answer = result;
  // The hooks hold references to what ends here. Their last calls are not part of the answer.
  remove_hook_from_module(*root, {.recurse = true});
  return answer;
}

}  // namespace accel::testing
