// Strict reading of YAML. yaml-cpp keeps the first of duplicate keys and returns undefined nodes for missing
// ones, so both are checked explicitly.
#include "reference/config/yaml_reader.hpp"

#include <fmt/ranges.h>
#include <yaml-cpp/eventhandler.h>

#include <filesystem>
#include <set>
#include <sstream>

#include "reference/core/errors.hpp"
#include "reference/core/input/listed.hpp"
#include "reference/files/files.hpp"

namespace accel {
namespace {

constexpr std::size_t kTextBytesMax = 16 << 20, kValuesMax = 300'000;
constexpr int kDepthMax = 32;

void check_num_values(std::size_t count, const std::string& file) {
  check_config(count <= kValuesMax, "{}: more than {} keys and values, with aliases expanded; expected a smaller file",
               file, kValuesMax);
}

// Counts before yaml-cpp creates nodes, which need several hundred bytes each.
class ValueCounter : public YAML::EventHandler {
 public:
  explicit ValueCounter(const std::string& file) : file_(file) {}

  void OnDocumentStart(const YAML::Mark&) override {}
  void OnDocumentEnd() override {}
  void OnNull(const YAML::Mark&, YAML::anchor_t) override { count(); }
  void OnAlias(const YAML::Mark&, YAML::anchor_t) override { count(); }
  void OnScalar(const YAML::Mark&, const std::string&, YAML::anchor_t, const std::string&) override { count(); }
  void OnSequenceStart(const YAML::Mark&, const std::string&, YAML::anchor_t, YAML::EmitterStyle::value) override {
    count();
  }
  void OnSequenceEnd() override {}
  void OnMapStart(const YAML::Mark&, const std::string&, YAML::anchor_t, YAML::EmitterStyle::value) override {
    count();
  }
  void OnMapEnd() override {}

 private:
  void count() { check_num_values(++count_, file_); }

