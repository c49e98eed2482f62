// Readers of Parquet and Arrow files. Apache Arrow reports errors as a Status or as exceptions of several types;
// `guarded` turns all of them into one ConfigError with the file's name. Each read creates its reader, because Arrow's
// readers belong to one thread; the metadata of Parquet, which are costly to read, are shared.
#include "reference/sources/parquet/columnar_file.hpp"

#include <arrow/io/memory.h>
#include <arrow/ipc/reader.h>
#include <arrow/record_batch.h>
#include <arrow/table.h>
#include <parquet/arrow/reader.h>
#include <parquet/arrow/schema.h>
#include <parquet/file_reader.h>
#include <parquet/metadata.h>
#include <parquet/statistics.h>

#include <algorithm>
#include <exception>
#include <set>
#include <string_view>

#include "reference/core/errors.hpp"

namespace accel::sources {
namespace {

[[noreturn]] void throw_damaged(const std::string& path, std::string_view reason) {
  throw ConfigError(
      fmt::format("{}: cannot be read as a Parquet or Arrow file: {}; it may be damaged or incomplete: "
                  "write or copy it again",
                  path, reason));
}

// Of the message only: Status::ToString adds lines about Arrow's sources.
void check_status(const std::string& path, const arrow::Status& status) {
  if (!status.ok()) throw_damaged(path, status.message());
}

template <typename T>
T value_of(const std::string& path, arrow::Result<T> result) {
  check_status(path, result.status());
  return *std::move(result);
}

template <typename F>
auto guarded(const std::string& path, F&& f) {
  try {
    return f();
  } catch (const Error&) {
    throw;
  } catch (const std::exception& error) {
    throw_damaged(path, error.what());
  }
}

// One thread: the workers of a loader already read in parallel.
arrow::ipc::IpcReadOptions ipc_options() {
  auto options = arrow::ipc::IpcReadOptions::Defaults();
  options.use_threads = false;
  options.ensure_alignment = arrow::ipc::Alignment::kDataTypeSpecificAlignment;
  return options;
}

class ParquetFile : public ColumnarFile {
 public:
  explicit ParquetFile(const std::string& path) : ColumnarFile(path) {
    metadata_ = parquet::ParquetFileReader::Open(source())->metadata();
    check_status(path, parquet::arrow::FromParquetSchema(metadata_->schema(), properties(),
                                                         metadata_->key_value_metadata(), &schema_));
    for (int group = 0; group < metadata_->num_row_groups(); ++group)
      group_sizes_.push_back(metadata_->RowGroup(group)->num_rows());
  }

  [[nodiscard]] std::int64_t recorded_nulls(int column) const override {
    return guarded(path(), [&] {
      std::int64_t count = 0;
      for (int group = 0; group < metadata_->num_row_groups(); ++group) {
        const auto row_group = metadata_->RowGroup(group);
        for (const auto leaf : leaves_of({column})) {
          const auto statistics = row_group->ColumnChunk(leaf)->statistics();
          if (statistics && statistics->HasNullCount()) count += statistics->null_count();
        }
      }
      return count;
    });
  }

 private:
  [[nodiscard]] std::shared_ptr<arrow::RecordBatch> read_group(int group,
                                                               const std::vector<int>& columns) const override {
    parquet::arrow::FileReaderBuilder builder;
    check_status(path(), builder.Open(source(), parquet::default_reader_properties(), metadata_));
    std::unique_ptr<parquet::arrow::FileReader> reader;
    check_status(path(), builder.properties(properties())->Build(&reader));
    std::shared_ptr<arrow::Table> table;
    check_status(path(), reader->ReadRowGroup(group, leaves_of(columns), &table));
    return value_of(path(), table->CombineChunksToBatch());
  }

  static parquet::ArrowReaderProperties properties() {
    parquet::ArrowReaderProperties properties(/*use_threads=*/false);
    properties.set_pre_buffer(false);  // the bytes are mapped
    return properties;
  }

  // Parquet stores the values of nested columns in leaves, which have numbers of their own.
  [[nodiscard]] std::vector<int> leaves_of(const std::vector<int>& columns) const {
    const auto& schema = *metadata_->schema();
    std::vector<int> leaves;
    for (int leaf = 0; leaf < schema.num_columns(); ++leaf) {
      const auto column = schema.group_node()->FieldIndex(*schema.GetColumnRoot(leaf));
      if (std::find(columns.begin(), columns.end(), column) != columns.end()) leaves.push_back(leaf);
    }
    return leaves;
  }

  [[nodiscard]] std::shared_ptr<arrow::io::BufferReader> source() const {
    return std::make_shared<arrow::io::BufferReader>(bytes());
  }

