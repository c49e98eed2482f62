// Readers of untrusted files, wrapped for the fuzzers. Each accepts any bytes and must either read them or throw an
// error of the documented type that names the file. Everything else (a crash, another exception) is a bug.
#include "properties/fuzz/targets.hpp"

#include <ATen/core/Tensor.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>

#include "reference/checkpoint/distributed/metadata.hpp"
#include "reference/checkpoint/torch_file.hpp"
#include "reference/checkpoint/weights_files.hpp"
#include "reference/checkpoint/weights_plan.hpp"
#include "reference/config/launch/launch_config.hpp"
#include "reference/config/plugins/deepspeed_file.hpp"
#include "reference/core/errors.hpp"
#include "reference/files/safetensors.hpp"
#include "reference/sources/csv_dataset.hpp"
#include "reference/sources/idx.hpp"
#include "reference/sources/image.hpp"
#ifdef ACCEL_PARQUET
#include "reference/sources/parquet/parquet_dataset.hpp"
#endif
#include "reference/sources/tar_reader.hpp"
#include "reference/sources/tokenizer/tokenizer.hpp"
#include "sim/faults/fault_file.hpp"
#include "sim/network/network_spec.hpp"
#include "sim/programs/experiments/experiment.hpp"
#include "sim/report/timeline/timeline_reader.hpp"
#include "tests/support/torch_file_bytes.hpp"

