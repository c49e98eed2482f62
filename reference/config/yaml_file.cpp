#include "reference/config/yaml_file.hpp"

#include <filesystem>
#include <set>

#include "reference/core/errors.hpp"
#include "reference/core/files.hpp"

namespace accel {
namespace {

// An alias may lead back to the node that it is in; nothing that is read here is that deep.
constexpr int kDepthMax = 8;

void check_keys(const YAML::Node& node, const std::string& path, int depth, YamlProblems& problems) {
  if (depth > kDepthMax) return;
  std::set<std::string> seen;
  for (const auto& entry : node) {
    if (!node.IsMap()) {
      check_keys(entry, path, depth + 1, problems);
      continue;
    }
    const auto line = entry.first.Mark().line;
    if (!entry.first.IsScalar()) {
      problems.add(line,
                   fmt::format("{}a key that is no name; expected `name: value`", path.empty() ? "" : path + ": "));
      problems.throw_if_any();
    }
    const auto name = (path.empty() ? "" : path + ".") + entry.first.Scalar();
    if (!seen.insert(entry.first.Scalar()).second) problems.add(line, name + ": given twice");
    check_keys(entry.second, name, depth + 1, problems);
  }
}

}  // namespace

std::string read_text(const std::string& file) {
  try {
    return PosixFiles().read(file);
  } catch (const FileError& error) {
    throw ConfigError(error.what());
  }
}

YAML::Node parse_yaml(const std::string& text, const std::string& file, YamlProblems& problems) {
  YAML::Node root;
  try {
    root = YAML::Load(text);
  } catch (const YAML::Exception& error) {
    throw ConfigError(fmt::format("{}:{}: not YAML: {}", file, error.mark.line + 1, error.msg));
  }
  if (!root.IsDefined() || root.IsNull()) return YAML::Node(YAML::NodeType::Map);
  check_keys(root, "", 0, problems);
  return root;
}

YAML::Node load_yaml(const std::string& file, const std::string& what, YamlProblems& problems) {
  check_config(std::filesystem::exists(file), "{}: no such file", file);
  check_config(!std::filesystem::is_directory(file), "{}: is a folder; expected {}", file, what);
  return parse_yaml(read_text(file), file, problems);
}

}  // namespace accel
