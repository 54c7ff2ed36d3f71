// SafeTensors: the named tensors of a .safetensors file, without copying them. Opening maps the
// file and checks its header against every rule of the format, which takes well under a millisecond
// whatever the file's size. Immutable after open, so any thread may call it; cheap to copy.
#pragma once

#include <ATen/core/Tensor.h>

#include <map>
#include <memory>
#include <string>
#include <vector>

namespace coupler {

class SafeTensors {
 public:
  // Throws Error(kIo) naming the file, the tensor where one is at fault, and the broken rule.
  static SafeTensors open(const std::string& path);

  // In the order of their bytes in the file.
  const std::vector<std::string>& names() const;
  bool contains(const std::string& name) const;

  // The tensor, on CPU. Its storage is the mapped file, which stays mapped as long as any such
  // tensor lives; treat it as read-only (a write changes this process's copy of the page, not the
  // file). Only where the file does not align the bytes to the element size is it a copy. Throws
  // Error(kInvalidArgument) for a name the file does not hold, Error(kUnsupported) for a dtype
  // LibTorch lacks, Error(kIo) for a BOOL byte other than 0 and 1.
  at::Tensor tensor(const std::string& name) const;

  // The strings of "__metadata__"; empty where there are none.
  const std::map<std::string, std::string, std::less<>>& metadata() const;

 private:
  struct File;
  explicit SafeTensors(std::shared_ptr<const File> file);

  std::shared_ptr<const File> file_;
};

}  // namespace coupler
