// coupler estimate: how much memory a training program, a checkpoint or a model needs per rank.
#include <coupler/distributed_backend.h>
#include <coupler/error.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/mapped_file.h"
#include "base/text.h"
#include "base/units.h"
#include "cli/checkpoint/find_checkpoint.h"
#include "cli/estimate/estimate_program.h"
#include "cli/estimate/estimate_report.h"
#include "cli/text/command.h"
#include "cli/text/output.h"
#include "estimate/cut_model.h"
#include "estimate/divide_layers.h"
#include "estimate/settings.h"
#include "estimate/transformer.h"
#include "groups/mesh.h"
#include "hub/model_files.h"
#include "sharding/tensor_plan.h"
#include "weights/open_weights.h"

namespace coupler::cli {
namespace {

namespace fs = std::filesystem;

constexpr uint64_t kMaxConfigBytes = uint64_t{1} << 20;

std::string read_config_json(const std::string& path) {
  const auto file = MappedFile::open(path);
  if (file->size() > kMaxConfigBytes) {
    throw Error(ErrorCode::kIo, fmt::format("'{}' is too large for a config.json", path),
                {.subject = path, .hint = "name a model's config.json"});
  }
  return {file->data(), file->data() + file->size()};
}

// Assumes training in fp32. The checkpoint's own dtypes only count for `stored`, its bytes on disk.
// name: of the model, for the output.
estimate::LoggedModel model_of_weights(const std::string& path, const std::string& name,
                                       uint64_t& stored) {
  const bool folder = fs::is_directory(path) && (is_checkpoint(path) || holds_checkpoints(path));
  const weights::WeightSource source =
      weights::open_weights(folder ? find_checkpoint(path) : path, {});
  std::vector<estimate::LoggedParameter> parameters;
  stored = 0;
  for (const weights::WeightTensor& tensor : source.tensors) {
    stored += tensor.bytes();
    const bool floating = safetensors::to_string(tensor.dtype).find('F') != std::string_view::npos;
    if (!floating) continue;  // buffers: positions, masks, counters
    estimate::LoggedParameter parameter{.name = tensor.name, .dtype = DB_F32};
    for (const int64_t size : tensor.shape) parameter.sizes.push_back(static_cast<uint64_t>(size));
    parameters.push_back(std::move(parameter));
  }
  if (parameters.empty()) {
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("'{}' has no floating-point tensors", path), {.subject = path});
  }
  return estimate::model_of_parameters(name, std::move(parameters));
}

// The files of a model on the Hugging Face Hub: its weights if the cache has them, else only its
// config.json, which takes no download of gigabytes. Other texts are returned as they are.
std::string path_of_model(const std::string& text) {
  std::error_code error;
  if (fs::exists(text, error) || !hub::parse_model_name(text)) return text;
  const hub::HubSettings settings = hub::hub_settings();
  std::string weights = hub::cached_model_folder(text, hub::ModelUse::kWeights, settings);
  if (!weights.empty()) return weights;
  const std::string folder = hub::model_folder(text, hub::ModelUse::kConfig, settings);
  return (fs::path(folder) / "config.json").string();
}

struct Layer {
  std::string name;
  uint64_t elements = 0;
};

// The largest of the repeated modules; without these, of all modules with parameters of their own.
Layer largest_layer(const estimate::LoggedModel& model) {
  const std::string pattern = estimate::repeated_modules(model);
  const std::string stem = pattern.empty() ? "" : pattern.substr(0, pattern.size() - 1);
  std::vector<Layer> layers(model.modules.size());
  for (size_t m = 0; m < layers.size(); ++m) layers[m].name = model.modules[m].name;
  for (const estimate::LoggedParameter& p : model.parameters) {
    size_t module = p.module;
    if (!pattern.empty() && p.name.rfind(stem, 0) == 0) {
      const std::string layer = p.name.substr(0, p.name.find('.', stem.size()));
      module = static_cast<size_t>(
          std::find_if(model.modules.begin(), model.modules.end(),
                       [&](const estimate::LoggedModule& known) { return known.name == layer; }) -
          model.modules.begin());
    }
    if (pattern.empty() || p.name.rfind(stem, 0) == 0) layers.at(module).elements += p.numel();
  }
  return *std::max_element(layers.begin(), layers.end(),
                           [](const Layer& a, const Layer& b) { return a.elements < b.elements; });
}

// Divides the layers of the model over the tensor group of [parallel]: as its tensor_plan says, and
// else as the model of that config.json does itself.
void divide_model(estimate::LoggedModel& model, const config::Config& config, const Mesh& mesh,
                  const std::string& name, const std::vector<sharding::PlannedLayers>& own) {
  if (mesh.size("expert") > 1) {
    throw Error(ErrorCode::kUnsupported,
                fmt::format("parallel.expert is {}, but '{}' does not say which parameters are "
                            "experts",
                            mesh.size("expert"), name),
                {.subject = "parallel.expert",
                 .hint = "estimate from a program that trains it, or with -o parallel.expert=1"});
  }
  const int ranks = mesh.size("tensor");
  if (ranks == 1) return;
  std::vector<sharding::PlannedLayers> plan;
  for (const std::string& line : config.parallel.tensor_plan)
    plan.push_back(sharding::planned_layers(line));
  if (plan.empty() && own.empty()) {
    throw Error(ErrorCode::kConfig,
                fmt::format("parallel.tensor is {}, but nothing says how the layers of '{}' are "
                            "divided",
                            ranks, name),
                {.subject = "parallel.tensor",
                 .hint = "set parallel.tensor_plan, estimate from the model's config.json if it is "
                         "a decoder, or from a program that trains it"});
  }
  estimate::divide_layers(model, {plan, own}, ranks);
}

// parallel.shard needs a backend that shards, experts and pipelines one that does not.
bool fits_mesh(const estimate::Setting& setting, const Mesh& mesh) {
  return mesh.size(setting.use == "auto" ? "shard" : "pipeline+expert") == 1;
}

// The log of each stage of parallel.pipeline; of the model itself if it is not divided into stages.
std::vector<estimate::StepLog> logs_of_stages(const estimate::StepLog& log, const Mesh& mesh,
                                              const std::string& name,
                                              const estimate::LayerChain& chain) {
  const int stages = mesh.size("pipeline");
  if (stages == 1) return {log};
  if (chain.empty()) {
    throw Error(
        ErrorCode::kUnsupported,
        fmt::format("parallel.pipeline is {}, but '{}' does not say which layers follow one "
                    "another",
                    stages, name),
        {.subject = "parallel.pipeline",
         .hint = "estimate from the model's config.json if it is a decoder, or from a "
                 "program that trains it"});
  }
  std::vector<estimate::StepLog> result;
  for (estimate::LoggedModel& part : estimate::cut_model(log.models[0], chain, stages)) {
    estimate::StepLog& of_stage = result.emplace_back(log);
    of_stage.models[0] = std::move(part);
    of_stage.pipeline = {.stages = stages, .stage = static_cast<int>(result.size()) - 1};
  }
  return result;
}

// What to print for a checkpoint or a config.json. Throws Error naming the file and what is wrong.
std::string estimate_model(const Arguments& arguments, const EstimateRequest& request,
                           const config::Config& config, uint64_t limit) {
  const std::string name = arguments.place(0), path = path_of_model(name);
  const bool is_config =
      fs::path(path).extension() == ".json" && path.find(".index.json") == std::string::npos;
  const int world_size =
      static_cast<int>(request.world_size > 0 ? request.world_size : config.launch.processes);
  const Mesh mesh = groups::mesh_of(config, world_size, 0);
  uint64_t stored = 0;
  estimate::StepLog log{
      .mixed_precision = "no", .models = {}, .optimizer = "AdamW", .optimizer_factor = 2};
  std::vector<sharding::PlannedLayers> own_plan;
  estimate::LayerChain chain;
  if (is_config) {
    const std::string text = read_config_json(path);
    log.models.push_back(estimate::transformer_of(text, name));
    own_plan = estimate::plan_of_transformer(text, name, mesh.size("tensor"));
    chain = estimate::chain_of_transformer(text, name);
  } else {
    log.models.push_back(model_of_weights(path, name, stored));
  }
  estimate::LoggedModel& model = log.models[0];
  uint64_t elements = 0;
  for (const estimate::LoggedParameter& p : model.parameters) elements += p.numel();
  const Layer largest = largest_layer(model);
  divide_model(model, config, mesh, name, own_plan);
  const std::vector<estimate::StepLog> stages = logs_of_stages(log, mesh, name, chain);
  std::vector<EstimateRow> rows;
  for (const estimate::Setting& setting : estimate::known_settings(config.backend, request.disk)) {
    if (!fits_mesh(setting, mesh)) continue;
    EstimateRow& row = rows.emplace_back();
    row.setting = setting.name;
    row.precision = "no";
    row.world_size = world_size;
    row.mesh = mesh;
    row.activations_counted = false;
    for (const estimate::StepLog& stage : stages) {
      take_estimate(stage,
                    estimate::estimate_memory(stage, apply(setting, config.backend),
                                              estimate::sharing_ranks(mesh), config.communication),
                    row);
    }
  }
  struct Type {
    const char* name;
    uint64_t bits;
  };
  constexpr Type kTypes[] = {{"float32", 32}, {"bfloat16, float16", 16}, {"int8", 8}, {"int4", 4}};
  if (arguments.has("--json")) {
    nlohmann::json result = estimate_json(rows, limit);
    result["parameters"] = elements;
    result["stored_bytes"] = stored;
    result["largest_layer"] = {{"name", largest.name}, {"parameters", largest.elements}};
    for (const Type& type : kTypes) {
      result["inference_bytes"][type.name] = elements * type.bits / 8;
    }
    return json_text(result);
  }
  std::string text =
      fmt::format("{}: {} parameters{}; the largest layer, {}, has {}\n\n", model.name, elements,
                  stored > 0 ? fmt::format(", {} as stored", format_byte_size(stored)) : "",
                  largest.name, largest.elements);
  std::vector<std::vector<std::string>> table = {{"for inference in", "model", "largest layer"}};
  for (const Type& type : kTypes) {
    table.push_back({type.name, format_byte_size(elements * type.bits / 8),
                     format_byte_size(largest.elements * type.bits / 8)});
  }
  return text + format_table(table) +
         "\nFor training with AdamW, with parameters, gradients and optimizer state in float32, "
         "also under\nmixed precision. The process itself and batches are not counted.\n\n" +
         estimate_text(rows, limit);
}

std::vector<EstimateRow> rows_of_program(const EstimateRequest& request,
                                         const config::Config& config, bool all) {
  ProgramEstimates estimates(request, config);
  if (!all) return {estimates.configured()};
  const Mesh mesh = groups::mesh_of(config, estimates.world_size(), 0);
  const bool makes_pipeline = estimates.makes_pipeline("no");
  std::vector<EstimateRow> rows;
  for (const char* precision : {"no", "bf16"}) {
    for (const bool checkpointing : {false, true}) {
      if (checkpointing && estimates.pattern().empty()) continue;
      for (const estimate::Setting& setting :
           estimate::known_settings(config.backend, request.disk)) {
        if (!fits_mesh(setting, mesh) || (makes_pipeline && setting.use != "auto")) continue;
        rows.push_back(estimates.of(setting, precision, checkpointing));
      }
    }
  }
  return rows;
}

int run_estimate(const Arguments& arguments) {
  const EstimateRequest request = read_estimate_request(arguments);
  const config::Config config = config::load_config(request.config);
  const uint64_t limit = request.limit != 0 ? request.limit : estimate::memory_limit_of(config);
  std::string text;
  if (!arguments.places.empty()) {
    text = estimate_model(arguments, request, config, limit);
  } else {
    const auto rows = rows_of_program(request, config, arguments.has("--all"));
    text = arguments.has("--json") ? json_text(estimate_json(rows, limit))
                                   : estimate_text(rows, limit);
  }
  std::fputs(text.c_str(), stdout);
  return 0;
}

}  // namespace

