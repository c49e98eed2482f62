// A stack machine for pickles, without the opcodes that need code execution. Objects are only linked, never copied, so
// memory stays proportional to the pickle; calls are evaluated in python_calls.cpp.
#include "reference/checkpoint/unpickler.hpp"

#include <bit>
#include <unordered_map>

#include "reference/checkpoint/byte_cursor.hpp"
#include "reference/core/errors.hpp"

namespace accel::checkpoint {
namespace {

// Source: CPython, Lib/pickletools.py. Text opcodes of protocols 0 and 1 are missing on purpose: torch.save never
// writes them.
enum Opcode : std::uint8_t {
  kMark = '(',
  kStop = '.',
  kPop = '0',
  kPopMark = '1',
  kDup = '2',
  kNone = 'N',
  kNewTrue = 0x88,
  kNewFalse = 0x89,
  kBinInt = 'J',
  kBinInt1 = 'K',
  kBinInt2 = 'M',
  kLong1 = 0x8a,
  kLong4 = 0x8b,
  kBinFloat = 'G',
  kBinUnicode = 'X',
  kShortBinUnicode = 0x8c,
  kBinUnicode8 = 0x8d,
  kShortBinString = 'U',
  kBinString = 'T',
  kShortBinBytes = 'C',
  kBinBytes = 'B',
  kBinBytes8 = 0x8e,
  kByteArray8 = 0x96,
  kEmptyList = ']',
  kAppend = 'a',
  kAppends = 'e',
  kEmptyTuple = ')',
  kTuple = 't',
  kTuple1 = 0x85,
  kTuple2 = 0x86,
  kTuple3 = 0x87,
  kEmptyDict = '}',
  kSetItem = 's',
  kSetItems = 'u',
  kEmptySet = 0x8f,
  kAddItems = 0x90,
  kFrozenSet = 0x91,
  kBinGet = 'h',
  kLongBinGet = 'j',
  kBinPut = 'q',
  kLongBinPut = 'r',
  kMemoize = 0x94,
  kGlobal = 'c',
  kStackGlobal = 0x93,
  kReduce = 'R',
  kNewObj = 0x81,
  kNewObjEx = 0x92,
  kBuild = 'b',
  kBinPersId = 'Q',
  kProto = 0x80,
  kFrame = 0x95
};

// Each do_* function handles the opcodes of one kind and returns false for others, so run() tries one after the other.
// All accesses to stack, marks and memo are checked: a damaged file must end in a CheckpointError, never in undefined
// behaviour.
class Unpickler {
 public:
  Unpickler(std::string_view bytes, const std::string& what, PythonObjects& objects, PythonNames names)
      : cursor_(bytes, what), what_(what), objects_(objects), names_(names) {}

  // The loop ends, since every opcode takes at least one byte of the input.
  PythonObject* run() {
    for (;;) {
      const auto opcode = cursor_.number<std::uint8_t>();
      if (opcode == kStop) break;
      const bool is_known = do_number(opcode) || do_text(opcode) || do_sequence(opcode) || do_dict_or_set(opcode) ||
                            do_stack(opcode) || do_call(opcode);
      check_checkpoint(is_known,
                       "{}: byte {}: unknown opcode 0x{:02x}; expected a file of torch.save, protocols 2 to 5", what_,
                       cursor_.place() - 1, opcode);
    }
    check_checkpoint(
        stack_.size() == 1 && marks_.empty(),
        "{}: {} objects are left at the end of the pickle; expected one; the file is damaged: copy or save it again",
        what_, stack_.size());
    return stack_.back();
  }

 private:
  // --- the stack ---

  template <typename T>
  bool push(T content) {
    return push(objects_.make(std::move(content)));
  }
  bool push(PythonObject* object) {
    stack_.push_back(object);
    return true;
  }
  // Objects below the last mark belong to an unfinished collection and must not be reached.
  PythonObject* top() {
    check_checkpoint(stack_.size() > bottom(),
                     "{}: byte {}: an object is missing; the file is damaged: copy or save it again", what_,
                     cursor_.place());
    return stack_.back();
  }
  PythonObject* pop() {
    auto* object = top();
    stack_.pop_back();
    return object;
  }
  [[nodiscard]] std::size_t bottom() const { return marks_.empty() ? 0 : marks_.back(); }
  // Returns the objects above the last mark, in the order in which they were pushed.
  std::vector<PythonObject*> pop_mark() {
    check_checkpoint(!marks_.empty(), "{}: byte {}: a mark is missing; the file is damaged: copy or save it again",
                     what_, cursor_.place());
    std::vector<PythonObject*> items(stack_.begin() + static_cast<std::ptrdiff_t>(marks_.back()), stack_.end());
    stack_.resize(marks_.back());
    marks_.pop_back();
    return items;
  }
  template <typename T>
  T& top_as(const char* type) {
    auto* content = top()->get_if<T>();
    check_checkpoint(content != nullptr, "{}: byte {}: expected {}; the file is damaged: copy or save it again", what_,
                     cursor_.place(), type);
    return *content;
  }
  // The memo holds references: an object that is fetched later has the items that were added meanwhile, as in Python.
  bool put(std::uint32_t index) {
    memo_[index] = top();
    return true;
  }
  bool get(std::uint32_t index) {
    const auto found = memo_.find(index);
    check_checkpoint(found != memo_.end(),
                     "{}: byte {}: no object {} in the memo; the file is damaged: copy or save it again", what_,
                     cursor_.place(), index);
    return push(found->second);
  }

