#include "formats/zip_archive.h"

#include <coupler/error.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "first_line.h"
#include "zip_bytes.h"

namespace coupler::formats {
namespace {

using coupler::testing::crc32_of;
using coupler::testing::first_line;
using coupler::testing::put;
using coupler::testing::put_at;
using coupler::testing::zip_bytes;
using coupler::testing::ZipEntry;

const std::vector<ZipEntry> kTwo{{"m/a", "alpha"}, {"m/b", ""}};

// The names and bytes of an archive as "name=bytes;…", or the message of the error from reading it.
std::string listed(const std::string& bytes) {
  // An exact-size heap copy, so that the address sanitizer detects reads past the end.
  const std::vector<uint8_t> exact(bytes.begin(), bytes.end());
  try {
    const ZipArchive zip(exact.data(), exact.size(), "model.pt");
    std::string result;
    for (const auto& [name, entry] : zip.entries()) {
      result += name;
      result += '=';
      result += zip.checked(name, entry);
      result += ';';
    }
    return result;
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kIo);
    EXPECT_EQ(error.detail().subject, "model.pt");
    EXPECT_FALSE(error.detail().hint.empty());
    return first_line(error);
  }
}

// The archive with one number changed, at an offset from the last occurrence of `mark`.
template <typename T>
std::string changed(std::string bytes, const std::string& mark, size_t offset, T value) {
  const size_t at = bytes.rfind(mark);
  EXPECT_NE(at, std::string::npos);
  put_at(bytes, at + offset, value);
  return bytes;
}

const std::string kCentral = "PK\1\2";
const std::string kLocal = "PK\3\4";
const std::string kEnd = "PK\5\6";
const std::string kWideEnd = "PK\6\6";
const std::string kLocator = "PK\6\7";

// An archive without the records that torch.save writes for files over 4 GiB.
std::string narrow(const std::vector<ZipEntry>& entries) {
  const std::string bytes = zip_bytes(entries);
  return bytes.substr(0, bytes.rfind(kWideEnd)) + bytes.substr(bytes.rfind(kEnd));
}

TEST(ZipArchive_Valid, ItsEntries_AreListedWithTheirBytes) {
  EXPECT_EQ(listed(zip_bytes(kTwo)), "m/a=alpha;m/b=;");
  EXPECT_EQ(listed(zip_bytes({{"a", "x", 0}})), "a=x;");  // sizes before the data
  EXPECT_EQ(listed(zip_bytes({})), "");
}

TEST(ZipArchive_Valid, WithoutThe64BitRecords_IsRead) {
  EXPECT_EQ(listed(narrow(kTwo)), "m/a=alpha;m/b=;");
}

TEST(ZipArchive_Valid, AnEntry_IsFoundByName) {
  const std::string bytes = zip_bytes(kTwo);
  const ZipArchive zip(reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size(), "model.pt");
  ASSERT_NE(zip.find("m/a"), nullptr);
  EXPECT_EQ(zip.find("m/a")->begin, 33u);
  EXPECT_EQ(zip.find("m/a")->end, 38u);
  EXPECT_EQ(zip.find("m/c"), nullptr);
}

// For an entry over 4 GiB: sizes and offset in an extra field of 64-bit numbers.
TEST(ZipArchive_Valid, SizesIn64Bits_AreRead) {
  const auto with_extra = [](uint64_t size, const std::string& more) {
    std::string extra;
    put<uint16_t>(extra, 1);
    put<uint16_t>(extra, 24);
    put<uint64_t>(extra, size);
    put<uint64_t>(extra, size);
    put<uint64_t>(extra, 0);
    extra += more;
    std::string bytes = narrow({{"a", "alpha"}});
    bytes.insert(bytes.rfind(kEnd), extra);
    bytes = changed(bytes, kCentral, 20, ~uint32_t{0});
    bytes = changed(bytes, kCentral, 24, ~uint32_t{0});
    bytes = changed(bytes, kCentral, 42, ~uint32_t{0});
    bytes = changed(bytes, kCentral, 30, static_cast<uint16_t>(extra.size()));
    return changed(bytes, kEnd, 12, static_cast<uint32_t>(47 + extra.size()));
  };
  EXPECT_EQ(listed(with_extra(5, "")), "a=alpha;");
  EXPECT_EQ(listed(with_extra(~uint64_t{0} - 40, "")),
            "model.pt: entry 'a': its 18446744073709551575 bytes reach past the data's end");
  EXPECT_EQ(listed(with_extra(5, std::string("\1\0\0\0", 4))),
            "model.pt: entry 'a': it has its 64-bit sizes twice");
  EXPECT_EQ(listed(with_extra(5, std::string("\2\0\1\0", 4))),
            "model.pt: entry 'a': its extra fields are broken");
}

TEST(ZipArchive_End, OtherThanAnArchives_IsRefused) {
  const std::string good = zip_bytes(kTwo);
  EXPECT_EQ(listed(""), "model.pt: it does not end like a zip archive");
  EXPECT_EQ(listed(good + "x"), "model.pt: it does not end like a zip archive");
  EXPECT_EQ(listed(changed(good, kEnd, 20, uint16_t{1})),
            "model.pt: it has a comment after the archive's end");
}

TEST(ZipArchive_End, OneOfSeveralParts_IsRefused) {
  const std::string wanted = "model.pt: it is one part of a multi-part archive";
  const std::string good = zip_bytes(kTwo);
  EXPECT_EQ(listed(changed(good, kEnd, 4, uint16_t{1})), wanted);
  EXPECT_EQ(listed(changed(good, kEnd, 8, uint16_t{1})), wanted);
  EXPECT_EQ(listed(changed(good, kLocator, 16, uint32_t{2})), wanted);
  EXPECT_EQ(listed(changed(good, kWideEnd, 20, uint32_t{1})), wanted);
  EXPECT_EQ(listed(changed(good, kCentral, 34, uint16_t{1})),
            "model.pt: entry 'm/b': it is in another part of the archive");
}

TEST(ZipArchive_End, RecordsThatContradictEachOther_AreRefused) {
  const std::string good = zip_bytes(kTwo);
  const std::string wanted = "model.pt: its two end records contradict each other";
  EXPECT_EQ(listed(changed(good, kEnd, 12, uint32_t{7})), wanted);
  EXPECT_EQ(listed(changed(good, kEnd, 16, uint32_t{7})), wanted);
  EXPECT_EQ(listed(changed(good, kEnd, 16, ~uint32_t{0})), "m/a=alpha;m/b=;");
  EXPECT_EQ(listed(changed(good, kLocator, 8, uint64_t{7})),
            "model.pt: its 64-bit end record is not at byte 7, where it should be");
  EXPECT_EQ(listed(changed(good, kLocator, 8, ~uint64_t{0})),
            "model.pt: its 64-bit end record is not at byte 18446744073709551615, where it should "
            "be");
}

TEST(ZipArchive_Directory, OutsideTheFile_IsRefused) {
  EXPECT_EQ(listed(changed(narrow(kTwo), kEnd, 16, ~uint32_t{0})),
            "model.pt: its directory should be 98 bytes at byte 4294967295 and end at byte 201");
  EXPECT_EQ(listed(changed(narrow(kTwo), kEnd, 12, uint32_t{97})),
            "model.pt: its directory should be 97 bytes at byte 103 and end at byte 201");
}

TEST(ZipArchive_Directory, WithMoreOrFewerEntriesThanItSays_IsRefused) {
  const auto with = [](uint16_t entries) {
    return listed(changed(changed(narrow(kTwo), kEnd, 8, entries), kEnd, 10, entries));
  };
  EXPECT_EQ(with(1), "model.pt: the directory continues after its last entry");
  EXPECT_EQ(with(3), "model.pt: its directory is broken at byte 201");
}

TEST(ZipArchive_Directory, OfTooManyEntries_IsRefused) {
  std::string bytes = zip_bytes(kTwo);
  bytes = changed(bytes, kEnd, 8, uint32_t{0xffffffff});
  bytes = changed(bytes, kWideEnd, 24, (uint64_t{1} << 19) + 1);
  bytes = changed(bytes, kWideEnd, 32, (uint64_t{1} << 19) + 1);
  EXPECT_EQ(listed(bytes), "model.pt: it has 524289 entries, more than 524288");
}

TEST(ZipArchive_Names, TwiceTheSameOrNone_AreRefused) {
  EXPECT_EQ(listed(zip_bytes({{"a", "1"}, {"a", "2"}})),
            "model.pt: entry 'a': the directory names it twice");
  EXPECT_EQ(listed(zip_bytes({{"", "1"}})), "model.pt: an entry has no name");
  EXPECT_EQ(listed(zip_bytes({{"\x1b[31m", "1"}, {"\x1b[31m", "1"}})),
            "model.pt: entry '\\x1b[31m': the directory names it twice");
}

TEST(ZipArchive_Entries, Compressed_AreRefused) {
  EXPECT_EQ(listed(zip_bytes({{"a", "x", 0x0808, 8}})),
            "model.pt: entry 'a': it is compressed (method 8); torch.save stores without "
            "compressing");
}

TEST(ZipArchive_Entries, Encrypted_AreRefused) {
  EXPECT_EQ(listed(zip_bytes({{"a", "x", 0x0809}})), "model.pt: entry 'a': it is encrypted");
  EXPECT_EQ(listed(zip_bytes({{"a", "x", 0x0828}})),
            "model.pt: entry 'a': its flags 0x0828 are not supported");
}

TEST(ZipArchive_Entries, ThatOverlap_AreRefused) {
  // The second entry's header lies inside the first entry's data.
  const std::string inner = zip_bytes({{"b", "x"}});
  const std::string header = inner.substr(0, inner.rfind(kCentral));
  const std::string bytes = zip_bytes({{"a", header}, {"b", "x"}});
  EXPECT_EQ(listed(changed(bytes, kCentral, 42, uint32_t{31})),
            "model.pt: two entries overlap at byte 31");
}

TEST(ZipArchive_Entries, OutsideTheData_AreRefused) {
  const std::string good = zip_bytes(kTwo);
  EXPECT_EQ(listed(changed(good, kCentral, 42, uint32_t{0xfffffffe})),
            "model.pt: entry 'm/b': it should begin at byte 4294967294, which is outside the data");
  EXPECT_EQ(listed(changed(good, kCentral, 42, uint32_t{1})),
            "model.pt: entry 'm/b': no entry begins at byte 1, where it should");
  std::string big = changed(good, kCentral, 20, uint32_t{1000});
  big = changed(big, kCentral, 24, uint32_t{1000});
  EXPECT_EQ(listed(big), "model.pt: entry 'm/b': its 1000 bytes reach past the data's end");
}

TEST(ZipArchive_Entries, WhoseSizesOrHeadersContradict_AreRefused) {
  const std::string good = zip_bytes(kTwo);
  EXPECT_EQ(listed(changed(good, kCentral, 24, uint32_t{1})),
            "model.pt: entry 'm/b': it is stored as 0 bytes but has 1 bytes");
  const std::string wanted = "model.pt: entry 'm/b': its header contradicts the directory";
  EXPECT_EQ(listed(changed(good, kLocal, 6, uint16_t{0})), wanted);
  EXPECT_EQ(listed(changed(good, kLocal, 8, uint16_t{8})), wanted);
  EXPECT_EQ(listed(changed(good, kLocal, 14, uint32_t{7})), wanted);
  EXPECT_EQ(listed(changed(good, kLocal, 22, uint32_t{7})), wanted);
  EXPECT_EQ(listed(changed(good, kLocal, 30, 'n')), wanted);
}

TEST(ZipArchive_Checksums, ThatAreWrong_AreErrors) {
  std::string bytes = zip_bytes(kTwo);
  bytes[33] = 'A';
  EXPECT_EQ(listed(bytes),
            "model.pt: entry 'm/a': its checksum is d0e0396a, but its bytes have 1121166e");
  EXPECT_EQ(crc32_of("123456789"), 0xcbf43926u);  // the polynomial's known value
}

TEST(ZipArchive_Damage, EveryTruncationAndBitFlip_IsHandled) {
  const std::string good = zip_bytes(kTwo);
  for (size_t size = 0; size < good.size(); ++size)
    EXPECT_TRUE(listed(good.substr(0, size)).starts_with("model.pt: ")) << size;
  for (size_t i = 0; i < good.size(); ++i)
    for (int bit = 0; bit < 8; ++bit) {
      std::string damaged = good;
      damaged[i] = static_cast<char>(damaged[i] ^ (1 << bit));
      EXPECT_FALSE(listed(damaged).empty());
    }
}

}  // namespace
}  // namespace coupler::formats
