// A file of torch.save's: the values it holds, and where the bytes of its tensors lie. Nothing in
// it is executed: see pickle.h for what may be in one. Immutable after opening; any thread may
// read. Sees no LibTorch.
//
//   const auto archive = TorchArchive::open("pytorch_model.bin");
//   for (const TorchTensor& tensor : archive.tensors()) …
//
// A checkpoint with more around its tensors, such as an optimizer's, is walked from root().
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "io/mapped_file.h"
#include "io/pickle.h"
#include "io/safetensors_header.h"
#include "io/zip_archive.h"

namespace coupler {

// A range of bytes, counted from the beginning of the file.
struct ByteRange {
  uint64_t begin;
  uint64_t end;
};

// All elements lie inside the storage, and there are no more of them than the storage has; they may
// overlap. Tensors that share a storage, such as tied weights, have the same storage key.
struct TorchTensor {
  std::string name;
  safetensors::DType dtype;
  std::vector<int64_t> shape;
  std::vector<int64_t> strides;  // in elements, none negative
  std::string storage_key;
  ByteRange storage;  // in the file
  uint64_t offset;    // of the first element, in bytes from the storage's beginning
  ByteRange bytes;    // from the first element in memory to the last; empty where there are none
};

class TorchArchive {
 public:
  // Throws Error(kIo) naming the file and what is wrong with it, where it is none of torch.save's
  // what it is instead, and kUnsupported for what only an older PyTorch writes or reads.
  static TorchArchive open(const std::string& path);
  // The same for a file's bytes, which must outlive the archive; `file` names them in messages.
  TorchArchive(const uint8_t* bytes, uint64_t size, std::string file);

  const pickle::Value& root() const { return *root_; }
  // What the ranges of bytes count from.
  const uint8_t* data() const { return bytes_; }
  // Null where the bytes are somebody else's.
  const std::shared_ptr<const MappedFile>& file() const { return mapped_; }

  // The tensors of a state dict, in its order: of the root, or of a dictionary below it. Throws
  // Error(kIo) where it is no dictionary of tensors by name, or where a tensor leaves its storage.
  std::vector<TorchTensor> tensors() const { return tensors(root()); }
  std::vector<TorchTensor> tensors(const pickle::Value& state_dict) const;
  // One tensor met on a walk; `name` is for messages and the result. Throws as tensors() does, and
  // Error(kUnsupported) for complex128.
  TorchTensor place(std::string name, const pickle::Tensor& tensor) const;
  // The bytes of a storage, where the archive has as many as the pickle says.
  ByteRange place(const pickle::Storage& storage) const;

  // Reads the whole file and compares what it holds with its checksums; opening does so for all but
  // the tensors' bytes. Throws Error(kIo) naming the first part that is damaged.
  void verify() const;

 private:
  [[noreturn]] void fail(const std::string& rule) const;
  std::string find_folder() const;
  std::string_view small_entry(std::string_view name, uint64_t most) const;
  void check_version() const;
  void check_byte_order() const;

  std::shared_ptr<const MappedFile> mapped_;  // null where the bytes are somebody else's
  const uint8_t* bytes_;
  std::string file_;
  ZipArchive zip_;
  std::string folder_;  // which all entries are in, with its '/'
  std::shared_ptr<const pickle::Value> root_;
};

}  // namespace coupler
