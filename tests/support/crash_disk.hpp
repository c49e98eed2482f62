#pragma once

#include <cerrno>
#include <filesystem>
#include <fstream>
#include <limits>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "reference/files/files.hpp"
#include "tests/support/temporary_folder.hpp"

/// A simulated disk that loses power: what a machine may find after a crash, according to what POSIX promises. Of a
/// file it finds the bytes up to the last sync and any number of the bytes after it; of a folder, the names up to
/// its last sync and any subset of the changes after it.
///
/// Example: `CrashDisk disk(/*operations_left=*/7); try { save(disk); } catch (const PowerLost&) {}`, then
/// `disk.after_power_loss(choose)`, where `choose(end)` returns any number in [0, end]. A CrashDisk of that is the disk
/// of the next process. With `Failure::kError` one operation, which may also be a read, reports EIO instead, and
/// later ones succeed.
namespace accel::testing {

class PowerLost : public Error {
 public:
  using Error::Error;
};

enum class Failure { kPowerLoss, kError };

class CrashDisk final : public Files {
 public:
  static constexpr std::size_t kNever = std::numeric_limits<std::size_t>::max();
  using Content = std::map<std::string, std::string>;  // of files, by path

  /// The operation after this many fails.
  explicit CrashDisk(std::size_t operations_left = kNever, Failure failure = Failure::kPowerLoss)
      : operations_left_(operations_left), failure_(failure) {}
  /// A disk that holds `content` safely.
  explicit CrashDisk(const Content& content, std::size_t operations_left = kNever,
                     Failure failure = Failure::kPowerLoss)
      : failure_(failure) {
    for (const auto& [path, bytes] : content) {
      make_folder(std::filesystem::path(path).parent_path().string());
      const auto file = create(path);
      file->append(bytes);
      file->sync();
    }
    sync_all(*root_);
    num_operations_ = 0;
    operations_left_ = operations_left;
  }

  std::unique_ptr<WritableFile> create(const std::string& path) override {
    spend(path);
    auto file = std::make_shared<Node>();
    folder_of(path).change({{name_of(path), file}});
    return std::make_unique<File>(*this, path, file);
  }
  std::string read(const std::string& path) override {
    spend_read(path);
    return at(path)->bytes;
  }
  std::vector<std::string> list(const std::string& path) override {
    spend_read(path);
    std::vector<std::string> names;
    if (const auto folder = find(path)) {
      for (const auto& [name, node] : folder->names) names.push_back(name + (node->is_folder ? "/" : ""));
    }
    return names;
  }
  void rename(const std::string& from, const std::string& to) override {
    spend(from);
    const auto node = at(from);
    if (node->is_folder && find(to) && !find(to)->names.empty()) throw FileError(from, "renamed to " + to, ENOTEMPTY);
    auto &above = folder_of(from), &below = folder_of(to);
    if (&above == &below) return above.change({{name_of(from), nullptr}, {name_of(to), node}});
    above.change({{name_of(from), nullptr}});
    below.change({{name_of(to), node}});
  }
  void sync_file(const std::string& path) override {
    spend(path);
    at(path)->synced = at(path)->bytes.size();
  }
  void remove(const std::string& path) override {
    spend(path);
    if (!at(path)->names.empty()) throw FileError(path, "removed", ENOTEMPTY);
    folder_of(path).change({{name_of(path), nullptr}});
  }
  void make_folder(const std::string& path) override {
    spend(path);
    auto* folder = root_.get();
    for (const auto& name : parts(path)) {
      if (!folder->names.contains(name)) {
        auto made = std::make_shared<Node>();
        made->is_folder = true;
        folder->change({{name, made}});
      }
      folder = folder->names.at(name).get();
    }
  }
  void sync_folder(const std::string& path) override {
    spend(path);
    auto& folder = *at(path);
    folder.synced_names = folder.names;
    folder.changes.clear();
  }

