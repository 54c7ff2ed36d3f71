// The zip container as torch.save writes it, over bytes in memory: which entries there are and
// where their bytes lie. Immutable after construction; any thread may read.
//
// Files come from strangers: every size and offset is checked, entries must have names of their own
// and lie apart from each other. What is compressed is listed, and refused where it is read. Work
// and memory grow linearly with the size of the directory (n log n for names), and the number of
// entries is capped.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>

namespace coupler {

class ZipArchive {
 public:
  static constexpr uint64_t kMaxEntries = 1u << 19;  // against directories made to be slow

  struct Entry {
    uint64_t begin;  // of its bytes in the file
    uint64_t end;
    uint32_t crc32;   // as the directory says
    uint16_t method;  // 0 where the bytes are stored as they are
  };
  using Entries = std::map<std::string_view, Entry>;

  // `bytes` are the whole file's and must outlive the archive; `file` names it in messages. Throws
  // Error(kIo) naming the file, the entry where one is at fault, and what is wrong.
  ZipArchive(const uint8_t* bytes, uint64_t size, std::string file);

  const Entries& entries() const { return entries_; }
  // Null where there is none of the name.
  const Entry* find(std::string_view name) const;

  // Throws Error(kIo) where an entry is compressed.
  void check_stored(std::string_view name, const Entry& entry) const;
  // An entry's bytes once their checksum has been found right; throws Error(kIo) where it is not,
  // or where it is compressed. Reads them all.
  std::string_view checked(std::string_view name, const Entry& entry) const;

 private:
  const uint8_t* bytes_;
  std::string file_;
  Entries entries_;
};

}  // namespace coupler
