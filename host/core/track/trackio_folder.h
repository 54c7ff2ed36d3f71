// TrackioFolder: where Trackio (github.com/gradio-app/trackio) keeps one project, and what it keeps
// there as files: a database, images, artifacts by the SHA-256 of their contents, and on a network
// file system, where SQLite is unsafe, an inbox of JSON lines. Immutable, [any-thread].
//
// Names, variables and formats: trackio/utils.py, fragments.py and cas.py of Trackio 0.43.
#pragma once

#include <coupler/tracker.h>

#include <cstdint>
#include <string>
#include <vector>

#include "base/file_descriptor.h"

namespace coupler::track {

// The hint for a folder that is not writable.
inline constexpr const char* kOwnTrackioDir =
    "set TRACKIO_DIR to a writable folder on a local disk";

// A file of an artifact in the project's store.
struct TrackioBlob {
  std::string path;    // in the artifact
  std::string digest;  // SHA-256, hexadecimal
  uint64_t size = 0;
};

class TrackioFolder {
 public:
  // In TRACKIO_DIR, or trackio in Hugging Face's folder. Throws Error(kInvalidArgument) if Trackio
  // has another use for files of the project's name, Error(kConfig) if TRACKIO_STORAGE_MODE is none
  // of its values.
  explicit TrackioFolder(const std::string& project);

  const std::string& project() const { return project_; }  // as the program calls it
  std::string database() const;
  // Of the run's images of one step, and that folder as the database names it.
  std::string media(const std::string& run, int64_t step) const;
  std::string media_inside(const std::string& run, int64_t step) const;
  // Whether metrics go to the inbox, which Trackio imports, instead of the database:
  // TRACKIO_STORAGE_MODE, or by the folder's file system.
  bool uses_inbox() const { return uses_inbox_; }
  std::string inbox() const;

  // Creates the folder if it is missing. Throws Error(kIo) if it cannot be written.
  void create() const;
  // The lock that every process holds which writes to the database; released with the descriptor.
  // Throws TrackerUnavailable if another process still holds it after a second, Error(kIo) if
  // there can be none.
  UniqueFd lock() const;

  // Copies an artifact's files to the project's store. Throws Error(kIo) if they cannot be read,
  // Error(kInvalidArgument) if Trackio cannot hold them, and as throw_media_error.
  std::vector<TrackioBlob> store(const TrackedArtifact& artifact) const;

 private:
  std::string folder_;
  std::string project_;
  std::string file_name_;  // the project's, without an ending
  bool uses_inbox_ = false;
};

}  // namespace coupler::track
