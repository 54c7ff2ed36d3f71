// What the kernel and programs tell in small text files. Plain functions; no thread rule. A file
// that is not there says nothing.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace coupler::cli {

std::optional<std::string> first_line_of(const std::string& file);
// Its first line, where that is a number and nothing else ("max" of cgroups is none).
std::optional<uint64_t> number_in(const std::string& file);
// What follows start in the first line that begins with it, without blanks, colons, equals signs
// and quotes around it: for lines as NAME=value or "name : value".
std::optional<std::string> value_in(const std::string& file, std::string_view start);

// What a line of /proc/meminfo says, such as MemTotal's, in bytes.
std::optional<uint64_t> memory_fact(const char* name);

}  // namespace coupler::cli
