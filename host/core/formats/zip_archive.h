// The zip container as torch.save writes it, over bytes in memory: its entries and the positions of
// their bytes. Immutable after construction; any thread may read.
//
// Files are untrusted: every size and offset is checked, and entries must have unique names and not
// overlap. Compressed entries are listed, and rejected on read. Work and memory grow linearly with
// the size of the directory (n log n for names), and the number of entries is capped.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>

namespace coupler::formats {

class ZipArchive {
 public:
  static constexpr uint64_t kMaxEntries = 1u << 19;  // against directories crafted to be slow

  struct Entry {
    uint64_t begin;  // of its bytes in the file
    uint64_t end;
    uint32_t crc32;   // according to the directory
    uint16_t method;  // 0: stored without compression
  };
  using Entries = std::map<std::string_view, Entry>;

  // `bytes` are the whole file's and must outlive the archive; `file` names it in messages. Throws
  // Error(kIo) naming the file, the entry at fault if any, and what is wrong.
  ZipArchive(const uint8_t* bytes, uint64_t size, std::string file);

  const Entries& entries() const { return entries_; }
  // Null if there is no entry of that name.
  const Entry* find(std::string_view name) const;

  // Throws Error(kIo) if an entry is compressed.
  void check_stored(std::string_view name, const Entry& entry) const;
  // An entry's bytes after verifying their checksum, which reads them all; throws Error(kIo) if it
  // differs or the entry is compressed.
  std::string_view checked(std::string_view name, const Entry& entry) const;

 private:
  const uint8_t* bytes_;
  std::string file_;
  Entries entries_;
};

}  // namespace coupler::formats