Command estimate_command() {
  return {
      .name = "estimate",
      .summary = "estimate how much memory a program or model needs",
      .forms = {"-- PROGRAM [ARGUMENT]...", "MODEL"},
      .options =
          {{"--world N", "assume N processes on one machine instead of launch.processes"},
           {"--all",
            "estimate every backend and stage, with mixed precision no and bf16, with and without "
            "activation checkpointing, instead of the configured setting"},
           {"--limit SIZE",
            "report what fits within SIZE, such as 4GiB (default: memory.limit, if set)"},
           {"--disk FOLDER",
            "where settings that use a disk would keep state; nothing is written there"},
           {"--json", "print JSON, in bytes, instead of a table"}},
      .config = true,
      .description =
          {"Estimates the peak memory of each rank of a training job, and what it is used for.",
           "PROGRAM is run unmodified, as one process, on tensors without memory, for two steps. "
           "This takes about a second, whatever the model's size. MODEL is a checkpoint (a folder, "
           "a *.safetensors file or an index), of which only headers are read, a Hugging Face "
           "config.json, or a model's name on the Hugging Face Hub, such as EleutherAI/gpt-j-6B. "
           "Of a name, only config.json is downloaded, unless the Hugging Face cache has the "
           "weights. For a MODEL, activations are not counted.",
           "If [parallel] is configured, the estimate is that of a rank of the mesh: layers, "
           "experts and sequences are divided as in a job, and the output says which dimension "
           "divides what. Every expert is assumed to get as many tokens as the others. PROGRAM "
           "runs once for each stage of a pipeline, and the estimate is that of the stage that "
           "needs most."},
      .notes = {"`coupler config recommend` picks the fastest setting that fits."},
      .examples = {"coupler estimate --world 4 -- ./train", "coupler estimate EleutherAI/gpt-j-6B"},
      .run = run_estimate};
}

}  // namespace coupler::cli
