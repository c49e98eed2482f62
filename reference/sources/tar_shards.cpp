// Source: webdataset/tariterators.py, group_by_keys, and webdataset/shardlists.py.
#include "reference/sources/tar_shards.hpp"

#include <ATen/core/Tensor.h>
#include <ATen/ops/randperm.h>

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <unordered_set>
#include <utility>

#include "reference/core/errors.hpp"
#include "reference/core/input/listed.hpp"
#include "reference/core/letter_case.hpp"
#include "reference/rank_local/random.hpp"
#include "reference/sources/tar_reader.hpp"
#include "reference/state/warnings.hpp"

namespace accel {
namespace {

// At most 17 digits, which fit int64 without a check for overflow.
std::optional<std::int64_t> digits_of(std::string_view text) {
  const bool is_number =
      !text.empty() && text.size() < 18 && text.find_first_not_of("0123456789") == std::string_view::npos;
  return is_number ? std::optional(std::stoll(std::string(text))) : std::nullopt;
}

// A bound with leading zeros gives all numbers the width of the wider bound, as in braceexpand.
std::vector<std::string> members_of(std::string_view group, const std::string& pattern) {
  std::vector<std::string> members;
  if (const auto dots = group.find(".."); dots != std::string_view::npos) {
    const auto first = digits_of(group.substr(0, dots)), last = digits_of(group.substr(dots + 2));
    check_argument(first && last && *first <= *last,
                   "'{}': '{{{}}}' is not a range; expected a range such as {{000..122}}", pattern, group);
    const auto is_padded = [](std::string_view bound) { return bound.size() > 1 && bound.starts_with('0'); };
    const auto width =
        is_padded(group) || is_padded(group.substr(dots + 2)) ? std::max(dots, group.size() - dots - 2) : 1;
    for (auto number = *first; number <= *last; ++number) members.push_back(fmt::format("{:0{}}", number, width));
    return members;
  }
  check_argument(group.find(',') != std::string_view::npos,
                 "'{}': '{{{}}}' is neither a range nor a list; expected {{000..122}} or {{a,b}}", pattern, group);
  for (std::size_t begin = 0; begin <= group.size();) {
    const auto end = std::min(group.find(',', begin), group.size());
    members.emplace_back(group.substr(begin, end - begin));
    begin = end + 1;
  }
  return members;
}

// Sample and field of a member. An empty extension: the member is not part of a sample.
struct Place {
  std::string key, extension;
};

// The key contains the folder; the extension starts after the first dot of the file name, so that "1.seg.png" and
// "1.jpg" belong to one sample. Names that start with a dot are hidden files and are skipped, and so are names in
// "__name__", which WebDataset reserves for data about the archive.
Place place_of(const std::string& name) {
  const auto base = name.rfind('/') == std::string::npos ? 0 : name.rfind('/') + 1;
  const auto first = name.substr(0, name.find('/'));
  if (first.size() >= 4 && first.starts_with("__") && first.ends_with("__")) return {};
  const auto dot = name.find('.', base);
  if (dot == std::string::npos || dot == base) return {};
  return {name.substr(0, dot), lower_case(name.substr(dot + 1))};
}

// All files are checked at construction: a missing shard would otherwise stop a training run hours later, on one
// rank.
void check_exist(const std::vector<std::string>& paths) {
  check_argument(!paths.empty(), "tar: no files; expected at least one");
  std::vector<std::string> missing;
  for (const auto& path : paths) {
    std::error_code error;
    if (!std::filesystem::is_regular_file(path, error)) missing.push_back(path);
  }
  check_config(missing.empty(), "tar: {} of {} shards do not exist or are not files: {}; check the paths",
               missing.size(), paths.size(), listed(missing, ", "));
}

}  // namespace

// Recursive over the groups from the left: the last group varies fastest, as in a shell.
std::vector<std::string> expand_braces(const std::string& pattern) {
  const auto open = pattern.find('{');
  check_argument(pattern.find('}') >= open, "'{}': a brace is closed that is not open; expected '{{' before it",
                 pattern);
  if (open == std::string::npos) return {pattern};
  const auto close = pattern.find_first_of("{}", open + 1);
  check_argument(close != std::string::npos && pattern[close] == '}',
                 "'{}': a brace is not closed; expected '}}', and no groups inside of others", pattern);
  std::vector<std::string> names;
  const auto rests = expand_braces(pattern.substr(close + 1));
  for (const auto& member : members_of(std::string_view(pattern).substr(open + 1, close - open - 1), pattern)) {
    for (const auto& rest : rests) names.push_back(pattern.substr(0, open) + member + rest);
  }
  return names;
}

// One pass over a list of files, in order.
class TarShards::Pass {
 public:
  Pass(std::vector<std::string> paths, std::shared_ptr<std::atomic<bool>> has_warned)
      : paths_(std::move(paths)), has_warned_(std::move(has_warned)) {}

  // Returns the next sample. Without `keep` the data are skipped and the values are empty.
  std::optional<Sample> read_sample(bool keep) {
    while (!peek()) {
      if (next_path_ == paths_.size()) return std::nullopt;
      keys_.clear();
      reader_.emplace(paths_[next_path_++]);
    }
    const auto key = ahead_->key;
    check_config(
        keys_.insert(key).second,
        "{}: sample '{}' returns after other samples; expected the members of a sample next to each other; sort "
        "the archive by name",
        reader_->where(), key);
    Sample sample{{"__key__", key}, {"__url__", paths_[next_path_ - 1]}};
    while (peek() && ahead_->key == key) {
      check_config(!sample.contains(ahead_->extension),
                   "{}: sample '{}' has more than one '{}'; expected unique extensions", reader_->where(), key,
                   ahead_->extension);
      sample[ahead_->extension] = keep ? reader_->data() : "";
      ahead_.reset();
    }
    return sample;
  }

