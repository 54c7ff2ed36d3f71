#include "cli/doctor/clean.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <numeric>
#include <string>

#include "base/units.h"
#include "cli/doctor/checks.h"
#include "cli/launch/leftovers.h"
#include "cli/text/output.h"

namespace coupler::cli {
namespace {

bool is_gone(const Leftover& one) { return one.failure.empty(); }

std::string leftovers_text(const Leftovers& found) {
  std::string text;
  uint64_t bytes = 0;
  for (const Leftover& one : found) {
    const std::string name = one_line(one.path);
    if (is_gone(one)) {
      text += fmt::format("removed  {}: {}, {}\n", name, one.what, format_byte_size(one.bytes));
      bytes += one.bytes;
    } else {
      text += fmt::format("error    {}: {}, cannot be removed: {}\n{:9}fix:  rm -rf {}\n", name,
                          one.what, one.failure, "", name);
    }
  }
  const auto removed = std::count_if(found.begin(), found.end(), is_gone);
  if (found.empty()) {
    return "no leftovers of killed jobs\n";
  }
  return text + fmt::format("\n{} removed, {} of memory and disk space freed\n", removed,
                            format_byte_size(bytes));
}

std::string json_of(const Leftovers& found, int exit_code) {
  nlohmann::ordered_json leftovers = nlohmann::ordered_json::array();
  for (const Leftover& one : found) {
    leftovers.push_back({{"path", one.path},
                         {"what", one.what},
                         {"bytes", one.bytes},
                         {"removed", is_gone(one)},
                         {"failure", one.failure}});
  }
  return json_text(
      {{"coupler", COUPLER_VERSION}, {"exit_code", exit_code}, {"leftovers", leftovers}});
}

}  // namespace

int clean(bool json) {
  const Leftovers found = all_leftovers(Then::kRemove);
  const int exit_code = std::all_of(found.begin(), found.end(), is_gone) ? 0 : 1;
  std::fputs((json ? json_of(found, exit_code) : leftovers_text(found)).c_str(), stdout);
  return exit_code;
}

Findings check_leftovers() {
  const Leftovers found = all_leftovers(Then::kKeep);
  if (found.empty()) {
    return {{Level::kOk, "no leftovers of killed jobs"}};
  }
  const uint64_t bytes =
      std::accumulate(found.begin(), found.end(), uint64_t{0},
                      [](uint64_t sum, const Leftover& one) { return sum + one.bytes; });
  return {{Level::kNote,
           one_line(fmt::format("killed jobs left {} ({}), {} in total", found.front().path,
                                found.size() == 1 ? found.front().what
                                                  : fmt::format("and {} more", found.size() - 1),
                                format_byte_size(bytes))),
           "it takes up memory or disk space and is no longer in use", "coupler doctor --clean"}};
}

}  // namespace coupler::cli
