#pragma once

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>

#include <fmt/format.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "reference/tree/value.hpp"

/// Samplers: the order in which samples are visited.
///
/// A pass is drawn in parts, at the same moments as in Python, including the end of a pass, where RandomSampler draws
/// one more permutation and discards it. The random streams are equal only if all parts are drawn.
/// A user-defined sampler that draws in `continue_pass` must draw from `generator()` if its passes are to be resumable,
/// because other code draws from the default generator between two parts.
/// Thread rule: the rank's thread. Source: torch/utils/data/sampler.py; accelerate/data_loader.py.
namespace accel {

class Sampler {
 public:
  virtual ~Sampler() = default;
  /// Number of samples in a pass.
  [[nodiscard]] virtual std::int64_t size() const = 0;
  /// Starts a pass and returns its first indices. Most samplers return all of them.
  virtual std::vector<std::int64_t> begin_pass() = 0;
  /// Returns the next indices after those returned so far; empty at the end of the pass.
  virtual std::vector<std::int64_t> continue_pass() { return {}; }
  /// Skips up to `num_indices` indices without generating them and returns how many were skipped. 0: the sampler cannot
  /// skip, and the caller must generate them.
  virtual std::int64_t skip(std::int64_t num_indices);
  /// Sets the epoch, for samplers whose order depends on it.
  virtual void set_epoch(std::int64_t epoch) { (void)epoch; }

  /// True if the order is drawn from a generator, which must then have the same state on all ranks.
  [[nodiscard]] virtual bool has_generator() const { return false; }
  [[nodiscard]] virtual std::optional<at::Generator> generator() const { return std::nullopt; }
  /// nullopt: the sampler draws from the default generator, or from a generator that it seeds from it.
  virtual void set_generator(std::optional<at::Generator> generator) { (void)generator; }
  /// True if each pass is meant to have another order.
  [[nodiscard]] virtual bool shuffles() const { return has_generator(); }
  /// True if the sampler visits only this rank's part, so that it must not be sharded again.
  [[nodiscard]] virtual bool is_sharded() const { return false; }

  /// Returns the identity of the sampler and the state that determines the next pass, except draws from the default
  /// generator. The default implementation returns kind(), size() and the state of the generator.
  [[nodiscard]] virtual Value state_dict() const;
  /// Throws ArgumentError and changes nothing if the state is of a sampler of another kind or size.
  virtual void load_state_dict(const Value& state);
  /// A name that distinguishes samplers of different orders.
  [[nodiscard]] virtual std::string kind() const { return "custom"; }
};

/// Visits 0, 1, 2, ... in order.
class SequentialSampler : public Sampler {
 public:
  explicit SequentialSampler(std::int64_t num_samples) : num_samples_(num_samples) {}
  [[nodiscard]] std::int64_t size() const override { return num_samples_; }
  std::vector<std::int64_t> begin_pass() override;
  std::vector<std::int64_t> continue_pass() override;
  std::int64_t skip(std::int64_t num_indices) override;
  [[nodiscard]] std::string kind() const override { return "sequential"; }

 private:
  std::int64_t num_samples_, num_given_ = 0;
};

/// Base class of samplers that own an optional generator.
class DrawingSampler : public Sampler {
 public:
  [[nodiscard]] bool has_generator() const override { return true; }
  [[nodiscard]] std::optional<at::Generator> generator() const override { return generator_; }
  void set_generator(std::optional<at::Generator> generator) override { generator_ = std::move(generator); }

 protected:
  explicit DrawingSampler(std::optional<at::Generator> generator) : generator_(std::move(generator)) {}

 private:
  std::optional<at::Generator> generator_;
};

struct RandomSamplerOptions {
  bool replacement = false;
  /// Number of samples of a pass; default: the dataset length. A larger number is drawn in further permutations.
  std::optional<std::int64_t> num_samples = {};
  std::optional<at::Generator> generator = {};  ///< default: one per pass, seeded by one draw of the default generator
};

/// Visits a random permutation of 0 .. length - 1, or draws with replacement.
class RandomSampler : public DrawingSampler {
 public:
  /// Throws ArgumentError if a number is negative or if samples would be drawn from an empty dataset.
  explicit RandomSampler(std::int64_t length, RandomSamplerOptions options = {});
  [[nodiscard]] std::int64_t size() const override { return num_samples_; }
  std::vector<std::int64_t> begin_pass() override;
  std::vector<std::int64_t> continue_pass() override;

