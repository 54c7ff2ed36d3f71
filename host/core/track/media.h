// Images, tables and artifacts as files, for trackers that keep them in a folder; and the options
// of one tracker. Plain functions, [any-thread].
#pragma once

#include <coupler/tracker.h>

#include <cstdint>
#include <string>
#include <vector>

namespace coupler::track {

// Pixels as the contents of a PNG file, compressed. channels: 1, 3 or 4.
std::string png_of(int64_t width, int64_t height, int64_t channels,
                   const std::vector<uint8_t>& pixels);

// A name as a file's, with a number that keeps different names and steps apart: other characters
// than letters, digits, - and _ become _.
std::string media_name(const std::string& name, int64_t step, const std::string& ending);

// The hint for a folder that is not writable.
inline constexpr const char* kOwnFolder = "set training.logging_dir to a writable folder";

// number: of errno. Throws TrackerUnavailable if the disk is full, Error(kIo) with this hint
// otherwise.
[[noreturn]] void throw_media_error(const std::string& path, int number, const char* hint);

// Writes folder/name, whole or not at all, and creates missing folders. Throws as
// throw_media_error.
void write_media(const std::string& folder, const std::string& name, const std::string& bytes,
                 const char* hint = kOwnFolder);

struct ArtifactFile {
  std::string path;     // where it is
  std::string inside;   // its path in the artifact's folder; its name if it is the artifact
  std::string kept_as;  // its path with the artifact's name in front
};

// In the order of their paths. Links are followed for the artifact itself only. Throws Error(kIo)
// if they cannot be read.
std::vector<ArtifactFile> files_of(const TrackedArtifact& artifact);

// Copies a file or a folder to `folder`, under the artifact's name, and returns the files below
// `folder`. Throws as files_of and write_media.
std::vector<std::string> copy_artifact(const TrackedArtifact& artifact, const std::string& folder);

// {"columns": […], "data": [[…], …]}, as pandas writes and reads it ("split"), and W&B and MLflow.
std::string table_json(const TrackedTable& table);

// The tracker's option, else the environment variable's value ("": none), else "".
std::string option_of(const TrackerRun& run, const std::string& name, const char* variable = "");
// Throws Error(kInvalidArgument) if the run has another option than these, naming them.
void check_options(const TrackerRun& run, const std::string& tracker,
                   const std::vector<std::string>& known);

}  // namespace coupler::track
