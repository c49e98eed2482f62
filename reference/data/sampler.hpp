#pragma once

#include <ATen/core/Generator.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

/// The order in which samples are visited.
///
/// A pass over a sampler has a start and an end, and both draw: Python's RandomSampler draws its permutation at the start
/// and a second one, of which it uses nothing, when it is exhausted. Streams agree only if both are drawn.
/// Thread rule: the rank's thread. Source: torch/utils/data/sampler.py; accelerate/data_loader.py.
namespace accel {

class Sampler {
 public:
  virtual ~Sampler() = default;
  /// Number of samples in a pass.
  [[nodiscard]] virtual std::int64_t size() const = 0;
  /// Starts a pass: the indices in order.
  virtual std::vector<std::int64_t> begin_pass() = 0;
  /// The pass has been read to its end.
  virtual void end_pass() {}
  /// Tells the epoch to samplers whose order depends on it.
  virtual void set_epoch(std::int64_t epoch) { (void)epoch; }
};

/// 0, 1, 2, ...
class SequentialSampler : public Sampler {
 public:
  explicit SequentialSampler(std::int64_t num_samples) : num_samples_(num_samples) {}
  [[nodiscard]] std::int64_t size() const override { return num_samples_; }
  std::vector<std::int64_t> begin_pass() override;

 private:
  std::int64_t num_samples_;
};

/// A permutation, from a generator of its own, else from one seeded by one draw of the default generator.
class RandomSampler : public Sampler {
 public:
  explicit RandomSampler(std::int64_t num_samples, std::optional<at::Generator> generator = std::nullopt)
      : num_samples_(num_samples), generator_(std::move(generator)) {}
  [[nodiscard]] std::int64_t size() const override { return num_samples_; }
  std::vector<std::int64_t> begin_pass() override;
  void end_pass() override;

  [[nodiscard]] const std::optional<at::Generator>& generator() const { return generator_; }
  void set_generator(at::Generator generator) { generator_ = std::move(generator); }

 protected:
  at::Generator pass_generator();

 private:
  std::int64_t num_samples_;
  std::optional<at::Generator> generator_;
  std::optional<at::Generator> current_;
};

/// A permutation that is a function of (seed, epoch) alone: equal on all ranks whatever they drew before.
class SeedableRandomSampler : public RandomSampler {
 public:
  /// `data_seed`: default is the initial seed of the default generator, as Python's torch.initial_seed().
  SeedableRandomSampler(std::int64_t num_samples, std::optional<std::int64_t> data_seed,
                        std::optional<at::Generator> generator = std::nullopt);
  std::vector<std::int64_t> begin_pass() override;
  void end_pass() override;
  void set_epoch(std::int64_t epoch) override { epoch_ = epoch; }

 private:
  std::uint64_t initial_seed_;
  std::int64_t epoch_ = 0;
};

}  // namespace accel
