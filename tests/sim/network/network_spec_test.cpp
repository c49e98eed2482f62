// Files that describe networks: values, defaults and problems, and that every shipped file is usable. A wrong unit
// or a forgotten default would change predictions silently.
#include "sim/network/network_spec.hpp"

#include <gmock/gmock.h>

#include <cstdlib>
#include <filesystem>
#include <set>

#include "reference/core/errors.hpp"
#include "tests/sim/network/network_examples.hpp"
#include "tests/support/temporary_folder.hpp"

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

namespace accel::sim {
namespace {

namespace fs = std::filesystem;

// Four lines, so the topology begins on line 5.
constexpr auto kHead = "name: test\nlibrary: gloo\noverhead_seconds: 0\nreduce_seconds_per_byte: 0\n";

NetworkSpec read(const std::string& text) {
  const accel::testing::TemporaryFolder folder;
  return read_network(folder.write("network.yaml", text));
}

std::string problems_of(const std::string& text) {
  try {
    read(text);
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "";
}

// Every key once, with values that all differ, so that no two of them can be exchanged.
TEST(NetworkSpecTest, AFaultlessFileGivesItsValues) {
  const auto spec = read(
      "name: lab\nlibrary: nccl\nlanes: 3\noverhead_seconds: 1.0e-5\nreduce_seconds_per_byte: "
      "2.0e-12\ntree_all_reduce_bytes_max: "
      "65536\n"
      "topology: {kind: full, latency_seconds: 1.0e-6, bytes_per_second: 1.0e9}\n"
      "links:\n  - {from: 0, to: 1, latency_seconds: 2.0e-6, bytes_per_second: 2.0e9}\n"
      "compute: {kind: table, launch_seconds: 5.0e-6, flops_per_second: 1.0e13, bytes_per_second: 1.0e12, ops: "
      "{\"aten::mm\": "
      "{seconds: 1.0e-5}}}\n");
  EXPECT_EQ(spec.name, "lab");
  EXPECT_EQ(spec.library, Library::kNccl);
  EXPECT_EQ(spec.lanes, 3);
  EXPECT_EQ(spec.overhead_seconds, 1e-5);
  EXPECT_EQ(spec.reduce_seconds_per_byte, 2e-12);
  EXPECT_EQ(spec.tree_all_reduce_bytes_max, 65536);
  EXPECT_EQ(std::get<FullSpec>(spec.topology).link.bytes_per_second, 1e9);
  ASSERT_EQ(spec.links.size(), 1U);
  EXPECT_EQ(spec.links[0].costs.latency_seconds, 2e-6);
  EXPECT_EQ(spec.compute.seconds_of("aten::mm", 1e15, 0), 1e-5);
  EXPECT_DOUBLE_EQ(spec.compute.seconds_of("aten::add", 1e6, 1e6), 5e-6 + 1e-6);   // limited by memory
  EXPECT_DOUBLE_EQ(spec.compute.seconds_of("aten::bmm", 1e10, 1e6), 5e-6 + 1e-3);  // limited by arithmetic
}

// Defaults depend on the library, since Gloo and NCCL behave differently.
TEST(NetworkSpecTest, AbsentValuesHaveTheirDefaults) {
  const auto gloo = read(std::string(kHead) + "topology: {kind: ring, latency_seconds: 0, bytes_per_second: 1}\n");
  // Gloo's process group runs two collectives at a time in LibTorch (ProcessGroupGloo, two worker threads); NCCL
  // runs one.
  EXPECT_EQ(gloo.lanes, 2);
  EXPECT_EQ(gloo.tree_all_reduce_bytes_max, 0);
  EXPECT_EQ(gloo.compute.kind, ComputeCosts::Kind::kCpuTime);
  EXPECT_EQ(gloo.compute.cpu_time_factor, 1);
  const auto nccl = read(
      "name: n\nlibrary: nccl\noverhead_seconds: 0\nreduce_seconds_per_byte: 0\n"
      "topology: {kind: ring, latency_seconds: 0, bytes_per_second: 1}\ncompute: {kind: cpu_time, factor: 0.1}\n");
  EXPECT_EQ(nccl.lanes, 1);
  EXPECT_EQ(nccl.compute.cpu_time_factor, 0.1);
}

// Between 100 and 10,000 the middle on a logarithmic axis is 1,000, and that of the factors 1 and 4 is 2.
TEST(NetworkSpecTest, ASizeFactorIsInterpolatedOnLogarithms) {
  const std::vector<SizeFactor> factors = {{100, 1}, {10'000, 4}, {20'000, 2}};
  EXPECT_EQ(size_factor({}, 5), 1);
  EXPECT_EQ(size_factor(factors, 0), 1);
  EXPECT_EQ(size_factor(factors, 100), 1);
  EXPECT_DOUBLE_EQ(size_factor(factors, 1000), 2);
  EXPECT_DOUBLE_EQ(size_factor(factors, 10'000), 4);
  EXPECT_EQ(size_factor(factors, 1'000'000), 2);
}

// Measured factors correct the time on the wire. The overhead was measured on its own and must not be scaled.
TEST(NetworkSpecTest, SizeFactorsScaleACallWithoutItsOverhead) {
  auto spec = testing::full_network();
  spec.overhead_seconds = 1;
  const CollectiveCall small{.op = Collective::kAllReduce, .bytes = 1000, .num_ranks = 4},
      large{.op = Collective::kAllReduce, .bytes = 100'000, .num_ranks = 4};
  const double of_small = testing::run_together(spec, small)[0] - 1,
               of_large = testing::run_together(spec, large)[0] - 1;
  spec.size_factors = {{1000, 1}, {10'000, 3}};
  EXPECT_DOUBLE_EQ(testing::run_together(spec, small)[0], 1 + of_small);
  EXPECT_DOUBLE_EQ(testing::run_together(spec, large)[0], 1 + 3 * of_large);
}

// Sends 1,000 bytes with ports of 1 s and 1,000 bytes/s, so every hop costs a whole number of seconds.
double send_seconds(const std::string& topology, int from, int to) {
  auto network = Network(read(kHead + topology));
  network.set_ranks(16);
  const std::vector<int> ranks = {from, to};
  return network.finish_times(0, {.op = Collective::kSend, .bytes = 1000, .ranks = &ranks}, std::vector{0.0, 0.0})[1];
}

// A latency of 1 s and a message that takes 1 s at a port's rate make each expected time a count of links.
TEST(NetworkSpecTest, EveryKindOfTopologyHasTheCostsOfItsLinks) {
  const std::string port = "latency_seconds: 1.0, bytes_per_second: 1000";
  EXPECT_EQ(send_seconds("topology: {kind: full, " + port + "}", 0, 9), 2);
  EXPECT_EQ(send_seconds("topology: {kind: ring, " + port + "}", 0, 3), 4);
  EXPECT_EQ(send_seconds("topology: {kind: torus, shape: [4, 4], " + port + "}", 0, 5), 3);
  EXPECT_EQ(send_seconds("topology: {kind: switch, " + port + "}", 0, 9), 3);
  EXPECT_EQ(send_seconds("topology: {kind: switch, core_bytes_per_second: 500, " + port + "}", 0, 9), 4);
  const auto tree = "topology: {kind: fat_tree, ranks_per_rack: 4, oversubscription: 8, " + port + "}";
  EXPECT_EQ(send_seconds(tree, 0, 3), 3);
  EXPECT_EQ(send_seconds(tree, 0, 4), 6);  // the uplink of a rack has half the rate of a port
  const auto nodes = "topology: {kind: nodes, ranks_per_node: 2, inside: {" + port +
                     "}, card: {latency_seconds: 10, bytes_per_second: 500}, nodes_per_rack: 2, oversubscription: 4}";
  EXPECT_EQ(send_seconds(nodes, 0, 1), 3);
  EXPECT_EQ(send_seconds(nodes, 0, 2), 24);
  EXPECT_EQ(send_seconds(nodes, 0, 4), 46);
}

// Every line of the file has a mistake. Each must be reported with its line number.
TEST(NetworkSpecTest, AllProblemsAreInOneErrorWithTheirLines) {
  const auto message = problems_of(
      "name: test\nlibrary: mpi\noverhead_seconds: -1\ntopology:\n  kind: torus\n  shape: [4]\n  latency_seconds: "
      "fast\n  "
      "oversubscription: 2\n"
      "links:\n  - {from: 1, to: 1, latency_seconds: 0, bytes_per_second: 0}\nsize_factors: [{bytes: 8, factor: 1}, "
      "{bytes: 8, "
      "factor: 0}]\nlanes: 0\nspeed: 9\ncompute: {kind: table, launch_seconds: 1}\n");
  EXPECT_THAT(message,
              AllOf(HasSubstr("network.yaml:2: library: expected gloo or nccl, got 'mpi'"),
                    HasSubstr("network.yaml:3: overhead_seconds: expected 0 seconds or more, got '-1'"),
                    HasSubstr("network.yaml:1: reduce_seconds_per_byte: missing"),
                    HasSubstr("network.yaml:6: topology.shape: expected 2 or 3 positive integers, of a product up to "
                              "1048576, got [4]"),
                    HasSubstr("network.yaml:7: topology.latency_seconds: expected 0 seconds or more, got 'fast'"),
                    HasSubstr("network.yaml:5: topology.bytes_per_second: missing")));
  EXPECT_THAT(
      message,
      AllOf(HasSubstr("network.yaml:8: topology.oversubscription: unknown key"),
            HasSubstr("network.yaml:10: links[0].to: expected a rank other than 1"),
            HasSubstr("network.yaml:10: links[0].bytes_per_second: expected a positive number, got '0'"),
            HasSubstr("network.yaml:11: size_factors[1].bytes: expected more than the 8 of the entry before, got "
                      "8; sort the entries"),
            HasSubstr("network.yaml:11: size_factors[1].factor: expected a positive number, got '0'"),
            HasSubstr("network.yaml:12: lanes: expected 1 to 65536, got '0'"),
            HasSubstr("network.yaml:13: speed: unknown key"),
            HasSubstr("network.yaml:14: compute.flops_per_second: missing")));
}

// An unknown kind of topology hides its other keys, so only the kind is reported.
TEST(NetworkSpecTest, UnreadableFilesAreExplained) {
  EXPECT_THAT(problems_of(""), AllOf(HasSubstr("name: missing"), HasSubstr("topology: missing")));
  EXPECT_THAT(problems_of("name: [\n"), HasSubstr("not valid YAML"));
  EXPECT_THAT(problems_of("- name\n"), HasSubstr("network.yaml:1: the file: expected a mapping"));
  EXPECT_THAT(problems_of(std::string(kHead) + "topology: {kind: star, arms: 5}\n"),
              AllOf(HasSubstr("network.yaml:5: topology.kind: expected full, ring"), Not(HasSubstr("arms"))));
  EXPECT_THAT(
      problems_of(std::string(kHead) + "topology: {kind: full, latency_seconds: .nan, bytes_per_second: .nan}\n"),
      AllOf(HasSubstr("latency_seconds: expected"), HasSubstr("bytes_per_second: expected")));
  EXPECT_THROW(read_network("no_such_network.yaml"), ConfigError);
}

// In a sweep the number of ranks changes, so a network that fitted may not fit later.
TEST(NetworkSpecTest, RanksThatDoNotFitAreRejectedWithTheNetworksName) {
  Network network(
      read(std::string(kHead) + "topology: {kind: torus, shape: [2, 2], latency_seconds: 0, bytes_per_second: 1}\n"));
  network.set_ranks(4);
  try {
    network.set_ranks(5);
    FAIL() << "five ranks fit on four places";
  } catch (const ConfigError& error) {
    EXPECT_THAT(error.what(), HasSubstr("network test: the topology holds 4 ranks, but there are 5"));
  }
}

// Without a number of nodes, the network grows with the ranks.
TEST(NetworkSpecTest, NodesHoldAtMostTheirRanks) {
  const std::string nodes =
      "topology: {kind: nodes, ranks_per_node: 4, inside: {latency_seconds: 0, bytes_per_second: 1}, ";
  Network one(read(kHead + nodes + "num_nodes: 1}\n"));
  one.set_ranks(4);
  EXPECT_THROW(one.set_ranks(5), ConfigError);
  Network any(read(kHead + nodes + "card: {latency_seconds: 0, bytes_per_second: 1}}\n"));
  EXPECT_NO_THROW(any.set_ranks(1000));
}

// The network files that come with the project.
std::vector<fs::path> shipped_files() {
  std::vector<fs::path> files;
  for (const auto& entry : fs::directory_iterator(fs::path(std::getenv("ACCEL_SOURCE_DIR")) / "configs/sim/networks")) {
    files.push_back(entry.path());
  }
  return files;
}

// Users copy the shipped files. Each must load and give finite times for everything that a training calls.
TEST(NetworkSpecTest, EveryShippedNetworkRunsEveryCollectiveOnItsRanks) {
  ASSERT_GE(shipped_files().size(), 8U);
  std::set<std::string> names;
  for (const auto& file : shipped_files()) {
    auto network = Network::load(file.string());
    EXPECT_TRUE(names.insert(network.spec().name).second) << file;
    EXPECT_EQ(network.spec().name, file.stem().string());
    const auto ranks = testing::first_ranks(8);
    network.set_ranks(8);
    for (const auto op : testing::group_collectives()) {
      const auto ends =
          network.finish_times(0, {.op = op, .bytes = 1 << 20, .ranks = &ranks, .root = 3}, std::vector<double>(8, 0));
      // A collective of 1 MiB that takes no time or more than a minute indicates a wrong unit in the file.
      for (const double end : ends) EXPECT_TRUE(end > 0 && end < 60) << file << ' ' << name_of(op) << ' ' << end;
    }
  }
}

}  // namespace
}  // namespace accel::sim
