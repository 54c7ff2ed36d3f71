// SharedFolder: a folder of a check's own that all ranks know, gone with the main process's object.
#pragma once

#include <coupler/coupler.h>
#include <coupler/objects.h>

#include <cstdlib>
#include <filesystem>
#include <string>

#include "check.h"

class SharedFolder {
 public:
  explicit SharedFolder(coupler::Accelerator& accelerator) : accelerator_(accelerator) {
    std::string path =
        (std::filesystem::temp_directory_path() / "coupler-checkpoints-XXXXXX").string();
    if (accelerator.is_main_process()) EXPECT(::mkdtemp(path.data()) != nullptr, "mkdtemp failed");
    path_ = coupler::broadcast_object(accelerator, path);
  }
  ~SharedFolder() {
    std::error_code ignored;
    if (accelerator_.is_main_process()) std::filesystem::remove_all(path_, ignored);
  }
  SharedFolder(const SharedFolder&) = delete;
  SharedFolder& operator=(const SharedFolder&) = delete;
  const std::string& path() const { return path_; }

 private:
  coupler::Accelerator& accelerator_;
  std::string path_;
};
