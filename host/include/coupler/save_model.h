// Options of Accelerator::save_model. A value.
#pragma once

#include <string>

namespace coupler {

// For Accelerator::save_model.
struct SaveModelOptions {
  // A file holds no more; "10GB" is decimal, "10GiB" binary. A larger tensor has a file of its own.
  std::string max_shard_size = "10GB";
  // Accelerate's word: anything but safetensors could carry code, so false is Error(kUnsupported).
  bool safe_serialization = true;
};

}  // namespace coupler
