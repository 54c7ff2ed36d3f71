#include "plugin/table.h"

#include <coupler/error.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <string_view>

#include "plugin/refuse.h"

namespace coupler {
namespace {

void require_text(const std::string& path, const char* text, std::string_view field) {
  if (text != nullptr && *text != '\0') return;
  refuse_plugin(path, fmt::format("has no {} in its table", field),
                fmt::format("set DistributedBackend.{} to a string", field));
}

void require_function(const std::string& path, bool there, std::string_view field) {
  if (there) return;
  refuse_plugin(path, fmt::format("lacks the required function {}", field),
                fmt::format("set DistributedBackend.{}; see coupler/distributed_backend.h", field));
}

bool is_plain_name(std::string_view name) {
  return std::all_of(name.begin(), name.end(), [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '_';
  });
}

}  // namespace

std::string abi_problem(uint32_t major, uint32_t minor, uint32_t host_major, uint32_t host_minor) {
  if (major != host_major) {
    return fmt::format("has ABI {}.{}, but this Coupler has {}.{}: the major versions differ",
                       major, minor, host_major, host_minor);
  }
  // From 1.0 on, a minor version only appends, so all work together; before 1.0, one may break.
  if (major == 0 && minor != host_minor) {
    return fmt::format(
        "has ABI {}.{}, but this Coupler has {}.{}: before 1.0, minor versions must be equal",
        major, minor, host_major, host_minor);
  }
  return "";
}

void check_table(const DistributedBackend& table, const std::string& path) {
  constexpr uint64_t kVersionEnd =
      offsetof(DistributedBackend, abi_minor) + sizeof(DistributedBackend::abi_minor);
  if (table.struct_size < kVersionEnd) {
    refuse_plugin(
        path,
        fmt::format("says its table has {} bytes, too few to hold a version", table.struct_size),
        "set struct_size to sizeof(DistributedBackend)");
  }
  const std::string problem =
      abi_problem(table.abi_major, table.abi_minor, DB_ABI_MAJOR, DB_ABI_MINOR);
  if (!problem.empty()) {
    refuse_plugin(
        path, problem,
        "rebuild the plugin against this Coupler's coupler/distributed_backend.h, or get the "
        "version of it that belongs to this Coupler");
  }
  // Everything up to create is required; get_extension after it is optional.
  if (!DB_HAS(&table, DistributedBackend, create)) {
    refuse_plugin(path,
                  fmt::format("says its table has {} bytes, but {} are required", table.struct_size,
                              offsetof(DistributedBackend, get_extension)),
                  "set struct_size to sizeof(DistributedBackend)");
  }
  require_text(path, table.name, "name");
  require_text(path, table.version, "version");
  require_text(path, table.description, "description");
  if (!is_plain_name(table.name)) {
    refuse_plugin(
        path, fmt::format("calls itself \"{}\"", table.name),
        "use only lowercase letters, digits and underscores in a backend's name, since it is also "
        "the name of its TOML table");
  }
  require_function(path, table.probe != nullptr, "probe");
  require_function(path, table.default_options != nullptr, "default_options");
  require_function(path, table.create != nullptr, "create");
}

}  // namespace coupler
