// Images, tables and artifacts: the files of the trackers that keep them, and what happens with
// those that cannot.
#include "track/media.h"

#include <gtest/gtest.h>

#include <atomic>
#include <boost/beast/zlib.hpp>
#include <boost/crc.hpp>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <limits>
#include <nlohmann/json.hpp>
#include <protozero/pbf_reader.hpp>
#include <string>

#include "captured_error.h"
#include "refusal.h"
#include "temporary_folder.h"
#include "track/file_trackers.h"
#include "track/tensorboard_tracker.h"
#include "track/tracker_queue.h"
#include "track/wandb_tracker.h"

namespace coupler::track {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

std::string contents_of(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

// 3 x 2 pixels.
TrackedImage small_image(const std::string& caption = "") {
  std::vector<uint8_t> pixels(18);
  for (size_t i = 0; i < pixels.size(); ++i) pixels[i] = static_cast<uint8_t>(i * 10);
  return image_of_pixels("samples/first", 3, 2, 3, pixels, caption);
}

TrackedTable small_table() {
  return {"words", {"text", "loss"}, {{std::string("a|b"), 0.5}, {std::string("\"c\""), 7.0}}};
}

uint32_t big_endian(const std::string& text, size_t at) {
  uint32_t value = 0;
  for (size_t i = 0; i < 4; ++i) {
    value = value << 8 | static_cast<unsigned char>(text.at(at + i));
  }
  return value;
}

// The chunks of a PNG file, whose checksums are tested.
std::map<std::string, std::string> png_chunks(const std::string& png) {
  EXPECT_EQ(png.substr(0, 8), "\x89PNG\r\n\x1a\n");
  std::map<std::string, std::string> chunks;
  for (size_t at = 8; at < png.size();) {
    const size_t size = big_endian(png, at);
    boost::crc_32_type crc;
    crc.process_bytes(png.data() + at + 4, size + 4);
    EXPECT_EQ(big_endian(png, at + 8 + size), crc.checksum());
    chunks[png.substr(at + 4, 4)] = png.substr(at + 8, size);
    at += size + 12;
  }
  return chunks;
}

TEST(Images, Pixels_BecomePng) {
  std::vector<uint8_t> pixels(300 * 200 * 4);
  for (size_t i = 0; i < pixels.size(); ++i) pixels[i] = static_cast<uint8_t>(i * i >> 7);
  const TrackedImage image = image_of_pixels("x", 300, 200, 4, pixels);
  EXPECT_EQ(image.width, 300);
  auto chunks = png_chunks(image.bytes);
  EXPECT_EQ(chunks["IHDR"], std::string("\0\0\x01\x2c\0\0\0\xc8\x08\x06\0\0\0", 13));
  const std::string& data = chunks["IDAT"];
  EXPECT_EQ(data.substr(0, 2), "\x78\x01");
  std::string lines(200 * (300 * 4 + 1), 'x');
  boost::beast::zlib::inflate_stream inflate;
  boost::beast::zlib::z_params params{};
  params.next_in = data.data() + 2;
  params.avail_in = data.size() - 6;
  params.next_out = lines.data();
  params.avail_out = lines.size();
  boost::system::error_code error;
  inflate.write(params, boost::beast::zlib::Flush::sync, error);
  EXPECT_TRUE(!error || error == boost::beast::zlib::error::end_of_stream) << error.message();
  ASSERT_EQ(params.avail_out, 0U);
  for (size_t y = 0; y < 200; ++y) {
    ASSERT_EQ(lines[y * 1201], '\0');
    ASSERT_TRUE(std::equal(pixels.begin() + static_cast<long>(y * 1200),
                           pixels.begin() + static_cast<long>((y + 1) * 1200),
                           reinterpret_cast<const uint8_t*>(lines.data()) + y * 1201 + 1));
  }
  uint32_t a = 1, b = 0;
  for (const char byte : lines) {
    a = (a + static_cast<unsigned char>(byte)) % 65521;
    b = (b + a) % 65521;
  }
  EXPECT_EQ(big_endian(data, data.size() - 4), b << 16 | a);
}

TEST(Images, WrongPixelsAndFiles_AreRefused) {
  using testing::refusal_of;
  EXPECT_EQ(refusal_of(ErrorCode::kInvalidArgument,
                       [] { image_of_pixels("x", 3, 2, 3, std::vector<uint8_t>(17)); }),
            "image 'x': 17 bytes are not 3 x 2 pixels of 3 channels");
  for (const int64_t width : {int64_t{0}, int64_t{-1}, int64_t{1} << 40}) {
    EXPECT_THROW(image_of_pixels("x", width, 1, 1, {1}), Error);
  }
  EXPECT_EQ(refusal_of(ErrorCode::kInvalidArgument, [] { image_of_file("x", "plot.pdf"); }),
            "image 'x': plot.pdf is not an image file by its name");
  EXPECT_EQ(refusal_of(ErrorCode::kIo, [] { image_of_file("x", "/none/plot.png"); }),
            "image 'x': /none/plot.png cannot be read");
}

TEST(Images, Files_KeepTheirBytes) {
  const TemporaryFolder folder("coupler-media");
  const fs::path path = folder.path() / "plot.PNG";
  std::ofstream(path, std::ios::binary) << small_image().bytes;
  const TrackedImage image = image_of_file("plot", path.string(), "a plot");
  EXPECT_EQ(image.bytes, small_image().bytes);
  EXPECT_EQ(image.format, "png");
  EXPECT_EQ(image.width, 3);
  EXPECT_EQ(image.height, 2);
}

class Media : public ::testing::Test {
 protected:
  Media() {
    run.project = "p";
    run.folder = (folder.path() / "p").string();
    fs::create_directories(folder.path() / "model/sub");
    std::ofstream(folder.path() / "model/a.txt") << "a";
    std::ofstream(folder.path() / "model/sub/b.txt") << "b";
    fs::create_symlink("/etc/passwd", folder.path() / "model/link");
    artifact = {(folder.path() / "model").string(), "weights"};
  }
  template <class Type>
  void write() {
    Type tracker;
    tracker.start(run);
    tracker.log({{{"loss", 0.5}}, 1, 100});
    EXPECT_TRUE(tracker.log_image(small_image("the first"), 2, 101));
    EXPECT_TRUE(tracker.log_table(small_table(), 2, 102));
    if (std::string(tracker.name()) != "tensorboard") {
      EXPECT_TRUE(tracker.log_artifact(artifact, 2, 103));
    }
    tracker.flush();
    tracker.finish();
    location = tracker.location();
  }
  fs::path project() const { return run.folder; }

  const TemporaryFolder folder{"coupler-media"};
  TrackerRun run;
  TrackedArtifact artifact;
  std::string location;
};

const json kTable =
    json::parse(R"({"columns": ["text", "loss"], "data": [["a|b", 0.5], ["\"c\"", 7]]})");

