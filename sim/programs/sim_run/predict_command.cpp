// `sim-run predict`: seconds per step and bytes per GPU of described training runs.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <iostream>
#include <nlohmann/json.hpp>
#include <variant>

#include "reference/core/errors.hpp"
#include "reference/core/input/listed.hpp"
#include "sim/predict/step_prediction.hpp"
#include "sim/programs/command_line/command_line.hpp"
#include "sim/programs/rehearsal/exit_code.hpp"
#include "sim/programs/sim_run/commands.hpp"

namespace accel::programs {
namespace {

using Json = nlohmann::ordered_json;
using predict::Breakdown;
using predict::DescribedRun;
using predict::Prediction;

struct PredictArguments {
  std::string runs, hardware;
  bool json = false;
};

struct Answer {
  std::string id;
  std::optional<double> published_seconds;
  std::variant<Prediction, std::string> outcome;  // a prediction, or why there is none

  [[nodiscard]] const Prediction* prediction() const { return std::get_if<Prediction>(&outcome); }
  /// Predicted over published seconds, less 1.
  [[nodiscard]] std::optional<double> error() const {
    if (!prediction() || !published_seconds) return std::nullopt;
    return prediction()->step_seconds() / *published_seconds - 1;
  }
};

constexpr std::pair<const char*, double Breakdown::*> kParts[] = {{"compute", &Breakdown::compute},
                                                                  {"recompute", &Breakdown::recompute},
                                                                  {"tensor_parallel", &Breakdown::tensor_parallel},
                                                                  {"data_parallel", &Breakdown::data_parallel},
                                                                  {"pipeline_bubble", &Breakdown::pipeline_bubble},
                                                                  {"context_parallel", &Breakdown::context_parallel},
                                                                  {"expert_parallel", &Breakdown::expert_parallel},
                                                                  {"optimizer", &Breakdown::optimizer},
                                                                  {"other", &Breakdown::other}};

Answer answer_of(const DescribedRun& described, const predict::Hardware& hardware) {
  Answer answer{.id = described.run.id, .published_seconds = described.run.step_seconds};
  const auto problems = described.problems();
  answer.outcome = problems;
  if (!problems.empty()) return answer;
  try {
    answer.outcome = predict::predict(described.run, hardware);
  } catch (const Error& error) {
    answer.outcome = std::string(error.what());
  }
  return answer;
}

Json json_of(const Answer& answer) {
  Json json{{"id", answer.id}};
  const auto* prediction = answer.prediction();
  if (prediction == nullptr) {
    json["error_message"] = std::get<std::string>(answer.outcome);
    return json;
  }
  json["step_seconds"] = prediction->step_seconds();
  for (const auto& [name, part] : kParts) json["breakdown"][name] = prediction->breakdown.*part;
  json["memory_bytes"] = std::llround(prediction->memory.sum());
  json["fits"] = prediction->fits;
  json["assumptions"] = prediction->assumptions;
  if (const auto error = answer.error()) json["error"] = *error;
  return json;
}

std::string text_of(const Answer& answer) {
  const auto& prediction = *answer.prediction();
  auto line = fmt::format("{:<48} {:>9.4g} s {:>7.1f} GB{}", answer.id, prediction.step_seconds(),
                          prediction.memory.sum() / 1e9, prediction.fits ? "" : " (does not fit)");
  if (const auto error = answer.error())
    line += fmt::format("   published {:.4g} s, error {:+.1f} %", *answer.published_seconds, 100 * *error);
  line += "\n   ";
  for (const auto& [name, part] : kParts) {
    const double share = prediction.breakdown.*part / prediction.step_seconds();
    if (share >= 0.005) line += fmt::format(" {} {:.1f} %", name, 100 * share);
  }
  for (const auto& assumption : prediction.assumptions) line += fmt::format("\n    assumed: {}", assumption);
  return line + "\n";
}

// Median, mean, 90th percentile (nearest rank) and worst of the errors' absolute values; "" without any.
std::string summary_of(const std::vector<Answer>& answers) {
  std::vector<double> errors;
  for (const auto& answer : answers)
    if (const auto error = answer.error()) errors.push_back(100 * std::abs(*error));
  if (errors.empty()) return "";
  std::sort(errors.begin(), errors.end());
  const auto at = [&](double share) {
    return errors[static_cast<std::size_t>(std::ceil(share * static_cast<double>(errors.size()))) - 1];
  };
  const double median = (errors[(errors.size() - 1) / 2] + errors[errors.size() / 2]) / 2;
  double sum = 0;
  for (const double error : errors) sum += error;
  return fmt::format(
      "{} runs with published times: error {:.1f} % median, {:.1f} % mean, {:.1f} % p90, {:.1f} % worst\n",
      errors.size(), median, sum / static_cast<double>(errors.size()), at(0.9), errors.back());
}

int print(const std::vector<Answer>& answers, bool as_json) {
  std::vector<std::string> problems;
  for (const auto& answer : answers)
    if (!answer.prediction())
      problems.push_back(fmt::format("{}: {}", answer.id, std::get<std::string>(answer.outcome)));
  if (as_json) {
    for (const auto& answer : answers)
      std::cout << json_of(answer).dump(-1, ' ', false, Json::error_handler_t::replace) << "\n";
    std::cerr << summary_of(answers);
    return problems.empty() ? kSuccess : kFailure;
  }
  check_config(problems.empty(), "{}", listed(problems, "\n"));
  for (const auto& answer : answers) std::cout << text_of(answer);
  std::cout << summary_of(answers);
  return kSuccess;
}

}  // namespace

int predict_main(int argc, char** argv) {
  PredictArguments arguments;
  CLI::App app(
      "Predicts seconds per step and memory per GPU of described training runs of language models. With --json one "
      "object "
      "per line and run; a run that cannot be computed is {id, error_message}, and the exit code 1.",
      "sim-run predict");
  app.add_option("RUNS.yaml", arguments.runs, "Sections systems, models and runs")->required();
  app.add_option("--hardware", arguments.hardware, "Constants that replace those of configs/sim/hardware.yaml");
  app.add_flag("--json", arguments.json, "Print one JSON object per run");
  if (const auto code = parse_command_line(app, argc, argv)) return *code;
  const auto hardware = predict::read_hardware(arguments.hardware);
  std::vector<Answer> answers;
  for (const auto& described : predict::read_runs(arguments.runs)) answers.push_back(answer_of(described, hardware));
  return print(answers, arguments.json);
}

}  // namespace accel::programs
