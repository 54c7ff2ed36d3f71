// Reads a file's ELF headers, so that a text file, a library for another machine or a truncated one
// is reported as such before the dynamic linker sees it. Pure function; [any-thread].
#pragma once

#include <cstdint>
#include <string>

namespace coupler {

struct ElfReport {
  std::string problem;    // what is wrong, "" if nothing: "is not an ELF file (…)"
  std::string hint;       // what to do about it
  bool has_entry = true;  // false: its symbol table lacks the entry symbol; true if unknown
};

// fd is open for reading; size is its length in bytes.
ElfReport inspect_elf(int fd, uint64_t size, const char* entry_symbol);

}  // namespace coupler
