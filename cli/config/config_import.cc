#include "cli/config/config_import.h"

#include <coupler/error.h>
#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/text.h"

namespace coupler::cli {

// Handles settings of other programs that have no effect in combination with others. Our backends
// refuse options that nothing reads, so such a setting is dropped and reported.

namespace {

class Settling {
 public:
  explicit Settling(Import& import) : import_(import) {}

  void fsdp() {
    const std::string table = "backend.fsdp.";
    const std::string strategy = text(table + "strategy", "full_shard");
    if (strategy != "hybrid_shard")
      take_back(table + "group_size", "all ranks share one replica: nothing to set");
    if (strategy == "no_shard")
      take_back(table + "offload.device", "nothing is sharded, so nothing is offloaded");
    if (!import_.draft.has(table + "units") && import_.draft.has(table + "unit_min_parameters"))
      import_.draft.set(table + "units", std::string("size"));  // from versions without policies
    const std::string units = text(table + "units", "modules");
    if (units == "types" && !import_.draft.has(table + "unit_types"))
      take_back(table + "units",
                "no types are named, so every module is a unit; set units = \"types\" with "
                "unit_types to name them");
    if (units != "types") take_back(table + "unit_types", "only for transformer_based_wrap");
    if (units != "size") take_back(table + "unit_min_parameters", "only for size_based_wrap");
  }

  void deepspeed() {
    const std::string table = "backend.deepspeed_like.";
    const std::string stage = text(table + "stage", "2");
    if (stage == "0") {
      take_back(table + "communication_data_type", "nothing is sharded with stage 0");
      take_back(table + "offload_optimizer.device", "nothing is offloaded with stage 0");
    }
    if (stage != "3")
      take_back(table + "offload_param.device", "parameters are offloaded only with stage 3");
    offload(table + "offload_optimizer.");
    offload(table + "offload_param.");
  }

 private:
  void offload(const std::string& table) {
    std::string device = text(table + "device", "none");
    if (device == "nvme" && !import_.draft.has(table + "nvme_path")) {
      take_back(table + "device", "offloading to disk needs a folder: set device and nvme_path");
      device = "none";
    }
    if (device != "nvme") {
      take_back(table + "nvme_path", "only for the device nvme");
      take_back(table + "buffer_count", "only for the device nvme");
    }
    if (device != "cpu") take_back(table + "pin_memory", "only for the device cpu");
  }

  // Without quotes.
  std::string text(const std::string& key, const std::string& otherwise) const {
    const std::string* value = import_.draft.find(key);
    if (value == nullptr) return otherwise;
    return value->front() == '"' ? value->substr(1, value->size() - 2) : *value;
  }

  void take_back(const std::string& key, const std::string& why) {
    import_.draft.drop(key);
    for (ImportedKey& theirs : import_.keys) {
      const auto found = std::find(theirs.ours.begin(), theirs.ours.end(), key);
      if (found == theirs.ours.end()) continue;
      theirs.ours.erase(found);
      if (theirs.ours.empty()) theirs.why = why;
    }
  }

  Import& import_;
};

}  // namespace

void settle_import(Import& result) {
  Settling settling(result);
  settling.fsdp();
  settling.deepspeed();
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

}  // namespace coupler::cli
