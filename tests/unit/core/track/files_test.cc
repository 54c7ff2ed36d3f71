// The output of the trackers that write files, and the effect of files that cannot be written.
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <limits>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "captured_error.h"
#include "track/file_trackers.h"
#include "track/tracker_queue.h"
#include "track/trackers.h"

namespace coupler::track {
namespace {

namespace fs = std::filesystem;

constexpr double kInfinity = std::numeric_limits<double>::infinity();

class Files : public ::testing::Test {
 protected:
  Files() {
    char name[] = "/tmp/coupler_track_XXXXXX";
    folder = ::mkdtemp(name);
    run.project = "p";
    run.folder = (folder / "p").string();
  }
  ~Files() override {
    std::error_code ignored;
    fs::permissions(folder, fs::perms::owner_all, ignored);
    fs::remove_all(folder, ignored);
  }
  std::string text(const std::string& name) const {
    std::ifstream file(folder / "p" / name);
    return {std::istreambuf_iterator<char>(file), {}};
  }
  template <class Type>
  void write(const TrackedStep& entry) {
    Type tracker;
    tracker.start(run);
    tracker.log(entry);
    tracker.flush();
    tracker.finish();
  }

  fs::path folder;
  TrackerRun run;
  const TrackedStep awkward = {{{"loss", 0.1},
                                {"n", int64_t{7}},
                                {"done", true},
                                {"a,\"b\"\nc", std::string("x\ny, z")},
                                {"nan", std::nan("")},
                                {"up", kInfinity},
                                {"down", -kInfinity}},
                               3,
                               1.25};
};

TEST_F(Files, Csv_HasALineAValue_AndQuotesWhatItMust) {
  run.config = {{"lr", 1e-3}};
  write<CsvTracker>(awkward);
  EXPECT_EQ(text("metrics.csv"),
            "step,time,name,value\n"
            ",,config/lr,0.001\n"
            "3,1.250,loss,0.1\n"
            "3,1.250,n,7\n"
            "3,1.250,done,true\n"
            "3,1.250,\"a,\"\"b\"\"\nc\",\"x\ny, z\"\n"
            "3,1.250,nan,nan\n"
            "3,1.250,up,inf\n"
            "3,1.250,down,-inf\n");
}

TEST_F(Files, Csv_OfARunThatGoesOn_IsAppended_NamesMayBeNew) {
  write<CsvTracker>({{{"loss", 0.5}}, 0, 1});
  write<CsvTracker>({{{"accuracy", 0.25}}, 1, 2});
  EXPECT_EQ(text("metrics.csv"), "step,time,name,value\n0,1.000,loss,0.5\n1,2.000,accuracy,0.25\n");
}

TEST_F(Files, HalfALine_OfAKilledProcess_IsEnded) {
  fs::create_directories(run.folder);
  std::ofstream(folder / "p" / "metrics.csv") << "step,time,name,value\n0,1.0";
  write<CsvTracker>({{{"loss", 0.5}}, 1, 2});
  EXPECT_EQ(text("metrics.csv"), "step,time,name,value\n0,1.0\n1,2.000,loss,0.5\n");
}

TEST_F(Files, JsonLines_AreJson_WithNumbersItDoesNotHaveAsTexts) {
  run.config = {{"lr", 1e-3}, {"name", std::string("a\"b")}};
  run.run_name = "r1";
  TrackedStep entry = awkward;
  entry.values.emplace_back("loss", 0.2);                   // repeated: the last value counts
  entry.values.emplace_back("bytes", std::string("\xff"));  // not UTF-8
  write<JsonLinesTracker>(entry);
  const std::string all = text("metrics.jsonl");
  const size_t end = all.find('\n');
  const auto first = nlohmann::json::parse(all.substr(0, end));
  EXPECT_EQ(first["project"], "p");
  EXPECT_EQ(first["run"], "r1");
  EXPECT_EQ(first["config"]["lr"], 0.001);
  EXPECT_EQ(first["config"]["name"], "a\"b");
  const auto second = nlohmann::json::parse(all.substr(end + 1));
  EXPECT_EQ(second["step"], 3);
  EXPECT_EQ(second["time"], 1.25);
  const auto& values = second["values"];
  EXPECT_EQ(values.size(), 8u);
  EXPECT_EQ(values["loss"], 0.2);
  EXPECT_EQ(values["n"], 7);
  EXPECT_EQ(values["done"], true);
  EXPECT_EQ(values["a,\"b\"\nc"], "x\ny, z");
  EXPECT_EQ(values["nan"], "NaN");
  EXPECT_EQ(values["up"], "Infinity");
  EXPECT_EQ(values["down"], "-Infinity");
  EXPECT_EQ(values["bytes"], "\xef\xbf\xbd");
}

TEST_F(Files, Doubles_AreReadBackTheSame) {
  for (const double value : {0.1, 1e-300, 1.7976931348623157e308, -3.0, 1.0 / 3}) {
    EXPECT_EQ(std::stod(text_of(value)), value);
    std::string json;
    append_json_value(json, value);
    EXPECT_EQ(nlohmann::json::parse(json).get<double>(), value);
  }
}

TEST_F(Files, FolderThatCannotBeMade_IsNamedAtTheStart) {
  std::ofstream(folder / "p") << "a file";
  for (const char* name : {"csv", "jsonl", "tensorboard"}) {
    try {
      make_tracker(name)->start(run);
      FAIL() << name;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kIo);
      const std::string message = error.what();
      EXPECT_NE(message.find(run.folder), std::string::npos) << message;
      EXPECT_NE(message.find("training.logging_dir"), std::string::npos) << message;
    }
  }
}

TEST_F(Files, ReadOnlyFolder_IsNamedAtTheStart) {
  fs::permissions(folder, fs::perms::owner_read | fs::perms::owner_exec);
  if (::access(folder.c_str(), W_OK) == 0) {
    // As root, the kernel's own folder is still not writable.
    run.folder = "/proc/coupler";
  }
  try {
    CsvTracker().start(run);
    FAIL();
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find(run.folder + " cannot be written: "),
              std::string::npos)
        << error.what();
  }
}

