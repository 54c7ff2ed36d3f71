// What other programs' settings mean together. Our backends refuse options that nothing reads, so
// a setting without effect in combination with the others is dropped and reported.
#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "cli/import/config_import.h"

namespace coupler::cli {
namespace {

constexpr const char* kReplicas = "parallelism_config.parallelism_config_dp_replicate_size";
constexpr const char* kShards = "parallelism_config.parallelism_config_dp_shard_size";
constexpr const char* kSizes[] = {kReplicas, kShards,
                                  "parallelism_config.parallelism_config_tp_size",
                                  "parallelism_config.parallelism_config_cp_size",
                                  "parallelism_config.parallelism_config_sp_size"};
constexpr const char* kStrategy = "backend.fsdp.strategy";

ImportedKey* find_theirs(Import& import, const std::string& key) {
  const auto found = std::find_if(import.keys.rbegin(), import.keys.rend(),
                                  [&](const ImportedKey& theirs) { return theirs.key == key; });
  return found == import.keys.rend() ? nullptr : &*found;
}

int64_t size_of(const Import& import, const char* key) {
  int64_t size = 1;
  for (const ImportedKey& theirs : import.keys) {
    if (theirs.key == key) size = std::max<int64_t>(integer_of(theirs.value).value_or(1), 1);
  }
  return size;
}

// The settings and what is known of the others.
struct Settings {
  Import& import;
  const SettingLookup& elsewhere;

  // The key's value without quotes.
  std::string text(const std::string& key, const std::string& otherwise) const {
    const std::string* value = import.draft.find(key);
    std::string text = value != nullptr ? *value : elsewhere ? elsewhere(key) : "";
    if (text.size() > 1 && text.front() == '"') text = text.substr(1, text.size() - 2);
    return text.empty() ? otherwise : text;
  }
  bool has(const std::string& key) const { return !text(key, "").empty(); }

  void set(ImportedKey& theirs, const std::string& ours, const config::OptionValue& value) const {
    import.draft.set(ours, value);
    claim(import, theirs, ours);
    theirs.answer = {};
  }

