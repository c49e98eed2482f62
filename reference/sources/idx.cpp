// Source of the format: the MNIST page, "the IDX file format". Numbers are big-endian; StoredTensor swaps them on
// reading.
#include "reference/sources/idx.hpp"

#include <array>
#include <filesystem>
#include <memory>

#include "reference/core/errors.hpp"
#include "reference/files/mapped_file.hpp"
#include "reference/sources/sequential_file.hpp"

namespace accel {
namespace {

// The type codes of the format. 0x0a is unassigned.
std::optional<at::ScalarType> dtype_of(unsigned char code) {
  switch (code) {
    case 0x08: return at::kByte;
    case 0x09: return at::kChar;
    case 0x0b: return at::kShort;
    case 0x0c: return at::kInt;
    case 0x0d: return at::kFloat;
    case 0x0e: return at::kDouble;
    default: return std::nullopt;
  }
}

void read_all(SequentialFile& file, char* data, std::int64_t num_bytes, const char* what) {
  const auto done = file.read(data, num_bytes);
  check_config(done == num_bytes,
               "{}: the file is truncated or damaged: expected {} bytes of {}, got {}; copy or download it again",
               file.path(), num_bytes, what, done);
}

// The header has a magic number (0, 0, type, number of dimensions), then one big-endian 32-bit size per dimension.
IdxHeader read_header(SequentialFile& file) {
  std::array<unsigned char, 4> magic{};
  read_all(file, reinterpret_cast<char*>(magic.data()), 4, "the header");
  const auto dtype = dtype_of(magic[2]);
  check_config(magic[0] == 0 && magic[1] == 0 && dtype && magic[3] > 0,
               "{}: not an idx file (it starts with {:02x} {:02x} {:02x} {:02x}; expected 00 00, a type from 08 to 0e, "
               "and a number of dimensions)",
               file.path(), magic[0], magic[1], magic[2], magic[3]);
  std::vector<unsigned char> bytes(4 * magic[3]);
  read_all(file, reinterpret_cast<char*>(bytes.data()), static_cast<std::int64_t>(bytes.size()), "the header");
  IdxHeader header{*dtype, {}};
  for (const auto* size = bytes.data(); size < bytes.data() + bytes.size(); size += 4) {
    header.sizes.push_back(std::int64_t{size[0]} << 24 | size[1] << 16 | size[2] << 8 | size[3]);
  }
  return header;
}

std::string text_of(std::optional<std::int64_t> num_bytes) {
  return num_bytes ? std::to_string(*num_bytes) : "more than 2^60";
}

std::optional<std::int64_t> num_data_bytes(const IdxHeader& header) {
  return num_bytes_of(header.sizes, 8 * static_cast<std::int64_t>(c10::elementSize(header.dtype)));
}

// Row access needs the uncompressed data in memory, because gzip cannot be read from the middle.
StoredTensor inflate(const std::string& path, const IdxOptions& options) {
  SequentialFile file(path);
  auto header = read_header(file);
  const auto num_rows = header.sizes.front();
  if (options.limit) header.sizes.front() = std::min(num_rows, *options.limit);
  const auto num_bytes = num_data_bytes(header);
  // Checked before memory is allocated for the sizes of a possibly damaged header.
  const auto file_bytes = static_cast<std::int64_t>(std::filesystem::file_size(path));
  check_config(num_bytes && *num_bytes <= expanded_gzip_bytes_max(path),
               "{}: the file is truncated or damaged: expected {} bytes of data, but the file has {} bytes; copy or "
               "download it again",
               path, text_of(num_bytes), file_bytes);
  // Not initialized, so that memory is only used for data that the file has.
  const std::shared_ptr<char[]> data(new char[static_cast<std::size_t>(*num_bytes)]);
  read_all(file, data.get(), *num_bytes, "data");
  // Reading to the end of the stream makes zlib compare gzip's checksum.
  char more = 0;
  const bool is_all = header.sizes.front() < num_rows || file.read(&more, 1) == 0;
  check_config(is_all, "{}: the file is damaged: it continues after its {} bytes of data; copy or download it again",
               path, *num_bytes);
  return {.owner = data,
          .bytes = {data.get(), static_cast<std::size_t>(*num_bytes)},
          .dtype = header.dtype,
          .sizes = header.sizes,
          .is_big_endian = true};
}

// The limit is applied after the check of the size, so that a truncated file is an error even if the rows are
// there.
StoredTensor map(const std::string& path, const IdxOptions& options) {
  auto header = read_idx_header(path);
  auto file = std::make_shared<const MappedFile>(path);
  const auto num_bytes = num_data_bytes(header);
  const auto found = static_cast<std::int64_t>(file->size()) - header.num_bytes();
  check_config(num_bytes && *num_bytes <= found,
               "{}: the file is truncated or damaged: expected {} bytes of data, got {}; copy or download it again",
               path, text_of(num_bytes), found);
  check_config(*num_bytes == found,
               "{}: the file is damaged: it continues after its {} bytes of data; copy or download it again", path,
               *num_bytes);
  if (options.limit) header.sizes.front() = std::min(header.sizes.front(), *options.limit);
  return {.dtype = header.dtype,
          .sizes = header.sizes,
          .is_big_endian = true,
          .file = std::move(file),
          .offset = static_cast<std::size_t>(header.num_bytes())};
}

// Loss functions expect int64 class labels, while MNIST stores uint8.
at::Tensor as_label(at::Tensor label) { return label.is_floating_point() ? label : label.to(at::kLong); }

}  // namespace

IdxHeader read_idx_header(const std::string& path) {
  SequentialFile file(path);
  return read_header(file);
}

StoredTensor open_idx(const std::string& path, const IdxOptions& options) {
  check_argument(options.limit.value_or(0) >= 0, "{}: the limit is {} rows; expected 0 or more", path,
                 options.limit.value_or(0));
  return is_gzip(path) ? inflate(path, options) : map(path, options);
}

// Compares the numbers in the headers and not those after the limit, which would hide a mismatch.
IdxDataset::IdxDataset(const std::string& images, const std::string& labels, const IdxOptions& options)
    : images_(open_idx(images, options)), labels_(open_idx(labels, options)) {
  const auto num_images = read_idx_header(images).sizes.front(), num_labels = read_idx_header(labels).sizes.front();
  check_config(num_images == num_labels, "{}: the file has {} images, but {} has {} labels; expected equal numbers",
               images, num_images, labels, num_labels);
}

IdxDataset::Batch IdxDataset::get(std::int64_t index) const {
  return {images_.row(index), as_label(labels_.row(index))};
}

IdxDataset::Batch IdxDataset::get_batch(const std::vector<std::int64_t>& indices) const {
  return {images_.rows(indices), as_label(labels_.rows(indices))};
}

}  // namespace accel
