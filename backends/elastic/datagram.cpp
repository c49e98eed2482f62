#include "backends/elastic/datagram.hpp"

#include <array>
#include <cstring>
#include <nlohmann/json.hpp>
#include <utility>

namespace accel::elastic {
namespace {

using Json = nlohmann::json;

Json to_json(const Ballot& ballot) { return {ballot.round, ballot.proposer}; }
Ballot ballot_of(const Json& json) { return {json.at(0), json.at(1)}; }

Json to_json(const View& view) {
  return {view.number, view.members, view.steps, view.source, view.joined, view.outside, view.contacts};
}
View view_of(const Json& json) {
  return {json.at(0), json.at(1), json.at(2), json.at(3), json.at(4), json.at(5), json.at(6)};
}

Json to_json(const Proposal& proposal) { return {to_json(proposal.ballot), to_json(proposal.view)}; }
Proposal proposal_of(const Json& json) { return {ballot_of(json.at(0)), view_of(json.at(1))}; }

// The fields of each kind of message, in their order.
Json fields_of(const Prepare& message) { return {message.view, to_json(message.ballot), message.dead}; }
Json fields_of(const Promise& message) {
  return {message.view, to_json(message.ballot), message.completed,
          message.accepted ? to_json(*message.accepted) : Json()};
}
Json fields_of(const Accept& message) { return {message.view, to_json(message.proposal)}; }
Json fields_of(const Accepted& message) { return {message.view, to_json(message.ballot)}; }
Json fields_of(const Refused& message) { return {message.view, to_json(message.promised)}; }
Json fields_of(const Install& message) { return Json::array({to_json(message.decided)}); }
Json fields_of(const Behind& message) { return Json::array({message.view}); }
Json fields_of(const Entered& message) { return {message.view, message.is_answer}; }
Json fields_of(const Join& message) { return {message.view, message.contact}; }
Json fields_of(const Need& message) { return {message.view, message.dead}; }

void parse(const Json& json, Prepare& to) { to = {json.at(0), ballot_of(json.at(1)), json.at(2)}; }
void parse(const Json& json, Promise& to) {
  to = {json.at(0), ballot_of(json.at(1)), json.at(2)};
  if (!json.at(3).is_null()) to.accepted = proposal_of(json.at(3));
}
void parse(const Json& json, Accept& to) { to = {json.at(0), proposal_of(json.at(1))}; }
void parse(const Json& json, Accepted& to) { to = {json.at(0), ballot_of(json.at(1))}; }
void parse(const Json& json, Refused& to) { to = {json.at(0), ballot_of(json.at(1))}; }
void parse(const Json& json, Install& to) { to = {view_of(json.at(0))}; }
void parse(const Json& json, Behind& to) { to = {json.at(0).get<std::int64_t>()}; }
void parse(const Json& json, Entered& to) { to = {json.at(0), json.at(1)}; }
void parse(const Json& json, Join& to) { to = {json.at(0), json.at(1)}; }
void parse(const Json& json, Need& to) { to = {json.at(0), json.at(1)}; }

template <std::size_t Kind>
Message message_of(const Json& json) {
  std::variant_alternative_t<Kind, Message> message;
  parse(json, message);
  return message;
}

// By the message's index in the variant.
template <std::size_t... Kinds>
Message message_of(std::size_t kind, const Json& json, std::index_sequence<Kinds...> /*kinds*/) {
  static constexpr std::array<Message (*)(const Json&), sizeof...(Kinds)> kReaders{&message_of<Kinds>...};
  return kReaders.at(kind)(json);
}

}  // namespace

std::vector<std::uint8_t> bytes_of(const Datagram& datagram) {
  auto json = Json::array({datagram.from});
  if (const auto* alive = std::get_if<Alive>(&datagram.content)) {
    json.push_back(alive->is_done);
  } else {
    const auto& message = std::get<Message>(datagram.content);
    json.push_back(message.index());
    json.push_back(std::visit([](const auto& known) { return fields_of(known); }, message));
  }
  std::vector<std::uint8_t> bytes(sizeof datagram.job);
  std::memcpy(bytes.data(), &datagram.job, sizeof datagram.job);
  Json::to_cbor(json, bytes);
  return bytes;
}

std::optional<Datagram> datagram_of(std::uint64_t job, std::span<const std::uint8_t> bytes) {
  if (bytes.size() < sizeof job || std::memcmp(bytes.data(), &job, sizeof job) != 0) return std::nullopt;
  bytes = bytes.subspan(sizeof job);
  try {
    const auto json = Json::from_cbor(bytes.begin(), bytes.end());
    Datagram datagram{.job = job, .from = json.at(0)};
    if (json.at(1).is_boolean())
      datagram.content = Alive{json.at(1).get<bool>()};
    else
      datagram.content = message_of(json.at(1).get<std::size_t>(), json.at(2),
                                    std::make_index_sequence<std::variant_size_v<Message>>());
    return datagram;
  } catch (const std::exception&) {
    return std::nullopt;
  }
}

}  // namespace accel::elastic
