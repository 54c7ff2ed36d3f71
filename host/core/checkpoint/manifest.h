// A checkpoint's manifest.json: what was saved, when and by what, and every file with its size and
// hash. A folder without one is not a checkpoint. Plain values and pure functions, any thread.
//
// It is JSON for people and programs. Its last line is a SHA-256 of everything above it, so that a
// flipped bit is detected. Manifests are untrusted input: parse() accepts what format() writes and
// rejects everything else, in time and memory linear in the size, which is limited.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "base/sha256.h"
#include "formats/safetensors_header.h"

namespace coupler::checkpoint {

inline constexpr const char* kManifestName = "manifest.json";
inline constexpr const char* kFormat = "coupler.checkpoint/1.1";
// Of a manifest without a save's identity, as older versions of Coupler wrote it.
inline constexpr const char* kFormatWithoutSave = "coupler.checkpoint/1";
// The key of the save's identity in a piece's "__metadata__".
inline constexpr const char* kSaveKey = "coupler.save";
inline constexpr uint64_t kMaxManifestBytes = uint64_t{64} << 20;
inline constexpr int kMaxNesting = 64;

struct ManifestFile {
  std::string name;  // in the checkpoint's folder: see check_file_name
  uint64_t bytes = 0;
  Bytes32 sha256{};
  int rank = -1;  // that wrote it as a piece of the save; -1: another file, such as a hook's
  bool operator==(const ManifestFile&) const = default;
};

struct Manifest {
  int64_t number = 0;  // of the checkpoint, counted from 0
  std::string save;    // identity of the save (names.h), which its pieces carry; "": it has none
  int64_t steps = 0;   // optimizer steps done
  int world_size = 1;
  std::string backend;
  std::string plan;
  std::string coupler_version;
  std::string libtorch_version;
  std::string saved_at;                             // now_utc()
  nlohmann::json state = nlohmann::json::object();  // the caller's; always an object
  std::vector<ManifestFile> files;
  bool operator==(const Manifest&) const = default;
};

// Throws Error(kInvalidArgument) naming the key if parse() would reject the result.
std::string format(const Manifest& manifest);

// Throws Error(kIo) naming `file`, the key and what is wrong with it; for another major version of
// the format, both versions.
Manifest parse(std::string_view text, const std::string& file);

// "" or why a file of a checkpoint cannot have that name.
std::string check_file_name(std::string_view name);

// Completes a manifest that lacks its last line. Public for tests of parse().
std::string with_checksum(std::string body);

std::string now_utc();  // "2026-11-22T15:04:05Z"

// The checksums of a checkpoint's files (base/durable_file.h) in its manifest's state: under
// "sums", by file, sixteen hexadecimal digits per chunk.

std::string encode_sums(const std::vector<uint64_t>& sums);

// The checksums of one of the manifest's files. Throws Error(kIo) naming path if they are missing
// or malformed.
std::vector<uint64_t> sums_of(const Manifest& manifest, const std::string& name,
                              const std::string& path);

// "" or the reason why a file with this "__metadata__" is not a piece of the manifest's save,
// phrased to follow the file's path. Every piece carries the identity of its save there (kSaveKey),
// so pieces of two saves never pass for one checkpoint, even if their sizes are equal. "" for files
// that are not pieces: they carry no identity.
std::string piece_problem(const safetensors::Metadata& metadata, const Manifest& manifest,
                          const ManifestFile& file);

}  // namespace coupler::checkpoint
