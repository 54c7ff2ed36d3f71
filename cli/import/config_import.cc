#include "cli/import/config_import.h"

#include <coupler/error.h>
#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>

#include "base/text.h"

namespace coupler::cli {

// Handles settings of other programs that have no effect in combination with others. Our backends
// refuse options that nothing reads, so such a setting is dropped and reported.

namespace {

// The key's value in the draft, without quotes.
std::string draft_text(const Import& result, const std::string& key, const std::string& otherwise) {
  const std::string* value = result.draft.find(key);
  if (value == nullptr) return otherwise;
  return value->front() == '"' ? value->substr(1, value->size() - 2) : *value;
}

void take_back(Import& result, const std::string& key, const std::string& why) {
  result.draft.drop(key);
  for (ImportedKey& theirs : result.keys) {
    if (std::erase(theirs.ours, key) > 0 && theirs.ours.empty()) theirs.why = why;
  }
}

void resolve_fsdp(Import& result) {
  const std::string table = "backend.fsdp.";
  const std::string strategy = draft_text(result, table + "strategy", "full_shard");
  if (strategy != "hybrid_shard")
    take_back(result, table + "group_size", "all ranks share one replica: nothing to set");
  if (strategy == "no_shard")
    take_back(result, table + "offload.device", "nothing is sharded, so nothing is offloaded");
  if (!result.draft.has(table + "units") && result.draft.has(table + "unit_min_parameters"))
    result.draft.set(table + "units", std::string("size"));  // from versions without policies
  const std::string units = draft_text(result, table + "units", "modules");
  if (units == "types" && !result.draft.has(table + "unit_types"))
    take_back(result, table + "units",
              "no types are named, so every module is a unit; set units = \"types\" with "
              "unit_types to name them");
  if (units != "types") take_back(result, table + "unit_types", "only for transformer_based_wrap");
  if (units != "size") take_back(result, table + "unit_min_parameters", "only for size_based_wrap");
}

void resolve_offload(Import& result, const std::string& table) {
  std::string device = draft_text(result, table + "device", "none");
  if (device == "nvme" && !result.draft.has(table + "nvme_path")) {
    take_back(result, table + "device",
              "offloading to disk needs a folder: set device and nvme_path");
    device = "none";
  }
  if (device != "nvme") {
    take_back(result, table + "nvme_path", "only for the device nvme");
    take_back(result, table + "buffer_count", "only for the device nvme");
  }
  if (device != "cpu") take_back(result, table + "pin_memory", "only for the device cpu");
}

void resolve_deepspeed(Import& result) {
  const std::string table = "backend.deepspeed_like.";
  const std::string stage = draft_text(result, table + "stage", "2");
  if (stage == "0") {
    take_back(result, table + "communication_data_type", "nothing is sharded with stage 0");
    take_back(result, table + "offload_optimizer.device", "nothing is offloaded with stage 0");
  }
  if (stage != "3")
    take_back(result, table + "offload_param.device", "parameters are offloaded only with stage 3");
  resolve_offload(result, table + "offload_optimizer.");
  resolve_offload(result, table + "offload_param.");
}

// mpirun starts the ranks, over the transport mpi, whatever shards the model.
bool resolve_mpirun(Import& result) {
  const std::string use = draft_text(result, "backend.use", "auto");
  const bool shards = use == "fsdp" || use == "deepspeed_like";
  const std::string ours = shards ? fmt::format("backend.{}.base", use) : "backend.use";
  bool has_hostfile = false;
  for (ImportedKey& theirs : result.keys) {
    if (is_left_open(theirs.value)) continue;
    if (theirs.key == "mpirun_config.mpirun_hostfile") {
      result.draft.set(ours, std::string("mpi"));
      theirs.ours.push_back(ours);
      has_hostfile = true;
    }
    has_hostfile = has_hostfile || theirs.key == "deepspeed_config.deepspeed_hostfile";
  }
  return has_hostfile;
}

// --via mpirun takes the machines from the hostfile, and refuses options about launchers on each.
void take_back_machines(Import& result) {
  static const std::set<std::string> about_machines = {"num_machines", "machine_rank",
                                                       "main_process_ip", "main_process_port"};
  for (ImportedKey& theirs : result.keys) {
    if (about_machines.count(theirs.key) != 0 && !is_left_open(theirs.value))
      theirs.why = "mpirun takes its machines from the hostfile";
  }
}

}  // namespace

void resolve_import(Import& result) {
  if (resolve_mpirun(result)) take_back_machines(result);
  resolve_fsdp(result);
  resolve_deepspeed(result);
}

// Detects which program a configuration belongs to.

namespace {

// Whether it begins as JSON, possibly after comments.
bool begins_as_json(const std::string& text) {
  size_t at = text.find_first_not_of(" \t\r\n");
  while (at != std::string::npos && text.compare(at, 2, "//") == 0) {
    at = text.find('\n', at);
    if (at != std::string::npos) at = text.find_first_not_of(" \t\r\n", at);
  }
  return at != std::string::npos && (text[at] == '{' || text.compare(at, 2, "/*") == 0);
}

// Accelerate also reads JSON, and refuses files without one of these keys.
bool is_accelerate_json(const std::string& text) {
  bool found = false;
  const auto look = [&](int depth, nlohmann::json::parse_event_t event, nlohmann::json& value) {
    if (depth == 1 && event == nlohmann::json::parse_event_t::key)
      found = found || value == "distributed_type" || value == "compute_environment";
    return depth < 2;
  };
  // The importer reports what is wrong with it.
  const auto root = nlohmann::json::parse(text, look, /*allow_exceptions=*/false,
                                          /*ignore_comments=*/false);
  return found && !root.is_discarded();
}

}  // namespace

Import import_text(std::string text, const std::string& where) {
  constexpr std::string_view kByteOrderMark = "\xef\xbb\xbf";
  if (text.starts_with(kByteOrderMark)) text.erase(0, kByteOrderMark.size());
  if (!valid_utf8(text) || text.find('\0') != std::string::npos)
    throw Error(
        ErrorCode::kConfig, fmt::format("{} is not valid UTF-8", where),
        {.subject = where, .hint = "give YAML of `accelerate config`, or DeepSpeed's JSON"});
  const bool is_deepspeed = begins_as_json(text) && !is_accelerate_json(text);
  return is_deepspeed ? import_deepspeed(text, where) : import_accelerate(text, where);
}

// Applying rules.

namespace {

void apply_rule(const ImportRules& rules, const std::string& key, const std::string& value,
                Import& result) {
  ImportedKey imported{key, value, {}, {}};
  const auto rule = rules.find(key);
  if (rule == rules.end()) {
    std::vector<std::string> known;
    for (const auto& [name, unused] : rules) known.push_back(name);
    imported.why = "unknown key" + did_you_mean(key, known);
  } else {
    const auto before = result.draft.entries();
    imported.why = rule->second(result.draft, value).text();
    for (const auto& entry : result.draft.entries()) {
      if (std::find(before.begin(), before.end(), entry) == before.end())
        imported.ours.push_back(entry.first);
    }
    if (imported.ours.empty() && imported.why.empty()) imported.why = "already set";
  }
  result.keys.push_back(std::move(imported));
}

}  // namespace

void apply_rules(const ImportRules& rules, const TableAnswer& answer, const ImportEntries& entries,
                 Import& result) {
  for (const auto& [key, value] : entries) {
    const std::string why = rules.count(key) != 0 ? "" : answer(key.substr(0, key.find('.')));
    if (why.empty()) {
      apply_rule(rules, key, value, result);
    } else {
      result.keys.push_back({key, value, {}, is_left_open(value) ? left_open().why : why});
    }
  }
}

namespace {

// Whether the value, variables of ranks, must not be shown.
bool hides_value(const std::string& key) { return key == "tpu_env" || key.starts_with("tpu_env."); }

}  // namespace

std::string describe(const Import& import) {
  std::string taken, left;
  for (const ImportedKey& key : import.keys) {
    std::string theirs = "  " + for_message(key.key);
    if (!hides_value(key.key)) theirs += ": " + for_message(key.value);
    std::string ours;
    for (const std::string& name : key.ours)
      ours += fmt::format("{}{} = {}", ours.empty() ? "" : ", ", name, *import.draft.find(name));
    if (!ours.empty()) {
      taken += fmt::format("{} -> {}{}\n", theirs, ours,
                           key.why.empty() ? "" : fmt::format(" ({})", key.why));
    } else {
      left += fmt::format("{}: {}\n", theirs, key.why);
    }
  }
  std::string text;
  if (!taken.empty()) text += "imported:\n" + taken;
  if (!left.empty()) text += "not imported (no counterpart, or not needed):\n" + left;
  return text;
}

}  // namespace coupler::cli
