// Answers the requests of mixtures.py: mixtures of experts, which the ranks divide.
#include "properties/gen/mixture_values.hpp"
#include "properties/oracle/answers.hpp"

namespace accel::testing {

OrderedJson mixture_answer(RankContext& rank, const std::string& request) {
  return mixture_values(rank, Json::parse(request));
}

}  // namespace accel::testing
