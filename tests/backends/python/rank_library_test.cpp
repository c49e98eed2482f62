// The C library of a rank against the proxy's end of the channel. A process is one rank for the whole of its life, so
// each test forks the rank.
#include "backends/python/rank_library.hpp"

#include <ATen/ops/randn.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <functional>

#include "backends/process/link.hpp"
#include "backends/process/operation.hpp"
#include "backends/process/update_report.hpp"
#include "reference/comm/tensor_fingerprint.hpp"

namespace accel::process {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr std::int64_t kFloat = 6;  // at::ScalarType

// A rank in a process of its own and its proxy in this one.
class RankLibraryTest : public ::testing::Test {
 protected:
  // `rank` returns whether all is well.
  void start(const std::function<bool()>& rank) {
    process_ = fork();
    if (process_ != 0) return;
    void* area = accel_area_attach(dup(area_->descriptor()));
    _exit(accel_become(area, /*rank=*/1) == 0 && rank() ? 0 : 1);
  }
  MessageReader next(Request expected) {
    auto message = proxy_.next(std::chrono::seconds(10));
    EXPECT_TRUE(message.has_value()) << "no request";
    head_ = read_head(*message);
    EXPECT_EQ(head_.request, expected);
    return *message;
  }
  void TearDown() override {
    int status = 1;
    waitpid(process_, &status, 0);
    EXPECT_EQ(status, 0);
  }