TEST_F(Media, Csv_NamesTheFiles) {
  write<CsvTracker>();
  const std::string csv = contents_of(project() / "metrics.csv");
  const std::string image = media_name("samples/first", 2, "png");
  EXPECT_NE(csv.find("2,101.000,samples/first,media/" + image + "\n"), std::string::npos) << csv;
  EXPECT_EQ(contents_of(project() / "media" / image), small_image().bytes);
  EXPECT_EQ(json::parse(contents_of(project() / "media" / media_name("words", 2, "json"))), kTable);
  EXPECT_EQ(contents_of(project() / "artifacts/weights/sub/b.txt"), "b");
  EXPECT_FALSE(fs::exists(project() / "artifacts/weights/link"));
}

TEST_F(Media, JsonLines_NameTheFiles) {
  write<JsonLinesTracker>();
  std::ifstream in(project() / "metrics.jsonl");
  std::string line;
  std::vector<json> lines;
  while (std::getline(in, line)) lines.push_back(json::parse(line));
  ASSERT_EQ(lines.size(), 4U);
  EXPECT_EQ(lines[2]["step"], 2);
  const json image = lines[2]["values"]["samples/first"];
  EXPECT_EQ(image["caption"], "the first");
  EXPECT_EQ(contents_of(project() / std::string(image["image"])), small_image().bytes);
  const std::string table = lines[3]["values"]["words"]["table"];
  EXPECT_EQ(json::parse(contents_of(project() / table)), kTable);
  EXPECT_EQ(contents_of(project() / "artifacts/weights/a.txt"), "a");
}

