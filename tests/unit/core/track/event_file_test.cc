// TensorBoard's event files, read back by the test's own reader. In check_events.py TensorBoard
// itself reads them.
#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <protozero/pbf_reader.hpp>
#include <string>
#include <vector>

#include "track/tensorboard_tracker.h"

namespace coupler::track {
namespace {

namespace fs = std::filesystem;
using protozero::pbf_reader;

// Bit by bit, from the definition.
uint32_t crc32c(const std::string& data) {
  uint32_t crc = 0xffffffff;
  for (const char c : data) {
    crc ^= static_cast<unsigned char>(c);
    for (int bit = 0; bit < 8; ++bit) crc = crc >> 1 ^ (crc & 1 ? 0x82f63b78U : 0);
  }
  return ~crc;
}

uint32_t masked(const std::string& data) {
  const uint32_t crc = crc32c(data);
  return (crc >> 15 | crc << 17) + 0xa282ead8U;
}

uint64_t number_at(const std::string& text, size_t at, size_t bytes) {
  uint64_t number = 0;
  for (size_t i = 0; i < bytes; ++i) {
    number |= static_cast<uint64_t>(static_cast<unsigned char>(text.at(at + i))) << (8 * i);
  }
  return number;
}

// The records of a file; a wrong checksum fails the test.
std::vector<std::string> records(const std::string& file) {
  std::vector<std::string> result;
  for (size_t at = 0; at < file.size();) {
    const uint64_t size = number_at(file, at, 8);
    EXPECT_EQ(number_at(file, at + 8, 4), masked(file.substr(at, 8)));
    const std::string data = file.substr(at + 12, size);
    EXPECT_EQ(data.size(), size);
    EXPECT_EQ(number_at(file, at + 12 + size, 4), masked(data));
    result.push_back(data);
    at += 16 + size;
  }
  return result;
}

struct Summary {
  std::string tag, plugin, content, text;
  float number = 0;
  int dtype = 0;
};

struct Event {
  double time = 0;
  int64_t step = 0;
  std::string version;
  std::vector<Summary> values;
};

Summary summary_in(pbf_reader reader) {
  Summary result;
  while (reader.next()) {
    switch (reader.tag()) {
      case 1:
        result.tag = reader.get_string();
        break;
      case 2:
        result.number = reader.get_float();
        break;
      case 8: {
        pbf_reader tensor = reader.get_message();
        while (tensor.next()) {
          if (tensor.tag() == 1) {
            result.dtype = tensor.get_enum();
          } else if (tensor.tag() == 8) {
            result.text = tensor.get_string();
          } else {
            tensor.skip();
          }
        }
        break;
      }
      case 9: {
        pbf_reader metadata = reader.get_message();
        EXPECT_TRUE(metadata.next(1));
        pbf_reader plugin = metadata.get_message();
        while (plugin.next())
          (plugin.tag() == 1 ? result.plugin : result.content) = plugin.get_string();
        break;
      }
      default:
        ADD_FAILURE() << "field " << reader.tag();
        reader.skip();
    }
  }
  return result;
}

Event event_in(const std::string& record) {
  Event event;
  pbf_reader reader(record);
  while (reader.next()) {
    switch (reader.tag()) {
      case 1:
        event.time = reader.get_double();
        break;
      case 2:
        event.step = reader.get_int64();
        break;
      case 3:
        event.version = reader.get_string();
        break;
      case 5: {
        pbf_reader summary = reader.get_message();
        while (summary.next(1)) event.values.push_back(summary_in(summary.get_message()));
        break;
      }
      default:
        ADD_FAILURE() << "field " << reader.tag();
        reader.skip();
    }
  }
  return event;
}

TEST(EventRecord, Checksum_IsThatOfTheDefinition) {
  EXPECT_EQ(crc32c("123456789"), 0xe3069283U);  // the check value of CRC-32C
  for (const std::string text : {"", "a", "123456789", "\xff\x00\x01"}) {
    EXPECT_EQ(masked_crc32c(text), masked(text));
  }
}

TEST(EventRecord, ValuesOfAStep_AreScalarsAndTexts) {
  const Event event = event_in(values_event({{{"loss", 0.25},
                                              {"n", int64_t{7}},
                                              {"done", true},
                                              {"note", std::string("warm \xff")},
                                              {"nan", std::nan("")},
                                              {"large", 1e300}},
                                             -5,
                                             12.5}));
  EXPECT_EQ(event.time, 12.5);
  EXPECT_EQ(event.step, -5);
  ASSERT_EQ(event.values.size(), 6u);
  EXPECT_EQ(event.values[0].tag, "loss");
  EXPECT_EQ(event.values[0].number, 0.25F);
  EXPECT_EQ(event.values[1].number, 7.F);
  EXPECT_EQ(event.values[2].number, 1.F);
  EXPECT_EQ(event.values[3].tag, "note");
  EXPECT_EQ(event.values[3].plugin, "text");
  EXPECT_EQ(event.values[3].dtype, 7);
  EXPECT_EQ(event.values[3].text, "warm \xef\xbf\xbd");
  EXPECT_TRUE(std::isnan(event.values[4].number));
  EXPECT_TRUE(std::isinf(event.values[5].number));
}

TEST(EventFile, OfARun_HasVersionParametersValuesAndEnd) {
  char name[] = "/tmp/coupler_track_XXXXXX";
  const fs::path folder = ::mkdtemp(name);
  TrackerRun run;
  run.project = "p";
  run.folder = folder.string();
  run.config = {{"lr", 0.5}, {"optimizer", std::string("AdamW")}, {"bf16", true}};
  for (int i = 0; i < 2; ++i) {
    TensorBoardTracker tracker;
    tracker.start(run);
    tracker.log({{{"loss", 0.25}}, 3, 1});
    tracker.flush();
    tracker.finish();
  }
  int files = 0;
  for (const auto& entry : fs::directory_iterator(folder)) {
    ++files;
    EXPECT_NE(entry.path().filename().string().find(".tfevents."), std::string::npos);
    std::ifstream file(entry.path(), std::ios::binary);
    const auto all = records({std::istreambuf_iterator<char>(file), {}});
    ASSERT_EQ(all.size(), 4u);
    EXPECT_EQ(event_in(all[0]).version, "brain.Event:2");
    const Event start = event_in(all[1]);
    ASSERT_EQ(start.values.size(), 1u);
    EXPECT_EQ(start.values[0].tag, "_hparams_/session_start_info");
    EXPECT_EQ(start.values[0].plugin, "hparams");
    EXPECT_NE(start.values[0].content.find("AdamW"), std::string::npos);
    EXPECT_EQ(event_in(all[2]).step, 3);
    EXPECT_EQ(event_in(all[3]).values.at(0).tag, "_hparams_/session_end_info");
  }
  EXPECT_EQ(files, 2) << "each run has its own file";
  fs::remove_all(folder);
}

}  // namespace
}  // namespace coupler::track
