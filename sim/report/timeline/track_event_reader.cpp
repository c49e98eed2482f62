#include <fmt/format.h>

#include <map>
#include <protozero/pbf_message.hpp>
#include <utility>
#include <vector>

#include "reference/core/errors.hpp"
#include "sim/report/timeline/trace_reader.hpp"
#include "sim/report/timeline/track_event_fields.hpp"

namespace accel::sim::report {
namespace {

using protozero::pbf_message;

// A field by its number and its type on the wire, so that one of another type is unknown.
template <typename Field>
constexpr std::uint32_t value_of(Field field) {
  return protozero::tag_and_type(field, protozero::pbf_wire_type::varint);
}
template <typename Field>
constexpr std::uint32_t bytes_of(Field field) {
  return protozero::tag_and_type(field, protozero::pbf_wire_type::length_delimited);
}

struct TrackEvent {
  int type = 0;
  std::uint64_t track = 0;
  TraceSlice slice;  // of a kSliceBegin, without its times
};

class TrackEventReader {
 public:
  explicit TrackEventReader(const TakeSlice& take) : take_(take) {}

  void read(std::string_view bytes) {
    pbf_message<TraceField> trace(bytes.data(), bytes.size());
    while (trace.next(TraceField::kPacket, protozero::pbf_wire_type::length_delimited)) read_packet(trace.get_view());
    for (const auto& [uuid, track] : tracks_) {
      if (!track.open.empty()) throw Error(fmt::format("'{}' does not end", track.open.back().name));
    }
  }

 private:
  struct OpenTrack {
    std::string process, name;
    std::vector<TraceSlice> open;  // each lies within the one before
  };

  // The names of a packet are known before its event is read.
  void read_packet(const protozero::data_view& bytes) {
    std::uint64_t time = 0;
    protozero::data_view event;
    pbf_message<PacketField> packet(bytes);
    while (packet.next()) {
      switch (packet.tag_and_type()) {
        case value_of(PacketField::kTimestamp): time = packet.get_uint64(); break;
        case bytes_of(PacketField::kTrackEvent): event = packet.get_view(); break;
        case bytes_of(PacketField::kInternedData): read_names(packet.get_view()); break;
        case bytes_of(PacketField::kTrackDescriptor): read_descriptor(packet.get_view()); break;
        default: packet.skip();
      }
    }
    if (!event.empty()) place(read_event(event), static_cast<double>(time) * 1e-9);
  }

  void read_names(const protozero::data_view& bytes) {
    pbf_message<InternedField> data(bytes);
    while (data.next()) {
      if (data.wire_type() != protozero::pbf_wire_type::length_delimited) {
        data.skip();
        continue;
      }
      const auto field = data.tag();
      pbf_message<NameField> added(data.get_view());
      std::uint64_t iid = 0;
      std::string name;
      while (added.next()) {
        switch (added.tag_and_type()) {
          case value_of(NameField::kIid): iid = added.get_uint64(); break;
          case bytes_of(NameField::kName): name = added.get_string(); break;
          default: added.skip();
        }
      }
      names_[{field, iid}] = name;
    }
  }

  void read_descriptor(const protozero::data_view& bytes) {
    std::uint64_t uuid = 0;
    protozero::data_view process, thread;
    pbf_message<DescriptorField> descriptor(bytes);
    while (descriptor.next()) {
      switch (descriptor.tag_and_type()) {
        case value_of(DescriptorField::kUuid): uuid = descriptor.get_uint64(); break;
        case bytes_of(DescriptorField::kProcess): process = descriptor.get_view(); break;
        case bytes_of(DescriptorField::kThread): thread = descriptor.get_view(); break;
        default: descriptor.skip();
      }
    }
    if (!process.empty()) read_process(process);
    if (!thread.empty()) tracks_[uuid] = track_of(thread);
  }

  void read_process(const protozero::data_view& bytes) {
    std::int32_t pid = 0;
    std::string name;
    pbf_message<ProcessField> process(bytes);
    while (process.next()) {
      switch (process.tag_and_type()) {
        case value_of(ProcessField::kPid): pid = process.get_int32(); break;
        case bytes_of(ProcessField::kProcessName): name = process.get_string(); break;
        default: process.skip();
      }
    }
    processes_[pid] = name;
  }

  OpenTrack track_of(const protozero::data_view& bytes) {
    OpenTrack track;
    pbf_message<ThreadField> thread(bytes);
    while (thread.next()) {
      switch (thread.tag_and_type()) {
        case value_of(ThreadField::kPid): track.process = processes_.at(thread.get_int32()); break;
        case bytes_of(ThreadField::kThreadName): track.name = thread.get_string(); break;
        default: thread.skip();
      }
    }
    return track;
  }

  TrackEvent read_event(const protozero::data_view& bytes) {
    TrackEvent read;
    pbf_message<EventField> event(bytes);
    while (event.next()) {
      switch (event.tag_and_type()) {
        case value_of(EventField::kType): read.type = event.get_enum(); break;
        case value_of(EventField::kTrackUuid): read.track = event.get_uint64(); break;
        case value_of(EventField::kNameIid):
          read.slice.name = name_of(InternedField::kEventNames, event.get_uint64());
          break;
        case value_of(EventField::kCategoryIids):
          read.slice.category = name_of(InternedField::kEventCategories, event.get_uint64());
          break;
        case bytes_of(EventField::kDebugAnnotations): annotate(read.slice, event.get_view()); break;
        default: event.skip();
      }
    }
    return read;
  }

  void annotate(TraceSlice& slice, const protozero::data_view& bytes) {
    std::string name, text;
    std::int64_t number = 0;
    pbf_message<AnnotationField> annotation(bytes);
    while (annotation.next()) {
      switch (annotation.tag_and_type()) {
        case value_of(AnnotationField::kNameIid):
          name = name_of(InternedField::kDebugAnnotationNames, annotation.get_uint64());
          break;
        case value_of(AnnotationField::kIntValue): number = annotation.get_int64(); break;
        case bytes_of(AnnotationField::kStringValue): text = annotation.get_string(); break;
        default: annotation.skip();
      }
    }
    if (name == "call") slice.call = text;
    if (name == "bytes") slice.bytes = number;
  }

  void place(TrackEvent event, double time) {
    auto& track = tracks_.at(event.track);
    if (event.type == kSliceBegin) {
      event.slice.begin = time;
      event.slice.process = track.process;
      event.slice.track = track.name;
      track.open.push_back(std::move(event.slice));
    } else if (event.type == kSliceEnd) {
      if (track.open.empty()) throw Error("a slice ends that never began");
      auto slice = std::move(track.open.back());
      track.open.pop_back();
      slice.end = time;
      take_(slice);
    }
  }

  [[nodiscard]] std::string name_of(InternedField field, std::uint64_t iid) const { return names_.at({field, iid}); }

  const TakeSlice& take_;
  std::map<std::int32_t, std::string> processes_;
  std::map<std::uint64_t, OpenTrack> tracks_;
  std::map<std::pair<InternedField, std::uint64_t>, std::string> names_;
};

}  // namespace

void read_track_events(std::string_view bytes, const TakeSlice& take) { TrackEventReader(take).read(bytes); }

}  // namespace accel::sim::report
