// ModelCache: one model in the Hugging Face cache, in the layout that huggingface_hub documents and
// shares with every other program
// (https://huggingface.co/docs/huggingface_hub/guides/manage-cache):
//
//   models--ORG--NAME/refs/main                  a commit
//   models--ORG--NAME/snapshots/COMMIT/FILE      a link to ../../blobs/ETAG
//   models--ORG--NAME/blobs/ETAG                 the contents
//   models--ORG--NAME/.no_exist/COMMIT/FILE      empty: the commit has no such file
//   .locks/models--ORG--NAME/ETAG.lock           held by the process that downloads it
//
// Files: relative paths that is_inside accepts. Used by one thread; several processes may write.
#pragma once

#include <string>

#include "hub/settings.h"

namespace coupler::hub {

enum class Cached { kThere, kDangling, kAbsent, kUnknown };

class ModelCache {
 public:
  // Touches nothing.
  ModelCache(const std::string& cache, const std::string& id);

  const std::string& folder() const { return folder_; }

  // The commit that a revision is, as far as the cache knows; "" if it does not. Throws Error(kIo)
  // if the file that should have it holds something else.
  std::string commit_of(const std::string& revision) const;
  std::string snapshot(const std::string& commit) const;
  std::string blob(const std::string& etag) const;

  // kThere: it can be opened. kDangling: a link whose blob is missing. kAbsent: the commit does not
  // have it. kUnknown: it was not downloaded.
  Cached state_of(const std::string& commit, const std::string& file) const;
  // Whether a download of this model was interrupted.
  bool has_incomplete() const;

  // Throw Error(kIo) if the cache cannot be written.
  void make_folders() const;
  std::string lock_path(const std::string& name) const;
  // Makes the blob the file of that name. The blob must exist.
  void link(const std::string& commit, const std::string& file, const std::string& etag) const;
  void set_absent(const std::string& commit, const std::string& file) const;
  void set_revision(const std::string& revision, const std::string& commit) const;

 private:
  std::string cache_;
  std::string name_;  // models--ORG--NAME
  std::string folder_;
};

}  // namespace coupler::hub
