// Gloo's transport classes as LibTorch 2.11 was compiled with them: the declarations of
// gloo/transport/{address,buffer,context, device,pair,unbound_buffer}.h in one file, less what only Gloo's own TCP
// uses. Their members and the order of their virtual functions are an ABI; ../layout_check.cpp compares both with the
// library that is loaded.
//
// Copyright (c) 2017-present, Facebook, Inc. All rights reserved. BSD-style license: LICENSE in this folder.
//
// A unit that includes this file cannot include libgloo-dev's headers, which are older and have classes of the same
// names.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>
#include <vector>

namespace gloo {

class IStore;

namespace transport {

class RemoteKey;

[[noreturn]] inline void refuse(const char* what) {
  throw std::runtime_error(std::string(what) + ": not part of this transport");
}

class Address {
 public:
  virtual ~Address() = 0;
  virtual std::string str() const = 0;
  virtual std::vector<char> bytes() const = 0;
};

class Buffer;

constexpr auto kUnsetTimeout = std::chrono::milliseconds(-1);

class UnboundBuffer {
 public:
  UnboundBuffer(void* pointer, std::size_t num_bytes) : ptr(pointer), size(num_bytes) {}
  virtual ~UnboundBuffer() = 0;

  void* const ptr;
  const std::size_t size;

  virtual bool waitRecv(int* rank, std::chrono::milliseconds timeout) = 0;
  virtual bool waitSend(int* rank, std::chrono::milliseconds timeout) = 0;
  virtual void abortWaitRecv() = 0;
  virtual void abortWaitSend() = 0;

  static constexpr auto kUnspecifiedByteCount = std::numeric_limits<std::size_t>::max();

  virtual void send(int dstRank, std::uint64_t slot, std::size_t offset, std::size_t nbytes) = 0;
  virtual void recv(int srcRank, std::uint64_t slot, std::size_t offset, std::size_t nbytes) = 0;
  virtual void recv(std::vector<int> srcRanks, std::uint64_t slot, std::size_t offset, std::size_t nbytes) = 0;

  virtual std::unique_ptr<RemoteKey> getRemoteKey() const { refuse("getRemoteKey"); }
  virtual void put(const RemoteKey&, std::uint64_t, std::size_t, std::size_t, std::size_t) { refuse("put"); }
  virtual void get(const RemoteKey&, std::uint64_t, std::size_t, std::size_t, std::size_t) { refuse("get"); }
};

class Pair {
 public:
  virtual ~Pair() = 0;
  virtual const Address& address() const = 0;
  virtual void connect(const std::vector<char>& bytes) = 0;
  virtual void close() = 0;
  virtual void setSync(bool enable, bool busyPoll) = 0;
  virtual std::unique_ptr<Buffer> createSendBuffer(int slot, void* ptr, std::size_t size) = 0;
  virtual std::unique_ptr<Buffer> createRecvBuffer(int slot, void* ptr, std::size_t size) = 0;
  virtual bool isConnected() = 0;
  virtual void send(UnboundBuffer* buf, std::uint64_t tag, std::size_t offset, std::size_t nbytes) = 0;
  virtual void recv(UnboundBuffer* buf, std::uint64_t tag, std::size_t offset, std::size_t nbytes) = 0;
  virtual void put(UnboundBuffer*, const RemoteKey&, std::uint64_t, std::size_t, std::size_t, std::size_t) {
    refuse("put");
  }
  virtual void get(UnboundBuffer*, const RemoteKey&, std::uint64_t, std::size_t, std::size_t, std::size_t) {
    refuse("get");
  }

 protected:
  int localRank_ = 0;
};

class Buffer {
 public:
  virtual ~Buffer() = 0;
};

class Context {
 public:
  Context(int rank, int size);
  virtual ~Context();

  const int rank;
  const int size;

  virtual std::unique_ptr<Pair>& getPair(int rank);
  virtual std::unique_ptr<Pair>& createPair(int rank) = 0;
  virtual void createAndConnectAllPairs(std::shared_ptr<IStore> store);
  virtual std::unique_ptr<UnboundBuffer> createUnboundBuffer(void* ptr, std::size_t size) = 0;
  virtual std::unique_ptr<RemoteKey> deserializeRemoteKey(const std::string&) { refuse("deserializeRemoteKey"); }

 protected:
  class Tally;
  std::mutex mutex_;
  std::vector<std::unique_ptr<Pair>> pairs_;
  std::chrono::milliseconds timeout_;

 private:
  // Two std::vector<Tally>, which only Gloo's own code touches: three pointers each.
  void* pendingOperations_[3];
  void* expectedNotifications_[3];
};

class Device {
 public:
  virtual ~Device() = 0;
  virtual std::string str() const = 0;
  virtual const std::string& getPCIBusID() const = 0;
  virtual int getInterfaceSpeed() const { return 0; }
  virtual bool hasGPUDirect() const { return false; }
  virtual std::shared_ptr<Context> createContext(int rank, int size) = 0;
};

}  // namespace transport
}  // namespace gloo
