#pragma once

#include <atomic>
#include <cstdint>
#include <initializer_list>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

/// An iterable dataset of samples in tar files with WebDataset's layout: consecutive members with the same key (the
/// path up to the first dot of the file name) are one sample. Files are read sequentially; memory holds one sample and
/// the keys of one archive. As in WebDataset, members without an extension, hidden ones (".name") and those in
/// "__name__" belong to no sample; a warning names the first of them.
///
///     accel::TarShards shards("train-{000..122}.tar", {.shuffle_shards_seed = 7});
///     auto images = accel::transformed(shards, [](const accel::TarShards::Sample& sample) {
///       return std::pair(accel::decode_image(sample.at("jpg")), accel::decode_integer(sample.at("cls")));
///     });
///
/// `shard(n, i)` is the part of reader i of n: every n-th file of the epoch's order, starting at the i-th. In one
/// epoch, each file is read by exactly one reader. Thread rule: one thread at a time; a copy starts a new pass and is
/// independent of the original.
/// Source: webdataset/tariterators.py, group_by_keys; webdataset/shardlists.py.
namespace accel {

/// Expands a pattern with one or more groups in order: "train-{000..122}.tar" (numbers of that width) or "{a,b}.tar". A
/// pattern without braces is returned unchanged. Throws ArgumentError if a group is not closed or is neither a range
/// nor a list.
std::vector<std::string> expand_braces(const std::string& pattern);

struct TarShardsOptions {
  /// Shuffles the files, but not the samples in them: the order is torch.randperm with a generator seeded with this
  /// value + epoch.
  std::optional<std::uint64_t> shuffle_shards_seed = std::nullopt;
};

class TarShards {
 public:
  /// Maps extensions (lower case, everything after the first dot: "jpg", "seg.png") to bytes. "__key__" contains the
  /// key, "__url__" the file.
  using Sample = std::map<std::string, std::string>;

  /// Opens a pattern (see expand_braces) or a list of files. Throws ConfigError that lists all missing files.
  explicit TarShards(const std::string& pattern, const TarShardsOptions& options = {});
  explicit TarShards(std::vector<std::string> paths, const TarShardsOptions& options = {});
  explicit TarShards(std::initializer_list<std::string> paths, const TarShardsOptions& options = {})
      : TarShards(std::vector(paths), options) {}
  TarShards(const TarShards& other);
  TarShards(TarShards&&) noexcept;
  TarShards& operator=(TarShards other) noexcept;
  ~TarShards();

  /// Number of files that this dataset reads.
  [[nodiscard]] std::int64_t num_shards() const;
  /// Returns part `index` of `num_shards` parts. Throws ArgumentError unless 0 <= index < num_shards.
  [[nodiscard]] TarShards shard(std::int64_t num_shards, std::int64_t index) const;

  /// Sets the epoch, which determines the order of the files from the next `reset` on.
  void set_epoch(std::int64_t epoch) { selection_.epoch = epoch; }
  /// Starts a pass.
  void reset();
  /// Returns the next sample, or nullopt at the end. Throws ConfigError, which names file, member and byte offset, if a
  /// file is damaged, a sample has two members with the same extension, a key returns after other samples, or a member
  /// of a sample is a link (GNU tar writes one for the second name of a file) or another special file.
  std::optional<Sample> next();
  /// Skips samples without keeping their data; returns the number of skipped samples. Throws as `next` does.
  std::int64_t skip(std::int64_t num_samples);

 private:
  struct Selection {
    std::shared_ptr<const std::vector<std::string>> paths = {};
    std::optional<std::uint64_t> seed = {};
    std::int64_t epoch = 0, first = 0, step = 1;
    std::shared_ptr<std::atomic<bool>> has_warned = std::make_shared<std::atomic<bool>>(false);
  };
  class Pass;
  explicit TarShards(Selection selection);
  [[nodiscard]] std::vector<std::string> order() const;

  Selection selection_;
  std::unique_ptr<Pass> pass_;
};

/// Parses the integer in a member such as `.cls`, ignoring surrounding spaces.
/// Throws ConfigError, which contains the text and `name`, if it is not a 64-bit integer.
std::int64_t decode_integer(std::string_view text, std::string_view name = "");

}  // namespace accel
