// SafeTensors: reads the named tensors of a .safetensors file without copying them. Opening maps
// the file and checks its header against every rule of the format, which takes well under a
// millisecond for any file size. Immutable after open, so any thread may call it; cheap to copy.
#pragma once

#include <ATen/core/Tensor.h>

#include <map>
#include <memory>
#include <string>
#include <vector>

namespace coupler {

class SafeTensors {
 public:
  // Throws Error(kIo) naming the file, the tensor if one is at fault, and the violated rule.
  static SafeTensors open(const std::string& path);

  // In the order of their bytes in the file.
  const std::vector<std::string>& names() const;
  bool contains(const std::string& name) const;

  // Returns the tensor, on CPU. Its storage is the mapped file, which stays mapped while any such
  // tensor is alive; treat it as read-only (a write changes this process's copy of the page, not
  // the file). It is a copy only if the file does not align the bytes to the element size. Throws
  // Error(kInvalidArgument) for a name not in the file, Error(kUnsupported) for a dtype LibTorch
  // lacks, Error(kIo) for a BOOL byte other than 0 and 1.
  at::Tensor tensor(const std::string& name) const;

  // The strings of "__metadata__"; empty if there are none.
  const std::map<std::string, std::string, std::less<>>& metadata() const;

 private:
  struct File;
  explicit SafeTensors(std::shared_ptr<const File> file);

  std::shared_ptr<const File> file_;
};

}  // namespace coupler
