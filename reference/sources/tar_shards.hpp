#pragma once

#include <cstdint>
#include <initializer_list>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

/// Samples in tar files, as WebDataset lays them out: members that follow one another and share a key (the path up to
/// the first dot of its last part) are one sample. An iterable dataset, read from start to end in a fixed amount of
/// memory.
///
///     accel::TarShards shards("train-{000..122}.tar", {.shuffle_shards_seed = 7});
///     auto images = accel::transformed(shards, [](const accel::TarShards::Sample& sample) {
///       return std::pair(accel::decode_image(sample.at("jpg")), accel::decode_integer(sample.at("cls")));
///     });
///
/// `shard(n, i)` is what one of n readers reads: every n-th file, from the i-th on, of the epoch's order. All readers
/// of one epoch together read every file once; each file is read by one of them. Thread rule: one thread at a time; a
/// copy starts anew and shares nothing with the first. Source: webdataset/tariterators.py, group_by_keys;
/// webdataset/shardlists.py.
namespace accel {

/// The names that a pattern stands for, in order: "train-{000..122}.tar" (numbers of that width), "{a,b}.tar", and
/// several such groups. A pattern without braces stands for itself. Throws ArgumentError if a group is not closed or is
/// neither a range nor a list.
std::vector<std::string> expand_braces(const std::string& pattern);

struct TarShardsOptions {
  /// Shuffles the files, not the samples in them: the order is torch.randperm's, of a generator seeded with this +
  /// epoch.
  std::optional<std::uint64_t> shuffle_shards_seed = std::nullopt;
};

class TarShards {
 public:
  /// From extension (in lower case, all behind the first dot: "jpg", "seg.png") to bytes; "__key__" holds the key,
  /// "__url__" the file.
  using Sample = std::map<std::string, std::string>;

  /// A pattern (see expand_braces), or files. Throws ConfigError that names all files that are not there.
  explicit TarShards(const std::string& pattern, const TarShardsOptions& options = {});
  explicit TarShards(std::vector<std::string> paths, const TarShardsOptions& options = {});
  explicit TarShards(std::initializer_list<std::string> paths, const TarShardsOptions& options = {})
      : TarShards(std::vector(paths), options) {}
  TarShards(const TarShards& other);
  TarShards(TarShards&&) noexcept;
  TarShards& operator=(TarShards other) noexcept;
  ~TarShards();

  /// The number of files that this reads.
  [[nodiscard]] std::int64_t num_shards() const;
  /// Part `index` of this in `num_shards` parts. Throws ArgumentError unless 0 <= index < num_shards.
  [[nodiscard]] TarShards shard(std::int64_t num_shards, std::int64_t index) const;

  /// The order of the files from the next `reset` on.
  void set_epoch(std::int64_t epoch) { selection_.epoch = epoch; }
  /// Starts a pass.
  void reset();
  /// The next sample; nothing at the end. Throws ConfigError that names file, member and byte offset where a file is
  /// damaged, or where a sample has two members of one extension.
  std::optional<Sample> next();
  /// Passes over samples, keeping none of their data; returns how many there were. Throws as `next`.
  std::int64_t skip(std::int64_t num_samples);

 private:
  struct Selection {
    std::shared_ptr<const std::vector<std::string>> paths = {};
    std::optional<std::uint64_t> seed = {};
    std::int64_t epoch = 0, first = 0, step = 1;
  };
  class Pass;
  explicit TarShards(Selection selection);
  [[nodiscard]] std::vector<std::string> order() const;

  Selection selection_;
  std::unique_ptr<Pass> pass_;
};

/// The integer that is written in a member such as `.cls`, spaces around it apart.
/// Throws ConfigError that tells the text, and `name`, if it is none of 64 bits.
std::int64_t decode_integer(std::string_view text, std::string_view name = "");

}  // namespace accel
