#include "checkpoint/piece_identity.h"

#include <coupler/error.h>
#include <fmt/format.h>

#include "base/file_text.h"
#include "base/mapped_file.h"
#include "base/message.h"

namespace coupler::checkpoint {

std::string piece_problem(const safetensors::Metadata& metadata, const Manifest& manifest,
                          const ManifestFile& file) {
  if (file.rank < 0) return "";
  const auto found = metadata.find(kSaveKey);
  if (found == metadata.end())
    return fmt::format("carries no save identity, but rank {} wrote it for save {}", file.rank,
                       manifest.save);
  if (found->second == manifest.save) return "";
  return fmt::format("belongs to save {}, not to save {} for which rank {} wrote it",
                     shown(found->second), manifest.save, file.rank);
}

std::string piece_problem(const std::string& folder, const Manifest& manifest,
                          const ManifestFile& file) {
  if (file.rank < 0) return "";
  const std::string path = folder + "/" + file.name;
  try {
    const auto mapped = MappedFile::open(path);
    const auto header = safetensors::parse_header(mapped->data(), mapped->size(), path);
    return piece_problem(header.metadata, manifest, file);
  } catch (const Error& error) {
    return "cannot be read as a piece: " + without_hint(error.what());
  }
}

}  // namespace coupler::checkpoint