  std::shared_ptr<parquet::FileMetaData> metadata_;
};

class ArrowFile : public ColumnarFile {
 public:
  // The number of rows of a batch is in the batch. Of compressed files only one column is decompressed to find it.
  explicit ArrowFile(const std::string& path) : ColumnarFile(path) {
    schema_ = reader(ipc_options())->schema();
    auto options = ipc_options();
    options.included_fields = {0};
    const auto batches = reader(options);
    for (int group = 0; group < batches->num_record_batches(); ++group)
      group_sizes_.push_back(value_of(path, batches->ReadRecordBatch(group))->num_rows());
  }

 private:
  [[nodiscard]] std::shared_ptr<arrow::RecordBatch> read_group(int group,
                                                               const std::vector<int>& columns) const override {
    auto options = ipc_options();
    options.included_fields = columns;
    return value_of(path(), reader(options)->ReadRecordBatch(group));
  }

  [[nodiscard]] std::shared_ptr<arrow::ipc::RecordBatchFileReader> reader(
      const arrow::ipc::IpcReadOptions& options) const {
    const std::shared_ptr<arrow::io::RandomAccessFile> source = std::make_shared<arrow::io::BufferReader>(bytes());
    return value_of(path(), arrow::ipc::RecordBatchFileReader::Open(source, options));
  }
};

// A stream has no index, so that its batches are kept. They refer to the mapped file unless they are compressed.
class ArrowStream : public ColumnarFile {
 public:
  explicit ArrowStream(const std::string& path) : ColumnarFile(path) {
    const std::shared_ptr<arrow::io::InputStream> source = std::make_shared<arrow::io::BufferReader>(bytes());
    const auto reader = value_of(path, arrow::ipc::RecordBatchStreamReader::Open(source, ipc_options()));
    schema_ = reader->schema();
    batches_ = value_of(path, reader->ToRecordBatches());
    for (const auto& batch : batches_) group_sizes_.push_back(batch->num_rows());
  }

 private:
  [[nodiscard]] std::shared_ptr<arrow::RecordBatch> read_group(int group, const std::vector<int>&) const override {
    return batches_[group];
  }

  arrow::RecordBatchVector batches_;
};

}  // namespace

ColumnarFile::ColumnarFile(const std::string& path) : file_(path) {
  const auto bytes = file_.bytes();
  bytes_ = std::make_shared<arrow::Buffer>(reinterpret_cast<const std::uint8_t*>(bytes.data()),
                                           static_cast<std::int64_t>(bytes.size()));
}

// Arrow trusts offsets in the file unless the arrays are validated.
std::shared_ptr<arrow::RecordBatch> ColumnarFile::read(int group, const std::vector<int>& columns) const {
  return guarded(path(), [&] {
    auto sorted = columns;
    std::sort(sorted.begin(), sorted.end());
    const auto batch = read_group(group, sorted);
    arrow::ArrayVector arrays;
    arrow::FieldVector fields;
    for (const auto column : columns) {
      fields.push_back(schema_->field(column));
      arrays.push_back(batch->GetColumnByName(fields.back()->name()));
      if (!arrays.back()) throw_damaged(path(), fmt::format("row group {} lacks a column", group));
    }
    const auto num_rows = group_sizes_[group];
    auto selected = arrow::RecordBatch::Make(arrow::schema(fields), num_rows, std::move(arrays));
    check_status(path(), selected->ValidateFull());  // also that each column has num_rows rows of its type
    return selected;
  });
}

// A stream begins with a continuation marker. Source: the columnar format's "Encapsulated message format".
std::unique_ptr<const ColumnarFile> open_columnar_file(const std::string& path) {
  const auto begin = std::string(MappedFile(path).bytes().substr(0, 6));
  auto file = guarded(path, [&]() -> std::unique_ptr<const ColumnarFile> {
    if (begin.starts_with("PAR1")) return std::make_unique<ParquetFile>(path);
    if (begin.starts_with("ARROW1")) return std::make_unique<ArrowFile>(path);
    if (begin.starts_with("\xff\xff\xff\xff")) return std::make_unique<ArrowStream>(path);
    throw ConfigError(
        fmt::format("{}: neither a Parquet nor an Arrow file; expected one that begins with PAR1, ARROW1, or the bytes "
                    "ff ff ff ff of an Arrow stream",
                    path));
  });
  std::int64_t num_rows = 0;
  for (const auto rows : file->group_sizes()) {
    if (rows < 0 || __builtin_add_overflow(num_rows, rows, &num_rows))
      throw_damaged(path, fmt::format("a row group of {} rows", rows));
  }
  return file;
}

}  // namespace accel::sources
