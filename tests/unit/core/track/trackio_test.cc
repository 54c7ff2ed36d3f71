// The tracker `trackio`: what it stores, read back through SQLite, and projects that are busy,
// damaged, full or of another schema. tracking_trackio reads the same with Trackio itself.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sqlite3.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cmath>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <vector>

#include "base/file_descriptor.h"
#include "base/sha256.h"
#include "base/user_folders.h"
#include "captured_error.h"
#include "refusal.h"
#include "temporary_folder.h"
#include "track/trackers.h"
#include "track/trackio_tracker.h"

namespace coupler::track {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using testing::message_of;
using testing::refusal_of;

// A database as another program opens it.
class Sql {
 public:
  explicit Sql(const fs::path& path) {
    EXPECT_EQ(sqlite3_open(path.c_str(), &connection_), SQLITE_OK);
  }
  ~Sql() { sqlite3_close(connection_); }
  Sql(const Sql&) = delete;
  Sql& operator=(const Sql&) = delete;

  // The columns of each row, as text.
  std::vector<std::vector<std::string>> rows(const std::string& sql) {
    std::vector<std::vector<std::string>> found;
    const auto add = [](void* to, int count, char** values, char**) {
      auto& row = static_cast<decltype(found)*>(to)->emplace_back();
      for (int i = 0; i < count; ++i) row.emplace_back(values[i] != nullptr ? values[i] : "NULL");
      return 0;
    };
    EXPECT_EQ(sqlite3_exec(connection_, sql.c_str(), add, &found, nullptr), SQLITE_OK)
        << sql << ": " << sqlite3_errmsg(connection_);
    return found;
  }
  std::string value(const std::string& sql) {
    const auto found = rows(sql);
    return found.empty() ? "none" : found[0][0];
  }

