#pragma once

#include <memory>
#include <string>
#include <vector>

#include "reference/tracking/general_tracker.hpp"
#include "reference/tracking/growing_file.hpp"

namespace accel {

/// A table, in logging_dir/project_name.csv: a column `step` and one for each name, a row for each call of log; the
/// configuration in project_name.hparams.yml beside it. A later run adds rows to the table.
///
/// A dict's parts are columns of their own, "acc/train". Names that come later become further columns: the file is then
/// replaced by a wider one, in one step, with empty cells in earlier rows. Cells are quoted as RFC 4180 says; nan and
/// inf are these words, lists JSON. A row has left the process when the call returns; one that a crash cut is dropped.
class CsvTracker final : public GeneralTracker {
 public:
  [[nodiscard]] std::string name() const override { return "csv"; }
  [[nodiscard]] bool requires_logging_directory() const override { return true; }
  void start(const Run& run) override;
  void store_init_configuration(const Value::Dict& values) override;
  void log(const Value::Dict& values, std::optional<std::int64_t> step) override;
  void finish() override;

 private:
  void widen(const std::vector<std::string>& further);

  std::shared_ptr<Files> disk_;
  std::string path_;
  std::vector<std::string> columns_;
  std::unique_ptr<tracking::GrowingFile> file_;
};

}  // namespace accel
