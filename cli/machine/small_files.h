// What the kernel and programs tell in small text files. Plain functions; no thread rule. A file
// that is not there says nothing.
#pragma once

#include <array>
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

// "5.1.2" of three lines "#define NAME 5" in a C header; empty where one of them is not there.
std::string version_in(const std::string& header, const std::array<const char*, 3>& names);

// What a line of /proc/meminfo says, such as MemTotal's, in bytes.
std::optional<uint64_t> memory_fact(const char* name);

}  // namespace coupler::cli
