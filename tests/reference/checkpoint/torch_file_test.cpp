// Files of torch.save, read and written without Python: values, shared memory, types, and damaged or hostile
// pickles. A pickle is a program, so the reader must reject everything but data and must bound depth and size.
#include "reference/checkpoint/torch_file.hpp"

#include <gmock/gmock.h>

#include <fstream>

#include "properties/gen/value_json.hpp"
#include "reference/core/errors.hpp"
#include "tests/reference/checkpoint/recorded.hpp"
#include "tests/support/any_tensor.hpp"
#include "tests/support/crash_disk.hpp"
#include "tests/support/message_of.hpp"
#include "tests/support/temporary_folder.hpp"
#include "tests/support/torch.hpp"
#include "tests/support/torch_file_bytes.hpp"

namespace accel {
namespace {

using namespace std::string_literals;
using testing::any_tensor;
using ::testing::AnyOf;
using testing::archive_of;
using ::testing::HasSubstr;
using testing::message_of;
using testing::pick;
using testing::recorded;
using testing::TemporaryFolder;
using testing::torch_file_of;

std::string content_of(const std::string& path) { return PosixFiles().read(path); }

Value any_value(int depth = 0) {
  switch (pick(0, depth < 3 ? 9 : 7)) {
    case 0: return {};
    case 1: return pick(0, 2) == 1;
    case 2:
      return *rc::gen::oneOf(rc::gen::arbitrary<std::int64_t>(),
                             rc::gen::element<std::int64_t>(0, 255, 256, 65536, INT64_MIN, INT64_MAX, INT32_MIN));
    case 3: return *rc::gen::arbitrary<double>();
    case 4: return *rc::gen::arbitrary<std::string>();
    case 5:
    case 6: return any_tensor(testing::torch_file_dtypes());
    case 7: {
      Value::List list;
      for (int i = 0, count = pick(0, 4); i < count; ++i) list.push_back(any_value(depth + 1));
      return list;
    }
    default: {
      Value::Dict dict;
      for (int i = 0, count = pick(0, 4); i < count; ++i)
        dict[*rc::gen::arbitrary<std::string>()] = any_value(depth + 1);
      return dict;
    }
  }
}

class TorchFileTest : public ::testing::Test {
 protected:
  Value read(const std::string& bytes) { return read_torch_file(folder_.write("a.bin", bytes)); }
  /// Writes and reads a file with this pickle.
  std::string refusal(const std::string& pickled, const testing::Records& records = {}) {
    return refusal_of_file(torch_file_of(pickled, records));
  }
  std::string refusal_of_file(const std::string& bytes) {
    const auto message = message_of<CheckpointError>([&] { read(bytes); });
    EXPECT_THAT(message, AnyOf("", HasSubstr("a.bin")));
    return message;
  }
  std::string written(const Value& value, const TorchFileOptions& options = {}) {
    PosixFiles files;
    write_torch_file(files, folder_.path("w.bin"), value, options);
    return content_of(folder_.path("w.bin"));
  }
  TemporaryFolder folder_;
};

// Includes shared tensors, views and nested containers.
TEST_F(TorchFileTest, EveryValueIsReadAsItWasWritten) {
  testing::expect_property(200, [&] {
    const auto value = any_value();
    RC_ASSERT(read(written(value)) == value);
  });
}

// A state dict with tied weights must be tied again after loading.
TEST_F(TorchFileTest, TensorsThatShareMemoryShareItAgain) {
  const auto whole = torch::arange(12.0).reshape({3, 4});
  const auto read_back = read(
      written(Value::Dict{{"whole", whole}, {"turned", whole.t()}, {"row", whole[1]}, {"other", torch::ones({2})}}));
  const auto of = [&](const char* name) { return read_back.at(name).as<at::Tensor>(); };
  of("whole").fill_(7);
  EXPECT_TRUE(of("row").equal(torch::full({4}, 7.0)));
  EXPECT_EQ(of("turned").strides(), whole.t().strides());
  EXPECT_EQ(of("row").storage_offset(), 4);
  EXPECT_TRUE(of("other").equal(torch::ones({2})));
}

// LibTorch marks conjugated tensors lazily. The file holds plain numbers, so the mark must be resolved.
TEST_F(TorchFileTest, ConjugatesAndSignsAreWrittenOut) {
  const auto numbers = torch::view_as_complex(torch::arange(8.0).reshape({4, 2}));
  const auto read_back = read(written(Value::List{numbers.conj(), torch::imag(numbers.conj())}));
  EXPECT_TRUE(read_back.as<Value::List>()[0].as<at::Tensor>().equal(numbers.conj().resolve_conj()));
  EXPECT_TRUE(read_back.as<Value::List>()[1].as<at::Tensor>().equal(torch::imag(numbers.conj()).resolve_neg()));
}

// A Value has lists and string keys only. torch.load's users need tuples, int keys and OrderedDict in known places.
TEST_F(TorchFileTest, PythonTypesAreWrittenToTheFile) {
  const Value state = Value::Dict{{"state", Value::Dict{{"10", 1}, {"9", 2}}},
                                  {"groups", Value::List{Value::Dict{{"betas", Value::List{0.5, 0.9}}}}}};
  const TorchFileOptions options{
      {{"state", PythonType::kIntegerKeys}, {"groups/*/betas", PythonType::kTuple}, {"", PythonType::kOrderedDict}}};
  const auto bytes = written(state, options);
  EXPECT_EQ(read(bytes), state);
  EXPECT_THAT(bytes, HasSubstr("ccollections\nOrderedDict\n"));
  EXPECT_THAT(bytes, HasSubstr(std::string("}(K\tK\2K\nK\1u"))) << "9 before 10";
  EXPECT_THAT(bytes, HasSubstr("(G?\xe0"));
}

// Python's MultiStepLR expects a collections.Counter and fails with a plain dict.
TEST_F(TorchFileTest, ACounterIsWrittenAsPythonsCounter) {
  const Value state = Value::Dict{{"milestones", Value::Dict{{"10", 1}, {"9", 2}}}, {"gamma", 0.5}};
  const auto bytes = written(state, {{{"milestones", PythonType::kCounter}}});
  EXPECT_EQ(read(bytes), state);
  EXPECT_THAT(bytes, ::testing::AllOf(HasSubstr("ccollections\nCounter\n"), HasSubstr("(}(K\tK\2K\nK\1utR")));
}

// "01" and "1" would both become the key 1.
TEST_F(TorchFileTest, ValuesThatDoNotFitTheirTypeAreRejected) {
  const auto refused = [&](const Value& value, PythonType type) {
    return message_of<ArgumentError>([&] { written(Value::Dict{{"a", value}}, {{{"a", type}}}); });
  };
  EXPECT_THAT(refused(Value::Dict{{"01", 1}}, PythonType::kIntegerKeys), HasSubstr("'a' has the key '01'"));
  EXPECT_THAT(refused(Value::Dict{}, PythonType::kTuple), HasSubstr("'a' is dict, but the options declare a tuple"));
  EXPECT_THAT(refused(1, PythonType::kOrderedDict), HasSubstr("'a' is int"));
}

// Writing something that Python cannot read would only be found when the checkpoint is needed.
TEST_F(TorchFileTest, TensorsThatTorchSaveCannotWriteAreRejected) {
  const auto refused = [&](const Value& value) { return message_of<ArgumentError>([&] { written(value); }); };
  const auto numbers = torch::zeros({2});
  EXPECT_THAT(refused(torch::empty({2}, torch::kMeta)), HasSubstr("or one without data"));
  EXPECT_THAT(refused(torch::eye(2).to_sparse()), HasSubstr("sparse"));
  EXPECT_THAT(refused(Value::List{numbers, numbers.view(torch::kInt)}),
              HasSubstr("share memory as IntStorage and as FloatStorage"));
}

// The recorded files were written by Python with protocols 2 to 5, whose opcodes differ.
TEST_F(TorchFileTest, FilesOfEveryProtocolAreRead) {
  std::ifstream in(recorded("plain.json"));
  const auto expected = nlohmann::json::parse(in);
  for (const int protocol : {2, 3, 4, 5}) {
    const auto value = read_torch_file(recorded(fmt::format("plain_protocol{}.bin", protocol)));
    EXPECT_EQ(testing::json_of(value), expected) << protocol;
    EXPECT_EQ(read(written(value)), value);
  }
}

// The file contains states of Python's and NumPy's generators, 625 words each.
TEST_F(TorchFileTest, RandomStatesOfAccelerateAreRead) {
  const auto states = read_torch_file(recorded("random_states_0.pkl"));
  EXPECT_EQ(states.at("step"), Value(7));
  EXPECT_EQ(states.at("random_state").as<Value::List>()[1].as<Value::List>().size(), 625u);
  EXPECT_EQ(states.at("numpy_random_seed").as<Value::List>()[0], Value("MT19937"));
  EXPECT_EQ(states.at("numpy_random_seed").as<Value::List>()[1].as<at::Tensor>().numel(), 624);
  EXPECT_EQ(states.at("torch_manual_seed").as<at::Tensor>().scalar_type(), torch::kByte);
}

// --- damage ----------------------------------------------------------------------------------------------------------

// At each byte, as after a copy that was interrupted.
TEST_F(TorchFileTest, EveryTruncationIsRejected) {
  const auto bytes = written(Value::Dict{{"a", torch::arange(5)}, {"b", Value::List{1, "text"}}});
  for (std::size_t size = 0; size < bytes.size(); ++size) EXPECT_NE(refusal_of_file(bytes.substr(0, size)), "") << size;
}

// Records have checksums; bytes of padding may change without an effect.
TEST_F(TorchFileTest, EveryFlippedByteIsRejectedOrChangesNothing) {
  const Value value = Value::Dict{{"a", torch::arange(5)}, {"b", Value::List{1, "text"}}};
  const auto bytes = written(value);
  std::size_t num_rejected = 0;
  for (std::size_t place = 0; place < bytes.size(); ++place) {
    for (const int flip : {1, 128, 255}) {
      auto damaged = bytes;
      damaged[place] = static_cast<char>(damaged[place] ^ flip);
      try {
        EXPECT_EQ(read(damaged), value) << place;
      } catch (const CheckpointError& error) {
        EXPECT_THAT(error.what(), HasSubstr("a.bin"));
        ++num_rejected;
      }
    }
  }
  EXPECT_GT(num_rejected, 500u);
}

TEST_F(TorchFileTest, WhatIsNoArchiveIsRefused) {
  EXPECT_THAT(refusal_of_file(""), HasSubstr("no end of a zip archive"));
  EXPECT_THAT(refusal_of_file(std::string("\x80\x02\x8a\x0alegacy")), HasSubstr("load and save them again in Python"));
  EXPECT_THAT(refusal_of_file(archive_of({{"other.pkl", "\x80\x02N."}})), HasSubstr("lacks record data.pkl"));
  EXPECT_THAT(message_of<CheckpointError>([&] { read_torch_file(folder_.path("absent")); }),
              HasSubstr("absent: cannot be opened"));
  EXPECT_THAT(message_of<CheckpointError>([&] { read_torch_file(folder_.path()); }), HasSubstr("is a folder"));
}

// A pickle can name any callable. Only classes of tensors and containers are constructed, and nothing is ever
// called.
TEST_F(TorchFileTest, UnknownClassesAreNamed) {
  EXPECT_THAT(refusal("cos\nsystem\n(X\2\0\0\0lstR"), HasSubstr("data.pkl: contains an object of os.system"));
  EXPECT_THAT(refusal("c__builtin__\neval\n"), HasSubstr("builtins.eval"));
  EXPECT_THAT(refusal("ctorch.optim.adam\nAdam\n)\x81"), HasSubstr("torch.optim.adam.Adam"));
  EXPECT_THAT(refusal("cnumpy\nndarray\n)R"), HasSubstr("a call of numpy.ndarray does not create plain data"));
}

// A list may contain itself through the memo, which would recurse forever.
TEST_F(TorchFileTest, SelfReferencesAreRejected) {
  EXPECT_THAT(refusal("]q\1h\1a"), HasSubstr("more than 500 deep"));
  EXPECT_THAT(refusal("}q\1X\1\0\0\0ah\1s"s), HasSubstr("more than 500 deep"));
  EXPECT_THAT(refusal(std::string(600, ']') + std::string(599, 'a')), HasSubstr("more than 500 deep"));
}

// The pickle form of the "billion laughs" attack: a small file that expands to more than any memory.
TEST_F(TorchFileTest, TooManyRepetitionsAreRejected) {
  std::string laughs = "]q\1";  // 30 lists, each with ten references to the previous one: 10^30 items
  for (int i = 0; i < 30; ++i) laughs += "0](" + std::string("h\1h\1h\1h\1h\1h\1h\1h\1h\1h\1") + "eq\1";
  EXPECT_THAT(refusal(laughs), HasSubstr("references the same objects too often"));
  std::string long_text = "X"s + std::string("\x00\x00\x10\x00", 4) + std::string(1 << 20, 'x') + "q\1" + "0](";
  for (int i = 0; i < 1000; ++i) long_text += "h\1";
  EXPECT_THAT(refusal(long_text + "e"), HasSubstr("references the same objects too often"));
}

// Each text ends too early, uses an empty stack, or has an unknown instruction.
TEST_F(TorchFileTest, BrokenPicklesAreRejected) {
  for (const auto* pickled :
       {"",  "0",   "NN",   "(",         "a",     "]a",   "Na",   "e",        "(e",    "(u",   "}(Nu",
        "s", "h\1", "q\1",  "R",         "NR",    "b",    "Q",    "NQ",       ")Q",    "\x85", "\x87",
        "t", "X\5", "G123", "\x8a\x05x", "cos\n", "I1\n", "\xff", "\x80\x06", "(\x90", "\x93", "NN\x93"}) {
    EXPECT_NE(refusal(pickled), "") << pickled;
  }
}

// Python's integers are unlimited; such numbers in parts that are skipped do no harm.
TEST_F(TorchFileTest, NumbersBeyond64BitsAreRejectedIfTheyAreUsed) {
  const std::string large = "\x8a\x09" + std::string(8, '\xff') + "\x01";
  EXPECT_THAT(refusal(large), HasSubstr("an integer of more than 64 bits"));
  EXPECT_EQ(read(torch_file_of("\x8a\x09" + std::string(8, '\xff') + std::string(1, '\0') + "0N")), Value());
  EXPECT_EQ(read(torch_file_of("\x8a\x09" + std::string(9, '\xff'))), Value(-1));
  EXPECT_EQ(read(torch_file_of("}ccollections\nOrderedDict\n)R}" + std::string("X\1\0\0\0a", 6) + large + "sb0")),
            Value(Value::Dict{}))
      << "an attribute";
}

TEST_F(TorchFileTest, KeysThatWouldBeOneAreRefused) {
  EXPECT_THAT(refusal("}(K\1NX\1\0\0\0001Nu"s), HasSubstr("two keys '1' of different types"));
  EXPECT_THAT(refusal("}(NNu"), HasSubstr("neither a string nor a 64-bit integer"));
  EXPECT_EQ(read(torch_file_of("}(K\1NK\1K\2u")), Value(Value::Dict{{"1", 2}})) << "the last is it, as in Python";
}

// Pickles a tensor of `count` floats in the storage, with these pickled numbers for its view.
std::string tensor_pickle(const std::string& count, const std::string& offset, const std::string& sizes,
                          const std::string& strides) {
  return "ctorch._utils\n_rebuild_tensor_v2\n((X\7\0\0\0storagectorch\nFloatStorage\nX\1\0\0\0000X\3\0\0\0cpu"s +
         count + "tQ" + offset + sizes + strides + "\x89NtR";
}

// A view beyond its storage would read foreign memory. Empty tensors and single elements have no limit on strides.
TEST_F(TorchFileTest, TensorsOutsideTheirRecordAreRejected) {
  const testing::Records records{{"data/0", std::string(16, 'x')}};
  const auto refused = [&](const std::string& pickled) { return refusal(pickled, records); };
  EXPECT_EQ(refused(tensor_pickle("K\4", "K\1", "K\3\x85", "K\1\x85")), "");
  EXPECT_EQ(refused(tensor_pickle("K\4", "K\3", "K\x64\x85", "K\0\x85"s)), "") << "one element, seen a hundred times";
  EXPECT_EQ(refused(tensor_pickle("K\4", "K\4", "K\0\x85"s, "K\1\x85")), "") << "nothing, at the end";
  EXPECT_THAT(refused(tensor_pickle("K\4", "K\2", "K\3\x85", "K\1\x85")),
              HasSubstr("lies outside record data/0 of 16 bytes"));
  EXPECT_THAT(refused(tensor_pickle("K\4", "J\xff\xff\xff\xff", "K\1\x85", "K\1\x85")),
              HasSubstr("lies outside record"));
  EXPECT_THAT(refused(tensor_pickle("K\4", "K\0"s, "K\2\x85", "J\xff\xff\xff\xff\x85")),
              HasSubstr("lies outside record"));
  EXPECT_THAT(refused(tensor_pickle("K\4", "K\0"s, "K\2\x85", "K\1K\1\x86")), HasSubstr("lies outside record"));
  const std::string huge = "\x8a\x08" + std::string(7, '\xff') + "\x7f";
  EXPECT_THAT(refused(tensor_pickle("K\4", "K\0"s, huge + "\x85", huge + "\x85")), HasSubstr("lies outside record"));
  EXPECT_THAT(refused(tensor_pickle("K\5", "K\0"s, "K\2\x85", "K\1\x85")),
              HasSubstr("has 16 bytes, but a tensor expects 20"));
  EXPECT_THAT(refused(tensor_pickle(huge, "K\0"s, "K\2\x85", "K\1\x85")),
              HasSubstr("a storage has an invalid size of"));
  EXPECT_THAT(refusal(tensor_pickle("K\4", "K\0"s, "K\2\x85", "K\1\x85")), HasSubstr("lacks record data/0"));
}

// --- a disk that fails -----------------------------------------------------------------------------------------------

// The disk fails at each operation in turn.
TEST(TorchFileWriteTest, ADiskFailureLeavesTheOldFileOrTheNew) {
  const Value value = Value::Dict{{"a", torch::arange(5)}, {"b", torch::ones({0})}};
  testing::CrashDisk whole;
  write_torch_file(whole, "a.bin", value);
  for (std::size_t cut = 0; cut < whole.num_operations(); ++cut) {
    testing::CrashDisk disk(cut);
    EXPECT_THROW(write_torch_file(disk, "a.bin", value), testing::PowerLost) << cut;
    const auto found = disk.after_power_loss([](std::size_t end) { return end; });
    EXPECT_TRUE(!found.contains("a.bin") || found.at("a.bin") == whole.content().at("a.bin"));
  }
}

}  // namespace
}  // namespace accel
