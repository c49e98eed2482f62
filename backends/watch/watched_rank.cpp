#include "backends/watch/watched_rank.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <fstream>
#include <sstream>

#include "backends/watch/rank_watch.hpp"
#include "reference/core/errors.hpp"
#include "reference/core/system/print_warning.hpp"
#include "reference/diagnosis/diagnosis.hpp"
#include "reference/recorder/ending.hpp"

namespace accel::recorder {
namespace {

// Null if the launcher passed none, or one for another job, as to a program that a rank starts.
std::shared_ptr<JobRecord> record_of_launcher(const LaunchEnvironment& launch) {
  if (!environment(kRecordVariable)) return nullptr;
  const auto descriptor = environment_int({kRecordVariable});
  try {
    auto record = JobRecord::attach(*descriptor);
    return record->world_size() == launch.world_size && record->is_local(launch.rank) ? record : nullptr;
  } catch (const ConfigError&) {
    return nullptr;
  }
}

std::shared_ptr<JobRecord> created(const LaunchEnvironment& launch) {
  try {
    return JobRecord::create({.world_size = launch.world_size,
                              .first_rank = launch.rank - launch.local_rank,
                              .num_local = launch.local_world_size});
  } catch (const ConfigError& error) {
    print_warning(fmt::format("calls are not compared: {}", error.what()));
    return nullptr;
  }
}

// Null if it is out of reach, as for a rank of another user.
std::shared_ptr<JobRecord> opened(const std::string& path) {
  const int descriptor = open(path.c_str(), O_RDWR | O_CLOEXEC);
  if (descriptor < 0) return nullptr;
  try {
    return JobRecord::attach(descriptor);
  } catch (const ConfigError&) {
    close(descriptor);
    return nullptr;
  }
}

// Whether the ranks of this host are consecutive, as a record needs them: `srun --distribution=cyclic` deals them out.
// The first and the last one show it.
bool are_consecutive(const LaunchEnvironment& launch, JobStore& store) {
  const auto key = [](int rank) { return fmt::format("place/{}", rank); };
  const auto place = [host = host_name()](int local_rank) { return fmt::format("{} {}", host, local_rank); };
  store.set(key(launch.rank), place(launch.local_rank));
  const int first = launch.rank - launch.local_rank, last = first + launch.local_world_size - 1;
  return first >= 0 && last < launch.world_size && store.get(key(first)) == place(0) &&
         store.get(key(last)) == place(launch.local_world_size - 1);
}

// The first rank of a host says where its record is, also if it has none, so that the others never wait in vain.
std::shared_ptr<JobRecord> agreed_record(const LaunchEnvironment& launch, JobStore& store) {
  const bool is_off = environment(kRecordVariable) == kNoRecord;
  auto record = is_off ? nullptr : record_of_launcher(launch);
  if (!are_consecutive(launch, store)) {
    if (launch.local_rank == 0 && !is_off)
      print_warning("calls are not compared: the ranks of this machine are not consecutive, as with cyclic placement");
    return nullptr;
  }
  // Several launchers of one machine have a record each.
  const auto key = fmt::format("record/{}/{}", host_name(), launch.rank - launch.local_rank);
  if (launch.local_rank == 0) {
    if (!record && !is_off) record = created(launch);
    store.set(key, record ? fmt::format("/proc/{}/fd/{}", getpid(), record->descriptor()) : "");
    return record;
  }
  if (record || is_off) return record;
  const auto path = store.get(key);
  return path.empty() ? nullptr : opened(path);
}

}  // namespace

// Processes of one kernel and one namespace of process numbers see each other below /proc. A separate network
// namespace is a separate host.
std::string host_name() {
  std::string name;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> name;
  for (const auto* const kind : {"/proc/self/ns/pid", "/proc/self/ns/net"}) {
    std::array<char, 64> name_space{};
    (void)!readlink(kind, name_space.data(), name_space.size() - 1);
    name += name_space.data();
  }
  return name;
}

LaunchEnvironment with_local_place(LaunchEnvironment launch, JobStore& store) {
  if (launch.has_local_place) return launch;
  const auto key = [](int rank) { return fmt::format("host/{}", rank); };
  const auto own = host_name();
  store.set(key(launch.rank), own);
  launch.local_rank = launch.local_world_size = 0;
  for (int rank = 0; rank < launch.world_size; ++rank) {
    if (store.get(key(rank)) != own) continue;
    if (rank < launch.rank) ++launch.local_rank;
    ++launch.local_world_size;
  }
  launch.has_local_place = true;
  return launch;
}

std::shared_ptr<RankRecorder> make_recorder(const LaunchEnvironment& launch, JobStore& store) {
  if (launch.world_size == 1) return nullptr;
  auto record = agreed_record(launch, store);
  const bool has_place = record && record->world_size() == launch.world_size && record->is_local(launch.rank);
  return has_place ? std::make_shared<RankRecorder>(std::move(record), launch.rank) : nullptr;
}

std::shared_ptr<RankRecorder> recorder_of_launcher(const LaunchEnvironment& launch) {
  auto record = environment(kRecordVariable) == kNoRecord ? nullptr : record_of_launcher(launch);
  return record ? std::make_shared<RankRecorder>(std::move(record), launch.rank) : nullptr;
}

namespace {

// `watch`: null: none.
RecordEnd record_end(std::shared_ptr<RankRecorder> recorder, std::shared_ptr<RankWatch> watch) {
  return [recorder = std::move(recorder), watch = std::move(watch)](const std::exception* error) {
    const bool is_diagnosed = dynamic_cast<const DiagnosedError*>(error) != nullptr;
    const bool is_consequence = is_diagnosed || (error != nullptr && recorder->has_failed());
    const auto end = error == nullptr ? RankEnd::kLeft : is_consequence ? RankEnd::kConsequence : RankEnd::kFailed;
    recorder->set_end(end, error == nullptr ? "" : error->what());
    if (!watch) return is_consequence;
    if (error == nullptr)
      watch->finish();
    else
      watch->fail(error->what(), !is_consequence);
    return is_diagnosed && !claim_to_print_ending(*recorder->record());
  };
}

}  // namespace

RecordEnd record_end(std::shared_ptr<RankRecorder> recorder) { return record_end(std::move(recorder), nullptr); }

RecordEnd watch_until_end(std::shared_ptr<RankRecorder> recorder, const JobStore& store) {
  const auto& record = recorder->record();
  std::shared_ptr<RankWatch> watch;
  if (!record->is_watched()) watch = std::make_shared<RankWatch>(watch_options(), record, recorder->rank(), store);
  return record_end(std::move(recorder), std::move(watch));
}

}  // namespace accel::recorder
