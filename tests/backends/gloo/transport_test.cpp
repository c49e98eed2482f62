// Tests of the choice between TCP and shared memory for a group. All ranks must choose alike: a rank on TCP and a
// rank on shared memory would wait for each other forever.
#include "backends/gloo/transport.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include <fstream>
#include <thread>

#include "backends/gloo/device.hpp"
#include "reference/core/errors.hpp"
#include "tests/support/run_ranks.hpp"

namespace accel::testing {
namespace {

using gloo::Transport;
using ::testing::Each;
using ::testing::HasSubstr;

// Sets the variable for a time.
class WithVariable {
 public:
  explicit WithVariable(const char* value) { setenv("ACCEL_GLOO_TRANSPORT", value, 1); }
  ~WithVariable() { unsetenv("ACCEL_GLOO_TRANSPORT"); }
};

// Whether this process has mapped memory of the shared transport.
bool shares_memory() {
  std::ifstream in("/proc/self/maps");
  const std::string all{std::istreambuf_iterator<char>(in), {}};
  return all.find("memfd:accel-gloo") != std::string::npos;
}

/// What each rank gets: "shm", "tcp" or an error.
std::vector<std::string> agreed(const std::vector<Transport>& wanted) {
  const auto store = c10::make_intrusive<c10d::HashStore>();
  const int size = static_cast<int>(wanted.size());
  std::vector<std::string> results(wanted.size());
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] {
      try {
        results[rank] =
            gloo::agree_on_shared_memory(*store, rank, size, wanted[rank], std::chrono::seconds(60)) ? "shm" : "tcp";
      } catch (const ConfigError& error) {
        results[rank] = error.what();
      }
    });
  }
  for (auto& thread : threads) thread.join();
  return results;
}

// A misspelled value must be an error: falling back to TCP would only be noticed as slowness.
TEST(TransportTest, TheEnvironmentVariableChooses) {
  EXPECT_EQ(gloo::transport_from_environment(), Transport::kAuto);
  {
    const WithVariable variable("tcp");
    EXPECT_EQ(gloo::transport_from_environment(), Transport::kTcp);
  }
  const WithVariable variable("ib");
  try {
    gloo::transport_from_environment();
    FAIL();
  } catch (const ConfigError& error) {
    EXPECT_STREQ(error.what(), "ACCEL_GLOO_TRANSPORT: expected auto, tcp or shm, got ib");
  }
}

// The wishes differ between the ranks, but all must come to the same decision.
TEST(TransportTest, RanksOfAHostShareMemoryUnlessOneAsksForTcp) {
  EXPECT_THAT(agreed({Transport::kAuto, Transport::kAuto, Transport::kAuto}), Each("shm"));
  EXPECT_THAT(agreed({Transport::kAuto, Transport::kSharedMemory, Transport::kAuto}), Each("shm"));
  EXPECT_THAT(agreed({Transport::kAuto, Transport::kTcp, Transport::kAuto}), Each("tcp"));
  EXPECT_THAT(agreed({Transport::kTcp, Transport::kTcp}), Each("tcp"));
}

// "auto" would fall back to TCP; "shm" is a demand.
TEST(TransportTest, SharedMemoryThatIsDemandedButImpossibleIsAnErrorOnEveryRank) {
  EXPECT_THAT(agreed({Transport::kSharedMemory, Transport::kAuto, Transport::kTcp}),
              Each("ACCEL_GLOO_TRANSPORT=shm: rank 2 has ACCEL_GLOO_TRANSPORT=tcp; set ACCEL_GLOO_TRANSPORT=auto"));
}

// LibTorch ships Gloo without its headers, so this project declares the classes itself. If a LibTorch changes their
// layout, this test must fail before anything writes through a wrong declaration.
TEST(TransportTest, TheLayoutOfGloosClassesIsAsDeclared) { EXPECT_NO_THROW(gloo::check_layout()); }

// Memory that stays mapped would accumulate over many groups.
TEST(TransportTest, AGroupMapsSharedMemoryDuringItsLifetime) {
  for (const auto backend : {Backend::kGlooTcpThreads, Backend::kGlooSharedMemoryThreads}) {
    run_ranks(backend, 2, [&](RankContext& rank) {
      EXPECT_EQ(shares_memory(), backend == Backend::kGlooSharedMemoryThreads);
      rank.world.barrier();
    });
    EXPECT_FALSE(shares_memory());
  }
}

// A send in one group must progress while its rank waits in a collective of another group and its peer waits in the
// receive. 12 MiB do not fit the rings, so they need both ranks.
TEST(TransportTest, GroupsDoNotWaitForEachOther) {
  constexpr std::int64_t kNumel = 3 << 20;  // 12 MiB, many times the size of a ring
  run_ranks(Backend::kGlooSharedMemoryThreads, 2, [&](RankContext& rank) {
    const auto other = rank.new_group({0, 1});
    std::vector<at::Tensor> tensors{rank.rank == 0 ? at::ones({kNumel}) : at::zeros({kNumel})};
    if (rank.rank == 0) {
      const auto sending = rank.world.process_group()->send(tensors, 1, 3);
      other.barrier();
      sending->wait();
    } else {
      rank.world.process_group()->recv(tensors, 0, 3)->wait();
      other.barrier();
      EXPECT_TRUE(at::equal(tensors[0], at::ones({kNumel})));
    }
    other.barrier();
  });
}

// Which sender comes first is open, so the test compares the sum of both messages.
TEST(TransportTest, ReceivesFromAnySource) {
  run_ranks(Backend::kGlooSharedMemoryThreads, 3, [](RankContext& rank) {
    std::vector<at::Tensor> tensors{at::full({4}, rank.rank)};
    auto& group = *rank.world.process_group();
    if (rank.rank != 0) {
      group.send(tensors, 0, 1)->wait();
      return;
    }
    double sum = 0;
    for (int i = 0; i < 2; ++i) {
      const auto work = group.getBackend(c10::DeviceType::CPU)->recvAnysource(tensors, 1);
      work->wait();
      EXPECT_EQ(tensors[0][0].item<int>(), work->sourceRank());
      sum += tensors[0].sum().item<double>();
    }
    EXPECT_EQ(sum, 12);
  });
}

}  // namespace
}  // namespace accel::testing
