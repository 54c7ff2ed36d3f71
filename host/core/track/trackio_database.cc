#include "track/trackio_database.h"

#include <coupler/tracker.h>
#include <fmt/chrono.h>
#include <fmt/format.h>
#include <sqlite3.h>

#include <algorithm>
#include <cmath>
#include <ctime>
#include <initializer_list>

#include "base/process.h"
#include "base/sha256.h"
#include "base/text.h"
#include "base/units.h"
#include "track/file_trackers.h"
#include "track/trackio_schema.h"

namespace coupler::track {
namespace {

constexpr int kBusyWait = 1000;  // ms

// code: of the call that has just failed. connection: null if there is none.
[[noreturn]] void throw_sqlite(sqlite3* connection, int code, const std::string& path) {
  const std::string reason =
      connection != nullptr ? sqlite3_errmsg(connection) : sqlite3_errstr(code);
  const std::string unwritable = fmt::format("{} cannot be written: {}", path, reason);
  switch (code & 0xff) {  // the rest says more
    case SQLITE_BUSY:
    case SQLITE_LOCKED:
    case SQLITE_PROTOCOL:
      throw TrackerUnavailable(
          fmt::format("{} is locked by another program", path),
          {.subject = path,
           .hint = fmt::format("end that program, or its transaction (`fuser {}`)", path)});
    case SQLITE_FULL:
    case SQLITE_IOERR:
    case SQLITE_NOMEM:
      throw TrackerUnavailable(unwritable,
                               {.subject = path, .hint = "free some space on its disk"});
    case SQLITE_READONLY:
    case SQLITE_CANTOPEN:
    case SQLITE_PERM:
      throw Error(ErrorCode::kIo, unwritable, {.subject = path, .hint = kOwnTrackioDir});
    case SQLITE_NOTADB:
    case SQLITE_CORRUPT:
      throw Error(ErrorCode::kIo, fmt::format("{} is damaged, or not a database: {}", path, reason),
                  {.subject = path,
                   .hint = fmt::format(
                       "move it and its -wal and -shm files elsewhere; `sqlite3 {} .recover` "
                       "prints what can be read",
                       path)});
    default:
      throw Error(ErrorCode::kIo, unwritable,
                  {.subject = path, .hint = "set TRACKIO_DIR to another folder"});
  }
}

// One SQL statement. What is bound must live until the statement has run.
class Statement {
 public:
  Statement(sqlite3* connection, const std::string& path, const char* sql)
      : connection_(connection), path_(path) {
    check(sqlite3_prepare_v2(connection, sql, -1, &statement_, nullptr));
  }
  ~Statement() { sqlite3_finalize(statement_); }
  Statement(const Statement&) = delete;
  Statement& operator=(const Statement&) = delete;

  // Each binds the next parameter.
  Statement& text(std::string_view value) {
    check(sqlite3_bind_text64(statement_, ++bound_, value.data(), value.size(), nullptr,
                              SQLITE_UTF8));
    return *this;
  }
  Statement& bytes(std::string_view value) {
    check(sqlite3_bind_blob64(statement_, ++bound_, value.data(), value.size(), nullptr));
    return *this;
  }
  Statement& number(int64_t value) {
    check(sqlite3_bind_int64(statement_, ++bound_, value));
    return *this;
  }

  // Whether there is another row.
  bool next() {
    const int code = sqlite3_step(statement_);
    if (code == SQLITE_ROW) return true;
    if (code != SQLITE_DONE) throw_sqlite(connection_, code, path_);
    return false;
  }
  int64_t number_at(int column) { return sqlite3_column_int64(statement_, column); }
  std::string text_at(int column) {
    const unsigned char* const text = sqlite3_column_text(statement_, column);
    return text != nullptr ? reinterpret_cast<const char*>(text) : "";
  }

  // Runs it to its end; it can then be bound again.
  void run() {
    while (next()) continue;
    sqlite3_reset(statement_);
    bound_ = 0;
  }

 private:
  void check(int code) {
    if (code != SQLITE_OK) throw_sqlite(connection_, code, path_);
  }

  sqlite3* connection_;
  const std::string& path_;
  sqlite3_stmt* statement_ = nullptr;
  int bound_ = 0;
};

// Undone unless commit() has returned.
class Transaction {
 public:
  Transaction(sqlite3* connection, const std::string& path) : connection_(connection), path_(path) {
    Statement(connection_, path_, "BEGIN IMMEDIATE").run();
  }
  ~Transaction() {
    // Fails only if SQLite has undone it by itself.
    if (!done_) sqlite3_exec(connection_, "ROLLBACK", nullptr, nullptr, nullptr);
  }
  Transaction(const Transaction&) = delete;
  Transaction& operator=(const Transaction&) = delete;