TEST_F(Media, NamesThatDiffer_HaveFilesThatDo) {
  EXPECT_NE(media_name("a/b", 1, "png"), media_name("a_b", 1, "png"));
  EXPECT_NE(media_name("a", 1, "png"), media_name("a", 2, "png"));
  for (const char c : media_name("../../etc/\n", 1, "png")) EXPECT_TRUE(c != '/' && c != '\n');
}

TEST_F(Media, UnknownOptions_AreNamed) {
  run.options = {{"flush_secs", 3.0}};
  EXPECT_EQ(testing::refusal_of(ErrorCode::kInvalidArgument, [&] { CsvTracker().start(run); }),
            "init_kwargs: the tracker 'csv' has no option 'flush_secs'");
  const std::string text = testing::message_of([&] { WandbTracker().start(run); });
  EXPECT_NE(text.find("its options are entity, project, name, "), std::string::npos) << text;
}

// The records of a .wandb file, whose checksums and blocks are tested.
std::vector<std::string> wandb_records(const std::string& file) {
  EXPECT_EQ(file.substr(0, 7), std::string(":W&B\xe1\xbe\0", 7));
  std::vector<std::string> records;
  std::string parts;
  for (size_t at = 7; at < file.size();) {
    const size_t room = 32768 - at % 32768;
    if (room < 7) {
      EXPECT_EQ(file.substr(at, room), std::string(room, '\0'));
      at += room;
      continue;
    }
    const auto byte = [&](size_t i) { return static_cast<unsigned char>(file.at(at + i)); };
    const uint32_t checksum = byte(0) | byte(1) << 8 | byte(2) << 16 | uint32_t{byte(3)} << 24;
    const size_t size = byte(4) | byte(5) << 8;
    const int kind = byte(6);
    EXPECT_LE(size + 7, room);
    boost::crc_32_type crc;
    crc.process_bytes(file.data() + at + 6, size + 1);
    EXPECT_EQ(crc.checksum(), checksum);
    EXPECT_EQ(kind == 1 || kind == 2, parts.empty());
    parts += file.substr(at + 7, size);
    at += 7 + size;
    if (kind == 1 || kind == 4) records.push_back(std::exchange(parts, ""));
  }
  EXPECT_TRUE(parts.empty());
  return records;
}

// Items of a history or summary record, JSON by name.
std::map<std::string, json> items_of(protozero::pbf_reader list) {
  std::map<std::string, json> items;
  while (list.next(1)) {
    protozero::pbf_reader item = list.get_message();
    std::string name;
    while (item.next()) {
      if (item.tag() == 2) {
        name = item.get_string();
      } else if (item.tag() == 16) {
        items[name] = json::parse(item.get_string());
      } else {
        item.skip();
      }
    }
  }
  return items;
}

struct WandbRun {
  explicit WandbRun(const std::string& file) {
    int64_t number = 0;
    for (const std::string& record : wandb_records(file)) {
      protozero::pbf_reader reader(record);
      while (reader.next()) {
        const auto tag = reader.tag();
        if (tag == 1) {
          EXPECT_EQ(reader.get_int64(), ++number);
          continue;
        }
        kinds.push_back(tag);
        const protozero::pbf_reader content = reader.get_message();
        if (tag == 2) history.push_back(items_of(content));
        if (tag == 3) {
          for (auto& [name, value] : items_of(content)) summary[name] = value;
        }
        if (tag == 6) {
          protozero::pbf_reader list = content;
          while (list.next(1)) {
            protozero::pbf_reader entry = list.get_message();
            if (entry.next(1)) files.push_back(entry.get_string());
          }
        }
      }
    }
  }
  std::vector<uint32_t> kinds;
  std::vector<std::map<std::string, json>> history;
  std::map<std::string, json> summary;
  std::vector<std::string> files;
};

