// The loader core: everything about a DataLoader that does not depend on the type of a sample. DataLoader,
// PassCore and this class divide the work as follows.
#include "reference/data/loader_core.hpp"

#include <ATen/core/Tensor.h>
#include <fmt/ranges.h>

#include <utility>

#include "reference/core/errors.hpp"
#include "reference/data/loader_state.hpp"
#include "reference/data/pass_core.hpp"
#include "reference/data/reading_plan.hpp"
#include "reference/rank_local/random.hpp"
#include "reference/state/warnings.hpp"

namespace accel {

LoaderCore::LoaderCore(DataSource source, DataLoaderOptions options)
    : source_(std::move(source)),
      options_(std::move(options)),
      plan_(plan_reading(source_, options_)),
      sampler_(plain_sampler(source_, options_)) {
  if (sampler_) plan_.cut.num_samples = sampler_->size();
  steps_ = steps_of_rank(sampler_, options_, plan_.cut, /*rank=*/0);
}

// Shares `is_read_` with the plain loader: both use one dataset and one sampler, so only one of them may have an
// open pass.
LoaderCore::LoaderCore(const LoaderCore& plain, ShardOptions shard)
    : source_(plain.source_), options_(plain.options_), shard_(std::move(shard)), is_read_(plain.is_read_) {
  check_state(!plain.position_.start().continues,
              "prepare: load_state_dict was called on the unprepared loader; call prepare first, then load_state_dict");
  plan_ = plan_reading(source_, options_, shard_);
  if (plain.sampler_) {
    sampler_ = sampler_of_rank(plain.sampler_, shard_, is_dispatched());
    plan_.cut.num_samples = sampler_->size();
  }
  steps_ = steps_of_rank(sampler_, options_, plan_.cut, reading_rank());
  warn_of_unused_options();
}

void LoaderCore::warn_of_unused_options() const {
  if (options_.worker_init_fn && options_.num_workers == 0)
    warn_once(context(), "prepare: the loader's worker_init_fn is not called, because num_workers is 0");
  if (options_.pin_memory == true && context().device.is_cpu())
    warn_once(context(), "prepare: the loader's pin_memory has no effect, because the rank computes on the CPU");
  if (options_.pin_memory == true && is_dispatched())
    warn_once(context(), "prepare: the loader's pin_memory has no effect, because rank 0 reads and sends its batches");
}

// Source: accelerate/data_loader.py, DataLoaderDispatcher._fetch_batches: with split_batches rank 0 reads one
// batch and divides it, otherwise it reads one batch per rank.
int LoaderCore::batches_per_step() const { return shard_.config.splits() ? 1 : shard_.data_parallel.size; }

std::int64_t LoaderCore::full_rows() const { return shard_.config.is_elastic() ? options_.batch_size : 0; }

int LoaderCore::num_readers() const {
  return plan_.num_readers(source_, options_.num_workers, shard_.data_parallel.rank);
}

// A dispatched loader's plan is that of one rank, so its unit count is multiplied by the batches of a step.
std::int64_t LoaderCore::units_per_step() const {
  const auto of_a_read_batch = steps_ ? steps_->units_per_step() : plan_shards(reading()).total_batch_size();
  return is_dispatched() ? of_a_read_batch * batches_per_step() : of_a_read_batch;
}

void LoaderCore::set_epoch(std::int64_t epoch) {
  check_argument(epoch >= 0, "set_epoch: expected an epoch of 0 or more, got {}", epoch);
  position_.set_epoch(epoch);
  if (!is_being_read() && !position_.is_inside()) place_.reset();
  // The number of batches may depend on the epoch. An open pass keeps its own.
  if (steps_ && !is_being_read()) steps_->set_epoch(epoch);
}

// Called by join_uneven_inputs, possibly inside a loop. The open pass keeps its steps, because the ranks have
// agreed on them; the new setting applies from the next pass.
void LoaderCore::set_even_batches(bool even_batches) {
  if (even_batches == shard_.config.even_batches) return;
  shard_.config.even_batches = even_batches;
  if (is_dispatched() || !steps_) return;
  plan_.cut.even_batches = even_batches;
  steps_outdated_ = true;
  if (!is_being_read()) renew_steps();
}

// Deferred while a pass is open: PassCore holds a reference to the current steps.
void LoaderCore::renew_steps() {
  if (std::exchange(steps_outdated_, false)) steps_ = steps_of_rank(sampler_, options_, plan_.cut, reading_rank());
}

std::optional<std::int64_t> LoaderCore::num_read_batches() const {
  if (steps_) return steps_->size();
  if (reads_own_parts()) return std::nullopt;  // parts may be of different lengths
  return source_.size ? std::optional(plan_shards(reading()).num_batches(reading_rank())) : std::nullopt;
}

// A dispatched loader reads batches_per_step batches for each step of a rank; drop_last drops an incomplete step.
std::optional<std::int64_t> LoaderCore::size() const {
  const auto batches = num_read_batches();
  if (!batches || !is_dispatched()) return batches;
  const auto per_step = batches_per_step();
  return (*batches + (options_.drop_last ? 0 : per_step - 1)) / per_step;
}

// The most common mistake when moving a training program: a loader that was not prepared. Rank 1 reports it, not
// rank 0, because an evaluation on the main process alone is legitimate.
void LoaderCore::warn_about_unsharded_reads(std::source_location where) {
  if (is_prepared() || has_warned_) return;
  auto* context = find_current_rank();
  if (context == nullptr || context->rank != 1 || !context->has_prepared) return;
  has_warned_ = true;
  const auto length = source_.size ? fmt::format("{} samples", *source_.size) : "a stream";
  warn_once(
      *context,
      fmt::format("{}:{}: this loop reads an accel::DataLoader of {} (batch_size {}) that was not prepared, so every "
                  "rank reads all of it: pass the loader to prepare, and loop over the one that prepare returns",
                  where.file_name(), where.line(), length, options_.batch_size));
}

// Source: accelerate/data_loader.py, DataLoaderShard.total_batch_size.
std::int64_t LoaderCore::total_batch_size() const {
  const auto batch_size =
      options_.batch_sampler ? options_.batch_sampler->batch_size() : std::optional(options_.batch_size);
  check_state(batch_size.has_value(),
              "total_batch_size: the batch sampler does not define batch_size(), because its batches vary");
  return is_prepared() ? *batch_size * batches_per_step() : *batch_size;
}

std::optional<std::int64_t> LoaderCore::batch_size_of_rank() const {
  if (options_.batch_sampler && !options_.batch_sampler->batch_size()) return std::nullopt;
  return is_prepared() ? total_batch_size() / data_parallel().size : total_batch_size();
}

std::int64_t LoaderCore::total_dataset_length() const {
  check_state(source_.size.has_value(),
              "total_dataset_length: the dataset is a stream without size(); expected a dataset that defines size()");
  return *source_.size;
}

// Nobody else has the copy that pin_memory makes, here or where batches are read. Other pinned batches may be the
// program's, which may change them next, so the options decide whether to wait.
at::Tensor LoaderCore::begin_move(const at::Tensor& tensor) {
  const auto device = context().device;
  const bool crosses = tensor.is_cpu() && !device.is_cpu() && tensor.layout() == at::kStrided;
  const bool is_own_copy = crosses && pins_batches();
  const bool is_pinned_here = crosses && !options_.pin_memory && !tensor.is_pinned();
  if (!is_own_copy && !is_pinned_here) return tensor.to(device, shard_.config.non_blocking);
  if (!copies_) copies_.emplace(device);
  return copies_->copy(is_own_copy ? tensor : tensor.pin_memory());
}

bool LoaderCore::pins_batches() const {
  const auto* rank = is_prepared() ? shard_.context : find_current_rank();
  return options_.pin_memory == true && rank != nullptr && !rank->device.is_cpu() && !is_dispatched();
}

void LoaderCore::finish_moves() const {
  if (copies_) copies_->join();
}

bool LoaderCore::moves_batches() const {
  return is_prepared() && !is_dispatched() && shard_.put_on_device && !shard_.context->device.is_cpu();
}

// --- order -----------------------------------------------------------------------------------------------------------

// Null on ranks that rank 0 reads for, because their samplers do not determine the order.
Value LoaderCore::order() const {
  if (is_prepared() && !reads()) return {};
  if (steps_) return steps_->state_dict();
  return source_.generator ? Value::Dict{{"generator", source_.generator->get_state()}} : Value::Dict{};
}

void LoaderCore::load_order(const Value& order) {
  if (order.is_null()) return;
  if (steps_) {
    steps_->load_state_dict(order);
    return;
  }
  check_argument(source_.generator.has_value() == order.contains("generator"),
                 "the state is of a stream {} a generator, but this stream is {}",
                 source_.generator ? "without" : "with", source_.generator ? "with one" : "without");
  if (source_.generator) restore_generator(*source_.generator, order.at("generator").as<at::Tensor>());
}

// An epoch that resumes was synchronized when it began, and restore_order sets the generators to the states of
// that moment. Source: accelerate/data_loader.py, DataLoaderShard.__iter__.
void LoaderCore::begin_epoch(bool is_resumed) {
  if (!is_dispatched() && !is_resumed) synchronize_rng(source_, options_, sampler_.get(), shard_);
  if (steps_) steps_->set_epoch(iteration());
}

// Python gives its workers their first indices on every rank, even where only rank 0 reads. The draw must be
// repeated here, or the generators of the ranks would differ afterwards.
void LoaderCore::draw_as_reader() {
  if (!reads() && options_.num_workers > 0 && sampler_) sampler_->begin_pass();
}

// A stream position is a sample count only if one thread reads the stream of this rank from its start. With
// several parts, the count does not determine how far each part was read, and a skip must read.
bool LoaderCore::can_seek() const {
  return !source_.is_stream || (!is_dispatched() && !reads_own_parts() && num_readers() <= 1);
}

// Published before the loop, like Accelerate's begin(), where the length of the dataset is known. drop_last has
// no remainder.
std::optional<std::int64_t> LoaderCore::remainder_after(std::int64_t num_read) const {
  if (!sampler_ || is_dispatched() || options_.drop_last) return std::nullopt;
  auto rest = reading();
  rest.num_read = num_read;
  return plan_shards(rest).remainder();
}

}  // namespace accel
