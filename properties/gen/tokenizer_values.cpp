#include "properties/gen/tokenizer_values.hpp"

#include "reference/sources/tokenizer/tokenizer.hpp"
#include "tests/support/temporary_folder.hpp"

namespace accel::testing {
namespace {

// JSON's null stands for a token or an id that does not exist.
template <typename T>
nlohmann::json or_null(const std::optional<T>& value) {
  return value ? nlohmann::json(*value) : nlohmann::json();
}

}  // namespace

nlohmann::json tokenizer_values(const nlohmann::json& request) {
  const TemporaryFolder folder;
  const auto tokenizer = Tokenizer::from_file(folder.write("tokenizer.json", request["file"]));
  const std::vector<std::string> texts = request["texts"];
  auto ids = tokenizer.encode_batch(texts);
  nlohmann::json values{{"encoded", ids},
                        {"without_special_tokens", tokenizer.encode_batch(texts, {.add_special_tokens = false})},
                        {"decoded", nlohmann::json::array()},
                        {"decoded_with_special_tokens", nlohmann::json::array()},
                        {"vocab_size", tokenizer.vocab_size()},
                        {"tokens", nlohmann::json::array()},
                        {"added", nlohmann::json::array()}};
  for (const auto& more : request["ids"]) ids.push_back(more);
  for (const auto& of_text : ids) {
    values["decoded"].push_back(tokenizer.decode(of_text));
    values["decoded_with_special_tokens"].push_back(tokenizer.decode(of_text, {.skip_special_tokens = false}));
  }
  constexpr std::int64_t kUnknownIds = 3;
  for (std::int64_t id = 0; id < tokenizer.vocab_size() + kUnknownIds; ++id)
    values["tokens"].push_back(or_null(tokenizer.id_to_token(id)));
  for (const auto& token : request["added"]) values["added"].push_back(or_null(tokenizer.token_to_id(token)));
  return values;
}

}  // namespace accel::testing
