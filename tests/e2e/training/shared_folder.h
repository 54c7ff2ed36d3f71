// SharedFolder: a check's own folder, known to all ranks, removed with the main process's object.
#pragma once

#include <coupler/coupler.h>
#include <coupler/objects.h>

#include <optional>
#include <string>

#include "temporary_folder.h"

class SharedFolder {
 public:
  explicit SharedFolder(coupler::Accelerator& accelerator) {
    if (accelerator.is_main_process()) own_.emplace("coupler-checkpoints");
    path_ = coupler::broadcast_object(accelerator, own_ ? own_->path().string() : "");
  }
  const std::string& path() const { return path_; }

 private:
  std::optional<coupler::TemporaryFolder> own_;  // on the main process only
  std::string path_;
};
