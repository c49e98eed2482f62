#pragma once

#include <cstdint>
#include <protozero/types.hpp>

/// What track_event_writer.cpp and track_event_reader.cpp use of Perfetto's trace: a sequence of packets, each with a
/// descriptor of a track or an event on one. The enumerations of fields are those of perfetto/protos/perfetto/trace:
/// trace.proto, trace_packet.proto, interned_data.proto and track_event/*.proto. Equal names are written once and
/// referred to by number ("interned").
namespace accel::sim::report {

using Tag = protozero::pbf_tag_type;
enum class TraceField : Tag { kPacket = 1 };
enum class PacketField : Tag {
  kTimestamp = 8,
  kTrustedPacketSequenceId = 10,
  kTrackEvent = 11,
  kInternedData = 12,
  kSequenceFlags = 13,
  kTrackDescriptor = 60
};
enum class DescriptorField : Tag { kUuid = 1, kProcess = 3, kThread = 4 };
enum class ProcessField : Tag { kPid = 1, kLegacySortIndex = 3, kProcessName = 6 };
enum class ThreadField : Tag { kPid = 1, kTid = 2, kLegacySortIndex = 3, kThreadName = 5 };
enum class EventField : Tag {
  kCategoryIids = 3,
  kDebugAnnotations = 4,
  kType = 9,
  kNameIid = 10,
  kTrackUuid = 11,
  kFlowIds = 47,
  kTerminatingFlowIds = 48
};
enum class AnnotationField : Tag { kNameIid = 1, kIntValue = 4, kStringValue = 6 };
enum class InternedField : Tag { kEventCategories = 1, kEventNames = 2, kDebugAnnotationNames = 3 };
enum class NameField : Tag { kIid = 1, kName = 2 };  // equal in EventCategory, EventName and DebugAnnotationName

constexpr int kSliceBegin = 1, kSliceEnd = 2, kInstant = 3;                        // TrackEvent.Type
constexpr std::uint32_t kIncrementalStateCleared = 1, kNeedsIncrementalState = 2;  // TracePacket.SequenceFlags

}  // namespace accel::sim::report
