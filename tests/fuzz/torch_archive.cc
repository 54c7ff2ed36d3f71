// Arbitrary bytes as a torch.save file give an Error or tensors whose bytes can all be read. Half
// of the mutations change the pickle and wrap it in a new archive with correct sizes and checksums,
// since other mutations fail there.

#include "formats/torch_archive.h"

#include <coupler/error.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

#include "../unit/core/formats/zip_bytes.h"
#include "formats/zip_archive.h"
#include "pickle_walk.h"

extern "C" size_t LLVMFuzzerMutate(uint8_t* data, size_t size, size_t max_size);

namespace {

// Reads the first and the last byte, which the address sanitizer watches.
void touch(const uint8_t* data, size_t size, const coupler::formats::ByteRange& range) {
  if (range.begin > range.end || range.end > size) std::abort();
  if (range.begin == range.end) return;
  volatile uint8_t sink = data[range.begin];
  sink = data[range.end - 1];
  static_cast<void>(sink);
}

// The archive with another pickle; empty if the bytes are not an archive.
std::string with_new_pickle(const uint8_t* data, size_t size, size_t max_size) {
  std::vector<coupler::testing::ZipEntry> entries;
  try {
    const coupler::formats::ZipArchive zip(data, size, "fuzzed");
    for (const auto& [name, entry] : zip.entries())
      entries.push_back({std::string(name), std::string(data + entry.begin, data + entry.end)});
  } catch (const coupler::Error&) {
    return {};
  }
  for (auto& entry : entries) {
    if (!entry.name.ends_with("/data.pkl")) continue;
    const size_t pickle_size = entry.data.size();
    entry.data.resize(pickle_size + 256);
    entry.data.resize(LLVMFuzzerMutate(reinterpret_cast<uint8_t*>(entry.data.data()), pickle_size,
                                       entry.data.size()));
  }
  std::string bytes = coupler::testing::zip_bytes(entries);
  return bytes.size() <= max_size ? bytes : std::string();
}

}  // namespace

extern "C" size_t LLVMFuzzerCustomMutator(uint8_t* data, size_t size, size_t max_size,
                                          unsigned int seed) {
  if (seed % 2 == 0) {
    const std::string bytes = with_new_pickle(data, size, max_size);
    if (!bytes.empty()) {
      std::memcpy(data, bytes.data(), bytes.size());
      return bytes.size();
    }
  }
  return LLVMFuzzerMutate(data, size, max_size);
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using coupler::Error;
  using coupler::pickle::Kind;
  try {
    const coupler::formats::TorchArchive archive(data, size, "fuzzed");
    coupler::fuzz::walk(archive.root(), [&](const coupler::pickle::Value& value) {
      try {
        if (value.kind() == Kind::kStorage) touch(data, size, archive.place(value.storage()));
        if (value.kind() == Kind::kTensor) {
          const auto tensor = archive.place("fuzzed", value.tensor());
          touch(data, size, tensor.storage);
          touch(data, size, tensor.bytes);
          if (tensor.bytes.begin < tensor.storage.begin || tensor.bytes.end > tensor.storage.end)
            std::abort();
        }
      } catch (const Error&) {
      }
    });
    for (const auto& tensor : archive.tensors()) touch(data, size, tensor.bytes);
    archive.verify();
  } catch (const Error&) {
  }
  return 0;
}
