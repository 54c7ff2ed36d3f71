// SharedFolder: a check's own folder, known to all ranks, removed once all have left it.
#pragma once

#include <coupler/coupler.h>
#include <coupler/objects.h>

#include <exception>
#include <optional>
#include <string>

#include "temporary_folder.h"

class SharedFolder {
 public:
  explicit SharedFolder(coupler::Accelerator& accelerator) : accelerator_(accelerator) {
    if (accelerator.is_main_process()) own_.emplace("coupler-checkpoints");
    path_ = coupler::broadcast_object(accelerator, own_ ? own_->path().string() : "");
  }
  ~SharedFolder() {
    if (std::uncaught_exceptions() > exceptions_) return;  // this rank ends
    try {
      accelerator_.wait_for_everyone();
    } catch (const coupler::Error&) {  // another rank has failed, and says why
    }
  }
  SharedFolder(const SharedFolder&) = delete;
  SharedFolder& operator=(const SharedFolder&) = delete;
  const std::string& path() const { return path_; }

 private:
  coupler::Accelerator& accelerator_;
  const int exceptions_ = std::uncaught_exceptions();
  std::optional<coupler::TemporaryFolder> own_;  // on the main process only
  std::string path_;
};
