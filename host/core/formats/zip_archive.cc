#include "formats/zip_archive.h"

#include <coupler/error.h>
#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <boost/crc.hpp>
#include <cstring>
#include <limits>
#include <utility>
#include <vector>

#include "base/text.h"

static_assert(std::endian::native == std::endian::little, "zip archives are little-endian");

namespace coupler::formats {
namespace {

// The fixed parts of the records, without the names and extra fields that follow some of them.
constexpr uint64_t kLocalBytes = 30;
constexpr uint64_t kCentralBytes = 46;
constexpr uint64_t kEndBytes = 22;
constexpr uint64_t kWideEndBytes = 56;
constexpr uint64_t kLocatorBytes = 20;
constexpr uint32_t kLocalSignature = 0x04034b50;
constexpr uint32_t kCentralSignature = 0x02014b50;
constexpr uint32_t kEndSignature = 0x06054b50;
constexpr uint32_t kWideEndSignature = 0x06064b50;
constexpr uint32_t kLocatorSignature = 0x07064b50;
constexpr uint16_t kWideExtra = 1;        // the extra field with the 64-bit sizes
constexpr uint32_t kInWide = 0xffffffff;  // "see the 64-bit field"
constexpr uint16_t kEncrypted = 1;
// Sizes follow the data (the directory has them as well); names are UTF-8.
constexpr uint16_t kKnownFlags = 1u << 3 | 1u << 11;

// The position of the directory; it ends where the first end record begins.
struct Directory {
  uint64_t entries;
  uint64_t begin;
  uint64_t end;
};

struct Central {
  std::string_view name;
  uint16_t flags;
  uint16_t method;
  uint32_t crc32;
  uint64_t size;    // uncompressed
  uint64_t stored;  // in the file
  uint64_t local;   // offset of its local header
};

class Reader {
 public:
  Reader(const uint8_t* bytes, uint64_t size, const std::string& file)
      : bytes_(bytes), size_(size), file_(file) {}

  ZipArchive::Entries read() {
    const Directory directory = find_directory();
    ZipArchive::Entries entries;
    std::vector<std::pair<uint64_t, uint64_t>> taken;  // from local header to the data's end
    uint64_t at = directory.begin;
    for (uint64_t i = 0; i < directory.entries; ++i) {
      const Central central = read_central(directory, at);
      const uint64_t begin = read_local(directory, central);
      const ZipArchive::Entry entry{begin, begin + central.stored, central.crc32, central.method};
      if (!entries.emplace(central.name, entry).second)
        fail(central.name, "the directory names it twice");
      taken.emplace_back(central.local, entry.end);
    }
    if (at != directory.end) fail("the directory continues after its last entry");
    std::sort(taken.begin(), taken.end());
    for (size_t i = 1; i < taken.size(); ++i)
      if (taken[i].first < taken[i - 1].second)
        fail(fmt::format("two entries overlap at byte {}", taken[i].first));
    return entries;
  }

 private:
  [[noreturn]] void fail(const std::string& rule) const {
    throw Error(ErrorCode::kIo, fmt::format("{}: {}", file_, rule),
                {.subject = file_,
                 .hint = "the file is damaged, truncated or not written by torch.save; copy it "
                         "again or write it again with torch.save"});
  }
  [[noreturn]] void fail(std::string_view entry, const std::string& rule) const {
    fail(fmt::format("entry '{}': {}", for_message(entry), rule));
  }

  // The caller has checked that the field lies inside the file.
  template <typename T>
  T field(uint64_t at) const {
    T value;
    std::memcpy(&value, bytes_ + at, sizeof value);
    return value;
  }

