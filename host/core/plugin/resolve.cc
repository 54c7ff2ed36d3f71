#include "plugin/resolve.h"

#include <coupler/error.h>
#include <dlfcn.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <set>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/text.h"
#include "config/validate.h"
#include "plugin/automatic.h"
#include "plugin/bases.h"
#include "plugin/plugin.h"
#include "plugin/probe.h"

namespace coupler::plugin {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kPrefix = "libcoupler_";
constexpr std::string_view kSuffix = ".so";

void add(std::vector<SearchFolder>& folders, const fs::path& path, const std::string& origin) {
  const std::string text = fs::absolute(path).lexically_normal().string();
  const bool known = std::any_of(folders.begin(), folders.end(),
                                 [&](const SearchFolder& folder) { return folder.path == text; });
  if (!known) folders.push_back({text, origin});
}

// A plugin's second library (libcoupler_NAME_impl.so, next to it) is not a plugin.
constexpr std::string_view kCompanion = "_impl";

// "" if the file is not a plugin.
std::string name_of(const fs::path& file) {
  const std::string stem = file.stem().string();
  const bool fits =
      file.extension() == kSuffix && stem.starts_with(kPrefix) && !stem.ends_with(kCompanion);
  return fits ? stem.substr(kPrefix.size()) : "";
}

std::string not_found(const std::string& name, const config::BackendConfig& backend) {
  std::string text =
      fmt::format("backend \"{}\" was not found: no {}{}{} in", name, kPrefix, name, kSuffix);
  for (const SearchFolder& folder : search_folders(backend)) {
    std::error_code ignored_reason;
    const bool exists = fs::is_directory(folder.path, ignored_reason);
    text +=
        fmt::format("\n  {} ({}{})", folder.path, folder.origin, exists ? "" : "; no such folder");
  }
  std::string names = "single";
  for (const std::string& found : found_plugin_names(backend)) names += ", " + found;
  return text + "\nAvailable backends: " + names;
}

}  // namespace

fs::path own_folder() {
  Dl_info info = {};
  if (dladdr(reinterpret_cast<const void*>(&own_folder), &info) == 0) return {};
  std::error_code failed;
  fs::path file = fs::canonical(info.dli_fname, failed);
  // In a program started by name through PATH, dli_fname is that name; the link is always right.
  if (failed) file = fs::canonical("/proc/self/exe", failed);
  return failed ? fs::path() : file.parent_path();
}

std::vector<SearchFolder> search_folders(const config::BackendConfig& backend) {
  std::vector<SearchFolder> folders;
  for (const std::string& path : backend.plugin_path) add(folders, path, "backend.plugin_path");
  // secure_getenv: a privileged program must not load what its caller's environment names.
  if (const char* list = secure_getenv("COUPLER_PLUGIN_PATH")) {
    for (const std::string& path : split(list, ':')) {
      if (!path.empty()) add(folders, path, "COUPLER_PLUGIN_PATH");
    }
  }
  const fs::path own = own_folder();
  if (!own.empty()) {
    add(folders, own / "coupler", "next to Coupler");
    add(folders, own / "../lib/coupler", "next to Coupler");
    // Test programs are one folder deeper, in bin/tests.
    if (own.filename() == "tests") add(folders, own / "../../lib/coupler", "next to Coupler");
  }
  add(folders, COUPLER_SYSTEM_PLUGIN_DIR, "system");
  return folders;
}

std::vector<FoundPlugin> found_plugins(const config::BackendConfig& backend) {
  std::vector<FoundPlugin> plugins;
  std::set<std::string> seen;
  for (const SearchFolder& folder : search_folders(backend)) {
    std::error_code failed;  // a folder that is absent or unreadable has no plugins
    std::vector<FoundPlugin> here;
    for (fs::directory_iterator entry(folder.path, failed), end; !failed && entry != end;
         entry.increment(failed)) {
      const std::string name = name_of(entry->path());
      if (!name.empty()) here.push_back({name, entry->path().string()});
    }
    std::sort(here.begin(), here.end(),
              [](const FoundPlugin& a, const FoundPlugin& b) { return a.name < b.name; });
    for (FoundPlugin& plugin : here) {
      if (seen.insert(plugin.name).second) plugins.push_back(std::move(plugin));
    }
  }
  return plugins;
}

std::vector<std::string> found_plugin_names(const config::BackendConfig& backend) {
  std::vector<std::string> names;
  for (FoundPlugin& plugin : found_plugins(backend)) names.push_back(std::move(plugin.name));
  return names;
}

std::vector<std::string> listed_uses(const config::BackendConfig& backend) {
  std::vector<std::string> uses = found_plugin_names(backend);
  if (backend.use.find('/') != std::string::npos) uses.insert(uses.begin(), backend.use);
  uses.emplace_back("single");
  return uses;
}