  // --- opcodes, by what they make ---

  bool do_number(std::uint8_t opcode) {
    switch (opcode) {
      case kNone: return push(python::None{});
      case kNewTrue: return push(true);
      case kNewFalse: return push(false);
      case kBinInt: return push(static_cast<std::int64_t>(cursor_.number<std::int32_t>()));
      case kBinInt1: return push(static_cast<std::int64_t>(cursor_.number<std::uint8_t>()));
      case kBinInt2: return push(static_cast<std::int64_t>(cursor_.number<std::uint16_t>()));
      case kLong1: return push_long(cursor_.take(cursor_.number<std::uint8_t>()));
      case kLong4: return push_long(cursor_.take(cursor_.number<std::uint32_t>()));
      // The only big-endian number of the format.
      case kBinFloat: return push(std::bit_cast<double>(__builtin_bswap64(cursor_.number<std::uint64_t>())));
      default: return false;
    }
  }

  // A little-endian number in two's complement, of any length. Redundant sign bytes are dropped first.
  bool push_long(std::string_view bytes) {
    // No bytes at all mean zero.
    const char sign = !bytes.empty() && bytes.back() < 0 ? '\xff' : '\0';
    while (bytes.size() > 8 && bytes.back() == sign && ((bytes[bytes.size() - 2] ^ sign) & 0x80) == 0)
      bytes.remove_suffix(1);
    if (bytes.size() > 8) return push(python::LargeInt{});
    auto value = static_cast<std::int64_t>(sign);
    std::memcpy(&value, bytes.data(), bytes.size());
    return push(value);
  }

  // Text is kept as its bytes, which are UTF-8. The length is checked by the cursor before anything is allocated.
  bool do_text(std::uint8_t opcode) {
    switch (opcode) {
      case kBinUnicode: return push(std::string(cursor_.take(cursor_.number<std::uint32_t>())));
      case kShortBinUnicode: return push(std::string(cursor_.take(cursor_.number<std::uint8_t>())));
      case kBinUnicode8: return push(std::string(cursor_.take(cursor_.number<std::uint64_t>())));
      case kShortBinString:
        return push(std::string(cursor_.take(cursor_.number<std::uint8_t>())));  // written by Python 2
      case kBinString: return push(std::string(cursor_.take(cursor_.number<std::uint32_t>())));
      case kShortBinBytes: return push(python::Bytes{std::string(cursor_.take(cursor_.number<std::uint8_t>()))});
      case kBinBytes: return push(python::Bytes{std::string(cursor_.take(cursor_.number<std::uint32_t>()))});
      case kBinBytes8:
      case kByteArray8: return push(python::Bytes{std::string(cursor_.take(cursor_.number<std::uint64_t>()))});
      default: return false;
    }
  }

  // Tuples of up to three items have opcodes without a mark.
  bool push_last(std::size_t count) {
    python::Sequence tuple{python::Sequence::kTuple, std::vector<PythonObject*>(count)};
    while (count > 0) tuple.items[--count] = pop();
    return push(std::move(tuple));
  }
  // The kind must match, because tuples are immutable in Python: appending to one would never be written.
  bool append(const std::vector<PythonObject*>& items, python::Sequence::Kind kind) {
    auto& sequence = top_as<python::Sequence>("a list or a set");
    check_checkpoint(sequence.kind == kind,
                     "{}: byte {}: a sequence has another type; the file is damaged: copy or save it again", what_,
                     cursor_.place());
    sequence.items.insert(sequence.items.end(), items.begin(), items.end());
    return true;
  }
  bool do_sequence(std::uint8_t opcode) {
    switch (opcode) {
      case kEmptyList: return push(python::Sequence{python::Sequence::kList, {}});
      case kAppend: {
        auto* item = pop();
        return append({item}, python::Sequence::kList);
      }
      case kAppends: return append(pop_mark(), python::Sequence::kList);
      case kEmptyTuple: return push(python::Sequence{python::Sequence::kTuple, {}});
      case kTuple: return push(python::Sequence{python::Sequence::kTuple, pop_mark()});
      case kTuple1: return push_last(1);
      case kTuple2: return push_last(2);
      case kTuple3: return push_last(3);
      default: return false;
    }
  }

