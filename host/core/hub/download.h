// ModelDownload: downloads a model's files from the Hugging Face Hub into the cache. Each file is
// resumed where an earlier attempt ended, checked against its hash and length, and only then
// visible to others. Used by one thread.
#pragma once

#include <string>

#include "hub/hub_client.h"
#include "hub/model_cache.h"
#include "hub/settings.h"

namespace coupler::hub {

class ModelDownload {
 public:
  // cache: must outlive this; its folders exist.
  ModelDownload(const HubSettings& settings, ModelName model, const ModelCache& cache, Beat beat);

  // Returns whether the model has the file, which is then in the snapshot. All files are of one
  // commit: the one that the cache has for the revision, or the one that the first answer names.
  // Throws Error as HubClient does, and Error(kIo) if the contents are not those announced, or the
  // disk has no room for them.
  bool obtain(const std::string& file);

  const std::string& commit() const { return commit_; }

 private:
  void download(RemoteFile file);
  std::string transfer(const RemoteFile& file, const std::string& path);

  HubSettings settings_;
  ModelName model_;
  const ModelCache& cache_;
  Beat beat_;
  HubClient client_;
  std::string commit_;
};

// What is wrong with a file that should have the contents of this ETag: its hash or its length.
// "": nothing, or the ETag is not a hash of the Hub. Throws Error(kIo) if it cannot be read.
std::string content_problem(const std::string& path, const RemoteFile& file, const Beat& beat);

}  // namespace coupler::hub
