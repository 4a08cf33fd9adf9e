#include "lab/record.h"

#include <fmt/format.h>

#include <utility>

namespace tessera::lab {
namespace {

Status altered(std::string_view what, const std::string& got) {
  return {Code::kBadFile, fmt::format("{}: got {}; allowed is a record as tessera lab wrote it; it was altered: bring "
                                      "back the original, from version control for example",
                                      what, got)};
}

}  // namespace

std::string no_digest() {
  return std::string(64, '0');
}

void append_event(Record* record, Json event, const std::string& previous) {
  event["previous"] = record->events.empty() ? previous : record->head();
  event["digest"] = digest_without(event, "digest");
  record->events.push_back(std::move(event));
}

std::string record_text(const Record& record) {
  return pretty_json({{"schema", kRecordSchema}, {"events", record.events}, {"head", record.head()}});
}

Result<Record> parse_record(std::string_view text, std::string_view what) {
  Result<Json> parsed = parse_json(text, what);
  if (!parsed.ok()) {
    return altered(what, "no JSON (" + parsed.status().text() + ")");
  }
  const Json& root = parsed.value();
  if (!root.is_object() || !root.contains("schema") || root["schema"] != kRecordSchema) {
    return altered(what, fmt::format("no schema {}", kRecordSchema));
  }
  if (!root.contains("events") || !root["events"].is_array() || root["events"].empty() || !root.contains("head")) {
    return altered(what, "no events or no head");
  }
  Record record;
  for (const Json& event : root["events"]) {
    const auto name = [&] { return fmt::format("event {}", record.events.size() + 1); };
    if (!event.is_object() || !event.contains("digest") || !event.contains("previous") || !event.contains("type")) {
      return altered(what, name() + " without digest, previous or type");
    }
    if ((event["type"] == kFirstType) != record.events.empty()) {
      return altered(what, name() + ", where an experiment does not begin or begins again");
    }
    if (event["digest"] != digest_without(event, "digest")) {
      return altered(what, name() + " with a digest that does not fit its content");
    }
    if (!record.events.empty() && event["previous"] != record.events.back()["digest"]) {
      return altered(what, name() + " that does not follow the event before it");
    }
    record.events.push_back(event);
  }
  if (root["head"] != record.events.back()["digest"]) {
    return altered(what, "a head that is not the last event's digest");
  }
  if (record_text(record) != text) {
    return altered(what, "other bytes than those of the canonical form");
  }
  return record;
}

}  // namespace tessera::lab
