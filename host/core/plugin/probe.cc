#include "plugin/probe.h"

#include <coupler/error.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <functional>
#include <nlohmann/json.hpp>
#include <tuple>

#include "base/log.h"
#include "base/subprocess.h"
#include "plugin/bases.h"
#include "plugin/resolve.h"

namespace coupler::plugin {
namespace {

void log_line(void*, db_severity severity, const char* component, const char* message) {
  const auto level =
      static_cast<LogLevel>(std::clamp<int32_t>(severity, DB_LOG_TRACE, DB_LOG_ERROR));
  log(level, component != nullptr ? component : "plugin", message != nullptr ? message : "");
}

}  // namespace

const db_host& host_services() {
  static const db_host host = {
      .struct_size = sizeof(db_host),
      .abi_major = DB_ABI_MAJOR,
      .abi_minor = DB_ABI_MINOR,
      .context = nullptr,
      .log = log_line,
      .get_extension = [](void*, const char*) -> const void* { return nullptr; }};
  return host;
}

namespace {

constexpr std::chrono::seconds kDeadline(10);

// All that a report holds, in the same order for both directions.
auto fields_of(auto& report) {
  return std::tie(report.name, report.path, report.version, report.description, report.abi,
                  report.usable, report.score, report.reason, report.capabilities,
                  report.composes_machines);
}

// As MessagePack, since a plugin's strings may not be UTF-8.
std::string pack_report(const PluginReport& report) {
  std::string text;
  nlohmann::json::to_msgpack(nlohmann::json(fields_of(report)), text);
  return text;
}

// False if a plugin has damaged the answer.
bool unpack_report(const std::string& text, PluginReport& report) {
  using Fields = std::tuple<std::string, std::string, std::string, std::string, std::string, bool,
                            int32_t, std::string, uint64_t, bool>;
  try {
    fields_of(report) = nlohmann::json::from_msgpack(text).get<Fields>();
    return true;
  } catch (const nlohmann::json::exception&) {
    return false;
  }
}

PluginReport probe_plugin(const Plugin& plugin, uint64_t needed) {
  const DistributedBackend& table = plugin.table();
  PluginReport report;
  report.name = table.name;
  report.path = plugin.path();
  report.version = table.version;
  report.description = table.description;
  report.abi = fmt::format("{}.{}", table.abi_major, table.abi_minor);
  report.capabilities = table.capabilities;
  report.composes_machines = composes_machines(table);
  if ((table.capabilities & needed) != needed) return report;
  std::array<char, 1024> reason = {};
  const db_status status =
      table.probe(&host_services(), &report.score, reason.data(), reason.size());
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

std::vector<PluginReport> try_plugins(const std::vector<std::string>& uses,
                                      const config::BackendConfig& backend, uint64_t needed) {
  std::vector<PluginReport> reports(uses.size());
  std::vector<size_t> rows;  // of the works
  std::vector<std::function<std::string()>> works;
  for (size_t i = 0; i < uses.size(); ++i) {
    PluginReport& failed = reports[i];
    failed.name = uses[i];
    config::BackendConfig one = backend;
    one.use = uses[i];
    if (one.use != backend.use) one.sha256.clear();  // the pin is for backend.use alone
    try {
      if (one.use == "single") {
        failed = probe_plugin(Plugin::single(), needed);
        continue;
      }
      failed.path = find_plugin(one.use, backend);
    } catch (const Error& error) {
      failed.reason = error.what();
      continue;
    }
    rows.push_back(i);
    works.emplace_back([one, failed, needed]() mutable {
      try {
        return pack_report(probe_plugin(Plugin::load(one), needed));
      } catch (const Error& error) {
        failed.reason = error.what();
        return pack_report(failed);
      }
    });
  }
  const std::vector<ChildResult> answers = run_in_children(works, kDeadline);
  for (size_t i = 0; i < answers.size(); ++i) {
    PluginReport& report = reports[rows[i]];
    if (answers[i].end == ChildResult::End::kAnswered && unpack_report(answers[i].text, report)) {
      continue;
    }
    // If it exited by itself, its last words say enough.
    const bool said = answers[i].end == ChildResult::End::kExit && !answers[i].words.empty();
    report.reason = said ? answers[i].words
                         : describe_exit(answers[i], kDeadline, "while being loaded or probed");
  }
  return reports;
}

PluginReport try_plugin(const std::string& use, const config::BackendConfig& backend) {
  return try_plugins({use}, backend).front();
}

}  // namespace coupler::plugin
