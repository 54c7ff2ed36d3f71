// Zip archives built by hand, byte by byte, in the layout of torch.save: for the tests of the
// reader, which need damaged ones, and for its fuzzer.
#pragma once

#include <boost/crc.hpp>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

namespace coupler::testing {

template <typename T>
void put(std::string& bytes, T value) {
  bytes.append(reinterpret_cast<const char*>(&value), sizeof value);
}

// Overwrites a number in a finished archive.
template <typename T>
void put_at(std::string& bytes, size_t at, T value) {
  std::memcpy(bytes.data() + at, &value, sizeof value);
}

inline uint32_t crc32_of(std::string_view bytes) {
  boost::crc_32_type crc;
  crc.process_bytes(bytes.data(), bytes.size());
  return crc.checksum();
}

struct ZipEntry {
  std::string name;
  std::string data;
  uint16_t flags = 0x0808;
  uint16_t method = 0;
};

// Like torch.save's, the local headers have no sizes (flag 0x0008: they follow the data).
inline std::string zip_bytes(const std::vector<ZipEntry>& entries) {
  std::string bytes;
  std::string directory;
  for (const ZipEntry& entry : entries) {
    const auto at = static_cast<uint32_t>(bytes.size());
    const auto size = static_cast<uint32_t>(entry.data.size());
    const uint32_t crc = crc32_of(entry.data);
    const bool follow = (entry.flags & 8) != 0;
    bytes += std::string("PK\3\4\0\0", 6);
    put<uint16_t>(bytes, entry.flags);
    put<uint16_t>(bytes, entry.method);
    put<uint32_t>(bytes, 0);  // time
    put<uint32_t>(bytes, follow ? 0 : crc);
    put<uint32_t>(bytes, follow ? 0 : size);
    put<uint32_t>(bytes, follow ? 0 : size);
    put(bytes, static_cast<uint16_t>(entry.name.size()));
    put<uint16_t>(bytes, 0);
    bytes += entry.name + entry.data;
    if (follow) {
      bytes += "PK\7\x08";
      put(bytes, crc);
      put(bytes, size);
      put(bytes, size);
    }
    directory += std::string("PK\1\2\0\0\0\0", 8);
    put<uint16_t>(directory, entry.flags);
    put<uint16_t>(directory, entry.method);
    put<uint32_t>(directory, 0);
    put(directory, crc);
    put(directory, size);
    put(directory, size);
    put(directory, static_cast<uint16_t>(entry.name.size()));
    put<uint16_t>(directory, 0);  // extra fields
    put<uint16_t>(directory, 0);  // comment
    put<uint16_t>(directory, 0);  // disk number
    put<uint16_t>(directory, 0);  // attributes
    put<uint32_t>(directory, 0);
    put(directory, at);
    directory += entry.name;
  }
  const auto begin = static_cast<uint64_t>(bytes.size());
  bytes += directory;
  const auto wide = static_cast<uint64_t>(bytes.size());
  bytes += "PK\6\6";
  put<uint64_t>(bytes, 44);
  put<uint32_t>(bytes, 0);
  put<uint64_t>(bytes, 0);  // disks
  put<uint64_t>(bytes, entries.size());
  put<uint64_t>(bytes, entries.size());
  put<uint64_t>(bytes, directory.size());
  put<uint64_t>(bytes, begin);
  bytes += std::string("PK\6\7\0\0\0\0", 8);
  put(bytes, wide);
  put<uint32_t>(bytes, 1);
  bytes += std::string("PK\5\6\0\0\0\0", 8);
  put(bytes, static_cast<uint16_t>(entries.size()));
  put(bytes, static_cast<uint16_t>(entries.size()));
  put(bytes, static_cast<uint32_t>(directory.size()));
  put(bytes, static_cast<uint32_t>(begin));
  put<uint16_t>(bytes, 0);
  return bytes;
}

// The entries that torch.save writes around a pickle and storages "0", "1", ….
inline std::string torch_bytes(const std::string& pickle,
                               const std::vector<std::string>& storages = {}) {
  std::vector<ZipEntry> entries{{"m/data.pkl", pickle}, {"m/byteorder", "little"}};
  for (size_t i = 0; i < storages.size(); ++i)
    entries.push_back({"m/data/" + std::to_string(i), storages[i]});
  entries.push_back({"m/version", "3\n"});
  return zip_bytes(entries);
}

}  // namespace coupler::testing
