// VersionMark: shows whether an in-place operation has changed a tensor since the mark was made,
// without keeping the tensor or its memory. [any-thread]
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace coupler {

class VersionMark {
 public:
  VersionMark() = default;  // of no tensor; never changes
  explicit VersionMark(const at::Tensor& tensor)
      : counter_(tensor.unsafeGetTensorImpl()->version_counter()), version_(now()) {}

  bool changed() const { return now() != version_; }
  bool same_version(const VersionMark& other) const { return version_ == other.version_; }

 private:
  // Tensors made in inference mode have no counter.
  uint32_t now() const { return counter_.enabled() ? counter_.current_version() : 0; }

  c10::VariableVersion counter_;
  uint32_t version_ = 0;
};

}  // namespace coupler
