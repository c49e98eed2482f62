#include <fmt/format.h>

#include <map>
#include <nlohmann/json.hpp>
#include <ostream>
#include <protozero/pbf_builder.hpp>
#include <unordered_map>
#include <utility>

#include "sim/report/timeline/trace_writer.hpp"
#include "sim/report/timeline/track_event_fields.hpp"

namespace accel::sim::report {
namespace {

using protozero::pbf_builder;

constexpr std::uint32_t kSequence = 1;

// Invalid UTF-8 (names are chosen by programs) is replaced as in JSON.
std::string valid_utf8(const std::string& text) {
  return nlohmann::json::parse(nlohmann::json(text).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace));
}

class TrackEventWriter final : public TraceWriter {
 public:
  explicit TrackEventWriter(std::ostream& out);
  void process(const std::string& name) override;
  void track(const std::string& name, const std::vector<Slice>& slices, const Track& track,
             const std::vector<Mark>& marks) override;
  void finish() override { flush(); }

 private:
  std::uint64_t interned(InternedField field, const std::string& name);
  void begin(const Slice& slice, Nanoseconds time);
  void mark(const Mark& mark);
  void annotations(pbf_builder<EventField>& event, const Slice& slice);
  template <typename AddContent>
  void descriptor(const AddContent& add_content);
  template <typename AddContent>
  void event(int type, Nanoseconds time, const AddContent& add_content);
  void flush();

