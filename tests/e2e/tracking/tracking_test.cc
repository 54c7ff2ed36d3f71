// Tracked training over two ranks: values are written once, and tracking never disturbs training.
#include <gtest/gtest.h>
#include <sqlite3.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <sstream>

#include "run_program.h"

namespace coupler {
namespace {

namespace fs = std::filesystem;

int64_t lines_of(const std::string& text) { return std::count(text.begin(), text.end(), '\n'); }

// -1 if it cannot be read.
int64_t steps_in_trackio(const fs::path& database) {
  sqlite3* opened = nullptr;
  int64_t steps = -1;
  const auto read = [](void* to, int, char** values, char**) {
    *static_cast<int64_t*>(to) = std::stoll(values[0]);
    return 0;
  };
  if (sqlite3_open_v2(database.c_str(), &opened, SQLITE_OPEN_READWRITE, nullptr) == SQLITE_OK) {
    sqlite3_exec(opened, "SELECT COUNT(DISTINCT step) FROM metrics JOIN configs USING (run_id)",
                 read, &steps, nullptr);
  }
  sqlite3_close(opened);
  return steps;
}

class TrackedTraining : public ::testing::Test {
 protected:
  Outcome run(const std::string& mode, const std::string& log_with,
              std::map<std::string, std::string> variables = {}) const {
    return here.coupler({"launch", "-n", "2", "-o", "backend.use=gloo_cpu", "-o",
                         "training.log_with=" + log_with, TRACKED_TRAINING, mode},
                        std::move(variables));
  }
  const Workplace here{};
};

TEST_F(TrackedTraining, OverTwoRanks_IsWrittenOnce) {
  const Outcome outcome = run("plain", "csv:jsonl:tensorboard:trackio:every_rank",
                              {{"TRACKIO_DIR", (here.path() / "trackio").string()}});
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_EQ(steps_in_trackio(here.path() / "trackio/proj.db"), 10);
  const fs::path folder = here.path() / "proj";
  const std::string csv = text_of(folder / "metrics.csv");
  EXPECT_EQ(lines_of(csv), 1 + 3 + 10 * 6) << csv;
  EXPECT_TRUE(has(csv, ",,config/lr,0.1\n")) << csv;

  std::istringstream lines(text_of(folder / "metrics.jsonl"));
  std::string line;
  ASSERT_TRUE(std::getline(lines, line));
  EXPECT_EQ(nlohmann::json::parse(line)["config"]["layers"], 1);
  int64_t steps = 0;
  while (std::getline(lines, line)) {
    const auto entry = nlohmann::json::parse(line);
    EXPECT_EQ(entry["step"], 10 * steps);
    const auto& values = entry["values"];
    EXPECT_TRUE(values["loss"].is_number()) << line;
    EXPECT_EQ(values["steps"], steps);
    EXPECT_EQ(values["even"], steps % 2 == 0);
    EXPECT_EQ(values["half"], 0.5);
    EXPECT_EQ(values["size"], 2);
    EXPECT_EQ(values["phase"], "train");
    ++steps;
  }
  EXPECT_EQ(steps, 10);
  EXPECT_EQ(std::distance(fs::directory_iterator(folder), {}), 3) << "there must be one event file";
  for (const char* name : {"rank_0.txt", "rank_1.txt"}) {
    EXPECT_EQ(lines_of(text_of(here.path() / name)), 10) << name;
  }
}

TEST_F(TrackedTraining, LoggingDir_IsWhereItGoes) {
  const Outcome outcome = run("plain", "csv", {{"COUPLER_TRAINING_LOGGING_DIR", "logs"}});
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_TRUE(fs::exists(here.path() / "logs" / "proj" / "metrics.csv"));
  EXPECT_FALSE(fs::exists(here.path() / "proj"));
}

TEST_F(TrackedTraining, WithoutTrackers_LogsNowhere) {
  const Outcome outcome = here.coupler({"launch", "-n", "1", TRACKED_TRAINING, "plain"});
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_FALSE(fs::exists(here.path() / "proj"));
}

TEST_F(TrackedTraining, ImagesTablesAndFiles_AreWrittenOnce) {
  const Outcome outcome = run("media", "jsonl");
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_TRUE(has(outcome.err, "image 'wrong' is of shape [5, 5, 5]")) << outcome.err;
  const fs::path folder = here.path() / "proj";
  std::istringstream lines(text_of(folder / "metrics.jsonl"));
  std::map<std::string, std::string> images;
  int64_t tables = 0;
  for (std::string line; std::getline(lines, line);) {
    const auto entry = nlohmann::json::parse(line);
    const nlohmann::json values = entry.value("values", nlohmann::json::object());
    for (const auto& [name, value] : values.items()) {
      if (!value.is_object()) continue;
      if (value.contains("image")) images[name] = text_of(folder / std::string(value["image"]));
      tables += value.contains("table") && entry["step"] == 7 ? 1 : 0;
    }
  }
  EXPECT_EQ(tables, 1);
  ASSERT_EQ(images.size(), 2U);
  EXPECT_FALSE(images["rows_first"].empty());
  EXPECT_TRUE(images["rows_first"] == images["channels_first"]);
  EXPECT_EQ(fs::file_size(folder / "artifacts/program"), fs::file_size(TRACKED_TRAINING));
}

TEST_F(TrackedTraining, TrackersThatAreNeverStarted_AreReportedOnce) {
  const Outcome outcome = run("unused", "csv");
  EXPECT_EQ(outcome.exit_code, 0);
  const std::string text = "training.log_with names csv, but nothing was logged";
  EXPECT_TRUE(has(outcome.err, text)) << outcome.err;
  EXPECT_EQ(outcome.err.find(text), outcome.err.rfind(text)) << outcome.err;
}

TEST_F(TrackedTraining, All_IsWhatIsThere) {
  const Outcome outcome = run("plain", "all");
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_TRUE(fs::exists(here.path() / "proj" / "metrics.csv"));
  EXPECT_TRUE(fs::exists(here.path() / "rank_1.txt"));
}

TEST_F(TrackedTraining, UnknownTracker_IsNamed_WithThoseThereAre) {
  const Outcome outcome = run("plain", "tensorbord");
  EXPECT_EQ(outcome.exit_code, 2);
  EXPECT_TRUE(has(outcome.err, "unknown tracker 'tensorbord'")) << outcome.err;
  EXPECT_TRUE(has(outcome.err,
                  "did you mean 'tensorboard'? known trackers are csv, jsonl, tensorboard, wandb, "
                  "trackio, mlflow, every_rank and \"all\""))
      << outcome.err;
}

TEST_F(TrackedTraining, Wandb_IsARunForItsSync) {
  const Outcome outcome = run("plain", "wandb");
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  int64_t runs = 0;
  for (const auto& entry : fs::directory_iterator(here.path() / "proj" / "wandb")) {
    if (!entry.path().filename().string().starts_with("offline-run-")) continue;
    ++runs;
    int64_t records = 0;
    for (const auto& file : fs::directory_iterator(entry)) {
      if (file.path().extension() == ".wandb") records += static_cast<int64_t>(file.file_size());
    }
    EXPECT_GT(records, 500) << entry.path();
  }
  EXPECT_EQ(runs, 1);
}

TEST_F(TrackedTraining, FolderThatCannotBeWritten_IsNamed) {
  here.write("proj", "a file");
  const Outcome outcome = run("plain", "csv");
  EXPECT_NE(outcome.exit_code, 0);
  EXPECT_TRUE(has(outcome.err, "./proj cannot be written: Not a directory") ||
              has(outcome.err, "./proj cannot be written: File exists"))
      << outcome.err;
  EXPECT_TRUE(has(outcome.err, "training.logging_dir")) << outcome.err;
}

TEST_F(TrackedTraining, TrackerThatThrows_IsDisabled_AndTrainingGoesOn) {
  const Outcome outcome = run("throws", "csv");
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_TRUE(has(outcome.out, "trained"));
  EXPECT_TRUE(has(outcome.err,
                  "tracker 'throws' failed in log 3 times in a row and is disabled; training "
                  "continues without it: I cannot"))
      << outcome.err;
  EXPECT_EQ(lines_of(text_of(here.path() / "proj" / "metrics.csv")), 64);
}

TEST_F(TrackedTraining, ServerThatIsDown_IsSaid_AndTrainingGoesOn) {
  const Outcome outcome = run("plain", "mlflow", {{"MLFLOW_TRACKING_URI", "http://127.0.0.1:9"}});
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_TRUE(has(outcome.out, "trained"));
  EXPECT_TRUE(has(outcome.err, "http://127.0.0.1:9 cannot be reached")) << outcome.err;
  EXPECT_TRUE(has(outcome.err, "10 were not written")) << outcome.err;
}

// The resolver takes minutes; neither training nor the program's end waits for it.
TEST_F(TrackedTraining, ServerWhoseNameNobodyResolves_IsSaidInTime_AndTrainingGoesOn) {
  const Outcome outcome = here.run(
      PYTHON,
      {SILENT_RESOLVER, COUPLER_BINARY_DIR "/bin/coupler", "launch", "-n", "2", "-o",
       "backend.use=gloo_cpu", "-o", "training.log_with=mlflow", TRACKED_TRAINING, "plain"},
      {{"MLFLOW_TRACKING_URI", "http://server.example:5000"},
       {"MLFLOW_HTTP_REQUEST_TIMEOUT", "1"}});
  if (outcome.exit_code == 77) GTEST_SKIP() << outcome.err;
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_TRUE(has(outcome.out, "trained"));
  EXPECT_TRUE(has(outcome.err,
                  "http://server.example:5000 cannot be reached: the host name was not "
                  "resolved in 1000 ms"))
      << outcome.err;
  EXPECT_TRUE(has(outcome.err, "10 were not written")) << outcome.err;
}

TEST_F(TrackedTraining, WrongCalls_SayWhatToDo) {
  Outcome outcome = run("forget", "csv");
  EXPECT_EQ(outcome.exit_code, 2);
  EXPECT_TRUE(has(outcome.err, "log was called before init_trackers")) << outcome.err;
  outcome = run("tensor", "csv");
  EXPECT_NE(outcome.exit_code, 0);
  EXPECT_TRUE(has(outcome.err, "log: 'scores' is a tensor that is of 6 elements")) << outcome.err;
  outcome = run("find", "csv:jsonl");
  EXPECT_NE(outcome.exit_code, 0);
  EXPECT_TRUE(has(outcome.out, "csv 1\n")) << outcome.out;
  EXPECT_TRUE(has(outcome.out, "csv 0\n")) << outcome.out;
  EXPECT_TRUE(has(outcome.err, "no tracker 'json' was started")) << outcome.err;
  EXPECT_TRUE(has(outcome.err, "started trackers: csv, jsonl")) << outcome.err;
}

}  // namespace
}  // namespace coupler