  // Reads the records at the end of the file. A comment after them is not allowed, since it would
  // make the position of the last one ambiguous.
  Directory find_directory() const {
    if (size_ < kEndBytes || field<uint32_t>(size_ - kEndBytes) != kEndSignature)
      fail("it does not end like a zip archive");
    const uint64_t at = size_ - kEndBytes;
    if (field<uint16_t>(at + 20) != 0) fail("it has a comment after the archive's end");
    if (field<uint16_t>(at + 4) != 0 || field<uint16_t>(at + 6) != 0 ||
        field<uint16_t>(at + 8) != field<uint16_t>(at + 10))
      fail("it is one part of a multi-part archive");
    const uint16_t entries = field<uint16_t>(at + 10);
    const uint32_t bytes = field<uint32_t>(at + 12);
    const uint32_t begin = field<uint32_t>(at + 16);
    if (at < kLocatorBytes || field<uint32_t>(at - kLocatorBytes) != kLocatorSignature)
      return checked_directory(entries, begin, bytes, at);

    const uint64_t wide = find_wide_end(at - kLocatorBytes);
    const auto wide_entries = field<uint64_t>(wide + 32);
    const auto wide_bytes = field<uint64_t>(wide + 40);
    const auto wide_begin = field<uint64_t>(wide + 48);
    if ((entries != 0xffff && entries != wide_entries) ||
        (bytes != kInWide && bytes != wide_bytes) || (begin != kInWide && begin != wide_begin))
      fail("its two end records contradict each other");
    return checked_directory(wide_entries, wide_begin, wide_bytes, wide);
  }

  // The offset of the 64-bit end record, which the locator points to and directly follows.
  uint64_t find_wide_end(uint64_t locator) const {
    const auto at = field<uint64_t>(locator + 8);
    if (field<uint32_t>(locator + 4) != 0 || field<uint32_t>(locator + 16) != 1)
      fail("it is one part of a multi-part archive");
    if (at > locator || locator - at < kWideEndBytes || field<uint32_t>(at) != kWideEndSignature ||
        field<uint64_t>(at + 4) != locator - at - 12)
      fail(fmt::format("its 64-bit end record is not at byte {}, where it should be", at));
    if (field<uint32_t>(at + 16) != 0 || field<uint32_t>(at + 20) != 0 ||
        field<uint64_t>(at + 24) != field<uint64_t>(at + 32))
      fail("it is one part of a multi-part archive");
    return at;
  }

  Directory checked_directory(uint64_t entries, uint64_t begin, uint64_t bytes,
                              uint64_t end) const {
    if (begin > end || end - begin != bytes)
      fail(fmt::format("its directory should be {} bytes at byte {} and end at byte {}", bytes,
                       begin, end));
    if (entries > ZipArchive::kMaxEntries)
      fail(fmt::format("it has {} entries, more than {}", entries, ZipArchive::kMaxEntries));
    return {entries, begin, end};
  }

  // Reads one entry of the directory and moves `at` past it.
  Central read_central(const Directory& directory, uint64_t& at) const {
    if (directory.end - at < kCentralBytes || field<uint32_t>(at) != kCentralSignature)
      fail(fmt::format("its directory is broken at byte {}", at));
    const uint64_t name_bytes = field<uint16_t>(at + 28);
    const uint64_t extra_bytes = field<uint16_t>(at + 30);
    const uint64_t rest = name_bytes + extra_bytes + field<uint16_t>(at + 32);
    if (directory.end - at - kCentralBytes < rest)
      fail(fmt::format("its directory is broken at byte {}", at));
    const std::string_view name(reinterpret_cast<const char*>(bytes_) + at + kCentralBytes,
                                name_bytes);
    if (name.empty()) fail("an entry has no name");

    Central central{name,
                    field<uint16_t>(at + 8),
                    field<uint16_t>(at + 10),
                    field<uint32_t>(at + 16),
                    field<uint32_t>(at + 24),
                    field<uint32_t>(at + 20),
                    field<uint32_t>(at + 42)};
    const uint64_t extra = at + kCentralBytes + name_bytes;
    read_wide(central, extra, extra + extra_bytes);
    if ((central.flags & kEncrypted) != 0) fail(name, "it is encrypted");
    if ((central.flags & ~kKnownFlags) != 0)
      fail(name, fmt::format("its flags 0x{:04x} are not supported", central.flags));
    if (central.method == 0 && central.stored != central.size)
      fail(name,
           fmt::format("it is stored as {} bytes but has {} bytes", central.stored, central.size));
    if (field<uint16_t>(at + 34) != 0) fail(name, "it is in another part of the archive");
    at += kCentralBytes + rest;
    return central;
  }

