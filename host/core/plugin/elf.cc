#include "plugin/elf.h"

#include <elf.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>
#include <string_view>
#include <vector>

namespace coupler {
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
  switch (machine) {
    case EM_386:
      return "32-bit x86";
    case EM_X86_64:
      return "x86-64";
    case EM_ARM:
      return "32-bit ARM";
    case EM_AARCH64:
      return "aarch64";
    case EM_PPC64:
      return "ppc64";
    case EM_RISCV:
      return "RISC-V";
    case EM_S390:
      return "s390";
    default:
      return fmt::format("ELF machine {}", machine);
  }
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

ElfReport truncated(uint64_t size, uint64_t needed) {
  const std::string of =
      needed == UINT64_MAX ? "" : fmt::format(", but its headers describe at least {}", needed);
  return {fmt::format("is truncated: the file has {} bytes{}", size, of), kRebuild};
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

}  // namespace

ElfReport inspect_elf(int fd, uint64_t size, const char* entry_symbol) {
  Elf64_Ehdr header = {};
  const uint64_t start = std::min<uint64_t>(size, sizeof(header));
  if (!read_at(fd, &header, start, 0)) return {"cannot be read to the end", kRebuild};
  if (start < SELFMAG || std::memcmp(header.e_ident, ELFMAG, SELFMAG) != 0) {
    return {size == 0 ? "is an empty file" : "is not an ELF file (a Linux shared library is one)",
            "name the compiled library, not its source, archive or folder"};
  }
  if (size < sizeof(header)) return truncated(size, sizeof(header));
  if (header.e_ident[EI_CLASS] != ELFCLASS64 || header.e_ident[EI_DATA] != kByteOrder ||
      header.e_machine != kMachine) {
    return {fmt::format("is built for another machine: {}{}{}, but this one is {}",
                        machine_name(header.e_machine),
                        header.e_ident[EI_CLASS] == ELFCLASS64 ? "" : ", 32 bits",
                        header.e_ident[EI_DATA] == kByteOrder ? "" : ", other byte order",
                        machine_name(kMachine)),
            "build it on or for this machine"};
  }
  if (header.e_type != ET_DYN) {
    return {fmt::format("is an ELF file but not a shared library (type {})", header.e_type),
            "link it with -shared"};
  }

  uint64_t needed = end_of(header.e_phoff, uint64_t{header.e_phnum} * sizeof(Elf64_Phdr));
  if (header.e_shoff != 0) {
    needed =
        std::max(needed, end_of(header.e_shoff, uint64_t{header.e_shnum} * sizeof(Elf64_Shdr)));
  }
  if (needed > size) return truncated(size, needed);
  std::vector<Elf64_Phdr> segments(header.e_phnum);
  std::vector<Elf64_Shdr> sections(header.e_shoff != 0 ? header.e_shnum : 0);
  if (!read_at(fd, segments.data(), segments.size() * sizeof(Elf64_Phdr), header.e_phoff) ||
      !read_at(fd, sections.data(), sections.size() * sizeof(Elf64_Shdr), header.e_shoff)) {
    return {"cannot be read to the end", kRebuild};
  }
  for (const Elf64_Phdr& segment : segments) {
    needed = std::max(needed, end_of(segment.p_offset, segment.p_filesz));
  }
  for (const Elf64_Shdr& section : sections) {
    if (section.sh_type != SHT_NOBITS && section.sh_type != SHT_NULL) {
      needed = std::max(needed, end_of(section.sh_offset, section.sh_size));
    }
  }
  if (needed > size) return truncated(size, needed);

  ElfReport report;
  report.has_entry = !lacks_symbol(fd, sections, entry_symbol);
  return report;
}

}  // namespace coupler
