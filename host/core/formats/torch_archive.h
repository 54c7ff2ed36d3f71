// A file written by torch.save: its values, and the positions of its tensors' bytes. Nothing in it
// is executed: see pickle.h for what it may contain. Immutable after opening; any thread may read.
// Does not depend on LibTorch.
//
//   const auto archive = TorchArchive::open("pytorch_model.bin");
//   for (const TorchTensor& tensor : archive.tensors()) …
//
// Walk a checkpoint with other values around its tensors, such as an optimizer's, from root().
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/mapped_file.h"
#include "formats/pickle.h"
#include "formats/safetensors_header.h"
#include "formats/zip_archive.h"

namespace coupler::formats {

// A range of bytes, counted from the start of the file.
struct ByteRange {
  uint64_t begin;
  uint64_t end;
};

// All elements lie inside the storage and may overlap; there are at most as many as the storage
// has. Tensors that share a storage, such as tied weights, have the same storage key.
struct TorchTensor {
  std::string name;
  safetensors::DType dtype;
  std::vector<int64_t> shape;
  std::vector<int64_t> strides;  // in elements, none negative
  std::string storage_key;
  ByteRange storage;  // in the file
  uint64_t offset;    // of the first element, in bytes from the storage's start
  ByteRange bytes;    // from the first element in memory to the last; empty if there are none
};

class TorchArchive {
 public:
  // Throws Error(kIo) naming the file and what is wrong with it, or what it is if torch.save did
  // not write it, and kUnsupported for formats that only other versions of PyTorch write or read.
  static TorchArchive open(const std::string& path);
  // The same for a file's bytes, which must outlive the archive; messages name them `file`.
  TorchArchive(const uint8_t* bytes, uint64_t size, std::string file);

  const pickle::Value& root() const { return *root_; }
  // The start that byte ranges refer to.
  const uint8_t* data() const { return bytes_; }
  // Null if the caller owns the bytes.
  const std::shared_ptr<const MappedFile>& file() const { return mapped_; }

  // The tensors of a state dict (the root, or a dictionary below it), in its order. Throws
  // Error(kIo) if it is not a dictionary of tensors by name, or a tensor leaves its storage.
  std::vector<TorchTensor> tensors() const { return tensors(root()); }
  std::vector<TorchTensor> tensors(const pickle::Value& state_dict) const;
  // One tensor found on a walk; `name` is for messages and the result. Throws as tensors() does,
  // and Error(kUnsupported) for complex128.
  TorchTensor place(std::string name, const pickle::Tensor& tensor) const;
  // The bytes of a storage; throws if the archive does not have as many as the pickle claims.
  ByteRange place(const pickle::Storage& storage) const;

  // Reads the whole file and verifies its checksums; opening verifies all but the tensors' bytes.
  // Throws Error(kIo) naming the first damaged part.
  void verify() const;

 private:
  [[noreturn]] void fail(const std::string& rule) const;
  std::string find_folder() const;
  std::string_view small_entry(std::string_view name, uint64_t most) const;
  void check_version() const;
  void check_byte_order() const;

  std::shared_ptr<const MappedFile> mapped_;  // null if the caller owns the bytes
  const uint8_t* bytes_;
  std::string file_;
  ZipArchive zip_;
  std::string folder_;  // contains all entries; ends with '/'
  std::shared_ptr<const pickle::Value> root_;
};

}  // namespace coupler::formats
