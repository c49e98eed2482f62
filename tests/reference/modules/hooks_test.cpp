// Hooks of a program around the forward of modules. hooks.py of properties/oracle compares them with Accelerate's.
#include "reference/modules/hooks.hpp"

#include <gmock/gmock.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/linear.h>

#include "reference/core/errors.hpp"
#include "reference/state/rank_context.hpp"
#include "tests/support/message_of.hpp"
#include "tests/support/torch.hpp"

namespace accel::testing::hooks_test {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

using Events = std::vector<std::string>;

// Notes its calls. Adds `before` to every input and `after` to every output.
class Noting : public ModelHook {
 public:
  Noting(std::string name, Events& events, double before = 0, double after = 0)
      : name_(std::move(name)), events_(events), before_(before), after_(after) {}
  void init_hook(torch::nn::Module&) override { events_.push_back("init " + name_); }
  void pre_forward(torch::nn::Module&, CallValues& arguments) override {
    events_.push_back("pre " + name_);
    arguments.map_tensors([&](const at::Tensor& tensor) { return tensor + before_; });
  }
  void post_forward(torch::nn::Module&, CallValues& output) override {
    events_.push_back("post " + name_);
    output.map_tensors([&](const at::Tensor& tensor) { return tensor + after_; });
  }
  void detach_hook(torch::nn::Module&) override { events_.push_back("detach " + name_); }

