#include "plugin/check.h"

#include <coupler/distributed_backend.h>
#include <elf.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <grp.h>
#include <pwd.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cctype>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <map>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

#include "base/error.h"
#include "base/file_descriptor.h"
#include "base/sha256.h"
#include "plugin/plugin.h"

namespace coupler::plugin {

// Reads a file's ELF headers, so that a text file, a library for another machine or a truncated one
// is reported as such before the dynamic linker sees it.

namespace {

#if defined(__x86_64__)
constexpr uint16_t kMachine = EM_X86_64;
#elif defined(__aarch64__)
constexpr uint16_t kMachine = EM_AARCH64;
#else
#error "Coupler knows the ELF machine numbers of x86-64 and aarch64 only"
#endif
constexpr unsigned char kByteOrder =
    std::endian::native == std::endian::little ? ELFDATA2LSB : ELFDATA2MSB;
constexpr const char* kRebuild = "rebuild it, or copy it again";
// No backend has a symbol table larger than this; the check is then left to dlsym.
constexpr uint64_t kLargestTable = 256u << 20;

std::string machine_name(unsigned machine) {
  static const std::map<unsigned, const char*> kNames = {
      {EM_386, "32-bit x86"},  {EM_X86_64, "x86-64"}, {EM_ARM, "32-bit ARM"},
      {EM_AARCH64, "aarch64"}, {EM_PPC64, "ppc64"},   {EM_RISCV, "RISC-V"},
      {EM_S390, "s390"}};
  const auto known = kNames.find(machine);
  return known != kNames.end() ? known->second : fmt::format("ELF machine {}", machine);
}

bool read_at(int fd, void* to, uint64_t size, uint64_t offset) {
  auto* out = static_cast<char*>(to);
  while (size > 0) {
    const ssize_t got = pread(fd, out, size, static_cast<off_t>(offset));
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return false;
    out += got;
    offset += static_cast<uint64_t>(got);
    size -= static_cast<uint64_t>(got);
  }
  return true;
}

// The end of a part of the file, UINT64_MAX on overflow.
uint64_t end_of(uint64_t offset, uint64_t size) {
  return size > UINT64_MAX - offset ? UINT64_MAX : offset + size;
}

[[noreturn]] void refuse_truncated(const std::string& path, uint64_t size, uint64_t needed) {
  const std::string of =
      needed == UINT64_MAX ? "" : fmt::format(", but its headers describe at least {}", needed);
  refuse_plugin(path, fmt::format("is truncated: the file has {} bytes{}", size, of), kRebuild);
}

bool lacks_symbol(int fd, const std::vector<Elf64_Shdr>& sections, std::string_view wanted) {
  for (const Elf64_Shdr& table : sections) {
    if (table.sh_type != SHT_DYNSYM || table.sh_link >= sections.size()) continue;
    const Elf64_Shdr& names = sections[table.sh_link];
    if (table.sh_size > kLargestTable || names.sh_size > kLargestTable) return false;
    std::vector<Elf64_Sym> symbols(table.sh_size / sizeof(Elf64_Sym));
    std::string text(names.sh_size, '\0');
    if (!read_at(fd, symbols.data(), symbols.size() * sizeof(Elf64_Sym), table.sh_offset) ||
        !read_at(fd, text.data(), text.size(), names.sh_offset)) {
      return false;
    }
    return std::none_of(symbols.begin(), symbols.end(), [&](const Elf64_Sym& symbol) {
      return symbol.st_shndx != SHN_UNDEF && symbol.st_name < text.size() &&
             wanted == text.c_str() + symbol.st_name;
    });
  }
  return false;  // no section headers: they may be stripped; dlsym will tell
}

// fd is open for reading; size is its length in bytes.
void check_elf(const std::string& path, int fd, uint64_t size) {
  Elf64_Ehdr header = {};
  const uint64_t start = std::min<uint64_t>(size, sizeof(header));
  if (!read_at(fd, &header, start, 0)) refuse_plugin(path, "cannot be read to the end", kRebuild);
  if (start < SELFMAG || std::memcmp(header.e_ident, ELFMAG, SELFMAG) != 0) {
    refuse_plugin(
        path, size == 0 ? "is an empty file" : "is not an ELF file (a Linux shared library is one)",
        "name the compiled library, not its source, archive or folder");
  }
  if (size < sizeof(header)) refuse_truncated(path, size, sizeof(header));
  if (header.e_ident[EI_CLASS] != ELFCLASS64 || header.e_ident[EI_DATA] != kByteOrder ||
      header.e_machine != kMachine) {
    refuse_plugin(path,
                  fmt::format("is built for another machine: {}{}{}, but this one is {}",
                              machine_name(header.e_machine),
                              header.e_ident[EI_CLASS] == ELFCLASS64 ? "" : ", 32 bits",
                              header.e_ident[EI_DATA] == kByteOrder ? "" : ", other byte order",
                              machine_name(kMachine)),
                  "build it on or for this machine");
  }
  if (header.e_type != ET_DYN) {
    refuse_plugin(path,
                  fmt::format("is an ELF file but not a shared library (type {})", header.e_type),
                  "link it with -shared");
  }

  uint64_t needed = end_of(header.e_phoff, uint64_t{header.e_phnum} * sizeof(Elf64_Phdr));
  if (header.e_shoff != 0) {
    needed =
        std::max(needed, end_of(header.e_shoff, uint64_t{header.e_shnum} * sizeof(Elf64_Shdr)));
  }
  if (needed > size) refuse_truncated(path, size, needed);
  std::vector<Elf64_Phdr> segments(header.e_phnum);
  std::vector<Elf64_Shdr> sections(header.e_shoff != 0 ? header.e_shnum : 0);
  if (!read_at(fd, segments.data(), segments.size() * sizeof(Elf64_Phdr), header.e_phoff) ||
      !read_at(fd, sections.data(), sections.size() * sizeof(Elf64_Shdr), header.e_shoff)) {
    refuse_plugin(path, "cannot be read to the end", kRebuild);
  }
  for (const Elf64_Phdr& segment : segments) {
    needed = std::max(needed, end_of(segment.p_offset, segment.p_filesz));
  }
  for (const Elf64_Shdr& section : sections) {
    if (section.sh_type != SHT_NOBITS && section.sh_type != SHT_NULL) {
      needed = std::max(needed, end_of(section.sh_offset, section.sh_size));
    }
  }
  if (needed > size) refuse_truncated(path, size, needed);

  if (lacks_symbol(fd, sections, DB_ENTRY_SYMBOL)) {
    refuse_plugin(path,
                  "is a shared library but not a backend: it does not export " DB_ENTRY_SYMBOL,
                  "mark the entry function with DB_EXPORT; in C++ it must be extern \"C\"");
  }
}

// Whether the group of a file is its owner's own: the same name, and no other members. Systems that
// create such a group for every user make files writable by it.
bool is_private_group(gid_t group, uid_t owner) {
  std::vector<char> user_text(16384), group_text(65536);
  passwd user_entry = {};
  struct group entry = {};
  passwd* user = nullptr;
  struct group* found = nullptr;
  if (getpwuid_r(owner, &user_entry, user_text.data(), user_text.size(), &user) != 0 || !user ||
      getgrgid_r(group, &entry, group_text.data(), group_text.size(), &found) != 0 || !found) {
    return false;
  }
  if (user->pw_gid != group || std::strcmp(user->pw_name, found->gr_name) != 0) return false;
  for (char** member = found->gr_mem; *member != nullptr; ++member) {
    if (std::strcmp(*member, user->pw_name) != 0) return false;
  }
  return true;
}

void check_owner(const std::string& path, const std::string& what, const struct stat& status,
                 const std::string& of) {
  if (status.st_uid != 0 && status.st_uid != geteuid()) {
    refuse_plugin(path,
                  fmt::format("is refused: {} belongs to user {}, neither root nor this user ({})",
                              what, status.st_uid, geteuid()),
                  fmt::format("if you trust it, take ownership or use your own copy: chown {} {}",
                              geteuid(), of));
  }
  if ((status.st_mode & S_IWOTH) != 0) {
    refuse_plugin(path,
                  fmt::format("is refused: {} is writable by everyone (mode {:04o})", what,
                              status.st_mode & 07777u),
                  fmt::format("chmod o-w {}", of));
  }
  if ((status.st_mode & S_IWGRP) != 0 && !is_private_group(status.st_gid, status.st_uid)) {
    refuse_plugin(path,
                  fmt::format("is refused: {} is writable by group {} (mode {:04o})", what,
                              status.st_gid, status.st_mode & 07777u),
                  fmt::format("chmod g-w {}", of));
  }
}

void check_folders(const std::string& path, const std::string& real) {
  std::filesystem::path folder = std::filesystem::path(real).parent_path();
  for (bool own = true;; own = false) {
    struct stat status = {};
    if (stat(folder.c_str(), &status) != 0) {
      refuse_plugin(path,
                    fmt::format("is refused: its folder {} cannot be examined: {}", folder.string(),
                                std::strerror(errno)),
                    "make the folder readable to this user");
    }
    if (own) {
      check_owner(path, "its folder " + folder.string(), status, folder.string());
    } else if ((status.st_mode & S_IWOTH) != 0 && (status.st_mode & S_ISVTX) == 0) {
      refuse_plugin(
          path,
          fmt::format("is refused: the folder {} above it is writable by everyone (mode {:04o})",
                      folder.string(), status.st_mode & 07777u),
          fmt::format("chmod o-w {}", folder.string()));
    }
    if (folder == folder.parent_path()) return;
    folder = folder.parent_path();
  }
}

Bytes32 hash_of(const std::string& path, int fd) {
  Digest digest;
  std::vector<char> buffer(size_t{256} * 1024);
  for (off_t offset = 0;;) {
    const ssize_t got = pread(fd, buffer.data(), buffer.size(), offset);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) refuse_plugin(path, fmt::format("cannot be read: {}", std::strerror(errno)), "");
    if (got == 0) return digest.finish();
    digest.update({buffer.data(), static_cast<size_t>(got)});
    offset += got;
  }
}

// Compares the open file with the pin of backend.sha256.
void check_sha256(const std::string& path, int fd, const std::string& wanted) {
  std::string pin = wanted;
  std::transform(pin.begin(), pin.end(), pin.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  Bytes32 expected{};
  if (!from_hex(pin, expected)) {
    fail_config(fmt::format("backend.sha256 = \"{}\" is not a SHA-256: 64 hexadecimal digits are "
                            "expected",
                            wanted),
                "backend.sha256", fmt::format("print it with: sha256sum {}", path));
  }
  const Bytes32 found = hash_of(path, fd);
  if (found == expected) return;
  refuse_plugin(path,
                fmt::format("is not the file that backend.sha256 pins: its SHA-256 is {}, expected "
                            "{}",
                            to_hex(found), pin),
                "restore the file, or update backend.sha256 if the change was intended");
}

}  // namespace

std::string check_plugin_file(const std::string& path, const std::string& sha256) {
  std::error_code failed;
  std::string real = std::filesystem::canonical(path, failed).string();
  if (failed) {
    refuse_plugin(path, fmt::format("cannot be opened: {}", failed.message()),
                  "check backend.use; a string with a slash is the path of a plugin's file");
  }
  const UniqueFd file(open(real.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
  struct stat status = {};
  if (!file || fstat(file.get(), &status) != 0) {
    refuse_plugin(path, fmt::format("cannot be opened: {}", std::strerror(errno)),
                  "make the file readable to this user");
  }
  if (!S_ISREG(status.st_mode)) {
    refuse_plugin(path, S_ISDIR(status.st_mode) ? "is a folder" : "is not a regular file",
                  "name the plugin's library file");
  }
  check_owner(path, "the file", status, real);
  check_folders(path, real);
  check_elf(path, file.get(), static_cast<uint64_t>(status.st_size));
  if (!sha256.empty()) check_sha256(path, file.get(), sha256);
  return real;
}

}  // namespace coupler::plugin