 private:
  sqlite3* connection_ = nullptr;
};

std::string bytes_of(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

class Trackio : public ::testing::Test {
 protected:
  Trackio() {
    for (const char* variable : {"TRACKIO_STORAGE_MODE", "TRACKIO_SPACE_ID", "TRACKIO_SERVER_URL",
                                 "TRACKIO_SQLITE_JOURNAL_MODE"}) {
      ::unsetenv(variable);
    }
    ::setenv("TRACKIO_DIR", place.c_str(), 1);
    run.project = "p.1";
    run.run_name = "first";
    run.folder = (folder.path() / "runs").string();
  }
  ~Trackio() override {
    ::unsetenv("TRACKIO_DIR");
    ::unsetenv("TRACKIO_STORAGE_MODE");
  }
  // A run that logs one value.
  void log_run(double value) const {
    TrackioTracker tracker;
    tracker.start(run);
    tracker.connect();
    tracker.log({{{"loss", value}}, 0, 100});
    tracker.flush();
    tracker.finish();
  }
  int64_t rows() const { return std::stoll(Sql(database).value("SELECT COUNT(*) FROM metrics")); }

  const TemporaryFolder folder{"coupler-trackio"};
  const fs::path place = folder.path() / "trackio";
  const fs::path database = place / "p1.db";
  TrackerRun run;
};

TEST_F(Trackio, Rows_AreAsTrackioWritesThem) {
  run.config = {{"lr", 1e-3}, {"layers", int64_t{3}}, {"limit", std::nan("")}};
  run.options = {{"group", std::string("g\"1")}};
  TrackioTracker tracker;
  tracker.start(run);
  EXPECT_EQ(tracker.location(), database.string());
  tracker.connect();
  tracker.log({{{"loss", 0.5},
                {"n", int64_t{7}},
                {"done", true},
                {"time", 2.0},
                {"__x", 3.0},
                {"nan", std::nan("")},
                {"up", std::numeric_limits<double>::infinity()},
                {"down", -std::numeric_limits<double>::infinity()},
                {"text", std::string("\"é\" \xff")},
                {"loss", 0.25}},
               3,
               1732651104.5});
  tracker.flush();
  tracker.log({{{"loss", 0.125}}, 4, 1732651105});
  tracker.flush();
  tracker.finish();
  EXPECT_FALSE(fs::exists(database.string() + "-wal")) << "others find a complete file";

  Sql sql(database);
  EXPECT_EQ(sql.value("PRAGMA journal_mode"), "wal");
  EXPECT_EQ(sql.value("PRAGMA user_version"), "2");
  const auto found = sql.rows(
      "SELECT run_id, timestamp, run_name, step, metrics, typeof(metrics), log_id, space_id "
      "FROM metrics ORDER BY id");
  ASSERT_EQ(found.size(), 2U);
  EXPECT_EQ(found[0][0].size(), 32U);
  EXPECT_EQ(found[0][0], found[1][0]);
  EXPECT_EQ(found[0][1], "2024-11-26T19:58:24.500000+00:00");
  EXPECT_EQ(found[0][2], "first");
  EXPECT_EQ(found[0][3], "3");
  EXPECT_EQ(found[0][5], "blob");
  EXPECT_NE(found[0][6], found[1][6]);
  EXPECT_EQ(found[0][7], "NULL");
  const json values = json::parse(found[0][4]);
  EXPECT_EQ(values, json::parse(R"({"loss": 0.25, "n": 7, "done": true, "__time": 2, "____x": 3,
      "nan": "NaN", "up": "Infinity", "down": "-Infinity", "text": "\"é\" \ufffd"})"));
  EXPECT_EQ(json::parse(found[1][4]), json::parse(R"({"loss": 0.125})"));

  const auto configs = sql.rows("SELECT run_id, run_name, config FROM configs");
  ASSERT_EQ(configs.size(), 1U);
  EXPECT_EQ(configs[0][0], found[0][0]);
  EXPECT_EQ(configs[0][1], "first");
  json config = json::parse(configs[0][2]);
  EXPECT_EQ(std::string(config["_Created"]).size(), found[0][1].size());
  config.erase("_Created");
  EXPECT_EQ(config, json::parse(R"({"lr": 0.001, "layers": 3, "limit": "NaN", "_Username": null,
                                    "_Group": "g\"1"})"));
}

TEST_F(Trackio, Times_AreIsoInUtc) {
  EXPECT_EQ(trackio_time(0), "1970-01-01T00:00:00.000000+00:00");
  EXPECT_EQ(trackio_time(1732651104.9999996), "2024-11-26T19:58:25.000000+00:00");
}

TEST_F(Trackio, RunWithoutAName_GetsOne_AndOneThatLogsNothingHasNoRow) {
  run.run_name = "";
  run.config = {};
  TrackioTracker tracker;
  tracker.start(run);
  tracker.connect();
  tracker.finish();
  EXPECT_EQ(rows(), 0);
  log_run(1);
  Sql sql(database);
  EXPECT_EQ(sql.value("SELECT run_name FROM metrics"),
            "run-" + sql.value("SELECT run_id FROM metrics").substr(0, 8));
  EXPECT_TRUE(json::parse(sql.value("SELECT config FROM configs"))["_Group"].is_null());
}

TEST_F(Trackio, ImagesAndTables_AreValues) {
  TrackioTracker tracker;
  run.run_name = "sweep/one";
  tracker.start(run);
  tracker.connect();
  const TrackedImage image = image_of_pixels("time", 2, 1, 1, {0, 255}, "two");
  EXPECT_TRUE(tracker.log_image(image, 5, 100));
  EXPECT_TRUE(tracker.log_image({.name = "b", .bytes = "x", .format = "svg"}, 5, 100));
  EXPECT_TRUE(tracker.log_table(
      {"words", {"text", "loss"}, {{std::string("a"), 0.5}, {std::string("b"), std::nan("")}}}, 6,
      101));
  EXPECT_TRUE(tracker.log_table({"none", {"a"}, {}}, 6, 101));
  tracker.finish();
  const auto found = Sql(database).rows("SELECT step, metrics FROM metrics ORDER BY id");
  ASSERT_EQ(found.size(), 4U);
  EXPECT_EQ(found[0][0], "5");
  const json first = json::parse(found[0][1])["__time"];
  EXPECT_EQ(first["_type"], "trackio.image");
  EXPECT_EQ(first["caption"], "two");
  const std::string path = first["file_path"];
  EXPECT_TRUE(path.starts_with("p1/sweep/one/5/") && path.ends_with(".png")) << path;
  EXPECT_EQ(bytes_of(place / "media" / path), image.bytes);
  EXPECT_TRUE(json::parse(found[1][1])["b"]["caption"].is_null());
  EXPECT_EQ(json::parse(found[2][1]), json::parse(R"({"words": {"_type": "trackio.table",
      "_value": [{"text": "a", "loss": 0.5}, {"text": "b", "loss": "NaN"}]}})"));
  EXPECT_EQ(json::parse(found[3][1])["none"]["_value"], json::array());
}

TEST_F(Trackio, Artifacts_AreVersions_OfContentsKeptOnce) {
  const fs::path model = folder.path() / "model";
  fs::create_directories(model / "sub");
  std::ofstream(model / "a.txt") << "same";
  std::ofstream(model / "sub/b.txt") << "same";
  fs::create_symlink("/etc/passwd", model / "link");
  TrackioTracker tracker;
  tracker.start(run);
  tracker.connect();
  const TrackedArtifact artifact{model.string(), "best model"};
  EXPECT_TRUE(tracker.log_artifact(artifact, 0, 100));
  EXPECT_TRUE(tracker.log_artifact(artifact, 1, 101));  // nothing new
  std::ofstream(model / "a.txt") << "other";
  EXPECT_TRUE(tracker.log_artifact(artifact, 2, 102));
  EXPECT_TRUE(tracker.log_artifact({(model / "a.txt").string(), "notes"}, 3, 103));
  tracker.finish();

  Sql sql(database);
  EXPECT_EQ(sql.rows("SELECT name, type FROM artifacts ORDER BY id"),
            (std::vector<std::vector<std::string>>{{"best_model", "unspecified"},
                                                   {"notes", "unspecified"}}));
  const auto versions = sql.rows(
      "SELECT artifact_id, version, manifest, manifest_digest, size_bytes, producer_run_name "
      "FROM artifact_versions ORDER BY id");
  ASSERT_EQ(versions.size(), 3U);
  const std::string same = to_hex(Digest().update("same").finish());
  EXPECT_EQ(versions[0][2], R"([{"path":"a.txt","digest":")" + same +
                                R"(","size":4},{"path":"sub/b.txt","digest":")" + same +
                                R"(","size":4}])");
  EXPECT_EQ(versions[0][3], to_hex(Digest()
                                       .update(R"([{"digest":")" + same +
                                               R"(","path":"a.txt","size":4},{"digest":")" + same +
                                               R"(","path":"sub/b.txt","size":4}])")
                                       .finish()));
  EXPECT_EQ(versions[0][4], "8");
  EXPECT_EQ(versions[1][1], "1");
  EXPECT_EQ(versions[2][1], "0");
  EXPECT_EQ(json::parse(versions[2][2])[0]["path"], "a.txt");
  EXPECT_EQ(sql.value("SELECT artifact_version_id FROM artifact_aliases WHERE artifact_id = 1 "
                      "AND alias = 'latest'"),
            "2");
  EXPECT_EQ(sql.value("SELECT COUNT(*) FROM run_artifact_links WHERE direction = 'output'"), "3");
  const fs::path store = place / "artifacts/p1/blobs/sha256";
  EXPECT_EQ(bytes_of(store / same.substr(0, 2) / same), "same");
  EXPECT_EQ(std::distance(fs::directory_iterator(store), {}), 2) << "no partial file is left";
}