  void commit() {
    Statement(connection_, path_, "COMMIT").run();
    done_ = true;
  }

 private:
  sqlite3* connection_;
  const std::string& path_;
  bool done_ = false;
};

// The variable's value if it is one of these, as Trackio reads it.
std::string pragma_of(const char* variable, std::initializer_list<const char*> known,
                      const char* otherwise) {
  const std::string value = lower(environment_value(variable));
  const bool valid = std::find(known.begin(), known.end(), value) != known.end();
  return valid ? value : otherwise;
}

// As Trackio's reader parses it, and without spaces as its writer sorts it for the digest.
std::string manifest_of(const std::vector<TrackioBlob>& blobs, bool for_digest) {
  std::string out = "[";
  for (const TrackioBlob& blob : blobs) {
    std::string path;
    append_json_text(path, blob.path);
    if (out.size() > 1) out += ',';
    out +=
        for_digest
            ? fmt::format(R"({{"digest":"{}","path":{},"size":{}}})", blob.digest, path, blob.size)
            : fmt::format(R"({{"path":{},"digest":"{}","size":{}}})", path, blob.digest, blob.size);
  }
  return out + "]";
}

}  // namespace

std::string trackio_time(double seconds) {
  const auto micros = static_cast<int64_t>(std::llround(seconds * 1e6));
  const std::time_t whole = micros / 1'000'000;
  return fmt::format("{:%Y-%m-%dT%H:%M:%S}.{:06}+00:00", fmt::gmtime(whole), micros % 1'000'000);
}

void TrackioDatabase::Close::operator()(sqlite3* connection) const { sqlite3_close_v2(connection); }

TrackioDatabase::TrackioDatabase(const TrackioFolder& folder) : path_(folder.database()) {
  folder.create();
  lock_ = folder.lock();
  sqlite3* opened = nullptr;
  const int code =
      sqlite3_open_v2(path_.c_str(), &opened, SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE, nullptr);
  connection_.reset(opened);
  if (code != SQLITE_OK) throw_sqlite(opened, code, path_);
  sqlite3_busy_timeout(opened, kBusyWait);
  if (sqlite3_db_readonly(opened, "main") == 1) throw_sqlite(nullptr, SQLITE_READONLY, path_);
  const std::string journal =
      pragma_of("TRACKIO_SQLITE_JOURNAL_MODE",
                {"wal", "delete", "truncate", "persist", "memory", "off"}, "wal");
  const std::string synchronous =
      pragma_of("TRACKIO_SQLITE_SYNCHRONOUS", {"off", "normal", "full", "extra"}, "normal");
  Statement(opened, path_, ("PRAGMA journal_mode = " + journal).c_str()).run();
  Statement(opened, path_, ("PRAGMA synchronous = " + synchronous).c_str()).run();
  create_or_check();
}

void TrackioDatabase::create_or_check() {
  bool empty = false;
  {
    Statement tables(connection_.get(), path_, "SELECT COUNT(*) FROM sqlite_master");
    empty = tables.next() && tables.number_at(0) == 0;
  }
  if (!empty) {
    require("metrics", {"run_id", "timestamp", "run_name", "step", "metrics", "log_id"});
    require("configs", {"run_id", "run_name", "config", "created_at"});
    return;
  }
  Transaction transaction(connection_.get(), path_);
  const int code = sqlite3_exec(connection_.get(), kTrackioSchema, nullptr, nullptr, nullptr);
  if (code != SQLITE_OK) throw_sqlite(connection_.get(), code, path_);
  transaction.commit();
}

void TrackioDatabase::require(std::string_view table, const std::vector<const char*>& columns) {
  for (const char* const column : columns) {
    Statement found(connection_.get(), path_, "SELECT 1 FROM pragma_table_info(?) WHERE name = ?");
    if (found.text(table).text(column).next()) continue;
    Statement version(connection_.get(), path_, "PRAGMA user_version");
    const int64_t schema = version.next() ? version.number_at(0) : 0;
    const bool newer = schema > kTrackioSchemaVersion;
    throw Error(
        ErrorCode::kIo,
        fmt::format("{} has no column {}.{}: {}", path_, table, column,
                    newer ? fmt::format("its schema is {}, and this Coupler knows that of {}",
                                        schema, kTrackioSchemaVersion)
                          : "an early version of Trackio or another program has written it"),
        {.subject = path_,
         .hint = newer ? "update Coupler, or set TRACKIO_DIR to another folder"
                       : "start `trackio show` once, which updates Trackio's databases, or set "
                         "TRACKIO_DIR to another folder"});
  }
}

std::string TrackioDatabase::latest_run(const std::string& name) {
  Statement latest(connection_.get(), path_,
                   "SELECT run_id FROM metrics WHERE run_name = ? GROUP BY run_id "
                   "ORDER BY MIN(timestamp) DESC LIMIT 1");
  return latest.text(name).next() ? latest.text_at(0) : "";
}

void TrackioDatabase::write(const TrackioRun& run, const std::vector<TrackioRow>& rows,
                            const std::string& config, bool replace) {
  Transaction transaction(connection_.get(), path_);
  Statement insert(connection_.get(), path_,
                   "INSERT INTO metrics (timestamp, run_id, run_name, step, metrics, log_id) "
                   "VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT DO NOTHING");
  for (const TrackioRow& row : rows) {
    insert.text(row.time).text(run.id).text(run.name).number(row.step);
    insert.bytes(row.metrics).text(row.log_id).run();
  }
  const std::string now = trackio_time(seconds_since_epoch());
  Statement(connection_.get(), path_,
            replace ? "INSERT OR REPLACE INTO configs (run_id, run_name, config, created_at) "
                      "VALUES (?, ?, ?, ?)"
                    : "INSERT INTO configs (run_id, run_name, config, created_at) "
                      "VALUES (?, ?, ?, ?) ON CONFLICT DO NOTHING")
      .text(run.id)
      .text(run.name)
      .bytes(config)
      .text(now)
      .run();
  transaction.commit();
}

void TrackioDatabase::add_artifact(const TrackioRun& run, const std::string& name,
                                   const std::vector<TrackioBlob>& blobs, const std::string& time) {
  require("artifacts", {"id", "name", "type", "created_at"});
  require("artifact_versions",
          {"id", "artifact_id", "version", "manifest_digest", "manifest", "size_bytes",
           "producer_run_id", "producer_run_name", "created_at"});
  require("artifact_aliases", {"artifact_id", "alias", "artifact_version_id"});
  require("run_artifact_links",
          {"run_id", "run_name", "run_project", "artifact_version_id", "direction", "created_at"});
  int64_t size = 0;
  for (const TrackioBlob& blob : blobs) size += static_cast<int64_t>(blob.size);
  const std::string digest = to_hex(Digest().update(manifest_of(blobs, true)).finish());
  sqlite3* const connection = connection_.get();
  Transaction transaction(connection, path_);
  const auto id_of = [&](Statement& statement) -> int64_t {
    return statement.next() ? statement.number_at(0) : 0;
  };
  Statement(connection, path_,
            "INSERT INTO artifacts (name, type, created_at) VALUES (?, 'unspecified', ?) "
            "ON CONFLICT DO NOTHING")
      .text(name)
      .text(time)
      .run();
  Statement find(connection, path_, "SELECT id FROM artifacts WHERE name = ?");
  const int64_t artifact = id_of(find.text(name));
  Statement same(connection, path_,
                 "SELECT id FROM artifact_versions WHERE artifact_id = ? AND manifest_digest = ?");
  int64_t version = id_of(same.number(artifact).text(digest));
  if (version == 0) {
    Statement(connection, path_,
              "INSERT INTO artifact_versions (artifact_id, version, manifest_digest, manifest, "
              "size_bytes, producer_run_id, producer_run_name, created_at) "
              "SELECT ?1, COALESCE(MAX(version) + 1, 0), ?2, ?3, ?4, ?5, ?6, ?7 "
              "FROM artifact_versions WHERE artifact_id = ?1")
        .number(artifact)
        .text(digest)
        .text(manifest_of(blobs, false))
        .number(size)
        .text(run.id)
        .text(run.name)
        .text(time)
        .run();
    version = sqlite3_last_insert_rowid(connection);
    Statement(connection, path_,
              "INSERT OR REPLACE INTO artifact_aliases (artifact_id, alias, artifact_version_id) "
              "VALUES (?, 'latest', ?)")
        .number(artifact)
        .number(version)
        .run();
  }
  Statement(connection, path_,
            "INSERT INTO run_artifact_links (run_id, run_name, artifact_version_id, direction, "
            "created_at) VALUES (?, ?, ?, 'output', ?) ON CONFLICT DO NOTHING")
      .text(run.id)
      .text(run.name)
      .number(version)
      .text(time)
      .run();
  transaction.commit();
}

}  // namespace coupler::track