 private:
  std::string name_;
  Events& events_;
  double before_, after_;
};

using Tensors = std::map<std::string, at::Tensor>;

struct MixedImpl : torch::nn::Module {
  Tensors forward(const Tensors& inputs, int factor, const std::string& name) {
    return {{name, inputs.at("x") * factor}};
  }
};
TORCH_MODULE(Mixed);

at::Tensor number(double value) { return torch::full({}, value); }

TEST(HooksTest, AHookReadsAndChangesEveryArgumentByItsType) {
  struct Editing : ModelHook {
    void pre_forward(torch::nn::Module&, CallValues& arguments) override {
      EXPECT_EQ(arguments.size(), 3u);
      EXPECT_EQ(arguments.tensors().size(), 1u);
      arguments.get<Tensors>(0)["x"] += 1;
      arguments.get<int>(1) = 10;
      arguments.get<std::string>(2) = "renamed";
    }
    void post_forward(torch::nn::Module&, CallValues& output) override {
      output.get<Tensors>(0).emplace("more", number(7));
    }
  };
  Mixed net;
  add_hook_to_module(*net, std::make_shared<Editing>());
  int factor = 2;
  const auto outputs = call(net, Tensors{{"x", number(3)}}, factor, std::string("y"));
  ASSERT_EQ(outputs.size(), 2u);
  EXPECT_EQ(outputs.at("renamed").item<double>(), 40);
  EXPECT_EQ(outputs.at("more").item<double>(), 7);
  EXPECT_EQ(factor, 2);  // the caller's variable
}

TEST(HooksTest, AnArgumentOfAnotherTypeIsAnErrorWithBothTypes) {
  struct Wrong : ModelHook {
    void pre_forward(torch::nn::Module&, CallValues& arguments) override {
      EXPECT_THAT(message_of<ArgumentError>([&] { (void)arguments.get<double>(1); }),
                  AllOf(HasSubstr("value 1 is a int"), HasSubstr("not a double")));
      EXPECT_THAT(message_of<ArgumentError>([&] { (void)arguments.get<int>(3); }), HasSubstr("the call has 3"));
      ++num_checks;
    }
    int num_checks = 0;
  };
  Mixed net;
  const auto hook = std::make_shared<Wrong>();
  add_hook_to_module(*net, hook);
  call(net, Tensors{{"x", number(3)}}, 2, std::string("y"));
  EXPECT_EQ(hook->num_checks, 1);
}

// In Python both post_forward functions run in the order of the hooks, not in the reverse order.
TEST(HooksTest, AppendedHooksRunInTheirOrderAndAreInitializedAgain) {
  Events events;
  torch::nn::ReLU net;
  add_hook_to_module(*net, std::make_shared<Noting>("first", events, 1, 10));
  add_hook_to_module(*net, std::make_shared<Noting>("second", events, 2, 20), {.append = true});
  EXPECT_THAT(events, ElementsAre("init first", "detach first", "init first", "init second"));
  events.clear();
  EXPECT_EQ(call(net, number(5)).item<double>(), 38);
  EXPECT_THAT(events, ElementsAre("pre first", "pre second", "post first", "post second"));
  events.clear();
  remove_hook_from_module(*net);
  EXPECT_THAT(events, ElementsAre("detach first", "detach second"));
  EXPECT_EQ(call(net, number(5)).item<double>(), 5);
}

TEST(HooksTest, AnotherHookReplacesTheFirstWithoutDetachingIt) {
  Events events;
  torch::nn::ReLU net;
  add_hook_to_module(*net, std::make_shared<Noting>("first", events));
  add_hook_to_module(*net, std::make_shared<Noting>("second", events));
  call(net, number(5));
  EXPECT_THAT(events, ElementsAre("init first", "init second", "pre second", "post second"));
}

class WithoutGradients : public ModelHook {
 public:
  [[nodiscard]] bool no_grad() const override { return true; }
  void post_forward(torch::nn::Module&, CallValues&) override { has_grad_mode = c10::GradMode::is_enabled(); }
  bool has_grad_mode = false;
};

// Accelerate's SequentialHook drops no_grad.
TEST(HooksTest, NoGradHoldsForTheForwardAndIsKeptByLaterHooks) {
  Events events;
  torch::nn::Linear net(2, 2);
  const auto x = torch::ones({1, 2});
  EXPECT_TRUE(call(net, x).requires_grad());
  const auto hook = std::make_shared<WithoutGradients>();
  add_hook_to_module(*net, hook);
  EXPECT_FALSE(call(net, x).requires_grad());
  EXPECT_TRUE(hook->has_grad_mode);
  add_hook_to_module(*net, std::make_shared<Noting>("second", events), {.append = true});
  EXPECT_FALSE(call(net, x).requires_grad());
  const torch::NoGradGuard no_grad;
  EXPECT_FALSE(call(net, x).requires_grad());
}

struct FailingImpl : torch::nn::Module {
  at::Tensor forward(const at::Tensor& x) {
    check_state(x.item<double>() >= 0, "negative");
    return x;
  }
};
TORCH_MODULE(Failing);

TEST(HooksTest, PostForwardDoesNotRunAfterAnError) {
  Events events;
  Failing net;
  add_hook_to_module(*net, std::make_shared<Noting>("hook", events, -6));
  EXPECT_THROW(call(net, number(5)), StateError);
  EXPECT_THAT(events, ElementsAre("init hook", "pre hook"));
  EXPECT_EQ(call(net, number(7)).item<double>(), 1);
}

// Elements of a Sequential, which may be inside another module.
struct OuterImpl : torch::nn::Module {
  OuterImpl() {
    register_module("inner", inner);
    inner->push_back(torch::nn::ReLU());
    inner->push_back(torch::nn::ReLU());
  }
  at::Tensor forward(const at::Tensor& x) { return inner->forward(x); }
  torch::nn::Sequential inner;
};
TORCH_MODULE(Outer);

TEST(HooksTest, ElementsOfASequentialRunTheirHooks) {
  Events events;
  Outer net;
  const auto element = net->inner->ptr(1);
  add_hook_to_module(*element, std::make_shared<Noting>("element", events, 1));
  EXPECT_EQ(call(net, number(5)).item<double>(), 6);
  EXPECT_EQ(call(net->inner, number(5)).item<double>(), 6);
  EXPECT_EQ(net->inner->ptr(1), element);  // in its place again
  EXPECT_THAT(events, ElementsAre("init element", "pre element", "post element", "pre element", "post element"));
}

TEST(HooksTest, RemovalRecursesOnlyIfAsked) {
  Events events;
  Outer net;
  add_hook_to_module(*net, std::make_shared<Noting>("outer", events));
  add_hook_to_module(*net->inner->ptr(0), std::make_shared<Noting>("element", events));
  events.clear();
  remove_hook_from_module(*net);
  EXPECT_THAT(events, ElementsAre("detach outer"));
  remove_hook_from_module(*net, {.recurse = true});
  EXPECT_THAT(events, ElementsAre("detach outer", "detach element"));
  call(net, number(5));
  EXPECT_THAT(events, ElementsAre("detach outer", "detach element"));
}

struct CallerImpl : torch::nn::Module {
  explicit CallerImpl(bool direct) : direct(direct) {
    register_module("first", first);
    register_module("second", second);
  }
  at::Tensor forward(const at::Tensor& x) { return direct ? second(first(x)) : call(second, call(first, x)); }
  torch::nn::ReLU first, second;
  bool direct;
};
TORCH_MODULE(Caller);

TEST(HooksTest, AHookThatADirectCallSkipsIsReportedOnce) {
  for (const bool direct : {false, true}) {
    const auto rank = make_single_rank();
    std::vector<std::string> warnings;
    rank->warn = [&](const std::string& text) { warnings.push_back(text); };
    const RankScope scope(*rank);
    Events events;
    Caller net(direct);
    add_hook_to_module(*net->second, std::make_shared<Noting>("second", events));
    for (int i = 0; i < 2; ++i) call(net, number(5));
    if (direct) {
      EXPECT_THAT(warnings, ElementsAre(AllOf(HasSubstr("the hook of 'second' did not run"), HasSubstr("CallerImpl"),
                                              HasSubstr("accel::call"))));
    } else {
      EXPECT_THAT(warnings, IsEmpty());
    }
  }
}

// A hook notes the end of its life.
struct Mortal : ModelHook {
  explicit Mortal(bool& is_gone) : is_gone(is_gone) {}
  ~Mortal() override { is_gone = true; }
  bool& is_gone;
};

TEST(HooksTest, AHookLivesUntilItIsRemovedReplacedOrItsModuleIsGone) {
  bool removed = false, replaced = false, orphaned = false;
  torch::nn::ReLU net, other;
  add_hook_to_module(*net, std::make_shared<Mortal>(removed));
  add_hook_to_module(*other, std::make_shared<Mortal>(replaced));
  {
    torch::nn::ReLU local;
    add_hook_to_module(*local, std::make_shared<Mortal>(orphaned));
  }
  EXPECT_FALSE(removed || replaced);
  remove_hook_from_module(*net);
  EXPECT_TRUE(removed);
  EXPECT_TRUE(orphaned);
  EXPECT_FALSE(replaced);
  add_hook_to_module(*other, std::make_shared<SequentialHook>(std::vector<std::shared_ptr<ModelHook>>()));
  EXPECT_TRUE(replaced);
}

// Each rank of the process adds and removes hooks of its modules; the hooks of others must not end on its thread.
TEST(HooksTest, AHookIsDestroyedByItsThread) {
  bool is_gone = false;
  {
    torch::nn::ReLU local;
    add_hook_to_module(*local, std::make_shared<Mortal>(is_gone));
  }
  Events events;
  torch::nn::ReLU net;
  std::thread([&] { add_hook_to_module(*net, std::make_shared<Noting>("other", events)); }).join();
  EXPECT_FALSE(is_gone);
  remove_hook_from_module(*net);
  EXPECT_TRUE(is_gone);
}

TEST(HooksTest, AModuleOnTheStackAndANullHookAreRefused) {
  torch::nn::ReLUImpl on_stack;
  EXPECT_THAT(message_of<ArgumentError>([&] { add_hook_to_module(on_stack, std::make_shared<WithoutGradients>()); }),
              HasSubstr("is on the stack"));
  torch::nn::ReLU net;
  EXPECT_THROW(add_hook_to_module(*net, nullptr), ArgumentError);
  EXPECT_THROW(SequentialHook({nullptr}), ArgumentError);
}

}  // namespace
}  // namespace accel::testing::hooks_test