TEST_F(Trackio, ArtifactsThatCannotBeKept_AreNamed) {
  TrackioTracker tracker;
  tracker.start(run);
  tracker.connect();
  const fs::path empty = folder.path() / "empty";
  fs::create_directories(empty);
  EXPECT_EQ(refusal_of(ErrorCode::kInvalidArgument,
                       [&] {
                         tracker.log_artifact({empty.string(), "e"}, 0, 0);
                       }),
            "artifact 'e': " + empty.string() + " has no files");
  std::ofstream(empty / "a\\b") << "x";
  EXPECT_EQ(refusal_of(ErrorCode::kInvalidArgument,
                       [&] {
                         tracker.log_artifact({empty.string(), "e"}, 0, 0);
                       }),
            "artifact 'e': Trackio cannot hold a file named a\\b");
  EXPECT_EQ(refusal_of(ErrorCode::kIo,
                       [&] {
                         tracker.log_artifact({"/none/x", "x"}, 0, 0);
                       }),
            "artifact 'x': /none/x is no longer there");
}

TEST_F(Trackio, Resume_IsByTheRunsName) {
  run.config = {{"lr", 1.0}};
  log_run(1);
  log_run(2);  // never: another run of the same name
  Sql sql(database);
  const auto ids = sql.rows("SELECT run_id FROM metrics ORDER BY id");
  ASSERT_EQ(ids.size(), 2U);
  EXPECT_NE(ids[0][0], ids[1][0]);
  sql.rows("UPDATE metrics SET timestamp = '1960-01-01' WHERE run_id = '" + ids[1][0] + "'");
  for (const char* how : {"allow", "must"}) {
    run.options = {{"resume", std::string(how)}};
    run.config = {{"lr", 2.0}};
    log_run(3);
  }
  const auto after = sql.rows("SELECT run_id FROM metrics ORDER BY id");
  ASSERT_EQ(after.size(), 4U);
  EXPECT_EQ(after[2][0], ids[0][0]) << "the run of that name that began last goes on";
  EXPECT_EQ(after[3][0], ids[0][0]);
  EXPECT_EQ(
      json::parse(sql.value("SELECT config FROM configs WHERE run_id = '" + ids[0][0] + "'"))["lr"],
      2);
  run.run_name = "new";
  EXPECT_EQ(refusal_of(ErrorCode::kInvalidArgument, [&] { TrackioTracker().start(run); }),
            database.string() + " has no run 'new'");
  run.options = {{"resume", std::string("allow")}};
  log_run(4);
  EXPECT_EQ(sql.value("SELECT COUNT(DISTINCT run_id) FROM metrics"), "3");
}

