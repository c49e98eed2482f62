// Reads tokenizer.json. Every part is read although another one is unsupported, so that one message reports all.
#include "reference/sources/tokenizer/tokenizer_file.hpp"

#include <fmt/ranges.h>

#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "reference/core/errors.hpp"
#include "reference/core/input/json_parser.hpp"
#include "reference/sources/tokenizer/split_pattern.hpp"

namespace accel::sources {
namespace {

using TokenizerJson = nlohmann::json;
constexpr std::size_t kTemplatePiecesMax = 16, kTemplateIdsMax = 16, kSplittersMax = 32;

std::string text_of(const TokenizerJson& json) {
  return shortened(json.dump(-1, ' ', true, TokenizerJson::error_handler_t::replace));
}

class TokenizerFileReader {
 public:
  explicit TokenizerFileReader(const TokenizerJson& root) : root_(root) {}

  TokenizerFile read() {
    check_keys();
    if (!is_absent("version") && root_["version"] != "1.0") expected("version", root_["version"], "\"1.0\"");
    for (const auto* key : {"truncation", "padding"}) {
      if (!is_absent(key)) problem("{}: unsupported; set it to null, and cut or pad the encoded ids", key);
    }
    read_model(root_.value("model", TokenizerJson()));
    read_added_tokens();
    if (!is_absent("normalizer")) {
      file_.is_nfc = type_of(root_["normalizer"]) == "NFC";
      if (!file_.is_nfc) unsupported("normalizer", root_["normalizer"], "null or NFC");
    }
    read_pre_tokenizers();
    if (!is_absent("post_processor")) read_post_processor(root_["post_processor"], "post_processor");
    if (!is_absent("decoder")) {
      file_.is_byte_level_decoder = type_of(root_["decoder"]) == "ByteLevel";
      if (!file_.is_byte_level_decoder) unsupported("decoder", root_["decoder"], "null or ByteLevel");
    }
    return std::move(file_);
  }

  std::vector<std::string> problems;

 private:
  void read_model(const TokenizerJson& model);
  void read_vocab(const TokenizerJson& vocab);
  void read_merges(const TokenizerJson& merges);
  void read_added_tokens();
  void read_pre_tokenizers();
  void read_byte_level(const TokenizerJson& stage);
  void read_split(const TokenizerJson& stage, const std::string& where);
  void add_splitter(const std::string& pattern, const SplitOptions& options, const std::string& where);
  void read_post_processor(const TokenizerJson& processor, const std::string& where);
  void read_template(const TokenizerJson& processor, const std::string& where);
  std::optional<TokenId> read_id(const TokenizerJson& json, const std::string& where);

  [[nodiscard]] bool is_absent(const char* key) const { return !root_.contains(key) || root_[key].is_null(); }

  static std::string type_of(const TokenizerJson& json) {
    return json.is_object() && json.contains("type") && json["type"].is_string() ? json["type"].get<std::string>() : "";
  }

  bool flag(const TokenizerJson& json, const char* key, bool fallback, const std::string& where) {
    if (!json.contains(key) || json[key].is_null()) return fallback;
    if (!json[key].is_boolean()) expected(where + "." + key, json[key], "true or false");
    return json[key].is_boolean() ? json[key].get<bool>() : fallback;
  }

  // As in `tokenizers`, which ignores other keys inside of the parts.
  void check_keys() {
    static const std::set<std::string_view> kKeys{"version",        "truncation", "padding",
                                                  "added_tokens",   "normalizer", "pre_tokenizer",
                                                  "post_processor", "decoder",    "model"};
    for (const auto& [key, value] : root_.items()) {
      if (!kKeys.contains(key))
        problem("{}: unknown; expected the keys of a tokenizer.json of version 1.0", shortened(key));
    }
  }

  template <typename... Args>
  void problem(fmt::format_string<Args...> text, Args&&... args) {
    add_problem(problems, text, std::forward<Args>(args)...);
  }
  void expected(const std::string& where, const TokenizerJson& value, std::string_view what) {
    problem("{}: expected {}, got {}", where, what, text_of(value));
  }
  void unsupported(const std::string& where, const TokenizerJson& value, std::string_view supported) {
    const auto type = type_of(value);
    problem("{}: {} is unsupported; expected {}", where, type.empty() ? text_of(value) : type, supported);
  }

