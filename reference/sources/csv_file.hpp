#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "reference/sources/text_lines.hpp"

/// The records of CSV files as RFC 4180 has them: fields in double quotes may hold delimiters, line ends, and quotes as
/// "".
///
/// Line ends are \n or \r\n; a UTF-8 byte order mark is passed over, and so are empty lines (an empty field that stands
/// alone is written ""). Opening reads the files once, to find the records and to check their form; then only the
/// records asked for are read. Thread rule: any number of readers; copies share the files, not the index (8 bytes a
/// record).
namespace accel {

struct CsvOptions {
  char delimiter = ',';
  bool header = true;  ///< the first record of each file names the columns; else they are "0", "1", ...
};

class CsvFile {
 public:
  /// Throws ConfigError that names file, record and byte offset: a number of fields that differs from the first
  /// record's, a quote that is not closed or stands inside a field without quotes, text after a closing quote; a column
  /// name given twice, or a file whose columns differ from the first file's.
  explicit CsvFile(const std::vector<std::string>& paths, const CsvOptions& options = {});

  [[nodiscard]] std::int64_t size() const { return records_.size(); }
  [[nodiscard]] const std::vector<std::string>& columns() const { return columns_; }
  /// The place of a column. Throws ConfigError that tells the columns there are.
  [[nodiscard]] std::size_t column(const std::string& name) const;

  /// The fields of a record, without quotes.
  [[nodiscard]] std::vector<std::string> fields(std::int64_t index) const;
  /// "people.csv: record 3 (byte 71)", for a message about it; records count from 1, the header apart.
  [[nodiscard]] std::string where(std::int64_t index) const;

 private:
  void read_file(const MappedFile& file, const std::function<void(std::int64_t)>& add);
  void read_header(const MappedFile& file, std::vector<std::string> names);

  std::string path_;  // of the first file
  CsvOptions options_;
  std::vector<std::string> columns_;
  sources::RecordIndex records_;
};

}  // namespace accel
