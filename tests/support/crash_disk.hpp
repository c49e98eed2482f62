#pragma once

#include <cerrno>
#include <limits>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "reference/core/files.hpp"

/// A disk that loses power: what a machine may find after a crash, by what POSIX promises and no more. Of a file, the
/// bytes up to its last sync are there and any number of those after it; of a folder's names, those up to its last sync
/// and any of the changes after it, each on its own.
///
///     CrashDisk disk(/*operations_left=*/7);
///     try { save(disk); } catch (const PowerLost&) {}
///     const auto found = disk.after_power_loss([](std::size_t end) { return any number of 0..end; });
///
/// Folders are but names here: all files are in one.
namespace accel::testing {

class PowerLost : public Error {
 public:
  using Error::Error;
};

class CrashDisk final : public Files {
 public:
  /// Power fails in place of the operation after so many.
  explicit CrashDisk(std::size_t operations_left = std::numeric_limits<std::size_t>::max()) : operations_left_(operations_left) {}

  std::unique_ptr<WritableFile> create(const std::string& path) override {
    spend();
    auto content = std::make_shared<Content>();
    change({{path, content}});
    return std::make_unique<File>(*this, content);
  }
  std::string read(const std::string& path) override { return at(path)->bytes; }
  void rename(const std::string& from, const std::string& to) override {
    spend();
    change({{from, nullptr}, {to, at(from)}});
  }
  void remove(const std::string& path) override {
    spend();
    at(path);
    change({{path, nullptr}});
  }
  void make_folder(const std::string&) override { spend(); }
  void sync_folder(const std::string&) override {
    spend();
    synced_ = names_;
    changes_.clear();
  }

  [[nodiscard]] std::size_t num_operations() const { return num_operations_; }
  /// What a process that lives finds.
  [[nodiscard]] std::map<std::string, std::string> content() const {
    std::map<std::string, std::string> content;
    for (const auto& [name, file] : names_) content[name] = file->bytes;
    return content;
  }
  /// What the disk holds when the power is back; `choose(n)` is a number of 0..n.
  template <typename Choose>
  [[nodiscard]] std::map<std::string, std::string> after_power_loss(Choose&& choose) const {
    auto names = synced_;
    for (const auto& change : changes_) {
      if (choose(1) == 1) apply(change, names);
    }
    std::map<std::string, std::string> found;
    for (const auto& [name, content] : names) {
      found[name] = content->bytes.substr(0, content->synced + choose(content->bytes.size() - content->synced));
    }
    return found;
  }

 private:
  struct Content {
    std::string bytes;
    std::size_t synced = 0;
  };
  using Names = std::map<std::string, std::shared_ptr<Content>>;

  class File final : public WritableFile {
   public:
    File(CrashDisk& disk, std::shared_ptr<Content> content) : disk_(disk), content_(std::move(content)) {}
    void append(std::string_view bytes) override {
      disk_.spend();
      content_->bytes += bytes;
    }
    void sync() override {
      disk_.spend();
      content_->synced = content_->bytes.size();
    }
    void close() override { disk_.spend(); }

   private:
    CrashDisk& disk_;
    std::shared_ptr<Content> content_;
  };

  void spend() {
    if (num_operations_ == operations_left_) throw PowerLost("the power is gone");
    ++num_operations_;
  }
  std::shared_ptr<Content> at(const std::string& path) const {
    if (!names_.contains(path)) throw FileError(path, "found", ENOENT);
    return names_.at(path);
  }
  static void apply(const Names& change, Names& names) {
    for (const auto& [name, content] : change) {
      if (content) names[name] = content;
      else names.erase(name);
    }
  }
  void change(Names change) {
    apply(change, names_);
    changes_.push_back(std::move(change));
  }

  std::size_t operations_left_, num_operations_ = 0;
  Names names_, synced_;
  std::vector<Names> changes_;  // since the folder was synced
};

}  // namespace accel::testing