TEST_F(Trackio, WrongOptionsAndNames_AreRefused) {
  const auto refused = [&] {
    return refusal_of(ErrorCode::kInvalidArgument, [&] { TrackioTracker().start(run); });
  };
  run.options = {{"space_id", std::string("me/x")}};
  EXPECT_EQ(refused(), "init_kwargs: the tracker 'trackio' has no option 'space_id'");
  run.options = {{"resume", std::string("auto")}};
  EXPECT_EQ(refused(), "init_kwargs: resume of the tracker 'trackio' is 'auto'");
  run.options = {{"resume", std::string("must")}};
  run.run_name = "";
  EXPECT_EQ(refused(), "the tracker 'trackio' is to resume a run, but the run has no name");
  run.options = {};
  for (const char* name : {"../x", "/etc", "a/../b", ".", "a/"}) {
    run.run_name = name;
    EXPECT_EQ(refused(),
              std::string("the tracker 'trackio' cannot use the run name '") + name + "'");
  }
  run.run_name = "first";
  run.config = {{"_lr", 1.0}};
  EXPECT_EQ(refused(), "the tracker 'trackio' cannot hold the hyperparameter '_lr'");
  run.config = {};
  const std::map<std::string, std::string> names = {
      {"registry-a", "Trackio keeps registries under names that begin with registry-"},
      {"a_traces", "Trackio keeps a table of the project 'a' in a_traces.parquet"},
      {"modèle", "it has characters other than ASCII's"}};
  for (const auto& [name, why] : names) {
    run.project = name;
    EXPECT_EQ(refused(),
              "the tracker 'trackio' cannot use the project name '" + name + "': " + why);
  }
  EXPECT_FALSE(fs::exists(place));
  run.options = {{"project", std::string("traces")}, {"name", std::string("other")}};
  log_run(1);
  EXPECT_EQ(Sql(place / "traces.db").value("SELECT run_name FROM metrics"), "other");
}