  void take_back(const std::string& key, const std::string& why,
                 Answer::Kind kind = Answer::Kind::kNoEffect) const {
    import.draft.drop(key);
    for (ImportedKey& theirs : import.keys) {
      if (std::erase(theirs.ours, key) > 0 && theirs.ours.empty()) theirs.answer = {kind, why};
    }
  }
};

// Copies of the model on groups of ranks that share one, as hybrid_shard makes them.
void resolve_hybrid(const Settings& all, ImportedKey& replicas, ImportedKey& shards,
                    int64_t group_size) {
  const std::string strategy = all.text(kStrategy, "");
  for (ImportedKey& theirs : all.import.keys) {
    const bool chose = std::count(theirs.ours.begin(), theirs.ours.end(), kStrategy) > 0;
    // hybrid_shard is what these two become in groups.
    if (chose && (strategy == "full_shard" || strategy == "shard_grad_op"))
      all.set(theirs, "backend.fsdp.reshard_after_forward", strategy == "full_shard");
  }
  all.set(replicas, kStrategy, std::string("hybrid_shard"));
  all.set(shards, "backend.fsdp.group_size", group_size);
}

void resolve_sizes(const Settings& all) {
  const int64_t ranks = ranks_of_sizes(all.import);
  if (ranks == 0) return;
  const int64_t group_size = size_of(all.import, kShards);
  ImportedKey* replicas = find_theirs(all.import, kReplicas);
  ImportedKey* shards = find_theirs(all.import, kShards);
  ImportedKey* last = shards != nullptr ? shards : replicas;
  if (last == nullptr) return;
  const std::string processes = all.text("launch.processes", "");
  if (!all.elsewhere && !processes.empty() && processes != std::to_string(ranks)) {
    last->answer = {Answer::Kind::kWrong, fmt::format("the sizes of parallelism_config multiply to "
                                                      "{}, but num_processes is {}",
                                                      ranks, processes)};
    return;
  }
  if (replicas != nullptr && shards != nullptr && group_size > 1 &&
      size_of(all.import, kReplicas) > 1) {
    resolve_hybrid(all, *replicas, *shards, group_size);
  } else if (shards != nullptr && group_size > 1 && all.text(kStrategy, "") == "hybrid_shard") {
    all.set(*shards, "backend.fsdp.group_size", group_size);
  } else if (shards != nullptr && group_size > 1 && !all.has(kStrategy)) {
    all.set(*shards, kStrategy, std::string("full_shard"));
    shards->answer = {Answer::Kind::kTaken, "all ranks share one replica"};
  } else if (replicas != nullptr && group_size <= 1 && all.text("backend.use", "") == "fsdp") {
    all.set(*replicas, kStrategy, std::string("no_shard"));
  }
}

void resolve_fsdp(const Settings& all) {
  const std::string table = "backend.fsdp.";
  const std::string strategy = all.text(kStrategy, "full_shard");
  if (strategy != "hybrid_shard")
    all.take_back(table + "group_size", "all ranks share one replica: nothing to set");
  if (strategy == "no_shard")
    all.take_back(table + "offload.device", "nothing is sharded, so nothing is offloaded");
  if (!all.has(table + "units") && all.import.draft.has(table + "unit_min_parameters"))
    all.import.draft.set(table + "units", std::string("size"));  // from versions without policies
  const std::string units = all.text(table + "units", "modules");
  if (units == "types" && !all.has(table + "unit_types"))
    all.take_back(table + "units",
                  "no types are named, so every module is a unit; set units = \"types\" with "
                  "unit_types to name them");
  if (units != "types") all.take_back(table + "unit_types", "only for transformer_based_wrap");
  if (units != "size") all.take_back(table + "unit_min_parameters", "only for size_based_wrap");
}

void resolve_offload(const Settings& all, const std::string& table) {
  std::string device = all.text(table + "device", "none");
  if (device == "nvme" && !all.has(table + "nvme_path")) {
    all.take_back(table + "device", "offloading to disk needs a folder: set device and nvme_path",
                  Answer::Kind::kWrong);
    device = "none";
  }
  if (device != "nvme") {
    all.take_back(table + "nvme_path", "only for the device nvme");
    all.take_back(table + "buffer_count", "only for the device nvme");
  }
  if (device != "cpu") all.take_back(table + "pin_memory", "only for the device cpu");
}

void resolve_deepspeed(const Settings& all) {
  const std::string table = "backend.deepspeed_like.";
  const std::string stage = all.text(table + "stage", "2");
  if (stage == "0") {
    all.take_back(table + "communication_data_type", "nothing is sharded with stage 0");
    all.take_back(table + "offload_optimizer.device", "nothing is offloaded with stage 0");
  }
  if (stage != "3")
    all.take_back(table + "offload_param.device", "parameters are offloaded only with stage 3");
  resolve_offload(all, table + "offload_optimizer.");
  resolve_offload(all, table + "offload_param.");
}

// mpirun starts the ranks, over the transport mpi, whatever shards the model.
bool resolve_mpirun(const Settings& all) {
  const std::string use = all.text("backend.use", "auto");
  const bool shards = use == "fsdp" || use == "deepspeed_like";
  const std::string ours = shards ? fmt::format("backend.{}.base", use) : "backend.use";
  bool has_hostfile = false;
  for (ImportedKey& theirs : all.import.keys) {
    if (is_left_open(theirs.value)) continue;
    if (theirs.key == "mpirun_config.mpirun_hostfile") {
      all.import.draft.set(ours, std::string("mpi"));
      theirs.ours.push_back(ours);
      has_hostfile = true;
    }
    has_hostfile = has_hostfile || theirs.key == "deepspeed_config.deepspeed_hostfile";
  }
  return has_hostfile;
}

// --via mpirun takes the machines from the hostfile, and refuses options about launchers on each.
void take_back_machines(Import& import) {
  static const std::set<std::string> about_machines = {"num_machines", "machine_rank",
                                                       "main_process_ip", "main_process_port"};
  for (ImportedKey& theirs : import.keys) {
    if (about_machines.count(theirs.key) != 0 && !is_left_open(theirs.value))
      theirs.answer = "mpirun takes its machines from the hostfile";
  }
}

}  // namespace

bool is_size_of_ranks(std::string_view key) { return key == kReplicas || key == kShards; }

int64_t ranks_of_sizes(const Import& import) {
  if (size_of(import, kReplicas) == 1 && size_of(import, kShards) == 1) return 0;
  int64_t ranks = 1;
  for (const char* key : kSizes) {
    if (__builtin_mul_overflow(ranks, size_of(import, key), &ranks)) return INT64_MAX;
  }
  return ranks;
}

void resolve_import(Import& result, const SettingLookup& elsewhere) {
  const Settings all{result, elsewhere};
  const std::string use = all.text("backend.use", "");
  if (!elsewhere && resolve_mpirun(all)) take_back_machines(result);
  resolve_sizes(all);
  if (!elsewhere || use == "fsdp") resolve_fsdp(all);
  if (!elsewhere || use == "deepspeed_like") resolve_deepspeed(all);
}

}  // namespace coupler::cli
