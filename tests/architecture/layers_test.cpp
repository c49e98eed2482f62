// Tests that the sources follow the layers in configs/layers.yaml: every include between two modules must be listed
// there. Without this, single includes would slowly turn the modules into one piece that cannot be understood,
// tested or built in parts. Also tested: public headers do not include all of LibTorch, and only one file reads the
// environment.
#include <gtest/gtest.h>
#include <yaml-cpp/yaml.h>

#include <fstream>
#include <map>
#include <regex>
#include <set>

#include "tests/architecture/sources.hpp"

namespace accel {
namespace {

using testing::source_dir;

// The content of configs/layers.yaml.
struct Layers {
  std::map<std::string, std::set<std::string>> allowed;  // module -> modules that it may include
  std::set<std::string> torch_free;
};

Layers read_layers() {
  const auto root = YAML::LoadFile((source_dir() / "configs/layers.yaml").string());
  Layers layers;
  for (const auto& entry : root["modules"]) {
    auto& edges = layers.allowed[entry.first.as<std::string>()];
    for (const auto& edge : entry.second) {
      const auto group = root["groups"][edge.as<std::string>()];
      if (!group) edges.insert(edge.as<std::string>());
      for (const auto& member : group) edges.insert(member.as<std::string>());
    }
  }
  for (const auto& module : root["torch_free"]) layers.torch_free.insert(module.as<std::string>());
  return layers;
}

// The module of a path: the longest module name that is one of its folders, or the file itself for modules of one
// file.
std::string module_of(const Layers& layers, std::string path) {
  while (!path.empty()) {
    if (layers.allowed.contains(path)) return path;
    const auto slash = path.rfind('/');
    path = slash == std::string::npos ? "" : path.substr(0, slash);
  }
  return "";
}

struct Include {
  std::string file, target;
};

std::vector<Include> includes_of(const std::string& file) {
  std::vector<Include> includes;
  std::ifstream in(source_dir() / file);
  static const std::regex pattern(R"rx(^\s*#include\s+([<"])([^>"]+)[>"])rx");
  for (std::string line; std::getline(in, line);) {
    std::smatch match;
    if (std::regex_search(line, match, pattern)) includes.push_back({file, match[2]});
  }
  return includes;
}

std::vector<std::string> sources() { return testing::sources_below({"reference", "backends", "sim"}); }

std::vector<std::string> violations(const Layers& layers, const std::vector<Include>& includes) {
  std::vector<std::string> found;
  for (const auto& [file, target] : includes) {
    const auto from = module_of(layers, file);
    if (from.empty()) {
      found.push_back(file + ": belongs to no module of configs/layers.yaml");
      continue;
    }
    const bool is_torch = (target.starts_with("torch/") && !target.starts_with("torch/headeronly/")) ||
                          target.starts_with("ATen/") || target.starts_with("c10/");
    if (is_torch && layers.torch_free.contains(from))
      found.push_back(file + ": includes " + target + ", but " + from + " is free of torch");
    const auto to = module_of(layers, target);
    if (to.empty() || to == from) continue;
    if (!layers.allowed.at(from).contains(to))
      found.push_back(file + ": includes " + target + "; " + from + " -> " + to + " is not allowed");
  }
  return found;
}

// The count guards against a reader of includes that finds nothing and so accepts everything.
TEST(LayersTest, SourcesKeepToTheAllowedEdges) {
  const auto layers = read_layers();
  std::vector<Include> includes;
  for (const auto& file : sources()) {
    for (auto& include : includes_of(file)) includes.push_back(include);
  }
  ASSERT_GT(includes.size(), 200u);
  std::string text;
  for (const auto& violation : violations(layers, includes)) text += violation + "\n";
  EXPECT_EQ(text, "");
}

// One include for each rule that can be broken; the test above must be able to fail.
TEST(LayersTest, AForbiddenEdgeIsFound) {
  const auto layers = read_layers();
  EXPECT_EQ(violations(layers, {{"reference/tree/tree.hpp", "reference/state/rank_context.hpp"}}).size(), 1u);
  EXPECT_EQ(violations(layers, {{"reference/data/samplers/sampler.cpp", "reference/optim/optimizers/clip.hpp"}}).size(),
            1u);
  EXPECT_EQ(violations(layers, {{"reference/state/rng_sync.cpp", "sim/engine/world.hpp"}}).size(), 1u);
  EXPECT_EQ(violations(layers, {{"sim/engine/world.cpp", "ATen/core/Tensor.h"}}).size(), 1u);
  EXPECT_EQ(violations(layers, {{"backends/gloo/gloo_backend.cpp", "sim/engine/world.hpp"}}).size(), 1u);
}

// Modules in a cycle can only be understood and built together.
TEST(LayersTest, EdgesHaveNoCycle) {
  const auto layers = read_layers();
  for (const auto& [module, edges] : layers.allowed) {
    std::set<std::string> reached;
    std::vector<std::string> open(edges.begin(), edges.end());
    while (!open.empty()) {
      const auto next = open.back();
      open.pop_back();
      if (!reached.insert(next).second) continue;
      ASSERT_TRUE(layers.allowed.contains(next)) << module << " names " << next << ", which is no module";
      for (const auto& further : layers.allowed.at(next)) open.push_back(further);
    }
    EXPECT_FALSE(reached.contains(module)) << module << " reaches itself";
  }
}

// torch/torch.h takes seconds to compile, in every file of a user that includes one of these headers.
TEST(LayersTest, HeadersDoNotIncludeAllOfTorch) {
  for (const auto& file : sources()) {
    if (file.size() < 4 || file.substr(file.size() - 4) != ".hpp") continue;
    for (const auto& include : includes_of(file)) EXPECT_NE(include.target, "torch/torch.h") << file;
  }
}

// Variables that are read anywhere in the sources cannot be documented or checked completely.
TEST(LayersTest, TheEnvironmentIsReadInOnePlace) {
  for (const auto& file : sources()) {
    if (file == "reference/config/environment.cpp") continue;
    EXPECT_EQ(testing::text_of(file).find("getenv"), std::string::npos) << file;
  }
}

}  // namespace
}  // namespace accel
