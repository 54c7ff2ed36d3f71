// Reads the ELF headers of a file, so that a text file, a library of another machine or half a
// library is named as such before the dynamic linker sees it. Pure function; no thread rule.
#pragma once

#include <cstdint>
#include <string>

namespace coupler {

struct ElfReport {
  std::string problem;    // what is wrong, "" where nothing is: "is not an ELF file (…)"
  std::string hint;       // what to do about it
  bool has_entry = true;  // false: its symbol table lacks the entry symbol; true where unknown
};

// fd is open for reading; size is its length in bytes.
ElfReport inspect_elf(int fd, uint64_t size, const char* entry_symbol);

}  // namespace coupler
