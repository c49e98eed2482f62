#pragma once

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>

#include <fmt/format.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "reference/core/value.hpp"

/// The order in which samples are visited.
///
/// A pass is drawn in parts, at the moments at which Python draws them, the end of a pass included: its RandomSampler
/// draws one more permutation there, of which it uses nothing. Streams agree only if all parts are drawn.
/// A sampler of the user's own that draws in `continue_pass` draws from `generator()`, if its passes are to be resumed:
/// the default generator is shared with all that draws between two parts.
/// Thread rule: the rank's thread. Source: torch/utils/data/sampler.py; accelerate/data_loader.py.
namespace accel {

class Sampler {
 public:
  virtual ~Sampler() = default;
  /// Number of samples in a pass.
  [[nodiscard]] virtual std::int64_t size() const = 0;
  /// Starts a pass: its first indices. Most samplers give all of them.
  virtual std::vector<std::int64_t> begin_pass() = 0;
  /// The next indices, when those given are used up; none at the end of the pass.
  virtual std::vector<std::int64_t> continue_pass() { return {}; }
  /// Passes over the next indices, at most `num_indices`, without making them; returns how many. 0: they have to be
  /// made.
  virtual std::int64_t skip(std::int64_t num_indices);
  /// Tells the epoch to samplers whose order depends on it.
  virtual void set_epoch(std::int64_t epoch) { (void)epoch; }

  /// Whether the order is drawn from a generator, which then has to be in one state on all ranks.
  [[nodiscard]] virtual bool has_generator() const { return false; }
  [[nodiscard]] virtual std::optional<at::Generator> generator() const { return std::nullopt; }
  /// Nothing: draws come from the default generator, or a generator that it seeds.
  virtual void set_generator(std::optional<at::Generator> generator) { (void)generator; }
  /// Whether this rank's part is all that it visits, so that nobody must cut it again.
  [[nodiscard]] virtual bool is_sharded() const { return false; }

  /// What the sampler is and what the next pass depends on, but for draws of the default generator: here kind(), size()
  /// and the generator's state.
  [[nodiscard]] virtual Value state_dict() const;
  /// Throws ArgumentError, and changes nothing, for a state of another kind or size of sampler.
  virtual void load_state_dict(const Value& state);
  /// A name that tells samplers of different orders apart.
  [[nodiscard]] virtual std::string kind() const { return "custom"; }
};

/// 0, 1, 2, ...
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

/// What samplers that draw have in common.
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
  std::optional<std::int64_t> num_samples =
      {};  ///< of a pass; default: as many as there are. More are drawn in further permutations
  std::optional<at::Generator> generator = {};  ///< default: one per pass, seeded by one draw of the default generator
};

/// A permutation of 0 .. length - 1, or independent draws.
class RandomSampler : public DrawingSampler {
 public:
  /// Throws ArgumentError if a number is negative, or if samples are to be drawn of nothing.
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

/// A permutation, or draws, that are a function of (seed, epoch) alone: equal on all ranks whatever they drew before.
class SeedableRandomSampler : public RandomSampler {
 public:
  /// `data_seed`: default is the initial seed of the default generator, as Python's torch.initial_seed().
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

/// A permutation of some indices. Without a generator it is drawn from the default one.
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

/// Index i with a probability of weights[i] over their sum. Without a generator it is drawn from the default one.
class WeightedRandomSampler : public DrawingSampler {
 public:
  struct Options {
    std::int64_t num_samples = 1;
    bool replacement = true;
    std::optional<at::Generator> generator = {};
  };
  /// Throws ArgumentError if the weights are no probabilities, or too few to draw from without replacement.
  WeightedRandomSampler(const std::vector<double>& weights, Options options);
  [[nodiscard]] std::int64_t size() const override { return num_samples_; }
  std::vector<std::int64_t> begin_pass() override;
  [[nodiscard]] std::string kind() const override { return replacement_ ? "weighted, with replacement" : "weighted"; }

 private:
  at::Tensor weights_;
  std::int64_t num_samples_;
  bool replacement_;
};

/// Every n-th sample of an order that all ranks share: for a loader that is not prepared, since `prepare` cuts by
/// itself. Source: torch/utils/data/distributed.py, DistributedSampler.
class DistributedSampler : public Sampler {
 public:
  struct Options {
    int num_replicas = 1, rank = 0;
    bool shuffle = true;
    std::int64_t seed = 0;
    bool drop_last = false;  ///< drop the tail, where else the start of the order fills it up
  };
  /// Throws ArgumentError if the rank is not one of the replicas.
  DistributedSampler(std::int64_t length, Options options);
  [[nodiscard]] std::int64_t size() const override;
  std::vector<std::int64_t> begin_pass() override;
  void set_epoch(std::int64_t epoch) override { epoch_ = epoch; }
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
