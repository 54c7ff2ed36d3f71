#include "plugin/plugin.h"

#define BOOST_DLL_USE_STD_FS
#include <coupler/distributed_backend.h>
#include <coupler/error.h>
#include <dlfcn.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <boost/dll/shared_library.hpp>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <map>
#include <mutex>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/log.h"
#include "plugin/check.h"
#include "plugin/probe.h"
#include "plugin/resolve.h"

namespace coupler::plugin {

void refuse_plugin(const std::string& path, const std::string& problem, const std::string& hint) {
  throw Error(ErrorCode::kPlugin, fmt::format("plugin {} {}", path, problem),
              {.subject = path, .hint = hint});
}

// Opens a plugin's library and calls its entry function. [any-thread]; one call at a time.
//
// A library's static constructors run inside dlopen. An exception from one cannot be caught here:
// glibc's loader does not let it pass, and std::terminate follows. So while the library is being
// opened, a terminate handler reports "plugin … threw in its constructor: …" and exits with the
// code of an unusable plugin. list_plugins() uses a child process, so there it costs only one row.

namespace {

constexpr int kPluginExitCode = 3;

// What this thread is opening; null if nothing.
thread_local const std::string* opening = nullptr;
std::terminate_handler previous_handler = nullptr;

std::string current_exception_text() {
  try {
    if (!std::current_exception()) return "std::terminate was called";
    throw;
  } catch (const std::exception& error) {
    return error.what();
  } catch (...) {
    return "an exception that is not a std::exception";
  }
}

[[noreturn]] void end_the_process(const std::string& path) {
  report_error(
      fmt::format("plugin {} threw in its constructor (while being loaded): {}\n"
                  "  hint: a static object of the plugin threw; fix the plugin, or choose another "
                  "backend with backend.use",
                  path, current_exception_text()));
  std::fflush(nullptr);
  _exit(kPluginExitCode);
}

[[noreturn]] void end_on_terminate() {
  if (opening != nullptr) end_the_process(*opening);
  // Another thread's exception, or one from elsewhere.
  if (previous_handler != nullptr) previous_handler();
  std::abort();
}

class TerminateGuard {
 public:
  explicit TerminateGuard(const std::string& path) {
    opening = &path;
    previous_handler = std::set_terminate(end_on_terminate);
  }
  TerminateGuard(const TerminateGuard&) = delete;
  TerminateGuard& operator=(const TerminateGuard&) = delete;
  ~TerminateGuard() {
    std::set_terminate(previous_handler);
    opening = nullptr;
  }
};

// If an exception does pass through dlopen, the linker's locks stay held for good: no thread could
// load or unload anything any more, or even exit. So it ends the process, too.
void open_library(boost::dll::shared_library& library, const std::string& path,
                  std::error_code& failed) {
  try {
    library.load(path, failed, boost::dll::load_mode::rtld_now | boost::dll::load_mode::rtld_local);
  } catch (...) {
    end_the_process(path);
  }
}

const DistributedBackend* call_entry(const std::string& path, db_entry_function entry) {
  try {
    return entry();
  } catch (...) {
    refuse_plugin(
        path, fmt::format("threw in its entry function: {}", current_exception_text()),
        "let no exception cross the interface; the entry function only has to return its table");
  }
}

// path passed check_plugin_file(). The library stays open for the life of the process. Throws
// Error(kPlugin) with the dynamic linker's message, or if the entry symbol is absent or returns
// NULL.
const DistributedBackend* guarded_open(const std::string& path) {
  // Never destroyed: plugins are not unloaded, since their threads, thread-local destructors and
  // exit handlers would be left pointing to unmapped code.
  static auto* const libraries = new std::vector<boost::dll::shared_library>();

  const TerminateGuard guard(path);
  boost::dll::shared_library library;
  std::error_code failed;
  dlerror();  // discard an earlier call's error
  open_library(library, path, failed);
  if (failed) {
    // The error code is always "bad file descriptor"; the linker's own message is the useful one.
    const char* text = dlerror();
    refuse_plugin(path,
                  fmt::format("cannot be loaded: {}", text != nullptr ? text : failed.message()),
                  "a library it needs may be missing (ldd shows which), or a symbol is undefined");
  }
  if (!library.has(DB_ENTRY_SYMBOL)) {
    refuse_plugin(path,
                  "is a shared library but not a backend: it does not export " DB_ENTRY_SYMBOL,
                  "mark the entry function with DB_EXPORT; in C++ it must be extern \"C\"");
  }
  const auto entry = &library.get<const DistributedBackend*()>(DB_ENTRY_SYMBOL);
  libraries->push_back(std::move(library));
  const DistributedBackend* table = call_entry(path, entry);
  if (table == nullptr) {
    refuse_plugin(path, "returned no table from " DB_ENTRY_SYMBOL,
                  "the entry function must return the address of a static DistributedBackend");
  }
  return table;
}

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

namespace {

const DistributedBackend* load_once(const config::BackendConfig& backend, std::string& path) {
  // Tables by real path. Both are never destroyed, since threads of plugins may outlive main().
  static auto* const mutex = new std::mutex();
  static auto* const tables = new std::map<std::string, const DistributedBackend*>();
  const std::lock_guard lock(*mutex);
  path = check_plugin_file(find_plugin(backend.use, backend), backend.sha256);
  const auto known = tables->find(path);
  if (known != tables->end()) return known->second;
  const DistributedBackend* table = guarded_open(path);
  check_table(*table, path);
  tables->emplace(path, table);
  return table;
}

}  // namespace

Plugin Plugin::single() { return {&single_backend(), ""}; }
Plugin Plugin::made_up() { return {&made_up_backend(), ""}; }

Plugin Plugin::load(const config::BackendConfig& backend) {
  if (backend.use == single_backend().name) return single();
  if (backend.use.empty() || backend.use == "auto") {
    fail_config(fmt::format("backend.use = \"{}\" does not name a backend", backend.use),
                "backend.use",
                "\"auto\" is resolved by `coupler launch`; if another launcher starts the "
                "processes, set backend.use to a backend's name (`coupler plugins` lists them)");
  }
  std::string path;
  const DistributedBackend* table = load_once(backend, path);
  const bool by_name = backend.use.find('/') == std::string::npos;
  if (by_name && backend.use != table->name) {
    refuse_plugin(
        path, fmt::format("was loaded as \"{}\" but its name is \"{}\"", backend.use, table->name),
        fmt::format("rename the file to libcoupler_{}.so", table->name));
  }
  log(LogLevel::kInfo, "plugin",
      fmt::format("{} {} (ABI {}.{}) from {}", table->name, table->version, table->abi_major,
                  table->abi_minor, path));
  return {table, std::move(path)};
}

std::vector<PluginReport> list_plugins(const config::BackendConfig& backend) {
  const std::vector<std::string> uses = listed_uses(backend);
  std::vector<PluginReport> reports = try_plugins(uses, backend);
  for (size_t i = 0; i < uses.size(); ++i) {
    if (reports[i].name.empty()) reports[i].name = uses[i];
  }
  return reports;
}

}  // namespace coupler::plugin