  // Duplicate keys are kept here. The conversion to a Value decides: the last one wins, as in Python.
  bool set_items(const std::vector<PythonObject*>& items) {
    auto& dict = top_as<python::Dict>("a dict");
    check_checkpoint(items.size() % 2 == 0,
                     "{}: byte {}: a key without a value; the file is damaged: copy or save it again", what_,
                     cursor_.place());
    for (std::size_t i = 0; i < items.size(); i += 2) dict.items.emplace_back(items[i], items[i + 1]);
    return true;
  }
  bool do_dict_or_set(std::uint8_t opcode) {
    switch (opcode) {
      case kEmptyDict: return push(python::Dict{});
      case kSetItem: {
        auto* value = pop();
        auto* key = pop();
        return set_items({key, value});
      }
      case kSetItems: return set_items(pop_mark());
      case kEmptySet: return push(python::Sequence{python::Sequence::kSet, {}});
      case kAddItems: return append(pop_mark(), python::Sequence::kSet);
      case kFrozenSet: return push(python::Sequence{python::Sequence::kSet, pop_mark()});
      default: return false;
    }
  }

  bool do_stack(std::uint8_t opcode) {
    switch (opcode) {
      case kMark: marks_.push_back(stack_.size()); return true;
      case kPop: pop(); return true;
      case kPopMark: pop_mark(); return true;
      case kDup: return push(top());
      case kBinGet: return get(cursor_.number<std::uint8_t>());
      case kLongBinGet: return get(cursor_.number<std::uint32_t>());
      case kBinPut: return put(cursor_.number<std::uint8_t>());
      case kLongBinPut: return put(cursor_.number<std::uint32_t>());
      // Protocol 4 numbers memo entries implicitly.
      case kMemoize: return put(static_cast<std::uint32_t>(memo_.size()));
      case kProto: return check_protocol(cursor_.number<std::uint8_t>());
      case kFrame: cursor_.skip(8); return true;  // the length of the frame, which only helps reading ahead
      default: return false;
    }
  }
  // Protocols 0 and 1 are text formats that torch.save cannot write.
  bool check_protocol(int protocol) {
    check_checkpoint(protocol >= 2 && protocol <= 5, "{}: pickle protocol {} is unsupported; expected 2 to 5", what_,
                     protocol);
    return true;
  }

  bool do_call(std::uint8_t opcode) {
    switch (opcode) {
      case kGlobal: {
        const auto module = cursor_.line(), name = cursor_.line();
        return push(known_global(module, name, what_, names_));
      }
      case kStackGlobal: {
        const auto *name = pop()->get_if<std::string>(), *module = pop()->get_if<std::string>();
        check_checkpoint(name != nullptr && module != nullptr,
                         "{}: byte {}: a class without a name; the file is damaged: copy or save it again", what_,
                         cursor_.place());
        return push(known_global(*module, *name, what_, names_));
      }
      // Keyword arguments do not occur in plain data; only the empty dict is accepted.
      case kNewObjEx: {
        const auto* keywords = pop()->get_if<python::Dict>();
        check_checkpoint(keywords != nullptr && keywords->items.empty(),
                         "{}: byte {}: calls with keyword arguments are unsupported", what_, cursor_.place());
        return push_call();
      }
      case kReduce:
      case kNewObj: return push_call();
      // __setstate__ on the object below the state, which stays on the stack.
      case kBuild: {
        const auto* state = pop();
        set_state(*top(), *state, what_, objects_);
        return true;
      }
      case kBinPersId: return push(persistent_object(*pop(), what_, objects_));
      default: return false;
    }
  }
  // The result may be an object that a later BUILD completes.
  bool push_call() {
    auto* arguments = pop()->get_if<python::Sequence>();
    auto* global = pop()->get_if<python::Global>();
    check_checkpoint(
        arguments != nullptr && global != nullptr,
        "{}: byte {}: a call of an object that is not callable; the file is damaged: copy or save it again", what_,
        cursor_.place());
    return push(call(*global, *arguments, what_, objects_));
  }

  ByteCursor cursor_;
  std::string what_;
  PythonObjects& objects_;
  PythonNames names_;
  std::vector<PythonObject*> stack_;
  std::vector<std::size_t> marks_;  // sizes of the stack at each mark
  std::unordered_map<std::uint32_t, PythonObject*> memo_;
};

}  // namespace

PythonObject* unpickle(std::string_view bytes, const std::string& what, PythonObjects& objects, PythonNames names) {
  return Unpickler(bytes, what, objects, names).run();
}

}  // namespace accel::checkpoint