fs::path wandb_file(const fs::path& folder) {
  for (const auto& entry : fs::directory_iterator(folder)) {
    if (entry.path().extension() == ".wandb") return entry.path();
  }
  return {};
}

TEST_F(Media, Wandb_IsAnOfflineRun) {
  run.options = {{"id", std::string("abc123")}};
  write<WandbTracker>();
  EXPECT_TRUE(fs::path(location).filename().string().starts_with("offline-run-"));
  EXPECT_EQ(wandb_file(location).filename(), "run-abc123.wandb");
  const WandbRun read(contents_of(wandb_file(location)));
  EXPECT_EQ(read.kinds.front(), 21U);
  EXPECT_EQ(read.kinds.at(1), 17U);
  EXPECT_EQ(read.kinds.back(), 18U);
  ASSERT_EQ(read.history.size(), 2U);
  EXPECT_EQ(read.history[0].at("loss"), 0.5);
  EXPECT_EQ(read.history[0].at("_step"), 1);
  EXPECT_EQ(read.history[1].at("_step"), 2);
  const json image = read.history[1].at("samples/first");
  EXPECT_EQ(image["_type"], "image-file");
  EXPECT_EQ(image["width"], 3);
  EXPECT_EQ(contents_of(fs::path(location) / "files" / std::string(image["path"])),
            small_image().bytes);
  const json table = read.history[1].at("words");
  EXPECT_EQ(table["nrows"], 2);
  EXPECT_EQ(json::parse(contents_of(fs::path(location) / "files" / std::string(table["path"]))),
            kTable);
  EXPECT_EQ(read.summary.at("loss"), 0.5);
  EXPECT_EQ(read.summary.at("_step"), 2);
  ASSERT_EQ(read.files.size(), 4U);
  EXPECT_EQ(read.files[2], "artifacts/weights/a.txt");
  for (const std::string& file : read.files) {
    EXPECT_TRUE(fs::exists(fs::path(location) / "files" / file)) << file;
  }
}

TEST_F(Media, Wandb_MergesAStep_AndWarnsOfEarlierOnes) {
  const CapturedError captured;
  WandbTracker tracker;
  tracker.start(run);
  tracker.log({{{"a", 1.0}}, 5, 100});
  tracker.flush();
  tracker.log({{{"b", 2.0}, {"a", std::nan("")}}, 5, 101});
  tracker.log({{{"late", 2.0}}, 4, 101});
  tracker.log({{{"late", 2.0}}, 3, 101});
  tracker.log({{{"text", std::string("\xff")}}, 6, 101});
  tracker.finish();
  const WandbRun read(contents_of(wandb_file(tracker.location())));
  ASSERT_EQ(read.history.size(), 2U);
  EXPECT_EQ(read.history[0].at("a"), "NaN");
  EXPECT_EQ(read.history[0].at("b"), 2.0);
  EXPECT_EQ(read.history[1].at("text"), "\ufffd");
  const std::string text = captured.text();
  EXPECT_NE(text.find("'late' of step 4 is left out"), std::string::npos) << text;
  EXPECT_EQ(text.find("of step 3 is left out"), std::string::npos) << "reported more than once";
}

TEST_F(Media, Wandb_IdsAreChecked) {
  run.options = {{"id", std::string("../evil")}};
  EXPECT_EQ(testing::refusal_of(ErrorCode::kInvalidArgument, [&] { WandbTracker().start(run); }),
            "the W&B run's id is '../evil'");
}