  std::ostream& out_;
  std::string bytes_, new_names_;  // new_names_: InternedData that no packet holds yet
  std::map<InternedField, std::unordered_map<std::string, std::uint64_t>> names_;
  int process_ = 0, track_ = kTracksBefore;
  std::uint64_t uuid_ = 0;  // of the track that was described last
};

// The first packet tells readers that no interned names precede it.
TrackEventWriter::TrackEventWriter(std::ostream& out) : out_(out) {
  pbf_builder<TraceField> trace(bytes_);
  pbf_builder<PacketField> packet(trace, TraceField::kPacket);
  packet.add_uint32(PacketField::kTrustedPacketSequenceId, kSequence);
  packet.add_uint32(PacketField::kSequenceFlags, kIncrementalStateCleared);
}

void TrackEventWriter::process(const std::string& name) {
  ++process_;
  descriptor([&](auto& track) {
    pbf_builder<ProcessField> process(track, DescriptorField::kProcess);
    process.add_int32(ProcessField::kPid, process_);
    process.add_int32(ProcessField::kLegacySortIndex, process_);
    process.add_string(ProcessField::kProcessName, name);
  });
}

void TrackEventWriter::track(const std::string& name, const std::vector<Slice>& slices, const Track& track,
                             const std::vector<Mark>& marks) {
  ++track_;
  descriptor([&](auto& descriptor) {
    pbf_builder<ThreadField> thread(descriptor, DescriptorField::kThread);
    thread.add_int32(ThreadField::kPid, process_);
    thread.add_int32(ThreadField::kTid, track_);
    thread.add_int32(ThreadField::kLegacySortIndex, track_);
    thread.add_string(ThreadField::kThreadName, name);
  });
  for (const auto& [kind, index, time] : plan_events(slices, track, marks)) {
    switch (kind) {
      case TrackEventKind::kBegin: begin(slices[index], time); break;
      case TrackEventKind::kEnd: event(kSliceEnd, time, [](auto&) {}); break;
      case TrackEventKind::kMark: mark(marks[index]); break;
    }
  }
}

std::uint64_t TrackEventWriter::interned(InternedField field, const std::string& name) {
  auto& names = names_[field];
  const auto [entry, is_new] = names.try_emplace(name, names.size() + 1);  // 0 is not a number of a name
  if (is_new) {
    pbf_builder<InternedField> data(new_names_);
    pbf_builder<NameField> added(data, field);
    added.add_uint64(NameField::kIid, entry->second);
    added.add_string(NameField::kName, valid_utf8(name));
  }
  return entry->second;
}

void TrackEventWriter::begin(const Slice& slice, Nanoseconds time) {
  event(kSliceBegin, time, [&](auto& event) {
    if (const auto* category = category_of(slice.kind))
      event.add_uint64(EventField::kCategoryIids, interned(InternedField::kEventCategories, category));
    event.add_uint64(EventField::kNameIid, interned(InternedField::kEventNames, slice.name));
    annotations(event, slice);
  });
}

void TrackEventWriter::annotations(pbf_builder<EventField>& event, const Slice& slice) {
  const auto annotate = [&](const char* name, const auto& add_value) {
    pbf_builder<AnnotationField> annotation(event, EventField::kDebugAnnotations);
    annotation.add_uint64(AnnotationField::kNameIid, interned(InternedField::kDebugAnnotationNames, name));
    add_value(annotation);
  };
  const auto annotate_number = [&](const char* name, std::int64_t value) {
    annotate(name, [&](auto& annotation) { annotation.add_int64(AnnotationField::kIntValue, value); });
  };
  if (slice.sequence >= 0) {
    annotate("call", [&](auto& annotation) {
      annotation.add_string(AnnotationField::kStringValue,
                            fmt::format("{} #{}", valid_utf8(slice.group), slice.sequence));
    });
  }
  if (slice.bytes != 0) annotate_number("bytes", slice.bytes);
  if (slice.released_by >= 0) annotate_number(kLate, slice.released_by);
}

// A flow leads from one event to another, so each end of an arrow is an instant. The begins of the two slices would not
// do: a wait for a late rank often begins before what the late rank did last, and Perfetto orders flows by time.
void TrackEventWriter::mark(const Mark& mark) {
  event(kInstant, mark.time, [&](auto& event) {
    event.add_uint64(EventField::kNameIid, interned(InternedField::kEventNames, kLate));
    const auto id = static_cast<std::uint64_t>(mark.id) + 1;  // 0 means no flow
    event.add_fixed64(mark.is_tail ? EventField::kFlowIds : EventField::kTerminatingFlowIds, id);
  });
}

template <typename AddContent>
void TrackEventWriter::descriptor(const AddContent& add_content) {
  ++uuid_;
  pbf_builder<TraceField> trace(bytes_);
  pbf_builder<PacketField> packet(trace, TraceField::kPacket);
  packet.add_uint32(PacketField::kTrustedPacketSequenceId, kSequence);
  pbf_builder<DescriptorField> track(packet, PacketField::kTrackDescriptor);
  track.add_uint64(DescriptorField::kUuid, uuid_);
  add_content(track);
}

// The clock of a packet without a clock's number is the trace's main clock, in nanoseconds.
template <typename AddContent>
void TrackEventWriter::event(int type, Nanoseconds time, const AddContent& add_content) {
  if (bytes_.size() > kFlushBytes) flush();
  pbf_builder<TraceField> trace(bytes_);
  pbf_builder<PacketField> packet(trace, TraceField::kPacket);
  packet.add_uint64(PacketField::kTimestamp, static_cast<std::uint64_t>(time));
  packet.add_uint32(PacketField::kTrustedPacketSequenceId, kSequence);
  packet.add_uint32(PacketField::kSequenceFlags, kNeedsIncrementalState);
  {
    pbf_builder<EventField> event(packet, PacketField::kTrackEvent);
    event.add_enum(EventField::kType, type);
    event.add_uint64(EventField::kTrackUuid, uuid_);
    add_content(event);
  }
  if (!new_names_.empty()) packet.add_message(PacketField::kInternedData, std::exchange(new_names_, {}));
}

void TrackEventWriter::flush() {
  out_ << bytes_;
  bytes_.clear();
}

}  // namespace

std::unique_ptr<TraceWriter> make_track_event_writer(std::ostream& out) {
  return std::make_unique<TrackEventWriter>(out);
}

}  // namespace accel::sim::report
