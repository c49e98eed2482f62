// Readers of Parquet and Arrow files. Apache Arrow reports errors as a Status or as exceptions of several types;
// `guarded` turns all of them into one ConfigError with the file's name. Each read creates its reader, because Arrow's
// readers belong to one thread; the metadata of Parquet, which are costly to read, are shared.
#include "reference/sources/parquet/columnar_file.hpp"

#include <arrow/buffer.h>
#include <arrow/io/interfaces.h>
#include <arrow/ipc/message.h>
#include <arrow/ipc/reader.h>
#include <arrow/record_batch.h>
#include <arrow/table.h>
#include <parquet/arrow/reader.h>
#include <parquet/arrow/schema.h>
#include <parquet/file_reader.h>
#include <parquet/metadata.h>
#include <parquet/statistics.h>

#include <algorithm>
#include <cstring>
#include <exception>
#include <set>
#include <string_view>

#include "reference/core/errors.hpp"
#include "reference/sources/parquet/arrow_metadata.hpp"

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

std::string_view text_of(const arrow::Buffer& buffer) {
  return {reinterpret_cast<const char*>(buffer.data()), static_cast<std::size_t>(buffer.size())};
}

// The footer of the second of two files in one has places that are applied to the first. `begin` is where the last file
// would begin if its data end where its footer does.
void check_is_one_file(const MappedFile& file, std::int64_t begin, std::string_view magic) {
  const auto length = static_cast<std::int64_t>(magic.size());
  if (begin < length || begin + length > static_cast<std::int64_t>(file.size())) return;
  const auto found = file.read(static_cast<std::size_t>(begin - length), 2 * magic.size());
  check_config(!found.starts_with(magic) || !found.ends_with(magic),
               "{}: several files in one: another one begins at byte {}; read them as separate files", file.path(),
               begin);
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

// Copies parts of the file, so that no value refers to bytes that another program may remove. Errors are returned and
// not thrown, because Arrow may read on its threads.
class FileSource : public arrow::io::RandomAccessFile {
 public:
  explicit FileSource(const MappedFile& file) : file_(file) {}

  arrow::Status Close() override {
    is_closed_ = true;
    return arrow::Status::OK();
  }
  [[nodiscard]] bool closed() const override { return is_closed_; }
  [[nodiscard]] arrow::Result<std::int64_t> Tell() const override { return place_; }
  arrow::Result<std::int64_t> GetSize() override { return static_cast<std::int64_t>(file_.size()); }
  arrow::Status Seek(std::int64_t place) override {
    place_ = place;
    return arrow::Status::OK();
  }
  arrow::Result<std::int64_t> ReadAt(std::int64_t place, std::int64_t num_bytes, void* to) override {
    const auto size = static_cast<std::int64_t>(file_.size());
    if (place < 0 || num_bytes < 0 || place > size) return arrow::Status::IOError("a part outside the file");
    num_bytes = std::min(num_bytes, size - place);
    try {
      file_.read(static_cast<std::size_t>(place), static_cast<std::size_t>(num_bytes), static_cast<char*>(to));
    } catch (const std::exception& error) {
      return arrow::Status::IOError(error.what());
    }
    return num_bytes;
  }
  arrow::Result<std::shared_ptr<arrow::Buffer>> ReadAt(std::int64_t place, std::int64_t num_bytes) override {
    const auto rest = std::max<std::int64_t>(static_cast<std::int64_t>(file_.size()) - place, 0);
    ARROW_ASSIGN_OR_RAISE(auto buffer, arrow::AllocateResizableBuffer(std::clamp<std::int64_t>(num_bytes, 0, rest)));
    ARROW_RETURN_NOT_OK(ReadAt(place, buffer->size(), buffer->mutable_data()));
    return std::shared_ptr<arrow::Buffer>(std::move(buffer));
  }
  arrow::Result<std::int64_t> Read(std::int64_t num_bytes, void* to) override {
    ARROW_ASSIGN_OR_RAISE(const auto done, ReadAt(place_, num_bytes, to));
    place_ += done;
    return done;
  }
  arrow::Result<std::shared_ptr<arrow::Buffer>> Read(std::int64_t num_bytes) override {
    ARROW_ASSIGN_OR_RAISE(auto buffer, ReadAt(place_, num_bytes));
    place_ += buffer->size();
    return buffer;
  }

 private:
  const MappedFile& file_;
  std::int64_t place_ = 0;
  bool is_closed_ = false;
};

class ParquetFile : public ColumnarFile {
 public:
  explicit ParquetFile(const std::string& path) : ColumnarFile(path) {
    metadata_ = parquet::ParquetFileReader::Open(source())->metadata();
    check_status(path, parquet::arrow::FromParquetSchema(metadata_->schema(), properties(),
                                                         metadata_->key_value_metadata(), &schema_));
    leaves_ = leaves_by_column();
    for (int group = 0; group < metadata_->num_row_groups(); ++group)
      group_sizes_.push_back(metadata_->RowGroup(group)->num_rows());
    check_is_one_file(file(), static_cast<std::int64_t>(file().size()) - 8 - metadata_->size() - data_end(), "PAR1");
  }

  [[nodiscard]] std::int64_t recorded_nulls(int column) const override {
    return guarded(path(), [&] {
      std::int64_t count = 0;
      for (int group = 0; group < metadata_->num_row_groups(); ++group) {
        const auto row_group = metadata_->RowGroup(group);
        for (const auto leaf : leaves_[column]) {
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

  // Of the column chunks, their indices and filters, which the footer follows.
  [[nodiscard]] std::int64_t data_end() const {
    std::int64_t end = 0;
    for (int group = 0; group < metadata_->num_row_groups(); ++group) {
      const auto row_group = metadata_->RowGroup(group);
      for (int leaf = 0; leaf < metadata_->num_columns(); ++leaf) {
        const auto chunk = row_group->ColumnChunk(leaf);
        const auto begin = chunk->has_dictionary_page() && chunk->dictionary_page_offset() > 0
                               ? std::min(chunk->dictionary_page_offset(), chunk->data_page_offset())
                               : chunk->data_page_offset();
        end = std::max(end, later(begin, chunk->total_compressed_size()));
        for (const auto& index : {chunk->GetColumnIndexLocation(), chunk->GetOffsetIndexLocation()}) {
          if (index) end = std::max(end, later(index->offset, index->length));
        }
        end = std::max(end, later(chunk->bloom_filter_offset().value_or(0), chunk->bloom_filter_length().value_or(0)));
      }
    }
    return end;
  }

  static parquet::ArrowReaderProperties properties() {
    parquet::ArrowReaderProperties properties(/*use_threads=*/false);
    properties.set_pre_buffer(false);  // it would read on other threads
    return properties;
  }

  // Parquet stores the values of nested columns in leaves, which have numbers of their own.
  [[nodiscard]] std::vector<std::vector<int>> leaves_by_column() const {
    const auto& schema = *metadata_->schema();
    std::vector<std::vector<int>> leaves(static_cast<std::size_t>(schema.group_node()->field_count()));
    for (int leaf = 0; leaf < schema.num_columns(); ++leaf)
      leaves[schema.group_node()->FieldIndex(*schema.GetColumnRoot(leaf))].push_back(leaf);
    return leaves;
  }

  [[nodiscard]] std::vector<int> leaves_of(const std::vector<int>& columns) const {
    std::vector<int> leaves;
    for (const auto column : columns) leaves.insert(leaves.end(), leaves_[column].begin(), leaves_[column].end());
    std::sort(leaves.begin(), leaves.end());
    return leaves;
  }

  std::vector<std::vector<int>> leaves_;
  std::shared_ptr<parquet::FileMetaData> metadata_;
};

class ArrowFile : public ColumnarFile {
 public:
  // The number of rows of a batch is in the batch. Of compressed files only one column is decompressed to find it.
  explicit ArrowFile(const std::string& path) : ColumnarFile(path) {
    schema_ = reader(ipc_options())->schema();
    check_end();
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

  // The file ends with the end mark of its stream, which old programs did not write, the footer, its size and the
  // magic.
  void check_end() const {
    constexpr std::int64_t kTailBytes = 10, kEndMarkBytes = 8;
    std::int32_t footer_bytes = 0;
    const auto tail = static_cast<std::int64_t>(file().size()) - kTailBytes;
    file().read(static_cast<std::size_t>(tail), sizeof footer_bytes, reinterpret_cast<char*>(&footer_bytes));
    const auto footer = tail - footer_bytes;
    const auto end =
        end_of_batches(file().read(static_cast<std::size_t>(footer), static_cast<std::size_t>(footer_bytes)));
    for (const auto mark_bytes : {kEndMarkBytes, std::int64_t{0}}) {
      if (end) check_is_one_file(file(), footer - mark_bytes - *end, "ARROW1");
    }
  }

  [[nodiscard]] std::shared_ptr<arrow::ipc::RecordBatchFileReader> reader(
      const arrow::ipc::IpcReadOptions& options) const {
    return value_of(path(), arrow::ipc::RecordBatchFileReader::Open(source(), options));
  }
};

// A stream has no index, so that opening it reads the metadata of all batches. Batches that refer to dictionaries,
// which are elsewhere in the stream, are kept in memory.
class ArrowStream : public ColumnarFile {
 public:
  explicit ArrowStream(const std::string& path) : ColumnarFile(path) {
    const auto file = source();
    const auto reader = value_of(path, Reader::Open(std::shared_ptr<arrow::io::InputStream>(file), ipc_options()));
    schema_ = reader->schema();
    if (!read_index()) {
      batches_ = value_of(path, reader->ToRecordBatches());
      check_end(value_of(path, file->Tell()));
      for (const auto& batch : batches_) group_sizes_.push_back(batch->num_rows());
    }
  }

 private:
  using Reader = arrow::ipc::RecordBatchStreamReader;

  // Arrow ignores what follows the end mark.
  void check_end(std::int64_t place) const {
    const auto end = value_of(path(), source()->GetSize());
    check_config(
        place == end,
        "{}: the stream ends at byte {}, but the file has {} bytes; if it is several streams in one file, write "
        "one stream of their rows",
        path(), place, end);
  }

  // Returns false if there are dictionaries. Each message is framed: a marker, the size of the metadata, the metadata,
  // the body. Streams of Arrow before 0.15 lack the marker. Source: the columnar format's "Encapsulated message
  // format".
  bool read_index() {
    const auto file = source();
    const auto end = value_of(path(), file->GetSize());
    std::int64_t place = 0;
    while (place < end) {
      const auto begin = place;
      const auto number = [&] {
        std::int32_t value = 0;
        if (value_of(path(), file->ReadAt(place, sizeof value, &value)) != sizeof value)
          throw_damaged(path(), fmt::format("the message at byte {} is truncated", begin));
        place += static_cast<std::int64_t>(sizeof value);
        return value;
      };
      auto metadata_bytes = number();
      if (metadata_bytes == -1) metadata_bytes = number();
      if (metadata_bytes == 0) break;
      if (metadata_bytes < 0 || metadata_bytes > end - place)
        throw_damaged(path(), fmt::format("the message at byte {} is truncated", begin));
      const auto message =
          value_of(path(), arrow::ipc::Message::Open(value_of(path(), file->ReadAt(place, metadata_bytes)), nullptr));
      if (message->type() == arrow::ipc::MessageType::DICTIONARY_BATCH) return false;
      place += metadata_bytes;
      if (message->body_length() < 0 || message->body_length() > end - place)
        throw_damaged(path(), fmt::format("the message at byte {} is truncated", begin));
      place += message->body_length();
      if (message->type() != arrow::ipc::MessageType::RECORD_BATCH) continue;
      begins_.push_back(begin);
      group_sizes_.push_back(num_rows_of_batch(text_of(*message->metadata())));
    }
    check_end(place);
    return true;
  }

  [[nodiscard]] std::shared_ptr<arrow::RecordBatch> read_group(int group, const std::vector<int>&) const override {
    if (!batches_.empty()) return batches_[group];
    const auto file = source();
    const auto reader = value_of(path(), Reader::Open(std::shared_ptr<arrow::io::InputStream>(file), ipc_options()));
    check_status(path(), file->Seek(begins_[group]));
    auto batch = value_of(path(), reader->Next());
    if (!batch) throw_damaged(path(), fmt::format("record batch {} is missing", group));
    return batch;
  }

  arrow::RecordBatchVector batches_;
  std::vector<std::int64_t> begins_;  // of the messages; empty if the batches are kept
};

}  // namespace

ColumnarFile::ColumnarFile(const std::string& path) : file_(path) {}

std::shared_ptr<arrow::io::RandomAccessFile> ColumnarFile::source() const {
  return std::make_shared<FileSource>(file_);
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
  const MappedFile opened(path);
  const auto begin = opened.read(0, std::min<std::size_t>(opened.size(), 6));
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
