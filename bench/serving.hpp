#pragma once

#include <sys/types.h>

#include <cstdio>
#include <iosfwd>
#include <memory>
#include <string>
#include <vector>

#include "bench/rows.hpp"

/// A benchmark program that stays alive and takes single samples on request, so that another program can alternate
/// between two of them within a fraction of a second.
///
///     Server server({"bin/step_bench", "--serve"});
///     for (const auto& row : server.rows()) std::cout << server.sample(row.name);
namespace accel::bench {

/// Answers each line of `in` with one line: "rows" with the compared rows as JSON, and the name of a row with one
/// sample. Ends at the end of `in`. A failure is answered by a line that begins with "error: ".
void answer_requests(const Rows& rows, std::istream& in, std::ostream& out);

class Server {
 public:
  /// Throws ConfigError if the program cannot be run.
  explicit Server(const std::vector<std::string>& command);
  ~Server();  ///< closes the program's input and waits for its end
  Server(const Server&) = delete;
  Server& operator=(const Server&) = delete;

  /// Returns name and unit of the rows whose `compared` is true. Throws Error if the program fails.
  [[nodiscard]] Rows rows();
  /// Takes one sample. Throws Error if the program fails or has no such row.
  [[nodiscard]] double sample(const std::string& name);

 private:
  std::string ask(const std::string& request);

  using File = std::unique_ptr<FILE, int (*)(FILE*)>;
  std::string program_;
  File to_{nullptr, std::fclose}, from_{nullptr, std::fclose};
  pid_t process_ = 0;
};

}  // namespace accel::bench
