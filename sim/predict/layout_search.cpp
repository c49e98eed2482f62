#include "sim/predict/layout_search.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace accel::predict {
namespace {

bool divides(double divisor, double number) { return std::fmod(number, divisor) == 0; }

std::vector<double> divisors(double number, double most) {
  std::vector<double> found;
  for (double each = 1; each <= std::min(number, most); ++each)
    if (divides(each, number)) found.push_back(each);
  return found;
}

std::vector<double> powers(double most) {
  std::vector<double> found;
  for (double each = 1; each <= most; each *= 2) found.push_back(each);
  return found;
}

constexpr double kMostTensorRanks = 16, kMostStages = 64, kMostContextRanks = 64, kMostMicroBatch = 16, kMostChunks = 8;
constexpr double kTokensPerContextRank = 2048;  // fewer do not pay
// Layouts whose pipelines are run by their tables; the others are compared by a formula.
constexpr std::size_t kExact = 40;

class Search {
 public:
  Search(TrainingRun run, const Hardware& hardware)
      : base_(std::move(run)), hardware_(hardware), memory_bytes_(hardware.gpu(base_.system.gpu).memory_bytes) {
    base_.recompute = {};
    base_.zero_group = 0;
    base_.etp = 1;
    base_.embedding_counts_as_layer = false;
  }

  LayoutSearch best(int num_best) && {
    tensor_ranks();
    auto& fitting = search_.fitting;
    by_time();
    // The formula of a pipeline is about right: the exact times and memory decide among the first.
    std::vector<RankedLayout> exact;
    for (auto& layout : fitting) {
      if (exact.size() == std::max<std::size_t>(kExact, num_best)) break;
      layout.prediction = predict(layout.run, hardware_);
      if (layout.prediction.memory.sum() <= memory_bytes_)
        exact.push_back(std::move(layout));
      else
        ++search_.num_refused;
    }
    fitting = std::move(exact);
    by_time();
    fitting.resize(std::min(fitting.size(), static_cast<std::size_t>(num_best)));
    return std::move(search_);
  }

 private:
  void by_time() {
    std::stable_sort(search_.fitting.begin(), search_.fitting.end(), [](const auto& a, const auto& b) {
      return a.prediction.step_seconds() < b.prediction.step_seconds();
    });
  }

  void tensor_ranks() {
    for (const double tp : divisors(base_.model.heads, kMostTensorRanks)) {
      if (!divides(tp, base_.gpus)) continue;
      base_.tp = tp;
      base_.sp = tp > 1;
      stages();
    }
  }

  void stages() {
    for (const double pp : divisors(base_.gpus / base_.tp, std::min<double>(kMostStages, base_.model.layers))) {
      base_.pp = pp;
      context_ranks();
    }
  }

  void context_ranks() {
    const double rest = base_.gpus / base_.tp / base_.pp;
    for (const double cp : powers(std::max(1.0, std::min(kMostContextRanks, base_.seq / kTokensPerContextRank)))) {
      if (!divides(cp, rest) || !divides(cp, base_.seq)) continue;
      base_.cp = cp;
      base_.dp = rest / cp;
      if (divides(base_.dp, base_.gbs)) micro_batches();
    }
  }

  void micro_batches() {
    for (const double mbs : powers(std::min(kMostMicroBatch, base_.gbs / base_.dp))) {
      if (!divides(mbs, base_.gbs / base_.dp)) continue;
      base_.mbs = mbs;
      base_.micro_batches = base_.gbs / base_.dp / mbs;
      chunks();
    }
  }

  void chunks() {
    const double most = base_.pp > 1 ? std::min(kMostChunks, std::floor(base_.model.layers / base_.pp)) : 1;
    for (double vpp = 1; vpp <= most; ++vpp) {
      if (vpp > 1 && !divides(base_.pp, base_.micro_batches)) continue;
      base_.vpp = vpp;
      base_.schedule = vpp > 1 ? "interleaved_1f1b" : "1f1b";
      expert_ranks();
    }
  }

  void expert_ranks() {
    const double ranks = base_.dp * base_.cp * base_.tp;
    const double most = base_.model.experts > 0 ? base_.model.experts : 1;
    for (const double ep : powers(std::min(ranks, most))) {
      if (!divides(ep, ranks) || (base_.model.experts > 0 && !divides(ep, base_.model.experts))) continue;
      base_.ep = ep;
      states();
    }
  }

  void states() {
    for (const int zero : {1, 3}) {
      if (zero == 3 && base_.pp > 1) continue;
      if (base_.data_ranks() == 1 && zero != 1) continue;
      base_.zero = zero;
      for (const bool is_full : {false, true}) {
        base_.recompute = {.layers = is_full ? 1.0 : 0.0};
        base_.recompute.attention = !is_full && base_.attention == AttentionKernel::kUnfused;
        add();
      }
    }
  }

  void add() {
    auto prediction = predict(base_, hardware_, Pipelines::kFormula);
    ++search_.num_tried;
    const double bytes = prediction.memory.sum();
    if (search_.num_tried == 1 || bytes < search_.least_memory_bytes) search_.least_memory_bytes = bytes;
    if (bytes <= memory_bytes_) {
      search_.fitting.push_back({base_, std::move(prediction)});
    } else {
      ++search_.num_refused;
    }
  }

  TrainingRun base_;
  const Hardware& hardware_;
  double memory_bytes_;  // of a GPU
  LayoutSearch search_;
};

}  // namespace

LayoutSearch search_layouts(const TrainingRun& run, const Hardware& hardware, int num_best) {
  return Search(run, hardware).best(num_best);
}

std::string layout_text(const TrainingRun& run) {
  auto text = fmt::format("dp {}", run.dp);
  if (run.tp > 1) text += fmt::format(", tp {}", run.tp);
  if (run.cp > 1) text += fmt::format(", cp {}", run.cp);
  if (run.pp > 1) text += fmt::format(", pp {}", run.pp);
  if (run.vpp > 1) text += fmt::format(" x {} chunks", run.vpp);
  if (run.ep > 1) text += fmt::format(", ep {}", run.ep);
  text += fmt::format(", mbs {}, ZeRO {}", run.mbs, run.zero);
  if (run.recompute.is_full()) text += ", full recomputation";
  if (run.recompute.attention) text += ", recomputed attention";
  return text;
}

}  // namespace accel::predict
