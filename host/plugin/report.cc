#include <coupler/error.h>
#include <fmt/format.h>

#include <array>
#include <string>
#include <vector>

#include "plugin/plugin.h"
#include "plugin/probe_host.h"
#include "plugin/search.h"
#include "plugin/trial.h"

namespace coupler {
namespace {

PluginReport probe(const Plugin& plugin) {
  const DistributedBackend& table = plugin.table();
  PluginReport report;
  report.name = table.name;
  report.path = plugin.path();
  report.version = table.version;
  report.description = table.description;
  report.abi = fmt::format("{}.{}", table.abi_major, table.abi_minor);
  report.needs_mpi_launch = (table.capabilities & DB_CAP_NEEDS_MPI_LAUNCH) != 0;
  report.needs_base = (table.capabilities & DB_CAP_NEEDS_BASE) != 0;
  std::array<char, 1024> reason = {};
  const db_status status = table.probe(&probe_host(), &report.score, reason.data(), reason.size());
  reason.back() = '\0';
  report.reason = reason.data();
  if (status != DB_OK) {
    report.score = 0;
    report.reason = fmt::format("its probe failed with status {}{}{}", status,
                                report.reason.empty() ? "" : ": ", report.reason);
  }
  report.usable = report.score > 0;
  return report;
}

}  // namespace

PluginReport try_plugin(const std::string& use, const BackendConfig& backend) {
  PluginReport failed;
  failed.name = use;
  BackendConfig one = backend;
  one.use = use;
  if (use != backend.use) one.sha256.clear();  // the pin is for backend.use alone
  try {
    if (use == "single") return probe(Plugin::single());
    failed.path = find_plugin(use, backend);
    return run_in_child(use, failed.path, [&]() -> PluginReport {
      try {
        return probe(Plugin::load(one));
      } catch (const Error& error) {
        failed.reason = error.what();
        return failed;
      }
    });
  } catch (const Error& error) {
    failed.reason = error.what();
    return failed;
  }
}

std::vector<PluginReport> list_plugins(const BackendConfig& backend) {
  std::vector<PluginReport> reports;
  if (backend.use.find('/') != std::string::npos) {
    reports.push_back(try_plugin(backend.use, backend));
  }
  for (const FoundPlugin& found : found_plugins(backend)) {
    PluginReport report = try_plugin(found.name, backend);
    if (report.name.empty()) report.name = found.name;
    reports.push_back(std::move(report));
  }
  reports.push_back(try_plugin("single", backend));
  return reports;
}

}  // namespace coupler
