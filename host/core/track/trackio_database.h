// TrackioDatabase: a project's SQLite database, open for one piece of work while this process holds
// the project's lock, as Trackio opens it: so a process of Trackio may read or write the same
// project at the same time, and a database that was removed or replaced meanwhile is noticed. Used
// by one thread.
//
// All functions throw TrackerUnavailable if the database is locked or the disk is full, and
// Error(kIo) naming the file if the user must act: damaged, not writable, of another schema.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/file_descriptor.h"
#include "track/trackio_folder.h"

struct sqlite3;

namespace coupler::track {

// The ISO time that Trackio writes, in UTC. seconds: since 1970.
std::string trackio_time(double seconds);

struct TrackioRun {
  std::string id;
  std::string name;
};

// The values of one call of log.
struct TrackioRow {
  std::string log_id;  // unique
  int64_t step = 0;
  std::string time;     // trackio_time
  std::string metrics;  // a JSON object
};

class TrackioDatabase {
 public:
  // Creates the file and its tables if there is none.
  explicit TrackioDatabase(const TrackioFolder& folder);
  TrackioDatabase(const TrackioDatabase&) = delete;
  TrackioDatabase& operator=(const TrackioDatabase&) = delete;

  // The id of the run of this name that began last; "" if there is none.
  std::string latest_run(const std::string& name);

  // All of it or nothing. Rows whose log_id is there are left out, so that a call may be repeated.
  // config: JSON; replaces the run's if it has one and `replace` is true.
  void write(const TrackioRun& run, const std::vector<TrackioRow>& rows, const std::string& config,
             bool replace);

  // Adds a version of the artifact as the run's output; of the same contents as an earlier one only
  // the output. name: of letters, digits, ".", "-" and "_".
  void add_artifact(const TrackioRun& run, const std::string& name,
                    const std::vector<TrackioBlob>& blobs, const std::string& time);

 private:
  struct Close {
    void operator()(sqlite3* connection) const;
  };
  void create_or_check();
  void require(std::string_view table, const std::vector<const char*>& columns);

  std::string path_;
  UniqueFd lock_;  // before connection_: closing that writes, too
  std::unique_ptr<sqlite3, Close> connection_;
};

}  // namespace coupler::track
