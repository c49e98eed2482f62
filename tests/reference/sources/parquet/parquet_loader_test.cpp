// Parquet files through the header and the library of users: prepared loaders on several ranks.
#include <accel/accel.hpp>
#include <accel/parquet.hpp>
#include <gmock/gmock.h>

#include "reference/core/integers.hpp"
#include "tests/reference/sources/parquet/columnar_files.hpp"
#include "tests/support/run_ranks.hpp"
#include "tests/support/temporary_folder.hpp"
#include "tests/support/torch.hpp"

namespace accel::testing {
namespace {

// 25 rows in 7 row groups over two files; a batch of 4 rows may belong to three row groups.
class ParquetLoaderTest : public ::testing::TestWithParam<bool> {
 protected:
  std::string write(const std::string& name, std::int64_t begin, std::int64_t end) {
    const auto path = folder_.path(name);
    const auto numbers = values_of<arrow::Int64Builder>(arrow::int64(), end - begin, [&](auto i) { return begin + i; });
    const auto names =
        values_of<arrow::StringBuilder>(arrow::utf8(), end - begin, [&](auto i) { return std::to_string(begin + i); });
    write_table(*table_of({{"number", numbers}, {"name", names}}), path, {.compression = arrow::Compression::ZSTD}, 4);
    return path;
  }
  TemporaryFolder folder_;
};
INSTANTIATE_TEST_SUITE_P(Dispatch, ParquetLoaderTest, ::testing::Bool(),
                         [](const auto& info) { return info.param ? "RankZeroReads" : "EveryRankReads"; });

TEST_P(ParquetLoaderTest, RanksSeeEveryRowOnce) {
  const ParquetDataset dataset({write("a", 0, 11), write("b", 11, 25)});
  ASSERT_EQ(dataset.num_row_groups(), 7);
  run_ranks(Backend::kSim, 3, [&](RankContext& rank) {
    Accelerator accelerator({.dataloader_config = {.dispatch_batches = GetParam()}}, rank);
    auto batches = accelerator.prepare(DataLoader(dataset, {.batch_size = 4, .shuffle = true, .num_workers = 2}));
    std::vector<std::int64_t> seen;
    for (auto& batch : batches) {
      const auto& numbers = batch.tensors.at("number");
      for (std::int64_t row = 0; row < numbers.size(0); ++row)
        EXPECT_EQ(batch.strings.at("name")[row], std::to_string(numbers[row].template item<std::int64_t>()));
      const auto all = accelerator.gather_for_metrics(numbers);
      seen.insert(seen.end(), all.template data_ptr<std::int64_t>(),
                  all.template data_ptr<std::int64_t>() + all.numel());
    }
    EXPECT_THAT(seen, ::testing::UnorderedElementsAreArray(range(0, 25)));
  });
}

}  // namespace
}  // namespace accel::testing