  const std::string& file_;
  std::size_t count_ = 0;
};

// An alias repeats a node without a copy, so that a small text may describe any number of values, or a node that
// contains itself.
void check_expanded(const YAML::Node& node, const std::string& file, int depth, std::size_t& count) {
  check_num_values(++count, file);
  check_config(depth <= kDepthMax, "{}: nested more than {} deep; expected a file of settings", file, kDepthMax);
  for (const auto& entry : node) {
    if (node.IsMap()) {
      check_expanded(entry.first, file, depth + 1, count);
      check_expanded(entry.second, file, depth + 1, count);
    } else {
      check_expanded(entry, file, depth + 1, count);
    }
  }
}

void check_keys(const YAML::Node& node, const std::string& path, YamlProblems& problems) {
  std::set<std::string> seen;
  for (const auto& entry : node) {
    if (!node.IsMap()) {
      check_keys(entry, path, problems);
      continue;
    }
    const auto line = entry.first.Mark().line;
    if (!entry.first.IsScalar()) {
      problems.add(line, fmt::format("{}a key is not a name; expected `name: value`", path.empty() ? "" : path + ": "));
      problems.throw_if_any();
    }
    const auto name = (path.empty() ? "" : path + ".") + entry.first.Scalar();
    if (!seen.insert(entry.first.Scalar()).second) problems.add(line, name + ": duplicate key; keep only one");
    check_keys(entry.second, name, problems);
  }
}

}  // namespace

// Only the problems that `listed` shows have a text: input may have any number of them.
void YamlProblems::add(int line, const std::string& problem) {
  if (problems_.size() >= kListedMax)
    problems_.emplace_back();
  else
    problems_.push_back(line < 0 ? fmt::format("{}: {}", file_, problem)
                                 : fmt::format("{}:{}: {}", file_, line + 1, problem));
}

void YamlProblems::throw_if_any() const {
  if (any()) throw ConfigError(listed(problems_, "\n"));
}

// A node of another kind is reported once and then treated as an empty mapping, so that its keys cause no more
// errors.
YamlReader::YamlReader(YAML::Node node, std::string path, YamlProblems& problems)
    : node_(std::move(node)), path_(std::move(path)), problems_(problems) {
  if (node_.IsDefined() && !node_.IsNull() && !node_.IsMap()) {
    problems_.add(node_.Mark().line, fmt::format("{}: expected a mapping of keys to values, got {}",
                                                 path_.empty() ? "the file" : path_.substr(0, path_.size() - 1),
                                                 node_.IsSequence() ? "a list" : "a single value"));
    node_ = YAML::Node();
  }
}

bool YamlReader::has(const std::string& key) const {
  if (!node_.IsMap()) return false;
  const auto value = node_[key];
  return value.IsDefined() && !value.IsNull();
}

// yaml-cpp's conversions are strict enough: "1.5" is not an int, and "7" is not a bool.
bool YamlReader::convert(const std::string& key, FieldTarget target) const {
  try {
    std::visit([&]<typename T>(T* value) { *value = node_[key].as<T>(); }, target);
    return true;
  } catch (const YAML::Exception&) {
    return false;
  }
}

// The value as written, with the items of a list; of a mapping or a long list only the kind.
std::string YamlReader::given(const std::string& key) const {
  constexpr std::size_t kItemsMax = 8;
  const auto node = node_[key];
  if (node.IsScalar()) return fmt::format(", got '{}'", node.Scalar());
  if (node.IsMap()) return ", got a mapping";
  if (node.size() > kItemsMax) return fmt::format(", got a list of {} items", node.size());
  std::vector<std::string> items;
  for (const auto& item : node) items.push_back(item.IsScalar() ? item.Scalar() : "...");
  return fmt::format(", got [{}]", fmt::join(items, ", "));
}

YamlReader YamlReader::mapping(const std::string& key) {
  know(key);
  return YamlReader(has(key) ? node_[key] : YAML::Node(YAML::NodeType::Map), path_ + key + ".", problems_);
}

std::vector<YamlReader> YamlReader::mappings(const std::string& key) {
  know(key);
  if (!has(key)) return {};
  const auto list = node_[key];
  if (!list.IsSequence()) problem(key, "expected a list of mappings" + given(key));
  std::vector<YamlReader> readers;
  for (std::size_t index = 0; list.IsSequence() && index < list.size(); ++index) {
    readers.emplace_back(list[index], fmt::format("{}{}[{}].", path_, key, index), problems_);
  }
  return readers;
}

std::vector<YamlReader> YamlReader::required_mappings(const std::string& key) {
  if (!has(key)) missing(key);
  return mappings(key);
}

std::vector<std::string> YamlReader::keys() const {
  std::vector<std::string> keys;
  for (const auto& entry : node_) {
    if (node_.IsMap()) keys.push_back(entry.first.as<std::string>());
  }
  return keys;
}

void YamlReader::reject_unsupported(const std::string& key) {
  know(key);
  if (has(key)) problem(key, "not supported yet; remove it");
}

// A missing key has no line, so the line of the mapping that lacks it is reported.
void YamlReader::missing(const std::string& key) {
  problems_.add(node_.IsDefined() ? node_.Mark().line : -1, fmt::format("{}{}: missing; it is required", path_, key));
}

void YamlReader::problem(const std::string& key, const std::string& text) {
  problems_.add(has(key) ? node_[key].Mark().line : node_.Mark().line, fmt::format("{}{}: {}", path_, key, text));
}

// Runs after all reads: a key is unknown if no read has asked for it.
void YamlReader::finish_keys() {
  if (!node_.IsMap()) return;
  for (const auto& entry : node_) {
    const auto key = entry.first.as<std::string>();
    if (!known().contains(key)) {
      problems_.add(entry.first.Mark().line,
                    fmt::format("{}{}: unknown key; known: {}", path_, key, fmt::join(known(), ", ")));
    }
  }
}

// A file that cannot be read is a mistake in the configuration for the caller, not an I/O failure.
std::string read_text(const std::string& file) {
  try {
    return PosixFiles().read(file);
  } catch (const FileError& error) {
    throw ConfigError(fmt::format("{}; expected a readable file", error.what()));
  }
}

YAML::Node yaml_of(const std::string& text, const std::string& file) {
  check_config(text.size() <= kTextBytesMax, "{}: {} bytes; expected at most {} bytes of settings", file, text.size(),
               kTextBytesMax);
  try {
    std::istringstream stream(text);
    ValueCounter counter(file);
    YAML::Parser(stream).HandleNextDocument(counter);
    auto root = YAML::Load(text);
    std::size_t count = 0;
    if (root.IsDefined()) check_expanded(root, file, 0, count);
    return root;
  } catch (const YAML::Exception& error) {
    throw ConfigError(fmt::format("{}:{}: not valid YAML: {}", file, error.mark.line + 1, error.msg));
  }
}

YAML::Node parse_yaml(const std::string& text, const std::string& file, YamlProblems& problems) {
  auto root = yaml_of(text, file);
  if (!root.IsDefined() || root.IsNull()) return YAML::Node(YAML::NodeType::Map);
  check_keys(root, "", problems);
  return root;
}

// These two cases are frequent typing mistakes, so they get a clearer message than the errno of read().
YAML::Node load_yaml(const std::string& file, const std::string& what, YamlProblems& problems) {
  check_config(std::filesystem::exists(file), "{}: no such file; expected {}", file, what);
  check_config(!std::filesystem::is_directory(file), "{}: is a folder; expected {}", file, what);
  return parse_yaml(read_text(file), file, problems);
}

}  // namespace accel
