#include "bench/serving.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <istream>
#include <nlohmann/json.hpp>
#include <ostream>
#include <utility>

#include "backends/launch/process.hpp"
#include "reference/core/errors.hpp"

namespace accel::bench {
namespace {

// Closed on exec, so that no other child keeps a server's input open.
std::array<int, 2> make_pipe() {
  std::array<int, 2> ends{};
  if (pipe2(ends.data(), O_CLOEXEC) != 0) throw Error("cannot create a pipe; close some files or raise `ulimit -n`");
  return ends;
}

std::string answer(const Rows& rows, const std::string& request) {
  if (request == "rows") {
    auto list = nlohmann::json::array();
    for (const auto& row : rows) {
      if (row.compared) list.push_back({{"name", row.name}, {"unit", row.unit}});
    }
    return list.dump();
  }
  const auto row = std::find_if(rows.begin(), rows.end(), [&](const auto& each) { return each.name == request; });
  if (row == rows.end()) return fmt::format("error: there is no row '{}'", request);
  try {
    return fmt::format("{}", row->measure());
  } catch (const std::exception& error) {
    std::string message = error.what();
    std::replace(message.begin(), message.end(), '\n', ' ');
    return "error: " + message;
  }
}

}  // namespace

void answer_requests(const Rows& rows, std::istream& in, std::ostream& out) {
  for (std::string request; std::getline(in, request);) out << answer(rows, request) << std::endl;
}

Server::Server(const std::vector<std::string>& command) : program_(command.front()) {
  const auto requests = make_pipe(), answers = make_pipe();
  to_.reset(fdopen(requests[1], "w"));
  from_.reset(fdopen(answers[0], "r"));
  process_ = launcher::start_process(
      {.command = command, .descriptors = {{requests[0], STDIN_FILENO}, {answers[1], STDOUT_FILENO}}});
  close(requests[0]);
  close(answers[1]);
}

Server::~Server() {
  to_.reset();
  waitpid(process_, nullptr, 0);
}

std::string Server::ask(const std::string& request) {
  if (std::fprintf(to_.get(), "%s\n", request.c_str()) < 0 || std::fflush(to_.get()) != 0)
    throw Error(program_ + " has ended; see its message above");
  std::string line;
  std::array<char, 4096> piece{};
  while ((line.empty() || line.back() != '\n') && std::fgets(piece.data(), piece.size(), from_.get()) != nullptr)
    line += piece.data();
  if (line.empty()) throw Error(fmt::format("{} ended without an answer to '{}'", program_, request));
  line.pop_back();
  if (line.starts_with("error: ")) throw Error(fmt::format("{}, row {}: {}", program_, request, line.substr(7)));
  return line;
}

Rows Server::rows() {
  Rows rows;
  for (const auto& row : nlohmann::json::parse(ask("rows"))) rows.push_back({.name = row["name"], .unit = row["unit"]});
  return rows;
}

double Server::sample(const std::string& name) { return std::stod(ask(name)); }

}  // namespace accel::bench
