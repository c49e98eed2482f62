#include "sim/programs/comparison/program_audit.hpp"

#include <ATen/record_function.h>
#include <c10/core/GradMode.h>
#include <c10/util/Type.h>
#include <fmt/ranges.h>
#include <torch/nn/module.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <iostream>
#include <mutex>
#include <nlohmann/json.hpp>
#include <streambuf>

#include "backends/process/watched_writes.hpp"
#include "reference/comm/tensor_fingerprint.hpp"
#include "reference/diagnosis/collective_call.hpp"
#include "reference/rank_local/call_site.hpp"
#include "reference/state/rank_context.hpp"
#include "sim/programs/comparison/tensor_text.hpp"

namespace accel::programs {
namespace {

using Json = nlohmann::ordered_json;

// What observes draws no operators of the program, which the simulator times and checks.
struct Unwatched {
  at::DisableRecordFunctionGuard no_clock;
  c10::NoGradGuard no_grad;
};

std::vector<double> norms_of(const std::vector<at::Tensor>& tensors) {
  std::vector<double> norms;
  for (const auto& tensor : tensors) {
    if (const auto norm = has_bits(tensor) ? norm_of(tensor) : std::nullopt) norms.push_back(*norm);
  }
  return norms;
}

// JSON has no NaN.
std::string text_of(const std::vector<double>& numbers) {
  auto json = Json::array();
  for (const auto number : numbers) json.push_back(std::isfinite(number) ? Json(number) : Json(1e300));
  return json.dump();
}

std::vector<at::Tensor> gradients_of(const std::vector<at::Tensor>& parameters) {
  std::vector<at::Tensor> gradients;
  for (const auto& parameter : parameters) {
    if (parameter.grad().defined()) gradients.push_back(parameter.grad());
  }
  return gradients;
}

std::string program_line() { return accel::describe(CallSite::current()); }

std::string name_of_optimizer(std::size_t number) { return fmt::format("optimizer {}", number); }

// Samples are named by their indices in the dataset, else by a hash of their content, one per row.
std::string samples_of(const ProgramObserver::ReadBatch& batch) {
  if (!batch.indices.empty()) return fmt::format("{}", fmt::join(batch.indices, " "));
  std::vector<at::Tensor> leaves;
  for (const auto& tensor : batch.tensors) {
    if (has_bits(tensor) && tensor.dim() > 0) leaves.push_back(tensor);
  }
  if (leaves.empty()) return "";
  std::vector<std::string> names;
  for (std::int64_t row = 0; row < leaves.front().size(0); ++row) {
    std::vector<at::Tensor> rows;
    for (const auto& leaf : leaves) {
      if (row < leaf.size(0)) rows.push_back(leaf[row]);
    }
    names.push_back("#" + hash_of(rows));
  }
  return fmt::format("{}", fmt::join(names, " "));
}

}  // namespace

void ProgramAudit::add(std::string kind, std::string value, std::string name, std::string detail) {
  if (!add_) return;
  add_({.kind = std::move(kind), .name = std::move(name), .value = std::move(value), .detail = std::move(detail)});
}

// --- loaders ---------------------------------------------------------------------------------------------------------

ProgramAudit::SeenLoader& ProgramAudit::seen(const LoaderHandle& loader) {
  const auto found =
      std::find_if(loaders_.begin(), loaders_.end(), [&](const auto& own) { return own.loader.lock() == loader; });
  if (found != loaders_.end()) return *found;
  const auto line = program_line();
  const auto number = ++num_loaders_[line];
  return loaders_.emplace_back(SeenLoader{loader, number == 1 ? line : fmt::format("{} ({})", line, number)});
}

void ProgramAudit::begin_pass(const LoaderHandle& loader, const LoaderFacts& facts, bool begins_inside) {
  auto& own = seen(loader);
  const auto number = [](const std::optional<std::int64_t>& value) { return value ? Json(*value) : Json(); };
  add("pass", std::to_string(++own.num_passes), own.label,
      Json{{"size", number(facts.size)},
           {"batch_size", number(facts.batch_size)},
           {"drop_last", facts.drop_last},
           {"shuffles", facts.shuffles},
           {"workers", facts.num_workers},
           {"is_divided", facts.is_divided},
           {"begins_inside", begins_inside}}
          .dump());
}

void ProgramAudit::read_batch(const LoaderHandle& loader, const ReadBatch& batch) {
  const Unwatched unwatched;
  const auto samples = samples_of(batch);
  if (batch.drawn_from.defined()) {
    add("draw", Json{{"LibTorch", hex(fingerprint(batch.drawn_from))}}.dump(),
        batch.reader < 0 ? "" : fmt::format("worker {}", batch.reader), samples);
  }
  add("read", samples, seen(loader).label, hash_of(batch.tensors));
}

void ProgramAudit::end_pass(const LoaderHandle& loader) { add("pass end", "", seen(loader).label); }

// --- updates ---------------------------------------------------------------------------------------------------------

std::size_t ProgramAudit::number_of(const Update& update) const {
  const auto found = std::find_if(updates_.begin(), updates_.end(),
                                  [&](const auto& other) { return other.optimizer == update.optimizer; });
  return static_cast<std::size_t>(found - updates_.begin());
}

void ProgramAudit::before_update(const Update& update) {
  const Unwatched unwatched;
  const auto number = number_of(update);
  const auto name = name_of_optimizer(number);
  if (number == updates_.size()) {
    updates_.push_back(update);
    add("initial parameters", hash_of(update.parameters), name, text_of(norms_of(update.parameters)));
  }
  const auto gradients = gradients_of(update.parameters);
  add("learning rate", text_of(update.learning_rates), name);
  add("optimizer state", hash_of(update.state), name);
  add("stepped gradient", hash_of(gradients), name, text_of(norms_of(gradients)));
}

void ProgramAudit::after_update(const Update& update) {
  const Unwatched unwatched;
  const auto number = number_of(update);
  add("weights", hash_of(update.parameters), name_of_optimizer(number), text_of(norms_of(update.parameters)));
  updates_.at(number) = update;
}

void ProgramAudit::clip(std::string_view call, const std::vector<at::Tensor>& parameters, double limit) {
  const Unwatched unwatched;
  const auto gradients = gradients_of(parameters);
  add("clip", hash_of(gradients), std::string(call),
      Json{{"limit", limit}, {"norms", Json::parse(text_of(norms_of(gradients)))}, {"where", program_line()}}.dump());
}

// --- metrics and output ----------------------------------------------------------------------------------------------

void ProgramAudit::gather(std::string_view call, const std::vector<std::int64_t>& rows) {
  add("gather", Json(rows).dump(), std::string(call), program_line());
}

void ProgramAudit::write_file(const std::string& path) {
  const auto file = std::filesystem::absolute(path).lexically_normal().string();
  if (file.starts_with(folder_)) return;
  // A file that is renamed when it is complete.
  add("write", file.ends_with(".tmp") ? file.substr(0, file.size() - 4) : file, "", program_line());
}

void ProgramAudit::print_line(const std::string& line) { add("print", line, "stdout", program_line()); }

// Such as "all_reduce #17 of group world (train.cpp:42)": those that move a program's values, as in audit.py.
void ProgramAudit::add_collectives(const std::vector<std::string>& calls) {
  for (const auto& call : calls) {
    const auto name = call.substr(0, call.find(' '));
    if (!name.starts_with("all_reduce") && !name.starts_with("all_gather") && !name.starts_with("reduce") &&
        !name.starts_with("gather"))
      continue;
    const auto open = call.rfind('(');
    add("collective", "", name, open == std::string::npos ? "" : call.substr(open + 1, call.size() - open - 2));
  }
}

// --- the end ---------------------------------------------------------------------------------------------------------

void ProgramAudit::add_model(const torch::nn::Module& model) {
  for (const auto& module : model.named_modules("", /*include_self=*/true)) {
    for (const auto& buffer : module.value()->named_buffers(/*recurse=*/false)) {
      const auto& object = *module.value();
      buffers_.push_back({.name = fmt::format("model {}: {}{}{}", num_models_, module.key(),
                                              module.key().empty() ? "" : ".", buffer.key()),
                          .owner = c10::demangle(typeid(object).name()),
                          .value = buffer.value()});
    }
  }
  ++num_models_;
}

void ProgramAudit::finish() {
  const Unwatched unwatched;
  for (std::size_t number = 0; number < updates_.size(); ++number) {
    const auto name = name_of_optimizer(number);
    const auto& last = updates_[number];
    add("last parameters", hash_of(last.parameters), name, text_of(norms_of(last.parameters)));
    add("last optimizer state", hash_of(last.state), name);
    add("last learning rate", text_of(last.learning_rates), name);
  }
  for (const auto& buffer : buffers_) add("last buffer", hash_of({buffer.value}), buffer.name, buffer.owner);
  add("end", "");
  add_ = nullptr;
}

// --- output of the process -------------------------------------------------------------------------------------------

namespace {

void tell(const std::function<void(ProgramObserver&)>& report) {
  if (const auto observer = current_program_observer()) report(*observer);
}

// Every byte of every file is written.
long long report_write(const char* path, unsigned long long /*offset*/, unsigned long long bytes) {
  thread_local std::string last;  // a file is written in many parts
  try {
    if (last != path) tell([&](ProgramObserver& observer) { observer.write_file(last = path); });
  } catch (const std::exception&) {  // must not leave a function that libc's callers call
  }
  return static_cast<long long>(bytes);
}

// Passes everything on, and reports complete lines to the observer of the rank that prints them.
class ReportingStream : public std::streambuf {
 public:
  explicit ReportingStream(std::streambuf* inner) : inner_(inner) {}

 private:
  int overflow(int character) override {
    if (character != traits_type::eof()) report(traits_type::to_char_type(character));
    return inner_->sputc(traits_type::to_char_type(character));
  }
  std::streamsize xsputn(const char* text, std::streamsize size) override {
    for (std::streamsize place = 0; place < size; ++place) report(text[place]);
    return inner_->sputn(text, size);
  }
  int sync() override { return inner_->pubsync(); }

  static void report(char character) {
    thread_local std::string line;
    if (character != '\n') {
      line += character;
      return;
    }
    const auto complete = std::exchange(line, "");
    if (complete.find_first_not_of(" \t\r") != std::string::npos)
      tell([&](ProgramObserver& observer) { observer.print_line(complete); });
  }

  std::streambuf* inner_;
};

}  // namespace

void observe_output() {
  static std::once_flag once;
  std::call_once(once, [] {
    static ReportingStream reporting(std::cout.rdbuf());
    std::cout.rdbuf(&reporting);
    process::judge_writes(report_write);
  });
}

}  // namespace accel::programs
