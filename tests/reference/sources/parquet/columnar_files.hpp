#pragma once

#include <arrow/api.h>
#include <arrow/io/file.h>
#include <arrow/ipc/writer.h>
#include <parquet/arrow/writer.h>

#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

/// Writes Parquet and Arrow files for tests, with Arrow's own writers.
namespace accel::testing {

inline void check(const arrow::Status& status) {
  if (!status.ok()) throw std::runtime_error(status.ToString());
}

template <typename T>
T check(arrow::Result<T> result) {
  check(result.status());
  return *std::move(result);
}

/// Returns an array of `count` entries; `append(builder, i)` appends entry i.
template <typename Append>
std::shared_ptr<arrow::Array> array_of(const std::shared_ptr<arrow::DataType>& type, std::int64_t count,
                                       Append append) {
  const auto builder = check(arrow::MakeBuilder(type));
  for (std::int64_t i = 0; i < count; ++i) append(*builder, i);
  return check(builder->Finish());
}

/// As above, where `value(i)` is entry i of a Builder such as arrow::Int64Builder.
template <typename Builder, typename Value>
std::shared_ptr<arrow::Array> values_of(const std::shared_ptr<arrow::DataType>& type, std::int64_t count, Value value) {
  return array_of(type, count, [&](arrow::ArrayBuilder& builder, std::int64_t i) {
    check(static_cast<Builder&>(builder).Append(value(i)));
  });
}

inline std::shared_ptr<arrow::Table> table_of(
    const std::vector<std::pair<std::string, std::shared_ptr<arrow::Array>>>& columns) {
  arrow::FieldVector fields;
  arrow::ArrayVector arrays;
  for (const auto& [name, array] : columns) {
    fields.push_back(arrow::field(name, array->type()));
    arrays.push_back(array);
  }
  return arrow::Table::Make(arrow::schema(fields), arrays);
}

enum class Container { kParquet, kArrowFile, kArrowStream };

struct Format {
  Container container = Container::kParquet;
  arrow::Compression::type compression = arrow::Compression::UNCOMPRESSED;
};

/// Writes row groups of `rows` rows; the last one may be shorter.
inline void write_table(const arrow::Table& table, const std::string& path, const Format& format, std::int64_t rows) {
  const auto to = check(arrow::io::FileOutputStream::Open(path));
  if (format.container == Container::kParquet) {
    const auto properties = parquet::WriterProperties::Builder().compression(format.compression)->build();
    const auto with_types = parquet::ArrowWriterProperties::Builder().store_schema()->build();
    check(parquet::arrow::WriteTable(table, arrow::default_memory_pool(), to, rows, properties, with_types));
  } else {
    auto options = arrow::ipc::IpcWriteOptions::Defaults();
    if (format.compression != arrow::Compression::UNCOMPRESSED)
      options.codec = check(arrow::util::Codec::Create(format.compression));
    const auto writer =
        check(format.container == Container::kArrowFile ? arrow::ipc::MakeFileWriter(to, table.schema(), options)
                                                        : arrow::ipc::MakeStreamWriter(to, table.schema(), options));
    check(writer->WriteTable(table, rows));
    check(writer->Close());
  }
  check(to->Close());
}

}  // namespace accel::testing