// Records of every length around the ends of blocks.
TEST(WandbLog, Blocks_AreFilledAsLevelDbDoes) {
  std::string file(":W&B\xe1\xbe\0", 7);
  uint64_t position = file.size();
  std::vector<std::string> records;
  for (const size_t size : {size_t{0}, size_t{1}, size_t{32740}, size_t{3}, size_t{100'000},
                            size_t{32761}, size_t{32762}, size_t{65536}, size_t{5}}) {
    for (size_t more = 0; more < 9; ++more) {
      std::string& record = records.emplace_back(size + more, '\0');
      for (size_t i = 0; i < record.size(); ++i) record[i] = static_cast<char>(i * 31 + size);
      append_wandb_record(file, position, record);
      EXPECT_EQ(position, file.size());
    }
  }
  EXPECT_TRUE(wandb_records(file) == records);
}

// Records what it receives.
class Holder : public Tracker {
 public:
  std::string name() const override { return "holder"; }
  void log(const TrackedStep&) override { ++values; }
  bool log_image(const TrackedImage& image, int64_t step, double /*time*/) override {
    last = image.name + std::to_string(step);
    return true;
  }
  std::atomic<int> values = 0;
  std::string last;
};

TEST(QueuedMedia, ReachesTheTracker_AndWhatItCannotHoldIsReportedOnce) {
  const CapturedError captured;
  const auto tracker = std::make_shared<Holder>();
  TrackerQueue queue(tracker, {.flush_every = std::chrono::milliseconds(5)});
  queue.push(std::make_shared<TrackedStep>());
  for (int64_t step = 0; step < 3; ++step) {
    auto media = std::make_shared<TrackedMedia>();
    media->images = {small_image()};
    media->tables = {small_table()};
    media->step = step;
    queue.push_media(media);
  }
  queue.end(TrackerQueue::Clock::now() + std::chrono::seconds(20));
  queue.wait_ended();
  EXPECT_EQ(tracker->values, 1);
  EXPECT_EQ(tracker->last, "samples/first2");
  EXPECT_EQ(queue.lost(), 0);
  const std::string text = captured.text();
  const std::string said = "tracker 'holder' cannot hold tables; they are left out";
  EXPECT_NE(text.find(said), std::string::npos) << text;
  EXPECT_EQ(text.find(said), text.rfind(said)) << text;
  EXPECT_EQ(text.find("cannot hold images"), std::string::npos) << text;
}

TEST(QueuedMedia, RepeatedCall_GivesNothingTwice) {
  class Full : public Tracker {
   public:
    std::string name() const override { return "full"; }
    void log(const TrackedStep&) override {}
    bool log_image(const TrackedImage& image, int64_t, double) override {
      if (image.name == "b" && refusals-- > 0) throw TrackerUnavailable("the disk is full");
      seen += image.name;
      return true;
    }
    int refusals = 2;
    std::string seen;
  };
  const CapturedError captured;
  const auto tracker = std::make_shared<Full>();
  TrackerQueue queue(tracker, {.flush_every = std::chrono::milliseconds(5),
                               .first_retry = std::chrono::milliseconds(1)});
  for (int i = 0; i < 2; ++i) {
    auto media = std::make_shared<TrackedMedia>();
    for (const char* name : {"a", "b", "c"}) {
      media->images.push_back(small_image());
      media->images.back().name = name;
    }
    queue.push_media(media);
  }
  queue.end(TrackerQueue::Clock::now() + std::chrono::seconds(20));
  queue.wait_ended();
  EXPECT_EQ(tracker->seen, "abcabc");
}

TEST(QueuedMedia, MoreThanFitsInMemory_IsDropped) {
  const CapturedError captured;
  TrackerQueueLimits limits{.flush_every = std::chrono::milliseconds(5)};
  auto media = std::make_shared<TrackedMedia>();
  media->images = {small_image()};
  limits.media_bytes = media->bytes() - 1;
  TrackerQueue queue(std::make_shared<Holder>(), limits);
  queue.push_media(media);
  queue.end(TrackerQueue::Clock::now() + std::chrono::seconds(20));
  queue.wait_ended();
  EXPECT_EQ(queue.lost(), 1);
}

}  // namespace
}  // namespace coupler::track
