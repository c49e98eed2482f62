#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "reference/sources/text_lines.hpp"

/// The records of CSV files as in RFC 4180: quoted fields may contain delimiters, line ends, and quotes written as "".
///
/// Line ends are \n, \r\n, or in all of a file \r. A UTF-8 byte order mark and empty lines are skipped (a record with
/// one empty field must be written ""). A warning asks for the delimiter if a file with one column seems to have
/// another one. Opening reads the files once, to index and check the records; afterwards only requested records are
/// read. Thread rule: any number of readers; copies share the files, but not the index (8 bytes per record).
namespace accel {

struct CsvOptions {
  char delimiter = ',';
  bool header = true;  ///< the first record of each file names the columns; if false, the names are "0", "1", ...
};

class CsvFile {
 public:
  /// Throws ConfigError, which names file, record and byte offset, for a number of fields that differs from the first
  /// record's, an unclosed quoted field, a quote inside an unquoted field, text after a closing quote, a duplicate
  /// column name, a record of more than 256 MiB, line ends of two kinds, zero bytes, a file that is not text
  /// (text_file.hpp), or a file whose columns differ from the first file's.
  explicit CsvFile(const std::vector<std::string>& paths, const CsvOptions& options = {});

  [[nodiscard]] std::int64_t size() const { return records_.size(); }
  [[nodiscard]] const std::vector<std::string>& columns() const { return columns_; }
  /// Returns the index of a column. Throws ConfigError, which lists the existing columns, if there is none.
  [[nodiscard]] std::size_t column(const std::string& name) const;

  /// Returns the fields of a record, without quotes. Throws FileError if the file cannot be read or was shortened.
  [[nodiscard]] std::vector<std::string> fields(std::int64_t index) const;
  /// Returns the location of a record for messages, such as "people.csv: record 3 (byte 71)". Records count from 1,
  /// without the header.
  [[nodiscard]] std::string where(std::int64_t index) const;

 private:
  void read_file(const MappedFile& file, const std::function<void(std::int64_t)>& add);
  void read_header(const MappedFile& file, std::vector<std::string> names);

  std::string path_;  // path of the first file
  CsvOptions options_;
  std::vector<std::string> columns_;
  std::unordered_map<std::string, std::size_t> indices_;  // of the columns
  sources::RecordIndex records_;
};

}  // namespace accel