  // Reads the values that did not fit into 32 bits from the extra fields.
  void read_wide(Central& central, uint64_t at, uint64_t end) const {
    bool seen = false;
    while (at < end) {
      if (end - at < 4 || end - at - 4 < field<uint16_t>(at + 2))
        fail(central.name, "its extra fields are broken");
      const uint64_t next = at + 4 + field<uint16_t>(at + 2);
      if (field<uint16_t>(at) == kWideExtra) {
        if (std::exchange(seen, true)) fail(central.name, "it has its 64-bit sizes twice");
        at += 4;
        for (uint64_t* value : {&central.size, &central.stored, &central.local}) {
          if (*value != kInWide) continue;
          if (next - at < sizeof *value) fail(central.name, "its 64-bit sizes are truncated");
          *value = field<uint64_t>(at);
          at += sizeof *value;
        }
      }
      at = next;
    }
  }

  // Checks the header before the data against the directory; returns the offset of the data.
  uint64_t read_local(const Directory& directory, const Central& central) const {
    const uint64_t at = central.local;
    if (at > directory.begin || directory.begin - at < kLocalBytes)
      fail(central.name, fmt::format("it should begin at byte {}, which is outside the data", at));
    if (field<uint32_t>(at) != kLocalSignature)
      fail(central.name, fmt::format("no entry begins at byte {}, where it should", at));
    const uint64_t name_bytes = field<uint16_t>(at + 26);
    const uint64_t room = directory.begin - at - kLocalBytes;
    const uint64_t rest = name_bytes + field<uint16_t>(at + 28);
    if (rest > room || central.stored > room - rest)
      fail(central.name, fmt::format("its {} bytes reach past the data's end", central.stored));
    const std::string_view name(reinterpret_cast<const char*>(bytes_) + at + kLocalBytes,
                                name_bytes);
    if (name != central.name || field<uint16_t>(at + 6) != central.flags ||
        field<uint16_t>(at + 8) != central.method)
      fail(central.name, "its header contradicts the directory");
    // If the sizes follow the data, the header has zeros or the directory's values.
    const bool follow = (central.flags & 1u << 3) != 0;
    const auto agrees = [&](uint32_t value, uint64_t directory_value) {
      return value == directory_value || (follow && value == 0);
    };
    const auto size_agrees = [&](uint32_t size, uint64_t directory_size) {
      return size == kInWide || agrees(size, directory_size);
    };
    if (!agrees(field<uint32_t>(at + 14), central.crc32) ||
        !size_agrees(field<uint32_t>(at + 18), central.stored) ||
        !size_agrees(field<uint32_t>(at + 22), central.size))
      fail(central.name, "its header contradicts the directory");
    return at + kLocalBytes + rest;
  }

  const uint8_t* bytes_;
  uint64_t size_;
  const std::string& file_;
};

}  // namespace

ZipArchive::ZipArchive(const uint8_t* bytes, uint64_t size, std::string file)
    : bytes_(bytes), file_(std::move(file)), entries_(Reader(bytes, size, file_).read()) {}

const ZipArchive::Entry* ZipArchive::find(std::string_view name) const {
  const auto found = entries_.find(name);
  return found == entries_.end() ? nullptr : &found->second;
}

void ZipArchive::check_stored(std::string_view name, const Entry& entry) const {
  if (entry.method == 0) return;
  throw Error(
      ErrorCode::kIo,
      fmt::format("{}: entry '{}': it is compressed (method {}); torch.save stores without "
                  "compressing",
                  file_, for_message(name), entry.method),
      {.subject = file_, .hint = "use the file as torch.save wrote it, not one that was repacked"});
}

std::string_view ZipArchive::checked(std::string_view name, const Entry& entry) const {
  check_stored(name, entry);
  const std::string_view bytes(reinterpret_cast<const char*>(bytes_) + entry.begin,
                               entry.end - entry.begin);
  boost::crc_32_type crc;
  crc.process_bytes(bytes.data(), bytes.size());
  if (crc.checksum() != entry.crc32)
    throw Error(ErrorCode::kIo,
                fmt::format("{}: entry '{}': its checksum is {:08x}, but its bytes have {:08x}",
                            file_, for_message(name), entry.crc32, crc.checksum()),
                {.subject = file_,
                 .hint = "the file is damaged, or was written after "
                         "torch.serialization.set_crc32_options(False); copy or write it again"});
  return bytes;
}

}  // namespace coupler::formats
