// Checks that the classes of third_party/gloo/transport.hpp match those that the loaded LibTorch was compiled with.
//
// LibTorch does not install Gloo's headers, so the transport derives from copied declarations. With another version of
// LibTorch a virtual call would land in the wrong function. The check compares what the loaded library exposes: the
// vtables of Gloo's own TCP transport (symbols, in order) and the size and members of Context, which Gloo implements.
#include <dlfcn.h>
#include <elf.h>
#include <link.h>

#include <array>
#include <bit>
#include <cstring>
#include <new>
#include <vector>

#include "backends/gloo/device.hpp"
#include "backends/gloo/third_party/gloo/transport.hpp"
#include "reference/core/errors.hpp"

namespace accel::gloo {
namespace {

namespace transport = ::gloo::transport;

#define GLOO_TRANSPORT "_ZN4gloo9transport3tcp"
#define GLOO_TRANSPORT_CONST "_ZNK4gloo9transport3tcp"
#define MILLISECONDS "NSt6chrono8durationIlSt5ratioILl1ELl1000EEEE"

struct Function {
  std::size_t slot;  // index in the vtable
  const char* name;  // mangled name of the override in Gloo's TCP transport
};

struct Class {
  const char* table;
  std::size_t num_functions;  // includes both destructors; 0: not checked
  std::vector<Function> functions;
};

// In the Itanium C++ ABI a pointer to a virtual member function holds its offset in the vtable plus one.
template <typename Member>
std::size_t slot_of(Member member) {
  std::array<std::uintptr_t, sizeof(Member) / sizeof(std::uintptr_t)> words{};
  std::memcpy(words.data(), &member, sizeof(member));
  return (words[0] - 1) / sizeof(void*);
}

// The mangled names are those of LibTorch 2.11. A renamed or changed function is missing there, and a reordered one is
// in another slot.
std::vector<Class> classes() {
  using transport::Address, transport::Context, transport::Device, transport::Pair, transport::UnboundBuffer;
  using Receive = void (UnboundBuffer::*)(int, std::uint64_t, std::size_t, std::size_t);
  using ReceiveAny = void (UnboundBuffer::*)(std::vector<int>, std::uint64_t, std::size_t, std::size_t);
  return {{"_ZTVN4gloo9transport3tcp13UnboundBufferE",
           12,
           {{slot_of(&UnboundBuffer::waitRecv), GLOO_TRANSPORT "13UnboundBuffer8waitRecvEPi" MILLISECONDS},
            {slot_of(&UnboundBuffer::waitSend), GLOO_TRANSPORT "13UnboundBuffer8waitSendEPi" MILLISECONDS},
            {slot_of(&UnboundBuffer::abortWaitRecv), GLOO_TRANSPORT "13UnboundBuffer13abortWaitRecvEv"},
            {slot_of(&UnboundBuffer::abortWaitSend), GLOO_TRANSPORT "13UnboundBuffer13abortWaitSendEv"},
            {slot_of(&UnboundBuffer::send), GLOO_TRANSPORT "13UnboundBuffer4sendEimmm"},
            {slot_of(static_cast<Receive>(&UnboundBuffer::recv)), GLOO_TRANSPORT "13UnboundBuffer4recvEimmm"},
            {slot_of(static_cast<ReceiveAny>(&UnboundBuffer::recv)),
             GLOO_TRANSPORT "13UnboundBuffer4recvESt6vectorIiSaIiEEmmm"}}},
          {"_ZTVN4gloo9transport3tcp4PairE",
           0,  // tcp::Pair declares further virtual functions
           {{slot_of(&Pair::address), GLOO_TRANSPORT_CONST "4Pair7addressEv"},
            {slot_of(&Pair::connect), GLOO_TRANSPORT "4Pair7connectERKSt6vectorIcSaIcEE"},
            {slot_of(&Pair::close), GLOO_TRANSPORT "4Pair5closeEv"},
            {slot_of(&Pair::setSync), GLOO_TRANSPORT "4Pair7setSyncEbb"},
            {slot_of(&Pair::createSendBuffer), GLOO_TRANSPORT "4Pair16createSendBufferEiPvm"},
            {slot_of(&Pair::createRecvBuffer), GLOO_TRANSPORT "4Pair16createRecvBufferEiPvm"},
            {slot_of(&Pair::isConnected), GLOO_TRANSPORT "4Pair11isConnectedEv"},
            {slot_of(&Pair::send), GLOO_TRANSPORT "4Pair4sendEPNS0_13UnboundBufferEmmm"},
            {slot_of(&Pair::recv), GLOO_TRANSPORT "4Pair4recvEPNS0_13UnboundBufferEmmm"}}},
          {"_ZTVN4gloo9transport3tcp7ContextE",
           7,
           {{slot_of(&Context::getPair), GLOO_TRANSPORT "7Context7getPairEi"},
            {slot_of(&Context::createPair), GLOO_TRANSPORT "7Context10createPairEi"},
            {slot_of(&Context::createAndConnectAllPairs),
             GLOO_TRANSPORT "7Context24createAndConnectAllPairsESt10shared_ptrINS_6IStoreEE"},
            {slot_of(&Context::createUnboundBuffer), GLOO_TRANSPORT "7Context19createUnboundBufferEPvm"}}},
          {"_ZTVN4gloo9transport3tcp6DeviceE",
           7,
           {{slot_of(&Device::str), GLOO_TRANSPORT_CONST "6Device3strB5cxx11Ev"},
            {slot_of(&Device::getPCIBusID), GLOO_TRANSPORT_CONST "6Device11getPCIBusIDB5cxx11Ev"},
            {slot_of(&Device::getInterfaceSpeed), GLOO_TRANSPORT_CONST "6Device17getInterfaceSpeedEv"},
            {slot_of(&Device::createContext), GLOO_TRANSPORT "6Device13createContextEii"}}},
          {"_ZTVN4gloo9transport3tcp7AddressE",
           4,
           {{slot_of(&Address::str), GLOO_TRANSPORT_CONST "7Address3strB5cxx11Ev"},
            {slot_of(&Address::bytes), GLOO_TRANSPORT_CONST "7Address5bytesEv"}}}};
}

// Returns the first difference, or "". C++ cannot take the address of a destructor, so those slots are only counted.
std::string difference_of(const Class& type) {
  constexpr std::size_t kPreamble = 2;  // words before the functions: offset to top, and type information
  // Gloo's classes are exported by libtorch_cpu, so the check needs no headers: it looks symbols up in the loaded
  // library.
  auto* const* const table = static_cast<void* const*>(dlsym(RTLD_DEFAULT, type.table));
  if (table == nullptr) return fmt::format("no {}", type.table);
  Dl_info info{};
  const ElfW(Sym)* symbol = nullptr;
  if (dladdr1(table, &info, reinterpret_cast<void**>(const_cast<ElfW(Sym)**>(&symbol)), RTLD_DL_SYMENT) == 0 ||
      symbol == nullptr) {
    return fmt::format("{} has no size", type.table);
  }
  const auto num_functions = symbol->st_size / sizeof(void*) - kPreamble;
  if (type.num_functions != 0 && num_functions != type.num_functions) {
    return fmt::format("{} has {} functions, expected {}", type.table, num_functions, type.num_functions);
  }
  for (const auto& [slot, name] : type.functions) {
    if (slot >= num_functions || table[kPreamble + slot] != dlsym(RTLD_DEFAULT, name))
      return fmt::format("{} is not function {} of {}", name, slot, type.table);
  }
  return "";
}

// A Context that can be constructed: the base class is abstract.
class ProbeContext : public transport::Context {
 public:
  using Context::Context, Context::pairs_;
  std::unique_ptr<transport::Pair>& createPair(int peer) override { return getPair(peer); }
  std::unique_ptr<transport::UnboundBuffer> createUnboundBuffer(void*, std::size_t) override { return nullptr; }
};

// LibTorch's constructor must write up to the end of the class and not beyond, and its members must be where this unit
// expects them. The memory is twice as large as the class, so a larger Context of another version does no damage.
std::string difference_of_context() {
  constexpr std::byte kUntouched{0xa5};
  constexpr int kRank = 3, kSize = 5;
  alignas(ProbeContext) std::array<std::byte, 2 * sizeof(ProbeContext)> memory{};
  memory.fill(kUntouched);
  auto* const context = new (memory.data()) ProbeContext(kRank, kSize);
  std::size_t end = memory.size();
  while (end > 0 && memory[end - 1] == kUntouched) --end;
  const bool is_same = end == sizeof(transport::Context) && context->rank == kRank && context->size == kSize &&
                       context->pairs_.size() == kSize &&
                       &context->transport::Context::getPair(4) == &context->pairs_[4];
  context->~ProbeContext();
  return is_same ? ""
                 : fmt::format("transport::Context has {} bytes or other members, expected {} bytes", end,
                               sizeof(transport::Context));
}

}  // namespace

void check_layout() {
  std::string difference = difference_of_context();
  for (const auto& type : classes()) {
    if (difference.empty()) difference = difference_of(type);
  }
  if (difference.empty()) return;
  throw CommError(fmt::format(
      "the shared memory transport supports the Gloo of LibTorch 2.11, and another version is loaded: {}", difference));
}

}  // namespace accel::gloo