  [[nodiscard]] std::int64_t length() const { return length_; }
  [[nodiscard]] bool replacement() const { return replacement_; }
  [[nodiscard]] std::string kind() const override {
    return fmt::format("random of {}{}", length_, replacement_ ? ", with replacement" : "");
  }

 private:
  std::vector<std::int64_t> next_part();

  std::int64_t length_, num_samples_;
  bool replacement_;
  std::int64_t num_given_ = 0;
  bool ended_ = false;
  std::optional<at::Generator> current_;
};

/// A RandomSampler whose order is a function of (seed, epoch) only, so it is equal on all ranks regardless of earlier
/// draws.
class SeedableRandomSampler : public RandomSampler {
 public:
  /// `data_seed` defaults to the initial seed of the default generator, like Python's torch.initial_seed().
  SeedableRandomSampler(std::int64_t length, std::optional<std::int64_t> data_seed, RandomSamplerOptions options = {});
  std::vector<std::int64_t> begin_pass() override;
  std::vector<std::int64_t> continue_pass() override;
  void set_epoch(std::int64_t epoch) override { epoch_ = epoch; }
  [[nodiscard]] Value state_dict() const override;
  void load_state_dict(const Value& state) override;
  [[nodiscard]] std::string kind() const override { return "seedable " + RandomSampler::kind(); }

 private:
  std::uint64_t initial_seed_;
  std::int64_t epoch_ = 0;
};

/// Visits a permutation of the given indices. Draws from the default generator if it has none.
class SubsetRandomSampler : public DrawingSampler {
 public:
  explicit SubsetRandomSampler(std::vector<std::int64_t> indices, std::optional<at::Generator> generator = std::nullopt)
      : DrawingSampler(std::move(generator)), indices_(std::move(indices)) {}
  [[nodiscard]] std::int64_t size() const override { return static_cast<std::int64_t>(indices_.size()); }
  std::vector<std::int64_t> begin_pass() override;
  [[nodiscard]] std::string kind() const override { return "random subset"; }

 private:
  std::vector<std::int64_t> indices_;
};

/// Draws index i with probability weights[i] / sum(weights). Draws from the default generator if it has none.
class WeightedRandomSampler : public DrawingSampler {
 public:
  struct Options {
    std::int64_t num_samples = 1;
    bool replacement = true;
    std::optional<at::Generator> generator = {};
  };
  /// Throws ArgumentError if a weight is negative or not finite, or if too few are positive for drawing without
  /// replacement.
  WeightedRandomSampler(const std::vector<double>& weights, Options options);
  [[nodiscard]] std::int64_t size() const override { return num_samples_; }
  std::vector<std::int64_t> begin_pass() override;
  [[nodiscard]] std::string kind() const override { return replacement_ ? "weighted, with replacement" : "weighted"; }

 private:
  at::Tensor weights_;
  std::int64_t num_samples_;
  bool replacement_;
};

/// Visits every n-th sample of an order that all ranks share. For loaders that are not prepared, since `prepare` shards
/// automatically. Source: torch/utils/data/distributed.py, DistributedSampler.
class DistributedSampler : public Sampler {
 public:
  struct Options {
    int num_replicas = 1, rank = 0;
    bool shuffle = true;
    std::int64_t seed = 0;
    bool drop_last = false;  ///< drops an incomplete tail instead of padding it with the start of the order
  };
  /// Throws ArgumentError if the rank is out of range.
  DistributedSampler(std::int64_t length, Options options);
  [[nodiscard]] std::int64_t size() const override;
  std::vector<std::int64_t> begin_pass() override;
  void set_epoch(std::int64_t epoch) override { epoch_ = epoch; }
  [[nodiscard]] bool shuffles() const override { return options_.shuffle; }
  [[nodiscard]] bool is_sharded() const override { return options_.num_replicas > 1; }
  [[nodiscard]] std::string kind() const override { return "distributed"; }
  [[nodiscard]] Value state_dict() const override;
  void load_state_dict(const Value& state) override;

 private:
  std::int64_t length_;
  Options options_;
  std::int64_t epoch_ = 0;
};

}  // namespace accel