  const TokenizerJson& root_;
  TokenizerFile file_;
};

std::optional<TokenId> TokenizerFileReader::read_id(const TokenizerJson& json, const std::string& where) {
  if (json.is_number_unsigned() && json.get<std::uint64_t>() <= UINT32_MAX) return json.get<TokenId>();
  expected(where, json, "a number from 0 to 4294967295");
  return std::nullopt;
}

// Files before `tokenizers` 0.10 have no type in the model. Options with an empty text have no effect.
void TokenizerFileReader::read_model(const TokenizerJson& model) {
  if (!model.is_object()) return expected("model", model, "an object");
  if (model.contains("type") && model["type"] != "BPE") return unsupported("model", model, "BPE");
  if (model.contains("dropout") && !model["dropout"].is_null() && model["dropout"] != 0)
    problem("model.dropout: {} is unsupported; set it to null", text_of(model["dropout"]));
  for (const auto* key : {"continuing_subword_prefix", "end_of_word_suffix"}) {
    if (model.contains(key) && !model[key].is_null() && model[key] != "")
      problem("model.{}: {} is unsupported; byte-level vocabularies have none", key, text_of(model[key]));
  }
  if (flag(model, "byte_fallback", false, "model"))
    problem("model.byte_fallback: unsupported; byte-level vocabularies have all bytes");
  file_.fuse_unk = flag(model, "fuse_unk", false, "model");
  file_.ignore_merges = flag(model, "ignore_merges", false, "model");
  const auto unk_token = model.value("unk_token", TokenizerJson());
  if (unk_token.is_string()) file_.unk_token = unk_token.get<std::string>();
  if (!unk_token.is_string() && !unk_token.is_null()) expected("model.unk_token", unk_token, "a text or null");
  read_vocab(model.value("vocab", TokenizerJson()));
  read_merges(model.value("merges", TokenizerJson()));
}

void TokenizerFileReader::read_vocab(const TokenizerJson& vocab) {
  if (!vocab.is_object()) return expected("model.vocab", vocab, "an object of tokens and their ids");
  std::map<TokenId, std::string> tokens;
  for (const auto& [token, json] : vocab.items()) {
    const auto id = read_id(json, fmt::format("model.vocab['{}']", shortened(token)));
    if (!id) continue;
    const auto [other, is_new] = tokens.emplace(*id, token);
    if (!is_new)
      problem("model.vocab: '{}' and '{}' have the same id, {}", shortened(other->second), shortened(token), *id);
    file_.vocab.emplace_back(token, *id);
  }
}

// Each merge is ["a", "b"], or "a b" in files before `tokenizers` 0.20, which may begin with a line "#version".
void TokenizerFileReader::read_merges(const TokenizerJson& merges) {
  if (!merges.is_array()) return expected("model.merges", merges, "a list of pairs of tokens");
  for (const auto& merge : merges) {
    if (merge.is_string()) {
      const auto& text = merge.get_ref<const std::string&>();
      const auto space = text.find(' ');
      if (text.starts_with("#version")) continue;
      if (space == std::string::npos || text.find(' ', space + 1) != std::string::npos)
        expected("model.merges", merge, "two tokens and a space between them");
      else
        file_.merges.emplace_back(text.substr(0, space), text.substr(space + 1));
    } else if (merge.is_array() && merge.size() == 2 && merge[0].is_string() && merge[1].is_string()) {
      file_.merges.emplace_back(merge[0].get<std::string>(), merge[1].get<std::string>());
    } else {
      expected("model.merges", merge, "a pair of tokens");
    }
  }
}

// The ids in the file have no effect, as in `tokenizers`: a token has the id of the model, or the next free one.
void TokenizerFileReader::read_added_tokens() {
  if (is_absent("added_tokens")) return;
  const auto& tokens = root_["added_tokens"];
  if (!tokens.is_array()) return expected("added_tokens", tokens, "a list");
  for (std::size_t index = 0; index < tokens.size(); ++index) {
    const auto where = fmt::format("added_tokens[{}]", index);
    const auto& json = tokens[index];
    if (!json.is_object() || !json.contains("content") || !json["content"].is_string()) {
      expected(where, json, "an object with the text 'content'");
      continue;
    }
    AddedToken token{.content = json["content"].get<std::string>()};
    for (const auto& [key, value] : {std::pair{"single_word", &token.single_word},
                                     {"lstrip", &token.lstrip},
                                     {"rstrip", &token.rstrip},
                                     {"normalized", &token.normalized},
                                     {"special", &token.special}}) {
      *value = flag(json, key, *value, where);
    }
    if (json.contains("id") && json["id"].is_number_integer()) token.stated_id = json["id"].get<std::int64_t>();
    if (!token.content.empty()) file_.added_tokens.push_back(token);  // `tokenizers` ignores empty ones too
  }
}

void TokenizerFileReader::read_pre_tokenizers() {
  const auto pre_tokenizer = root_.value("pre_tokenizer", TokenizerJson());
  const auto is_sequence = type_of(pre_tokenizer) == "Sequence";
  const auto stages = is_sequence ? pre_tokenizer.value("pretokenizers", TokenizerJson())
                                  : TokenizerJson(TokenizerJson::array({pre_tokenizer}));
  if (!stages.is_array() || stages.empty() || type_of(stages.back()) != "ByteLevel") {
    return unsupported("pre_tokenizer",
                       is_sequence && stages.is_array() && !stages.empty() ? stages.back() : pre_tokenizer,
                       "ByteLevel, or a Sequence that ends in ByteLevel");
  }
  // encode recurses once per splitter.
  if (stages.size() > kSplittersMax + 1)
    return problem("pre_tokenizer.pretokenizers: {} stages; expected at most {}", stages.size(), kSplittersMax + 1);
  for (std::size_t index = 0; index + 1 < stages.size(); ++index)
    read_split(stages[index], fmt::format("pre_tokenizer.pretokenizers[{}]", index));
  file_.add_prefix_space = flag(stages.back(), "add_prefix_space", true, "pre_tokenizer");
  file_.use_regex = flag(stages.back(), "use_regex", true, "pre_tokenizer");
}

void TokenizerFileReader::read_split(const TokenizerJson& stage, const std::string& where) {
  if (type_of(stage) == "Digits") {
    const bool is_individual = flag(stage, "individual_digits", false, where);
    return add_splitter("[" + category_members("N") + "]",
                        {.behavior = is_individual ? SplitBehavior::kIsolated : SplitBehavior::kContiguous}, where);
  }
  if (type_of(stage) != "Split") return unsupported(where, stage, "Split or Digits, and ByteLevel at the end");
  static const std::map<std::string, SplitBehavior> kBehaviors{
      {"Removed", SplitBehavior::kRemoved},
      {"Isolated", SplitBehavior::kIsolated},
      {"MergedWithPrevious", SplitBehavior::kMergedWithPrevious},
      {"MergedWithNext", SplitBehavior::kMergedWithNext},
      {"Contiguous", SplitBehavior::kContiguous}};
  const auto name = stage.value("behavior", TokenizerJson());
  const auto behavior = kBehaviors.find(name.is_string() ? name.get<std::string>() : "");
  if (behavior == kBehaviors.end())
    return expected(where + ".behavior", name, "Removed, Isolated, MergedWithPrevious, MergedWithNext or Contiguous");
  const SplitOptions options{.behavior = behavior->second, .invert = flag(stage, "invert", false, where)};
  const auto pattern = stage.value("pattern", TokenizerJson());
  const auto text = [&](const char* kind) {
    return pattern.is_object() && pattern.size() == 1 && pattern.contains(kind) && pattern[kind].is_string();
  };
  if (text("String")) return add_splitter(literal_pattern(pattern["String"].get<std::string>()), options, where);
  if (!text("Regex")) return expected(where + ".pattern", pattern, "an object with a String or a Regex");
  std::vector<std::string> parts;
  const auto translated = to_pcre2(pattern["Regex"].get<std::string>(), parts);
  if (parts.empty()) return add_splitter(translated, options, where);
  problem("{}.pattern: unsupported in a regular expression: {}", where, fmt::join(parts, ", "));
}

void TokenizerFileReader::add_splitter(const std::string& pattern, const SplitOptions& options,
                                       const std::string& where) {
  try {
    file_.splitters.emplace_back(pattern, options);
  } catch (const ArgumentError& error) {
    problem("{}.pattern: {}", where, error.what());
  }
}

// ByteLevel corrects offsets, which encode does not return.
void TokenizerFileReader::read_post_processor(const TokenizerJson& processor, const std::string& where) {
  const auto type = type_of(processor);
  if (type == "ByteLevel") return;
  if (type == "TemplateProcessing") return read_template(processor, where);
  if (type != "Sequence" || where != "post_processor")
    return unsupported(where, processor, "TemplateProcessing, ByteLevel or a Sequence of them");
  const auto parts = processor.value("processors", TokenizerJson());
  if (!parts.is_array() || parts.size() > kTemplatePiecesMax)
    return expected(where + ".processors", parts, fmt::format("a list of at most {} parts", kTemplatePiecesMax));
  for (std::size_t index = 0; index < parts.size(); ++index)
    read_post_processor(parts[index], fmt::format("{}.processors[{}]", where, index));
}

// A template wraps the ids of the one before it. The limits keep a small file from describing many ids.
void TokenizerFileReader::read_template(const TokenizerJson& processor, const std::string& where) {
  const auto pieces = processor.value("single", TokenizerJson());
  const auto special_tokens = processor.value("special_tokens", TokenizerJson::object());
  if (!pieces.is_array() || pieces.size() > kTemplatePiecesMax)
    return expected(where + ".single", pieces, fmt::format("a list of at most {} pieces", kTemplatePiecesMax));
  std::vector<TokenId> before, after;
  int num_sequences = 0;
  for (const auto& piece : pieces) {
    const auto id = [&](const char* kind) {
      const auto part = piece.is_object() && piece.contains(kind) ? piece[kind] : TokenizerJson();
      const bool has_id = part.is_object() && part.contains("id") && part["id"].is_string();
      return has_id ? part["id"].get<std::string>() : "";
    };
    const auto token = id("SpecialToken");
    if (id("Sequence") == "A") {
      ++num_sequences;
    } else if (special_tokens.is_object() && special_tokens.contains(token) && special_tokens[token].is_object() &&
               special_tokens[token].contains("ids") && special_tokens[token]["ids"].is_array() &&
               special_tokens[token]["ids"].size() <= kTemplateIdsMax) {
      for (const auto& json : special_tokens[token]["ids"]) {
        const auto number = read_id(json, fmt::format("{}.special_tokens['{}']", where, shortened(token)));
        (num_sequences == 0 ? before : after).push_back(number.value_or(0));
      }
    } else {
      expected(where + ".single", piece,
               fmt::format("the sequence A, or a special token whose ids, at most {}, are in special_tokens",
                           kTemplateIdsMax));
    }
  }
  if (num_sequences != 1) problem("{}.single: contains the sequence A {} times; expected once", where, num_sequences);
  file_.prefix.insert(file_.prefix.begin(), before.begin(), before.end());
  file_.suffix.insert(file_.suffix.end(), after.begin(), after.end());
}

}  // namespace

TokenizerFile read_tokenizer_file(std::string_view json, const std::string& path) {
  const auto root = parse_json<TokenizerJson, ConfigError>(json, {.path = path, .expected = "the file of a tokenizer"});
  check_config(root.is_object(), "{}: expected a JSON object with a model, got one of type {}", path, root.type_name());
  TokenizerFileReader reader(root);
  auto file = reader.read();
  check_config(reader.problems.empty(), "{}: not a supported byte-level BPE tokenizer:\n  {}", path,
               listed(reader.problems, "\n  "));
  return file;
}

std::string shortened(const std::string& token) {
  constexpr std::size_t kLength = 100;
  return token.size() > kLength ? token.substr(0, kLength) + "..." : token;
}

}  // namespace accel::sources
