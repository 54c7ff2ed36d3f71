#include "config/validate.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <variant>

#include "config/schema.h"

namespace coupler::config {
namespace {

Error contradiction(const std::string& key, const std::string& value, const std::string& why,
                    const std::string& hint) {
  return {ErrorCode::kConfig,
          fmt::format("{} is {}, but {}", key, value, why),
          {.subject = key, .hint = hint}};
}

std::string in_quotes(const std::string& text) { return '"' + text + '"'; }

// Only one size of the mesh can be what the others leave. That of data is so unless it is set.
void check_mesh(const Config& config, std::vector<Error>& result) {
  std::vector<std::string> rests;
  for (const SchemaKey& key : schema()) {
    const SettingValue value = key.get(config);
    const auto* size = std::get_if<MeshSize>(&value);
    if (size != nullptr && size->is_rest() && config.sources.count(key.name) != 0)
      rests.push_back(key.name);
  }
  if (rests.size() < 2) return;
  result.push_back(contradiction(rests[1], in_quotes("rest"), rests[0] + " is \"rest\", too",
                                 "give all sizes but one as numbers"));
}

}  // namespace

std::vector<Error> conflicts_in(const Config& config) {
  std::vector<Error> result;
  const CommunicationConfig& communication = config.communication;
  if (communication.local_sgd_steps > 0 && communication.gradients != "none") {
    result.push_back(contradiction(
        "communication.gradients", in_quotes(communication.gradients),
        fmt::format("with LocalSGD (communication.local_sgd_steps = {}) no gradients are sent",
                    communication.local_sgd_steps),
        "set only one of the two"));
  }
  if (config.memory.offload_optimizer_device == "nvme" &&
      config.memory.offload_optimizer_nvme_path.empty()) {
    result.push_back(
        contradiction("memory.offload_optimizer_device", "\"nvme\"", "no folder is named",
                      "set memory.offload_optimizer_nvme_path to a folder on the disk"));
  }
  if (config.training.optimizer_in_backward && config.training.mixed_precision == "fp16") {
    result.push_back(contradiction("training.optimizer_in_backward", "true",
                                   "with fp16 an overflow is known only after all gradients exist",
                                   "use training.mixed_precision = \"bf16\", or set it to false"));
  }
  if (config.parallel.sequence && config.parallel.tensor == MeshSize{1}) {
    result.push_back(contradiction("parallel.sequence", "true",
                                   "parallel.tensor is 1, and the ranks of a tensor group divide "
                                   "the sequence",
                                   "set parallel.tensor to their number, or sequence to false"));
  }
  if (config.parallel.overlap_chunks > 1 && config.parallel.tensor == MeshSize{1}) {
    result.push_back(contradiction(
        "parallel.overlap_chunks", std::to_string(config.parallel.overlap_chunks),
        "parallel.tensor is 1, so that layers exchange nothing",
        "set parallel.tensor to the number of ranks that divide layers, or overlap_chunks to 1"));
  }
  check_mesh(config, result);
  return result;
}

std::vector<Error> sharding_conflicts(const std::string& backend, const MemoryConfig& memory,
                                      const CommunicationConfig& communication) {
  std::vector<Error> result;
  if (memory.offload_optimizer_device != "none") {
    result.push_back(contradiction(
        "memory.offload_optimizer_device", in_quotes(memory.offload_optimizer_device),
        "the backend shards the model and has its own options",
        fmt::format("set the options for offloading of [backend.{}] instead; `coupler config keys "
                    "{}` lists them",
                    backend, backend)));
  }
  if (communication.local_sgd_steps > 0) {
    result.push_back(contradiction(
        "communication.local_sgd_steps", std::to_string(communication.local_sgd_steps),
        "the backend shards the model, so no rank has all parameters to train on its own",
        "use a transport (backend.use = \"auto\"), let the backend shard nothing, or set it to 0"));
  }
  if (is_power_sgd(communication)) {
    result.push_back(contradiction(
        "communication.gradients", in_quotes(communication.gradients),
        "the backend shards the model, and PowerSGD needs whole matrices on every rank",
        "use bf16, fp16 or int8, or a backend that does not shard, such as a transport"));
  }
  return result;
}

void throw_first(const std::vector<Error>& contradictions) {
  if (!contradictions.empty()) throw contradictions.front();
}

const PluginOption* find_base(const BackendConfig& backend, const std::string& wrapper,
                              const std::string& option) {
  const auto table = backend.options.find(wrapper);
  if (table == backend.options.end()) {
    return nullptr;
  }
  const auto& options = table->second;
  const auto found = std::find_if(options.begin(), options.end(),
                                  [&](const PluginOption& one) { return one.key == option; });
  return found == options.end() ? nullptr : &*found;
}

std::string wrapper_base(const BackendConfig& backend, const std::string& wrapper,
                         const std::string& option, const std::string& otherwise) {
  const PluginOption* found = find_base(backend, wrapper, option);
  const auto* text = found == nullptr ? nullptr : std::get_if<std::string>(&found->value);
  return text == nullptr || text->empty() ? otherwise : *text;
}

}  // namespace coupler::config