namespace accel::testing {
namespace {

// Writes to /dev/shm because a fuzzer writes millions of files; the process id keeps parallel fuzzers apart.
std::string write(std::string_view bytes) {
  const auto path = "/dev/shm/accel-fuzz-" + std::to_string(getpid());
  std::ofstream(path, std::ios::binary).write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  return path;
}

template <typename Read>
void read_or_reject(const std::string& path, Read&& read) {
  try {
    read();
  } catch (const CheckpointError& error) {
    ensure(std::string_view(error.what()).find(path) != std::string_view::npos, "an error without its file: {}",
           error.what());
  } catch (const ConfigError& error) {
    ensure(std::string_view(error.what()).find(path) != std::string_view::npos, "an error without its file: {}",
           error.what());
  }
}

// Reads any bytes as an arbitrary value and as weights: the two readers share the pickle machine but not its
// limits.
void torch_file(std::string_view bytes) {
  const auto path = write(bytes);
  read_or_reject(path, [&] { (void)read_torch_file(path); });
  read_or_reject(path, [&] {
    for (const auto& [name, weight] : read_weights(path)) (void)weight.load();
  });
}

// Puts the bytes into a valid zip archive as its pickle. Otherwise the checksum of the archive would reject nearly
// all mutations before the pickle reader sees them.
void pickle(std::string_view bytes) {
  torch_file(archive_of({{"data.pkl", std::string(bytes)}, {"data/0", std::string(64, 'x')}, {"data/1", ""}}));
}

// The `.metadata` file of a distributed checkpoint.
void metadata(std::string_view bytes) {
  read_or_reject("m/.metadata", [&] {
    const auto read = checkpoint::read_metadata(bytes, "m/.metadata");
    const auto again = checkpoint::read_metadata(checkpoint::write_metadata(read), "m/.metadata");
    ensure(again.tensors.size() == read.tensors.size() && again.paths == read.paths,
           "metadata is not read as it was written");
  });
}

void safetensors(std::string_view bytes) {
  const auto path = write(bytes);
  read_or_reject(path, [&] {
    const SafetensorsFile file(path);
    for (const auto& name : file.names()) {
      try {
        (void)file.tensor(name);
      } catch (const ConfigError&) {
        // A dtype with less than one byte per element, which LibTorch has no tensors for.
      }
    }
  });
}

void weights_index(std::string_view bytes) {
  read_or_reject("i.json", [&] {
    const auto map = read_weights_index(bytes, "i.json");
    const auto again = accel::weights_index(map, 0);
    // A read index must survive writing and reading again.
    ensure(read_weights_index(again, "i.json") == map, "an index is not read as it was written");
  });
}

// Reads any bytes as an idx array, plain or compressed.
void idx(std::string_view bytes) {
  const auto path = write(bytes);
  read_or_reject(path, [&] {
    const auto array = open_idx(path);
    // The last row has the largest offset, so it finds sizes that do not fit the file.
    if (array.sizes.front() > 0) (void)array.row(array.sizes.front() - 1);
  });
  read_or_reject(path, [&] { (void)open_idx(path, {.limit = 1}); });
}

// Passes the same bytes to every reader of settings files, because all share the YAML layer.
void yaml(std::string_view bytes) {
  constexpr int kRanks = 4;
  const auto path = write(bytes);
  read_or_reject(path, [&] { (void)programs::read_experiment(path, {}, kRanks); });
  read_or_reject(path, [&] { (void)sim::read_network(path); });
  read_or_reject(path, [&] {
    const auto faults = sim::read_faults(path, kRanks);
    ensure(sim::to_yaml(sim::parse_faults(sim::to_yaml(faults), "again.yaml", kRanks)) == sim::to_yaml(faults),
           "faults are not read as they were written");
  });
  read_or_reject(path, [&] {
    const auto config = read_launch_config(path);
    (void)problems_of(config);
  });
  read_or_reject(path, [&] { (void)read_deepspeed_file(path); });
}

// Reads any bytes as an archive, plain or compressed.
void tar(std::string_view bytes) {
  const auto path = write(bytes);
  read_or_reject(path, [&] {
    TarReader reader(path);
    while (const auto member = reader.next()) {
      if (member->type == TarMember::Type::kFile)
        ensure(std::ssize(reader.data()) == member->size, "a member of another size than its header has");
    }
  });
}

// Reads every record as texts and as numbers.
void csv(std::string_view bytes) {
  const auto path = write(bytes);
  for (const bool header : {true, false}) {
    read_or_reject(path, [&] {
      const CsvDataset texts(path, {.header = header});
      for (std::int64_t index = 0; index < texts.size(); ++index)
        ensure(texts.get(index).size() == texts.columns().size(), "a record without all fields");
    });
    read_or_reject(path, [&] {
      const CsvTensors numbers(path, {.dtype = at::kDouble, .csv = {.header = header}});
      for (std::int64_t index = 0; index < numbers.size(); ++index) (void)numbers.get(index);
    });
  }
}

// decode_image selects the decoder by the first bytes, so that both targets share it; each has its own corpus.
void image(std::string_view bytes) {
  for (const bool allow : {true, false}) {
    read_or_reject("image", [&] {
      const auto pixels = decode_image(bytes, "image", {.allow_jpeg_warnings = allow});
      ensure(pixels.dim() == 3 && pixels.size(0) == 3, "an image of another shape");
    });
  }
}

// A file that is read must encode and decode. A pattern may need too many steps for a text.
void tokenizer(std::string_view bytes) {
  const auto path = write(bytes);
  read_or_reject(path, [&] {
    const auto read = Tokenizer::from_file(path);
    try {
      const auto ids = read.encode("<s>It's 2026:  \u00e4e\u0301 \u7d20\u65e9 a</s>\n\n");
      (void)read.decode(ids, {.skip_special_tokens = false});
    } catch (const ArgumentError& error) {
      ensure(std::string_view(error.what()).starts_with("the tokenizer's pattern cannot split"),
             "an error of encode: {}", error.what());
    }
  });
}

// Both formats; the error tells what is no timeline, and its caller which file.
void timeline(std::string_view bytes) {
  read_or_reject("not a timeline of ranks", [&] { (void)sim::read_timeline(bytes); });
}

#ifdef ACCEL_PARQUET
// Parquet, and the files and streams of Arrow. A file whose columns are accepted may have damaged row groups.
void parquet(std::string_view bytes) {
  const auto path = write(bytes);
  read_or_reject(path, [&] {
    const ParquetDataset rows(path);
    for (std::int64_t index = 0; index < std::min<std::int64_t>(rows.size(), 8); ++index) {
      const auto row = rows.get(index);
      ensure(row.tensors.size() + row.strings.size() == rows.columns().size(), "a row without all columns");
    }
  });
}
#endif

}  // namespace

const std::vector<FuzzTarget>& fuzz_targets() {
  static const std::vector<FuzzTarget> kTargets{
      {"torch_file", torch_file},
      {"pickle", pickle},
      {"metadata", metadata},
      {"safetensors", safetensors},
      {"weights_index", weights_index},
      {"idx", idx},
      {"yaml", yaml},
      {"tar", tar},
      {"csv", csv},
      {"png", image},
      {"jpeg", image},
      {"tokenizer", tokenizer},
      {"timeline", timeline},
#ifdef ACCEL_PARQUET
      {"parquet", parquet},
#endif
  };
  return kTargets;
}

}  // namespace accel::testing