 private:
  // Stores the next member of this file that is part of a sample in ahead_; returns false at the end of the file. A
  // sample ends where the key changes, so one member is always read ahead.
  bool peek() {
    while (reader_ && !ahead_) {
      const auto member = reader_->next();
      if (!member) reader_.reset();
      if (!member || member->type == TarMember::Type::kFolder) continue;
      ahead_ = place_of(member->name);
      if (ahead_->extension.empty()) {
        ahead_.reset();
        warn_of_skipped(*member);
      } else {
        check_is_file(*member);
      }
    }
    return ahead_.has_value();
  }

  // The data of a link are those of another member, which was read before or is in no archive.
  void check_is_file(const TarMember& member) const {
    using Type = TarMember::Type;
    check_config(member.type != Type::kHardLink,
                 "{}: a hard link to '{}'; expected a file; create the archive with tar --hard-dereference",
                 reader_->where(), member.link);
    check_config(member.type != Type::kSymbolicLink,
                 "{}: a symbolic link to '{}'; expected a file; create the archive with tar --dereference",
                 reader_->where(), member.link);
    check_config(member.type == Type::kFile, "{}: a pipe or a device; expected a file", reader_->where());
  }

  void warn_of_skipped(const TarMember& member) {
    if (has_warned_->exchange(true)) return;
    warn_once(fmt::format(
        "{}: skips '{}' and other members that belong to no sample: their names have no extension, begin with "
        "a dot, or are in __...__",
        paths_[next_path_ - 1], member.name));
  }

  std::vector<std::string> paths_;
  std::shared_ptr<std::atomic<bool>> has_warned_;
  std::size_t next_path_ = 0;
  std::unordered_set<std::string> keys_;  // of the archive
  std::optional<TarReader> reader_;
  std::optional<Place> ahead_;
};

TarShards::TarShards(const std::string& pattern, const TarShardsOptions& options)
    : TarShards(expand_braces(pattern), options) {}

TarShards::TarShards(std::vector<std::string> paths, const TarShardsOptions& options)
    : selection_{.paths = std::make_shared<const std::vector<std::string>>(std::move(paths)),
                 .seed = options.shuffle_shards_seed} {
  check_exist(*selection_.paths);
}

TarShards::TarShards(Selection selection) : selection_(std::move(selection)) {}
// A copy does not share the open pass: two readers of one file position would each miss members.
TarShards::TarShards(const TarShards& other) : TarShards(other.selection_) {}
TarShards::TarShards(TarShards&&) noexcept = default;
TarShards::~TarShards() = default;

TarShards& TarShards::operator=(TarShards other) noexcept {
  selection_ = std::move(other.selection_);
  pass_ = std::move(other.pass_);
  return *this;
}

std::int64_t TarShards::num_shards() const {
  const auto left = static_cast<std::int64_t>(selection_.paths->size()) - selection_.first;
  return left <= 0 ? 0 : (left + selection_.step - 1) / selection_.step;
}

// Parts of parts compose: a rank's part can be divided again among its workers.
TarShards TarShards::shard(std::int64_t num_shards, std::int64_t index) const {
  check_argument(
      index >= 0 && index < num_shards,
      "shard: the index {} is out of range for {} parts; expected 0 or more and less than the number of parts", index,
      num_shards);
  auto part = selection_;
  part.first += index * part.step;
  part.step *= num_shards;
  return TarShards(std::move(part));
}

// All files are shuffled before they are divided into parts, so that the parts of an epoch are disjoint.
std::vector<std::string> TarShards::order() const {
  const auto num_files = static_cast<std::int64_t>(selection_.paths->size());
  std::vector<std::int64_t> files(static_cast<std::size_t>(num_files));
  for (std::int64_t file = 0; file < num_files; ++file) files[file] = file;
  if (selection_.seed) {
    const auto seed = *selection_.seed + static_cast<std::uint64_t>(selection_.epoch);
    const auto shuffled = at::randperm(num_files, make_generator(seed), at::kLong);
    std::copy_n(shuffled.const_data_ptr<std::int64_t>(), num_files, files.begin());
  }
  std::vector<std::string> paths;
  for (auto place = selection_.first; place < num_files; place += selection_.step)
    paths.push_back((*selection_.paths)[files[place]]);
  return paths;
}

void TarShards::reset() { pass_ = std::make_unique<Pass>(order(), selection_.has_warned); }

std::optional<TarShards::Sample> TarShards::next() {
  if (!pass_) reset();
  return pass_->read_sample(/*keep=*/true);
}

// Reads headers only, so skipping costs a seek per member.
std::int64_t TarShards::skip(std::int64_t num_samples) {
  if (!pass_) reset();
  std::int64_t passed = 0;
  while (passed < num_samples && pass_->read_sample(/*keep=*/false)) ++passed;
  return passed;
}

std::int64_t decode_integer(std::string_view text, std::string_view name) {
  constexpr std::string_view kSpaces = " \t\r\n";
  const auto begin = std::min(text.find_first_not_of(kSpaces), text.size());
  const auto digits = text.substr(begin, text.find_last_not_of(kSpaces) + 1 - begin);
  std::int64_t value = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
  const bool is_integer = error == std::errc() && end == digits.data() + digits.size();
  check_config(is_integer, "{}{}'{}' is not a 64-bit integer; expected decimal digits such as 7 or -7", name,
               name.empty() ? "" : ": ", text);
  return value;
}

}  // namespace accel