std::string find_plugin(const std::string& use, const config::BackendConfig& backend) {
  if (use.find('/') != std::string::npos) return use;
  for (const SearchFolder& folder : search_folders(backend)) {
    const fs::path file = fs::path(folder.path) / fmt::format("{}{}{}", kPrefix, use, kSuffix);
    std::error_code failed;
    if (fs::exists(fs::symlink_status(file, failed))) return file.string();
  }
  throw Error(ErrorCode::kPlugin, not_found(use, backend),
              {-1, "backend.use",
               // Accelerate's users expect it to be a device like any other.
               use == "tpu" ? "TPUs are not supported: LibTorch has no XLA in C++"
                            : "set backend.use to one of these names or to a path with a slash, or "
                              "add the plugin's folder to backend.plugin_path or "
                              "COUPLER_PLUGIN_PATH"});
}

namespace {

// The plugin's report; throws Error if it cannot be used.
PluginReport usable(const std::string& use, const config::BackendConfig& backend) {
  PluginReport report = try_plugin(use, backend);
  // A plugin that needs mpirun can only judge inside it; the launcher checks for mpirun itself.
  if (report.usable || report.can(DB_CAP_NEEDS_MPI_LAUNCH)) return report;
  // A loaded plugin itself reports why it cannot work here; else the message names the file.
  const bool loaded = !report.abi.empty();
  throw Error(
      ErrorCode::kPlugin,
      loaded ? fmt::format("backend \"{}\" ({}) cannot be used here: {}", report.name, report.path,
                           report.reason)
             : report.reason,
      {-1, report.path, loaded ? "`coupler plugins` shows what can be used on this machine" : ""});
}

}  // namespace

std::string resolve_auto(const config::BackendConfig& backend, MpiLaunch launch, bool on_host,
                         Spread spread) {
  return choose_automatically(backend, {.launch = launch, .on_host = on_host, .spread = spread})
      .name;
}

namespace {

// Probes the bases of a loaded wrapper, and theirs, and adds them to *choice.
void choose_bases(const Plugin& wrapper, const config::BackendConfig& backend, Circumstances known,
                  TransportChoice& choice) {
  known.compositions = !is_composite(wrapper.table());
  known.on_host = known.on_host || !wrapper.can(DB_CAP_CUDA_MEMORY);
  config::BackendConfig below = backend;
  below.sha256.clear();  // the pin is the wrapper's
  for (const WantedBase& wanted : wanted_bases(wrapper.table())) {
    below.use = use_of(wanted, backend, wrapper.name());
    PluginReport report;
    if (below.use == "auto") {
      Circumstances there = known;
      if (wanted.of_machine) there.spread = Spread::kOneMachine;
      report = choose_automatically(below, there);
      below.use = report.name;
      choice.overrides.push_back(
          fmt::format("backend.{}.{}=\"{}\"", wrapper.name(), wanted.option, below.use));
    } else {
      try {
        report = usable(below.use, below);
      } catch (const Error& error) {
        throw about_base(error, wrapper.table(), wanted, below.use);
      }
    }
    if (report.can(DB_CAP_NEEDS_BASE)) {
      const Plugin base = Plugin::load(below);
      check_base(wrapper.table(), wanted, base.table());
      choose_bases(base, backend, known, choice);
      continue;
    }
    check_memory(wrapper.table(), wanted, report.name, report.capabilities);
    choice.transport += (choice.transport.empty() ? "" : " and ") + below.use;
    choice.needs_mpi_launch |= report.can(DB_CAP_NEEDS_MPI_LAUNCH);
  }
}

}  // namespace

TransportChoice choose_transport(const config::BackendConfig& backend, MpiLaunch launch,
                                 bool on_host, Spread spread) {
  const Circumstances known{
      .launch = launch, .on_host = on_host, .spread = spread, .compositions = true};
  TransportChoice choice;
  choice.use = backend.use;
  PluginReport report;
  if (choice.use == "auto") {
    report = choose_automatically(backend, known);
    choice.use = report.name;
    choice.overrides.push_back(fmt::format("backend.use=\"{}\"", choice.use));
  } else {
    report = usable(choice.use, backend);
  }
  if (!report.can(DB_CAP_NEEDS_BASE)) {
    choice.transport = choice.use;
    choice.needs_mpi_launch = report.can(DB_CAP_NEEDS_MPI_LAUNCH);
    return choice;
  }
  config::BackendConfig found = backend;
  found.use = choice.use;
  choose_bases(Plugin::load(found), backend, known, choice);
  return choice;
}

bool needs_mpi_launch(const config::BackendConfig& backend) {
  if (backend.use == "auto") return false;
  const Plugin plugin = Plugin::load(backend);
  if (plugin.can(DB_CAP_NEEDS_MPI_LAUNCH)) return true;
  const std::vector<WantedBase> bases = wanted_bases(plugin.table());
  return std::any_of(bases.begin(), bases.end(), [&](const WantedBase& base) {
    config::BackendConfig below = backend;
    below.sha256.clear();  // the pin is the wrapper's
    below.use = use_of(base, backend, plugin.name());
    if (below.use == "auto") return false;
    const Plugin loaded = Plugin::load(below);
    check_base(plugin.table(), base, loaded.table());
    return needs_mpi_launch(below);
  });
}

}  // namespace coupler::plugin