TEST_F(Trackio, Folder_IsThatOfTrackio) {
  EXPECT_EQ(TrackioFolder("a b.c-d_").database(), (place / "abc-d_.db").string());
  EXPECT_EQ(TrackioFolder("...").database(), (place / "default.db").string());
  ::setenv("TRACKIO_DIR", "", 1);
  std::map<std::string, std::string> before;
  for (const char* const variable : {"HF_HOME", "XDG_CACHE_HOME", "HOME"}) {
    before[variable] = path_of_variables({variable}, "");
  }
  ::unsetenv("HF_HOME");
  ::unsetenv("XDG_CACHE_HOME");
  ::setenv("HOME", "/h", 1);
  EXPECT_EQ(TrackioFolder("p").database(), "/h/.cache/huggingface/trackio/p.db");
  ::setenv("XDG_CACHE_HOME", "$HOME/c", 1);
  EXPECT_EQ(TrackioFolder("p").database(), "/h/c/huggingface/trackio/p.db");
  ::setenv("HF_HOME", "~/hf", 1);
  EXPECT_EQ(TrackioFolder("p").database(), "/h/hf/trackio/p.db");
  for (const auto& [variable, value] : before) {
    value.empty() ? ::unsetenv(variable.c_str()) : ::setenv(variable.c_str(), value.c_str(), 1);
  }
}

TEST_F(Trackio, DatabaseThatIsLocked_IsWaitedFor_AndNothingIsLostOrTwice) {
  TrackioTracker tracker;
  tracker.start(run);
  tracker.connect();
  tracker.log({{{"loss", 0.5}}, 0, 1});
  Sql other(database);
  other.rows("BEGIN IMMEDIATE");
  const std::string message = message_of([&] { tracker.flush(); });
  EXPECT_NE(message.find(database.string() + " is locked by another program"), std::string::npos)
      << message;
  tracker.log({{{"loss", 0.25}}, 1, 2});
  other.rows("ROLLBACK");
  tracker.flush();
  tracker.finish();
  EXPECT_EQ(rows(), 2);
}

TEST_F(Trackio, ProcessThatHoldsTheLock_DelaysNeitherTheStartNorValues) {
  log_run(0);
  const UniqueFd lock(::open((place / "p1.lock").c_str(), O_RDWR | O_CLOEXEC));
  ASSERT_EQ(::flock(lock.get(), LOCK_EX | LOCK_NB), 0);
  run.options = {{"resume", std::string("must")}};
  TrackioTracker tracker;
  tracker.start(run);
  const std::string message = message_of([&] { tracker.connect(); });
  EXPECT_NE(message.find("another process holds " + (place / "p1.lock").string()),
            std::string::npos)
      << message;
  ASSERT_EQ(::flock(lock.get(), LOCK_UN), 0);
  tracker.connect();
  tracker.log({{{"loss", 0.5}}, 1, 2});
  tracker.finish();
  EXPECT_EQ(Sql(database).value("SELECT COUNT(DISTINCT run_id) FROM metrics"), "1");
  EXPECT_EQ(rows(), 2);
}

// Like the tracker's queue, without its pauses.
void until_available(const std::function<void()>& call) {
  for (;;) {
    try {
      return call();
    } catch (const TrackerUnavailable&) {
      continue;
    }
  }
}

TEST_F(Trackio, TwoRunsAtOnce_AreBothComplete) {
  const auto work = [this](const std::string& name) {
    TrackerRun own = run;
    own.run_name = name;
    TrackioTracker tracker;
    tracker.start(own);
    until_available([&] { tracker.connect(); });
    for (int64_t step = 0; step < 60; ++step) {
      tracker.log({{{"loss", 0.5}}, step, 100});
      if (step % 3 == 0) until_available([&] { tracker.flush(); });
    }
    until_available([&] { tracker.finish(); });
  };
  std::thread other(work, "a");
  work("b");
  other.join();
  Sql sql(database);
  EXPECT_EQ(
      sql.rows("SELECT run_name, COUNT(*), COUNT(DISTINCT step), COUNT(DISTINCT run_id) "
               "FROM metrics GROUP BY run_name"),
      (std::vector<std::vector<std::string>>{{"a", "60", "60", "1"}, {"b", "60", "60", "1"}}));
  EXPECT_EQ(sql.value("PRAGMA integrity_check"), "ok");
}

