#include "reference/diagnosis/diagnosis.hpp"

namespace accel {

void name_call(Diagnosis& diagnosis, const Call& call, const std::string& group, std::uint64_t sequence) {
  diagnosis.op = std::string(name_of(call.op));
  diagnosis.group = group;
  diagnosis.sequence = sequence;
  diagnosis.shapes = call.shapes;
  diagnosis.where = describe(call.where);
}

}  // namespace accel
