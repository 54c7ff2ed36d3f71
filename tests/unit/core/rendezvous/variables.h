// Environments as maps, for tests of how a process reads its own.
#pragma once

#include <map>
#include <string>

#include "rendezvous/process_info.h"

namespace coupler::rendezvous {

using Variables = std::map<std::string, std::string>;

inline ProcessInfo detect(const Variables& variables) {
  return detect_process([&](const char* name) {
    const auto found = variables.find(name);
    return found == variables.end() ? "" : found->second;
  });
}

}  // namespace coupler::rendezvous
