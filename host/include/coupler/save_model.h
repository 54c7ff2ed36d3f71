// Options of Accelerator::save_model. A value.
#pragma once

#include <string>

namespace coupler {

// For Accelerator::save_model.
struct SaveModelOptions {
  // The maximum file size; "10GB" is decimal, "10GiB" binary. A larger tensor gets its own file.
  std::string max_shard_size = "10GB";
  // For compatibility with Accelerate: only safetensors is supported, because other formats could
  // carry code; false throws Error(kUnsupported).
  bool safe_serialization = true;
};

}  // namespace coupler
