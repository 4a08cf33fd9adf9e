// A record: the events of one experiment, each chained to the one before it by SHA-256.
//
// On disk it is pretty_json of {"schema", "events", "head"}. An event's "digest" is the SHA-256 of compact_json of the
// event without "digest"; its "previous" is the digest of the event before it; "head" is the last digest. The first
// event's "previous" is the digest of the first event of the experiment before, so that a whole record cannot be
// exchanged alone. This notices every edit of a record. It does not stop somebody who computes all digests again: for
// that, keep the heads (index.json) somewhere else, a commit for example.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "records/canonical_json.h"

namespace tessera::lab {

constexpr const char* kRecordSchema = "tessera-lab-1";
constexpr const char* kFirstType = "opened";  // the type of a record's first event and of no other
constexpr size_t kMostRecordBytes = size_t{64} << 20;

struct Record {
  std::vector<Json> events;

  const Json& first() const { return events.front(); }
  std::string head() const { return events.back().at("digest").get<std::string>(); }
};

// The digest that comes before the first event of the first experiment.
std::string no_digest();

// Gives `event` its "previous" and "digest" and appends it. `previous` is for the first event alone.
void append_event(Record* record, Json event, const std::string& previous = no_digest());

std::string record_text(const Record& record);

// Refuses a text that record_text did not write: other bytes, a digest that does not fit, no event. `what` is the file.
Result<Record> parse_record(std::string_view text, std::string_view what);

}  // namespace tessera::lab
