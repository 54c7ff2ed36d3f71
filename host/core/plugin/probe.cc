#include "plugin/probe.h"

#include <coupler/error.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <functional>

#include "base/log.h"
#include "base/subprocess.h"
#include "plugin/resolve.h"

namespace coupler::plugin {
namespace {

void log_line(void*, db_severity severity, const char* component, const char* message) {
  const auto level =
      static_cast<LogLevel>(std::clamp<int32_t>(severity, DB_LOG_TRACE, DB_LOG_ERROR));
  log(level, component != nullptr ? component : "plugin", message != nullptr ? message : "");
}

}  // namespace

const db_host& probe_host() {
  static const db_host host = {sizeof(db_host), DB_ABI_MAJOR, DB_ABI_MINOR,
                               nullptr,         log_line,     nullptr};
  return host;
}

namespace {

constexpr std::chrono::seconds kDeadline(10);

// Everything a report holds, fields separated by zero bytes, in one order for both directions.
std::string pack_report(const PluginReport& report) {
  const std::array<std::string, 9> fields = {report.name,
                                             report.path,
                                             report.version,
                                             report.description,
                                             report.abi,
                                             report.reason,
                                             std::to_string(report.score),
                                             report.usable ? "1" : "0",
                                             std::to_string(report.capabilities)};
  std::string text;
  for (const std::string& field : fields) text.append(field).push_back('\0');
  return text;
}

bool unpack(const std::string& text, PluginReport& report) {
  std::vector<std::string> fields;
  for (size_t start = 0; start < text.size();) {
    const size_t end = text.find('\0', start);
    if (end == std::string::npos) return false;
    fields.push_back(text.substr(start, end - start));
    start = end + 1;
  }
  if (fields.size() != 9) return false;
  report.name = fields[0];
  report.path = fields[1];
  report.version = fields[2];
  report.description = fields[3];
  report.abi = fields[4];
  report.reason = fields[5];
  report.score = std::stoi(fields[6]);
  report.usable = fields[7] == "1";
  report.capabilities = std::stoull(fields[8]);
  return true;
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
  if ((table.capabilities & needed) != needed) return report;
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
    if (answers[i].end == ChildResult::End::kAnswered && unpack(answers[i].text, report)) continue;
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
