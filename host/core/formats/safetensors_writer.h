// Writes one safetensors file from front to back, a piece of a tensor at a time. Each object is
// single-threaded; different threads may write different files. Does not depend on LibTorch.
//
// The bytes are those of the reference implementation: tensors by dtype, the widest first, then by
// name; a header padded with spaces to a multiple of 8. The only difference: the reference writes
// the strings of "__metadata__" in an order that changes from run to run, this writes them sorted.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/durable_file.h"
#include "formats/safetensors_header.h"

namespace coupler::safetensors {

struct TensorEntry {
  std::string name;
  DType dtype;
  std::vector<int64_t> shape;
};

// The layout of a file, which has head.size() + data_bytes bytes.
struct Layout {
  std::string head;                 // the header and its length: what comes before the data
  std::vector<TensorInfo> tensors;  // in the order of their bytes
  uint64_t data_bytes = 0;
};

// Pure. Throws Error(kInvalidArgument) naming `file`, the tensor at fault and the rule if no reader
// would accept the file. Without strings, no "__metadata__" is written.
Layout lay_out(std::vector<TensorEntry> entries, const Metadata& metadata, const std::string& file);

class Writer {
 public:
  // Writes the header. Throws as lay_out, before the file is created, and as DurableFile.
  Writer(const std::string& path, std::vector<TensorEntry> entries, const Metadata& metadata = {});

  // In the order in which their bytes must be written.
  const std::vector<TensorInfo>& tensors() const { return layout_.tensors; }

  // Writes the next bytes of a tensor. A tensor must be complete before the next one starts;
  // tensors without bytes may be omitted. Throws Error(kInternal) if other bytes are due,
  // Error(kIo) as DurableFile; the writer is then unusable, and its destructor removes the file.
  void write(std::string_view tensor, const void* data, size_t size);

  // Returns when the bytes are on the disk. Call at most once. Throws Error(kInternal) if bytes are
  // missing, Error(kIo) as DurableFile.
  WrittenFile finish();

 private:
  uint64_t missing() const;  // of the tensor being written
  void skip_written();
  [[noreturn]] void fail(const std::string& what) const;

  Layout layout_;
  DurableFile file_;
  size_t current_ = 0;  // in layout_.tensors
  uint64_t got_ = 0;    // bytes of all tensors
};

}  // namespace coupler::safetensors