TEST_F(Trackio, DamagedDatabase_IsNamed_AndLeftAsItIs) {
  fs::create_directories(place);
  const std::string garbage(8192, 'x');
  std::ofstream(database) << garbage;
  const std::string message = message_of([&] { TrackioTracker().start(run); });
  EXPECT_NE(message.find(database.string() + " is damaged, or not a database"), std::string::npos)
      << message;
  EXPECT_NE(message.find("move it"), std::string::npos) << message;
  EXPECT_EQ(bytes_of(database), garbage);
}

TEST_F(Trackio, DatabaseDamagedDuringARun_IsWaitedFor_UntilItIsMovedAway) {
  run.config = {{"lr", 0.5}};
  TrackioTracker tracker;
  tracker.start(run);
  tracker.connect();
  tracker.log({{{"loss", 0.5}}, 0, 1});
  tracker.flush();
  std::ofstream(database, std::ios::trunc) << std::string(8192, 'x');
  tracker.log({{{"loss", 0.25}}, 1, 2});
  EXPECT_THROW(tracker.flush(), TrackerUnavailable);
  EXPECT_THROW(tracker.flush(), TrackerUnavailable);
  fs::rename(database, folder.path() / "damaged.db");
  tracker.flush();
  tracker.finish();
  EXPECT_EQ(rows(), 1);
  EXPECT_EQ(json::parse(Sql(database).value("SELECT config FROM configs"))["lr"], 0.5);
}

TEST_F(Trackio, DatabaseOfAnotherSchema_IsUsedIfItHasTheColumns) {
  fs::create_directories(place);
  Sql(database).rows(
      "CREATE TABLE metrics (id INTEGER PRIMARY KEY, timestamp TEXT, run_name TEXT, "
      "step INTEGER, metrics TEXT)");
  std::string message = message_of([&] { TrackioTracker().start(run); });
  EXPECT_NE(message.find(database.string() + " has no column metrics.run_id: an early version of "
                                             "Trackio or another program has written it"),
            std::string::npos)
      << message;
  EXPECT_NE(message.find("start `trackio show` once"), std::string::npos) << message;
  Sql(database).rows("PRAGMA user_version = 9");
  message = message_of([&] { TrackioTracker().start(run); });
  EXPECT_NE(
      message.find("its schema is 9, and this Coupler knows that of 2\n  hint: update Coupler"),
      std::string::npos)
      << message;
  fs::remove(database);
  log_run(1);
  Sql(database).rows(
      "PRAGMA user_version = 9; ALTER TABLE metrics ADD COLUMN more TEXT; DROP TABLE artifacts");
  log_run(2);
  EXPECT_EQ(rows(), 2);
  EXPECT_EQ(Sql(database).value("PRAGMA user_version"), "9");
  TrackioTracker tracker;
  tracker.start(run);
  std::ofstream(folder.path() / "a") << "a";
  message = message_of([&] { tracker.log_artifact({(folder.path() / "a").string(), "a"}, 0, 0); });
  EXPECT_NE(message.find("has no column artifacts.id"), std::string::npos) << message;
}

// A limit of the size of files stands for a disk that is full.
TEST_F(Trackio, FullDisk_IsWaitedFor_AndNothingIsLost) {
  TrackioTracker tracker;
  tracker.start(run);
  tracker.connect();
  for (int64_t step = 0; step < 200; ++step) {
    tracker.log({{{"text", std::string(2000, 'x')}}, step, 100});
  }
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);
  const auto handler = std::signal(SIGXFSZ, SIG_IGN);
  rlimit low = before;
  low.rlim_cur = 65536;
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &low), 0);
  const std::string message = message_of([&] { tracker.flush(); });
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &before), 0);
  std::signal(SIGXFSZ, handler);
  EXPECT_NE(message.find(database.string() + " cannot be written: "), std::string::npos) << message;
  EXPECT_NE(message.find("free some space on its disk"), std::string::npos) << message;
  EXPECT_EQ(rows(), 0);
  tracker.flush();
  tracker.finish();
  EXPECT_EQ(rows(), 200);
  EXPECT_EQ(Sql(database).value("PRAGMA integrity_check"), "ok");
}

