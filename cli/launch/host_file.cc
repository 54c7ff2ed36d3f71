#include "cli/launch/host_file.h"

#include <coupler/error.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <fstream>
#include <numeric>
#include <optional>
#include <sstream>

#include "base/error.h"
#include "base/network.h"
#include "base/text.h"

namespace coupler::cli {
namespace {

// place: "hosts:3", the file and the line.
[[noreturn]] void fail_line(
    const std::string& place, const std::string& message,
    const std::string& hint = "write 'node1 slots=4', one machine per line") {
  throw Error(ErrorCode::kConfig, fmt::format("{}: {}", place, message),
              {.subject = place, .hint = hint});
}

int read_slots(const std::string& place, const std::string& text, const std::string& word) {
  const auto slots = to_number<int>(text);
  if (!slots || *slots < 1) {
    fail_line(place,
              fmt::format("'{}' is not a number of processes (1 or more) in '{}'", text, word));
  }
  return *slots;
}

bool is_host_name(const std::string& text) {
  return !text.empty() && text.front() != '-' &&
         std::all_of(text.begin(), text.end(), [](unsigned char c) {
           return std::isalnum(c) != 0 || c == '-' || c == '.' || c == '_' || c == ':' || c >= 0x80;
         });
}

// Reads a key=value word after the name.
void read_word(const std::string& place, const std::string& word, std::optional<int>& slots) {
  const auto equals = word.find('=');
  const auto key = word.substr(0, equals);
  if (equals == std::string::npos) {
    fail_line(place, fmt::format("'{}' is neither a machine's name nor key=value", word));
  }
  if (key == "slots") {
    if (slots) {
      fail_line(
          place,
          fmt::format("the number of processes is given twice, the second time as '{}'", word));
    }
    slots = read_slots(place, word.substr(equals + 1), word);
  } else if (key == "max_slots" || key == "max-slots") {
    read_slots(place, word.substr(equals + 1), word);  // only checked: we never exceed slots
  } else if (key == "user" || key == "username") {
    fail_line(place, fmt::format("'{}': a hostfile cannot name users", word),
              "set 'User NAME' for this host in ~/.ssh/config");
  } else {
    const std::string nearest = nearest_name(key, {"slots", "max_slots"});
    fail_line(place, fmt::format("unknown word '{}'{}", word,
                                 nearest.empty() ? "" : "; did you mean '" + nearest + "=…'?"));
  }
}

HostSlots read_line(const std::string& place, std::istringstream& words) {
  HostSlots entry;
  std::optional<int> slots;
  words >> entry.host;
  // "node1:4" has one colon; an IPv6 address has more.
  const auto colon = entry.host.find(':');
  if (colon != std::string::npos && entry.host.find(':', colon + 1) == std::string::npos) {
    slots = read_slots(place, entry.host.substr(colon + 1), entry.host);
    entry.host.resize(colon);
  }
  if (!is_host_name(entry.host)) {
    fail_line(place, fmt::format("'{}' is not a valid host name", entry.host));
  }
  for (std::string word; words >> word;) {
    read_word(place, word, slots);
  }
  entry.slots = slots.value_or(1);
  return entry;
}

void add_host(HostFile& file, const HostSlots& entry) {
  for (HostSlots& known : file.hosts) {
    if (known.host == entry.host) {
      known.slots += entry.slots;
      return;
    }
  }
  file.hosts.push_back(entry);
}

}  // namespace

int HostFile::slots() const {
  return std::accumulate(hosts.begin(), hosts.end(), 0,
                         [](int sum, const HostSlots& entry) { return sum + entry.slots; });
}

HostFile read_host_file(const std::string& path) {
  HostFile file{path, {}};
  struct stat status {};
  errno = 0;
  const bool is_folder = ::stat(path.c_str(), &status) == 0 && S_ISDIR(status.st_mode);
  std::ifstream stream(path);
  if (is_folder || !stream) {
    throw Error(ErrorCode::kConfig,
                fmt::format("cannot read the hostfile {}: {}", path,
                            is_folder ? "it is a folder" : errno_message()),
                {.subject = path, .hint = "check the path given to --hostfile"});
  }
  int number = 0;
  for (std::string line; std::getline(stream, line);) {
    ++number;
    line.resize(std::min(line.find('#'), line.size()));
    if (line.find_first_not_of(" \t\r") == std::string::npos) {
      continue;
    }
    std::istringstream words(line);
    add_host(file, read_line(fmt::format("{}:{}", path, number), words));
  }
  if (file.hosts.empty()) {
    throw Error(ErrorCode::kConfig, fmt::format("the hostfile {} names no machine", path),
                {.subject = path, .hint = "write 'node1 slots=4', one machine per line"});
  }
  return file;
}

std::string host_list(const HostFile& file) {
  std::string list;
  for (const HostSlots& entry : file.hosts) {
    list += fmt::format("{}{}:{}", list.empty() ? "" : ",", entry.host, entry.slots);
  }
  return list;
}

std::string host_name() {
  std::array<char, 256> name{};
  ::gethostname(name.data(), name.size() - 1);
  return name.data();
}

bool is_this_machine(const std::string& host) {
  if (host == "localhost" || is_own_address(host)) {
    return true;
  }
  const std::string own = host_name();
  return host == own || host == own.substr(0, own.find('.'));
}

}  // namespace coupler::cli