  [[nodiscard]] std::size_t num_operations() const { return num_operations_; }
  /// Returns the files that a running process finds, by path.
  [[nodiscard]] Content content() const {
    Content content;
    collect(
        *root_, "", content, [](const Node& folder) { return folder.names; },
        [](const Node& file) { return file.bytes; });
    return content;
  }
  /// Returns what the disk holds once power is back. `choose(n)` returns a number in [0, n].
  template <typename Choose>
  [[nodiscard]] Content after_power_loss(Choose&& choose) const {
    Content found;
    const auto names = [&](const Node& folder) {
      auto names = folder.synced_names;
      for (const auto& change : folder.changes) {
        if (choose(1) == 1) apply(change, names);
      }
      return names;
    };
    collect(*root_, "", found, names, [&](const Node& file) {
      return file.bytes.substr(0, file.synced + choose(file.bytes.size() - file.synced));
    });
    return found;
  }

 private:
  struct Node;
  using Names = std::map<std::string, std::shared_ptr<Node>>;
  struct Node {
    bool is_folder = false;
    std::string bytes;
    std::size_t synced = 0;
    Names names, synced_names;
    std::vector<Names> changes;  // since the folder was synced

    void change(Names change) {
      apply(change, names);
      changes.push_back(std::move(change));
    }
  };

  class File final : public WritableFile {
   public:
    File(CrashDisk& disk, std::string path, std::shared_ptr<Node> node)
        : disk_(disk), path_(std::move(path)), node_(std::move(node)) {}
    void append(std::string_view bytes) override {
      disk_.spend(path_);
      node_->bytes += bytes;
    }
    void sync() override {
      disk_.spend(path_);
      node_->synced = node_->bytes.size();
    }
    void close() override { disk_.spend(path_); }

   private:
    CrashDisk& disk_;
    std::string path_;
    std::shared_ptr<Node> node_;
  };

  static std::vector<std::string> parts(const std::string& path) {
    std::vector<std::string> parts;
    for (const auto& part : std::filesystem::path(path).lexically_normal()) {
      if (part != "." && part != "/" && !part.empty()) parts.push_back(part.string());
    }
    return parts;
  }
  static std::string name_of(const std::string& path) { return parts(path).back(); }

  void spend(const std::string& path) {
    const bool fails = num_operations_ == operations_left_;
    if (fails && failure_ == Failure::kPowerLoss) throw PowerLost("power loss");
    ++num_operations_;
    if (fails) throw FileError(path, "used", EIO);
  }
  // A process that dies instead of reading leaves the same disk as one that dies before the next change.
  void spend_read(const std::string& path) {
    if (failure_ == Failure::kError) spend(path);
  }
  static void sync_all(Node& folder) {
    folder.synced_names = folder.names;
    folder.changes.clear();
    for (const auto& [name, node] : folder.names) sync_all(*node);
  }
  [[nodiscard]] std::shared_ptr<Node> find(const std::string& path) const {
    auto node = root_;
    for (const auto& name : parts(path)) {
      if (!node->names.contains(name)) return nullptr;
      node = node->names.at(name);
    }
    return node;
  }
  [[nodiscard]] std::shared_ptr<Node> at(const std::string& path) const {
    auto node = find(path);
    if (!node) throw FileError(path, "found", ENOENT);
    return node;
  }
  [[nodiscard]] Node& folder_of(const std::string& path) const {
    return *at(std::filesystem::path(path).parent_path().string());
  }
  static void apply(const Names& change, Names& names) {
    for (const auto& [name, node] : change) {
      if (node)
        names[name] = node;
      else
        names.erase(name);
    }
  }
  template <typename NamesOf, typename BytesOf>
  static void collect(const Node& folder, const std::string& prefix, std::map<std::string, std::string>& found,
                      const NamesOf& names_of, const BytesOf& bytes_of) {
    for (const auto& [name, node] : names_of(folder)) {
      if (node->is_folder)
        collect(*node, prefix + name + "/", found, names_of, bytes_of);
      else
        found[prefix + name] = bytes_of(*node);
    }
  }

  std::size_t operations_left_ = kNever, num_operations_ = 0;
  Failure failure_;
  std::shared_ptr<Node> root_ = std::make_shared<Node>(Node{.is_folder = true});
};

/// Writes what a disk holds into a real folder.
inline void put(const CrashDisk::Content& disk, const TemporaryFolder& folder) {
  for (const auto& [path, bytes] : disk) {
    std::filesystem::create_directories(std::filesystem::path(folder.path(path)).parent_path());
    std::ofstream(folder.path(path), std::ios::binary) << bytes;
  }
}

}  // namespace accel::testing
