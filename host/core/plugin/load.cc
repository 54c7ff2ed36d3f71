#include <coupler/error.h>
#include <fmt/format.h>

#include <map>
#include <mutex>
#include <utility>

#include "base/log.h"
#include "plugin/check.h"
#include "plugin/guarded_open.h"
#include "plugin/plugin.h"
#include "plugin/search.h"
#include "plugin/self_backend.h"
#include "plugin/table.h"

namespace coupler {
namespace {

// Tables by real path. Both are never destroyed, since threads of plugins may outlive main().
std::mutex& registry_mutex() {
  static auto* const mutex = new std::mutex();
  return *mutex;
}

const DistributedBackend* load_once(const std::string& use, const std::string& sha256,
                                    const BackendConfig& backend, std::string& path) {
  static auto* const tables = new std::map<std::string, const DistributedBackend*>();
  const std::lock_guard lock(registry_mutex());
  path = check_plugin_file(find_plugin(use, backend), sha256);
  const auto known = tables->find(path);
  if (known != tables->end()) return known->second;
  const DistributedBackend* table = guarded_open(path);
  check_table(*table, path);
  tables->emplace(path, table);
  return table;
}

}  // namespace

Plugin Plugin::single() { return {&self_backend(), ""}; }

Plugin Plugin::load(const BackendConfig& backend) {
  if (backend.use == self_backend().name) return single();
  if (backend.use.empty() || backend.use == "auto") {
    throw Error(ErrorCode::kConfig,
                fmt::format("backend.use = \"{}\" does not name a backend", backend.use),
                {-1, "backend.use",
                 "\"auto\" is resolved by `coupler launch`; if another launcher starts the "
                 "processes, set backend.use to a backend's name (`coupler plugins` lists them)"});
  }
  std::string path;
  const DistributedBackend* table = load_once(backend.use, backend.sha256, backend, path);
  const bool by_name = backend.use.find('/') == std::string::npos;
  if (by_name && backend.use != table->name) {
    throw Error(ErrorCode::kPlugin,
                fmt::format("plugin {} was loaded as \"{}\" but its name is \"{}\"", path,
                            backend.use, table->name),
                {-1, path, fmt::format("rename the file to libcoupler_{}.so", table->name)});
  }
  if (log_enabled(LogLevel::kInfo, "plugin")) {
    log(LogLevel::kInfo, "plugin",
        fmt::format("{} {} (ABI {}.{}) from {}", table->name, table->version, table->abi_major,
                    table->abi_minor, path));
  }
  return {table, std::move(path)};
}

}  // namespace coupler