TEST_F(Files, FullDisk_IsNamed_AndTriedAgain) {
  fs::create_directories(run.folder);
  fs::create_symlink("/dev/full", folder / "p" / "metrics.csv");
  CsvTracker tracker;
  tracker.start(run);
  tracker.log({{{"loss", 0.5}}, 0, 1});
  try {
    tracker.flush();
    FAIL();
  } catch (const TrackerUnavailable& error) {
    const std::string message = error.what();
    EXPECT_NE(message.find("metrics.csv cannot be written: No space left on device"),
              std::string::npos)
        << message;
    EXPECT_NE(message.find("free some space on its disk"), std::string::npos) << message;
  }
}

TEST_F(Files, FullDisk_EndsTheRunInTime_AndSaysWhatIsLost) {
  fs::create_directories(run.folder);
  fs::create_symlink("/dev/full", folder / "p" / "metrics.jsonl");
  auto tracker = std::make_shared<JsonLinesTracker>();
  tracker->start(run);
  const CapturedError captured;
  TrackerQueue queue(tracker, {.flush_every = std::chrono::milliseconds(5)});
  for (int i = 0; i < 3; ++i) queue.push(std::make_shared<TrackedStep>(awkward));
  queue.end(TrackerQueue::Clock::now() + std::chrono::milliseconds(200));
  queue.wait_ended();
  const std::string said = captured.text();
  EXPECT_NE(said.find("tracker 'jsonl' is unavailable; training continues"), std::string::npos)
      << said;
  EXPECT_NE(said.find("3 were not written"), std::string::npos) << said;
}

TEST(TrackerRegistry, OwnTrackers_AreFoundByName_AndNamesAreChecked) {
  class Mine : public Tracker {
   public:
    std::string name() const override { return "mine"; }
    void log(const TrackedStep&) override {}
  };
  register_tracker("mine", [] { return std::make_shared<Mine>(); });
  EXPECT_EQ(make_tracker("mine")->name(), "mine");
  EXPECT_EQ(make_tracker("other"), nullptr);
  ::unsetenv("MLFLOW_TRACKING_URI");
  ::unsetenv("TRACKIO_DIR");
  EXPECT_EQ(names_of_all_trackers(),
            (std::vector<std::string>{"csv", "jsonl", "tensorboard", "wandb", "mine"}));
  ::setenv("TRACKIO_DIR", "/none", 1);
  EXPECT_EQ(names_of_all_trackers()[4], "trackio");
  ::unsetenv("TRACKIO_DIR");
  const auto message = [](const std::string& name) {
    try {
      register_tracker(name, [] { return nullptr; });
    } catch (const Error& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  EXPECT_NE(message("csv").find("a tracker 'csv' already exists"), std::string::npos);
  EXPECT_NE(message("all").find("'all' is not a valid name"), std::string::npos);
  EXPECT_NE(message("a b").find("'a b' is not a valid name"), std::string::npos);
  EXPECT_EQ(message("nothing"), "");
  EXPECT_THROW(make_tracker("nothing"), Error);
}

}  // namespace
}  // namespace coupler::track
