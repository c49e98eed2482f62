#include "backends/process/message.hpp"

#include <gtest/gtest.h>

#include "backends/process/operation.hpp"
#include "backends/process/update_report.hpp"

namespace accel::process {
namespace {

TEST(MessageTest, FieldsComeBackInTheirOrder) {
  MessageWriter writer;
  writer.put(7).put(std::string_view("a\0b", 3)).put(0.1).put_list(std::vector<int>{3, -1}).put("");
  MessageReader reader(writer.bytes());
  EXPECT_EQ(reader.get<int>(), 7);
  EXPECT_EQ(reader.text(), std::string("a\0b", 3));
  EXPECT_EQ(reader.get<double>(), 0.1);
  EXPECT_EQ(reader.list<int>(), (std::vector<int>{3, -1}));
  EXPECT_EQ(reader.text(), "");
  EXPECT_THROW(reader.get<char>(), InternalError);
}

TEST(MessageTest, AnOperationComesBack) {
  MessageWriter writer;
  writer << Operation{.collective = Collective::kAllToAllSingle,
                      .group = 3,
                      .reduce_op = 1,
                      .root = 2,
                      .tag = 9,
                      .is_sparse = true,
                      .inputs = {{.offset = 64, .bytes = 8, .dtype = 6, .sizes = {2, 1}, .strides = {1, 1}}},
                      .outputs = {{}, {.offset = 128, .bytes = 0, .dtype = 4, .sizes = {0}, .strides = {1}}},
                      .input_splits = {1, 1},
                      .output_splits = {0, 2}};
  MessageReader reader(writer.bytes());
  const auto read = read_operation(reader);
  EXPECT_EQ(read.collective, Collective::kAllToAllSingle);
  EXPECT_EQ(read.group, 3u);
  EXPECT_EQ(read.root, 2);
  EXPECT_EQ(read.tag, 9);
  ASSERT_EQ(read.inputs.size(), 1u);
  EXPECT_EQ(read.inputs[0].offset, 64u);
  EXPECT_EQ(read.inputs[0].sizes, (std::vector<std::int64_t>{2, 1}));
  ASSERT_EQ(read.outputs.size(), 2u);
  EXPECT_TRUE(read.is_sparse);
  EXPECT_EQ(read.outputs[1].dtype, 4);
  EXPECT_EQ(read.output_splits, (std::vector<std::int64_t>{0, 2}));
}

TEST(MessageTest, AnUpdateReportComesBack) {
  MessageWriter writer;
  const ReportedState state{.hash = 77, .dtype = 7, .gradient = 2, .gradient_hash = 8};
  const ParameterLayout layout{
      .sizes = {3, 8},
      .divisions = {
          {.axis = kExpertAxis, .placement = Shard{.dim = 1, .sections = {4, 4}}, .index = 1, .num_parts = 2}}};
  writer << UpdateReport{.generator = 5,
                         .parameters = {{.name = "w", .sizes = {3, 4}, .layout = layout, .state = state}},
                         .processor_seconds = 1.5};
  MessageReader reader(writer.bytes());
  const auto read = read_update_report(reader);
  EXPECT_EQ(read.generator, 5u);
  ASSERT_EQ(read.parameters.size(), 1u);
  EXPECT_EQ(read.parameters[0].name, "w");
  EXPECT_EQ(read.parameters[0].layout, layout);
  EXPECT_EQ(read.parameters[0].state, state);
  EXPECT_EQ(read.processor_seconds, 1.5);
}

}  // namespace
}  // namespace accel::process
