#include "lab/record.h"

#include <gtest/gtest.h>

#include <string>

namespace tessera::lab {
namespace {

Record three_events() {
  Record record;
  append_event(&record, {{"type", "opened"}, {"gain", 0.03}});
  append_event(&record, {{"type", "note"}, {"text", "caf\xc3\xa9"}});
  append_event(&record, {{"type", "closed"}});
  return record;
}

std::string replaced(std::string text, const std::string& from, const std::string& to) {
  const size_t at = text.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  return text.replace(at, from.size(), to);
}

TEST(Record, ReadsBackWhatItWrote) {
  const std::string text = record_text(three_events());
  const Result<Record> record = parse_record(text, "file");
  ASSERT_TRUE(record.ok()) << record.status().text();
  EXPECT_EQ(record.value().events.size(), 3U);
  EXPECT_EQ(record_text(record.value()), text);
}

// Computed with Python: hashlib.sha256(json.dumps(event, sort_keys=True, separators=(",", ":"), ensure_ascii=False)).
TEST(Record, DigestsAreThoseThatPythonComputes) {
  EXPECT_EQ(three_events().events[0]["digest"], "d30fffe2f6839a313d69c7656ffc6d9778199db777523b43c6d09da6224ea441");
  EXPECT_EQ(three_events().events[1]["digest"], "431e5fcf5718089b17f6a1ecbde90bebaa5275c45ce801b1f4b6a7663eba6984");
}

TEST(Record, EveryChangedByteIsNoticed) {
  const std::string text = record_text(three_events());
  for (size_t i = 0; i < text.size(); ++i) {
    std::string changed = text;
    changed[i] = static_cast<char>(changed[i] ^ 1);
    EXPECT_FALSE(parse_record(changed, "file").ok()) << "byte " << i;
  }
  for (size_t i = 0; i < text.size(); ++i) {
    EXPECT_FALSE(parse_record(text.substr(0, i), "file").ok()) << "cut at " << i;
  }
  EXPECT_FALSE(parse_record(text + " ", "file").ok());
}

TEST(Record, AnEventTakenOutIsNoticed) {
  for (size_t gone = 0; gone < 3; ++gone) {
    Json root = parse_json(record_text(three_events()), "text").value();
    root["events"].erase(gone);
    EXPECT_FALSE(parse_record(pretty_json(root), "file").ok()) << gone;
  }
}

TEST(Record, TheSameValuesInAnotherLayoutAreNoticed) {
  const std::string text = record_text(three_events());
  EXPECT_FALSE(parse_record(replaced(text, "0.03", "0.030"), "file").ok());
  EXPECT_FALSE(parse_record(compact_json(parse_json(text, "text").value()), "file").ok());
  const Status status = parse_record(replaced(text, "0.03", "0.3"), "0001-x.json").status();
  EXPECT_NE(status.text().find("0001-x.json: got event 1 with a digest that does not fit"), std::string::npos)
      << status.text();
}

}  // namespace
}  // namespace tessera::lab