TEST_F(Trackio, FolderThatCannotBeWritten_IsNamedAtTheStart) {
  std::ofstream(folder.path() / "file") << "x";
  ::setenv("TRACKIO_DIR", (folder.path() / "file/x").c_str(), 1);
  const std::string message = message_of([&] { TrackioTracker().start(run); });
  EXPECT_NE(message.find((folder.path() / "file/x").string() + " cannot be written: "),
            std::string::npos)
      << message;
  EXPECT_NE(message.find("set TRACKIO_DIR to a writable folder"), std::string::npos) << message;
}

TEST_F(Trackio, Inbox_IsForNetworkFileSystems) {
  ::setenv("TRACKIO_STORAGE_MODE", "jsonl", 1);
  run.config = {{"lr", 0.5}};
  run.options = {{"resume", std::string("allow")}};
  for (int i = 0; i < 2; ++i) {
    TrackioTracker tracker;
    tracker.start(run);
    tracker.connect();
    tracker.log({{{"loss", 0.5}}, 0, 100});
    tracker.log({{{"loss", 0.25}}, 1, 101});
    tracker.flush();
    tracker.log({{{"loss", 0.125}}, 2, 102});
    EXPECT_FALSE(tracker.log_artifact({database.string(), "a"}, 2, 102));
    tracker.finish();
    EXPECT_EQ(tracker.location(), (place / "inbox").string());
  }
  EXPECT_FALSE(fs::exists(database));
  std::vector<std::string> folders;
  for (const auto& writer : fs::directory_iterator(place / "inbox")) {
    folders.push_back(writer.path());
  }
  ASSERT_EQ(folders.size(), 2U) << "each process has a folder of its own";
  std::istringstream lines(bytes_of(fs::path(folders[0]) / "00000000.jsonl"));
  std::vector<json> records;
  for (std::string line; std::getline(lines, line);) records.push_back(json::parse(line));
  ASSERT_EQ(records.size(), 2U);
  EXPECT_EQ(records[0]["v"], 1);
  EXPECT_EQ(records[0]["kind"], "metric");
  EXPECT_EQ(records[0]["project"], "p.1");
  EXPECT_EQ(records[0]["run"], "first");
  EXPECT_EQ(records[0]["config"]["lr"], 0.5);
  EXPECT_EQ(records[0]["timestamp"], "1970-01-01T00:01:40.000000+00:00");
  EXPECT_TRUE(records[1]["config"].is_null());
  EXPECT_EQ(records[1]["metrics"], json::parse(R"({"loss": 0.25})"));
  EXPECT_EQ(records[1]["step"], 1);
  EXPECT_EQ(records[0]["run_id"], records[1]["run_id"]);
  const json last = json::parse(bytes_of(fs::path(folders[0]) / "00000001.jsonl"));
  EXPECT_EQ(last["step"], 2);
  ::setenv("TRACKIO_STORAGE_MODE", "json", 1);
  EXPECT_EQ(refusal_of(ErrorCode::kConfig, [&] { TrackioTracker().start(run); }),
            "TRACKIO_STORAGE_MODE is 'json'");
}

TEST_F(Trackio, Servers_AreWarnedOf) {
  ::setenv("TRACKIO_SPACE_ID", "me/space", 1);
  const CapturedError captured;
  TrackioTracker().start(run);
  ::unsetenv("TRACKIO_SPACE_ID");
  const std::string text = captured.text();
  EXPECT_NE(text.find("TRACKIO_SPACE_ID is set, but the run is only written to " +
                      database.string() + "; `trackio sync --project 'p.1'`"),
            std::string::npos)
      << text;
}

}  // namespace
}  // namespace coupler::track