  std::shared_ptr<SharedArea> area_ = SharedArea::create(2);
  ProxyLink proxy_{area_, 1};
  RequestHead head_;
  pid_t process_ = -1;
};

// The words of an all-reduce of one tensor of floats.
std::vector<std::int64_t> all_reduce_of(float* data, std::vector<std::int64_t> sizes, std::vector<std::int64_t> strides,
                                        std::int64_t flags) {
  std::vector<std::int64_t> words{0, 7, 0, -1, 0, flags | ACCEL_WRITES_INPUTS, 1, 0, 0, 0, 0};
  words.insert(words.end(), {reinterpret_cast<std::int64_t>(data), 4, kFloat, std::ssize(sizes)});
  words.insert(words.end(), sizes.begin(), sizes.end());
  words.insert(words.end(), strides.begin(), strides.end());
  return words;
}

TEST_F(RankLibraryTest, ACallGoesToTheProxyAndItsResultToTheTensor) {
  start([] {
    float values[] = {1, 2, 3};
    const auto work = accel_call(all_reduce_of(values, {3}, {1}, 0).data(), "train.py", 12);
    return accel_wait(work, nullptr, "train.py", 13) == 5 && values[0] == 10 && values[2] == 3;
  });
  auto call = next(Request::kCall);
  EXPECT_EQ(head_.file, "train.py");
  EXPECT_EQ(head_.line, 12u);
  const auto number = call.get<std::uint64_t>();
  const auto operation = read_operation(call);
  EXPECT_EQ(operation.collective, Collective::kAllReduce);
  EXPECT_EQ(operation.group, 7u);
  ASSERT_EQ(operation.inputs.size(), 1u);
  EXPECT_EQ(operation.inputs[0].dtype, kFloat);
  EXPECT_THAT(operation.inputs[0].sizes, ElementsAre(3));
  auto* memory = reinterpret_cast<float*>(proxy_.at(operation.inputs[0].offset));
  EXPECT_EQ(memory[1], 2);
  memory[0] = 10;
  EXPECT_EQ(next(Request::kWait).get<std::uint64_t>(), number);
  proxy_.answer({.value = 5});
}

TEST_F(RankLibraryTest, ACallThatWaitsAtOnceIsOneCallOfTheLibrary) {
  start([] {
    float value[] = {1};
    return accel_run(all_reduce_of(value, {1}, {1}, 0).data(), "train.py", 12) == 5 && value[0] == 10;
  });
  auto call = next(Request::kCall);
  const auto number = call.get<std::uint64_t>();
  *reinterpret_cast<float*>(proxy_.at(read_operation(call).inputs.at(0).offset)) = 10;
  EXPECT_EQ(next(Request::kWait).get<std::uint64_t>(), number);
  EXPECT_EQ(head_.line, 12u);
  proxy_.answer({.value = 5});
}

TEST_F(RankLibraryTest, ATensorWithGapsKeepsWhatLiesBetweenItsElements) {
  start([] {
    float values[] = {1, 2, 3};
    const auto work = accel_call(all_reduce_of(values, {2}, {2}, 0).data(), "", 0);
    values[1] = 7;  // not of the tensor
    return accel_wait(work, nullptr, "", 0) == 0 && values[0] == 10 && values[1] == 7 && values[2] == 30;
  });
  auto call = next(Request::kCall);
  call.get<std::uint64_t>();
  const auto placed = read_operation(call).inputs.at(0);
  EXPECT_EQ(placed.bytes, 12u);
  auto* memory = reinterpret_cast<float*>(proxy_.at(placed.offset));
  for (int i = 0; i < 3; ++i) memory[i] *= 10;
  next(Request::kWait);
  proxy_.answer({});
}

TEST_F(RankLibraryTest, AChangeBeforeTheWaitIsReported) {
  start([] {
    float values[] = {1, 2, 3};
    const auto work = accel_call(all_reduce_of(values, {3}, {1}, ACCEL_IS_ASYNC).data(), "", 0);
    values[2] = 4;
    return accel_wait(work, nullptr, "", 0) == ACCEL_FAILED && std::string(accel_error()) == "changed too early";
  });
  next(Request::kCall);
  auto touch = next(Request::kTouch);
  touch.get<std::uint64_t>();
  EXPECT_EQ(touch.text(), "changed");
  next(Request::kWait);
  proxy_.answer({.has_failed = true, .text = "changed too early"});
}

TEST_F(RankLibraryTest, MemoryOfAbandonedWorksIsUsedAgainAfterTheirEnd) {
  start([] {
    float value[] = {1};
    const auto words = all_reduce_of(value, {1}, {1}, ACCEL_IS_ASYNC);
    std::vector<std::int64_t> works;
    for (int call = 0; call < 16; ++call) accel_abandon(works.emplace_back(accel_call(words.data(), "", 0)));
    return accel_call(words.data(), "", 0) != ACCEL_FAILED && accel_is_pending(works[0]) == 1 &&
           accel_is_pending(works[15]) == 0;
  });
  for (int call = 0; call < 16; ++call) next(Request::kCall);
  for (int call = 0; call < 16; ++call) {
    next(Request::kPoll);
    proxy_.answer({.value = call == 0 ? 0 : 1});  // the first has not ended
    if (call > 0) next(Request::kForget);
  }
  next(Request::kCall);
}

TEST_F(RankLibraryTest, AProcessThatTheRankHasForkedIsRefused) {
  start([] {
    float value[] = {1};
    const auto words = all_reduce_of(value, {1}, {1}, 0);
    const auto child = fork();
    if (child == 0) {
      const bool is_refused = accel_call(words.data(), "", 0) == ACCEL_FAILED && accel_is_rank() == 0;
      _exit(is_refused && std::string(accel_error()).find("was forked by rank 1") != std::string::npos ? 0 : 1);
    }
    int status = 1;
    waitpid(child, &status, 0);
    return status == 0 && accel_is_rank() == 1 && accel_report("generators", "the only request", "", 0) == 0;
  });
  auto warning = next(Request::kWarn);
  EXPECT_EQ(warning.text(), "generators");
  EXPECT_EQ(warning.text(), "the only request");
}

TEST_F(RankLibraryTest, AnUpdateIsReportedWithTheHashesOfItsParameters) {
  const auto weight = at::randn({3, 4}), gradient = at::randn({3, 4});
  start([&] {
    const auto address_of = [](const at::Tensor& tensor) {
      return reinterpret_cast<std::int64_t>(tensor.const_data_ptr());
    };
    const auto hash = static_cast<std::int64_t>(sample_fingerprint(gradient));
    const std::vector<std::int64_t> words{1, 2, 3, 4,   /*gradient=*/2, address_of(weight), 4, kFloat, 2, 3,
                                          4, 4, 1, hash};
    return accel_updated(words.data(), "weight\0", "state", 5, "train.py", 3) == 0;
  });
  auto message = next(Request::kUpdated);
  const auto report = read_update_report(message);
  ASSERT_EQ(report.parameters.size(), 1u);
  EXPECT_EQ(report.parameters[0].name, "weight");
  EXPECT_THAT(report.parameters[0].sizes, ElementsAre(3, 4));
  EXPECT_EQ(
      report.parameters[0].state,
      (ReportedState{
          .hash = fingerprint(weight), .dtype = kFloat, .gradient = 2, .gradient_hash = sample_fingerprint(gradient)}));
  proxy_.answer({});
}

TEST(RankLibraryWithoutRankTest, NothingIsSentBeforeTheProcessIsARank) {
  EXPECT_EQ(accel_is_rank(), 0);
  EXPECT_EQ(accel_update("", 0), ACCEL_FAILED);
  EXPECT_THAT(accel_error(), HasSubstr("not a simulated rank; start it by sim-run"));
}

TEST(RankLibraryWithoutRankTest, FingerprintsAreThoseOfTensors) {
  const auto tensor = at::randn({5000});
  EXPECT_EQ(accel_fingerprint(tensor.const_data_ptr(), tensor.nbytes()), fingerprint(tensor));
  EXPECT_EQ(accel_sample_fingerprint(tensor.const_data_ptr(), tensor.nbytes()), sample_fingerprint(tensor));
}

}  // namespace
}  // namespace accel::process
