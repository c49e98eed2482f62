#pragma once

#include <fmt/format.h>

#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <type_traits>
#include <unordered_set>
#include <vector>

namespace accel {

/// Settings of `parse_json`.
struct JsonParserOptions {
  std::string path = {};                                  ///< begins all errors
  std::string expected = {};                              ///< e.g. "the file of a tokenizer"
  int depth_max = 32;                                     ///< of nested objects and lists
  std::size_t values_max = 5'000'000;                     ///< in total
  std::function<void(const std::string&)> repeated = {};  ///< receives each repeated key; null: they are not searched
};

/// Builds a tree of JSON values and throws `JsonError` at the first value beyond the limits. nlohmann::json has no
/// limits (20 MB of brackets need 1.5 GB), and its own callback takes time quadratic in the number of values.
template <typename Json, typename JsonError>
class JsonTreeBuilder : public nlohmann::json_sax<Json> {
 public:
  explicit JsonTreeBuilder(const JsonParserOptions& options) : options_(options) {}
  Json take() { return std::move(root_); }

  bool null() override { return add(nullptr); }
  bool boolean(bool value) override { return add(value); }
  bool number_integer(typename Json::number_integer_t value) override { return add(value); }
  bool number_unsigned(typename Json::number_unsigned_t value) override { return add(value); }
  bool number_float(typename Json::number_float_t value, const std::string&) override { return add(value); }
  bool string(std::string& value) override { return add(std::move(value)); }
  bool binary(typename Json::binary_t& value) override { return add(std::move(value)); }
  bool start_object(std::size_t) override { return open(Json::object()); }
  bool start_array(std::size_t) override { return open(Json::array()); }
  bool end_object() override { return close(); }
  bool end_array() override { return close(); }
  bool key(std::string& text) override {
    is_repeated_ = is_tracked() && !keys_.back().insert(text).second;
    if (is_repeated_ && options_.repeated) options_.repeated(text);
    key_ = std::move(text);
    return true;
  }
  bool parse_error(std::size_t, const std::string&, const nlohmann::detail::exception& error) override {
    throw JsonError(fmt::format("{}: not valid JSON: {}; copy or save the file again", options_.path, error.what()));
  }

 private:
  bool open(Json value) {
    if (open_.size() >= static_cast<std::size_t>(options_.depth_max))
      throw JsonError(fmt::format("{}: nested more than {} deep; expected {}", options_.path, options_.depth_max,
                                  options_.expected));
    add(std::move(value));
    open_.push_back(last_);
    keys_.emplace_back();
    return true;
  }
  bool close() {
    open_.pop_back();
    keys_.pop_back();
    return true;
  }
  // A value does not move while its own values are added, so its address is stable.
  template <typename Value>
  bool add(Value value) {
    if (++num_values_ > options_.values_max)
      throw JsonError(
          fmt::format("{}: more than {} values; expected {}", options_.path, options_.values_max, options_.expected));
    if (open_.empty()) {
      root_ = Json(std::move(value));
      last_ = &root_;
    } else if (open_.back()->is_array()) {
      open_.back()->push_back(Json(std::move(value)));
      last_ = &open_.back()->back();
    } else {
      last_ = member();
      *last_ = Json(std::move(value));
    }
    return true;
  }
  static constexpr bool kIsOrdered = std::is_same_v<Json, nlohmann::ordered_json>;
  [[nodiscard]] bool is_tracked() const { return kIsOrdered || options_.repeated; }
  // ordered_json searches all keys of an object for one, so that a new key is appended without a search.
  Json* member() {
    auto& object = *open_.back();
    if constexpr (kIsOrdered) {
      if (!is_repeated_) {
        auto& members = object.template get_ref<typename Json::object_t&>();
        members.push_back(typename Json::object_t::value_type(key_, Json()));
        return &members.back().second;
      }
    }
    return &object[key_];
  }

  const JsonParserOptions& options_;
  Json root_;
  Json* last_ = nullptr;
  std::vector<Json*> open_;                            // the objects and lists around the next value
  std::vector<std::unordered_set<std::string>> keys_;  // of each of them
  std::string key_;
  bool is_repeated_ = false;
  std::size_t num_values_ = 0;
};

/// Parses JSON of an untrusted file in linear time. Throws `JsonError`, which begins with the path, for text that is
/// not JSON and for more values or deeper nesting than the options allow.
///
///     const auto root = parse_json<nlohmann::json, ConfigError>(text, {.path = path, .expected = "an index"});
///
/// Thread rule: pure.
template <typename Json, typename JsonError>
Json parse_json(std::string_view text, const JsonParserOptions& options) {
  // nlohmann::json takes a zero byte for the end of the text.
  if (const auto zero = text.find('\0'); zero != std::string_view::npos)
    throw JsonError(fmt::format("{}: byte {} is zero; expected JSON; copy or save the file again", options.path, zero));
  JsonTreeBuilder<Json, JsonError> builder(options);
  Json::sax_parse(text, &builder);
  return builder.take();
}

}  // namespace accel
