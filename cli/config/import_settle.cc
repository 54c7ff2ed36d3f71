// Handles settings of other programs that have no effect in combination with others. Our backends
// refuse options that nothing reads, so such a setting is dropped and reported.
#include <fmt/format.h>

#include <algorithm>

#include "cli/config/config_import.h"

namespace coupler::cli {
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

}  // namespace coupler::cli
