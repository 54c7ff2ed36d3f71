// coupler config recommend: the mesh and the fastest setting that fit in memory.
#include <coupler/error.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <climits>
#include <cstdio>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "base/units.h"
#include "cli/estimate/estimate_program.h"
#include "cli/estimate/estimate_report.h"
#include "cli/text/command.h"
#include "cli/text/output.h"
#include "config/config.h"
#include "config/value.h"
#include "estimate/settings.h"
#include "groups/mesh.h"

namespace coupler::cli {
namespace {

std::vector<int> divisors_of(int number) {
  std::vector<int> result;
  for (int i = 1; i <= number; ++i) {
    if (number % i == 0) result.push_back(i);
  }
  return result;
}

// The meshes of all ranks, cheapest first: what divides replicas exchanges more than what divides
// samples, and of these tensor less than context (docs/parallelism.md). Pipelines come between
// these two: on one machine, waiting while they fill and drain costs more than a tensor group's
// exchange, but they divide all that a rank keeps. Experts come last: a step waits for the rank
// whose experts get most tokens. No backend that shards goes with experts or pipelines.
class Meshes {
 public:
  // Sizes that the configuration sets stay.
  Meshes(const config::Config& config, int ranks) : ranks_(ranks) {
    const config::ParallelConfig& parallel = config.parallel;
    const auto fix = [&](const char* name, const config::MeshSize& size, int& fixed) {
      const bool is_set = config.sources.count(std::string("parallel.") + name) != 0;
      if (is_set && !size.is_rest()) fixed = static_cast<int>(size.ranks);
    };
    fix("pipeline", parallel.pipeline, pipeline_);
    fix("data", parallel.data, data_);
    fix("shard", parallel.shard, shard_);
    fix("expert", parallel.expert, expert_);
    fix("context", parallel.context, context_);
    fix("tensor", parallel.tensor, tensor_);
  }

  // The divisions of a replica: meshes with data 1 or more, shard 1. Pipelines only if there is a
  // mesh with the configured data and shard: each of their stages takes a dry run.
  std::vector<Mesh> divisions() const {
    std::vector<Mesh> result;
    for (const int expert : divisors_of(ranks_)) {
      for (const int context : divisors_of(ranks_ / expert)) {
        for (const int pipeline : divisors_of(ranks_ / expert / context)) {
          if (expert > 1 && pipeline > 1) continue;
          for (const int tensor : divisors_of(ranks_ / expert / context / pipeline)) {
            if (!fits(expert_, expert) || !fits(context_, context) || !fits(pipeline_, pipeline) ||
                !fits(tensor_, tensor))
              continue;
            const Mesh division = make(1, pipeline, expert, context, tensor);
            if (pipeline == 1 || !of(division, /*shards=*/false).empty())
              result.push_back(division);
          }
        }
      }
    }
    return result;
  }

  // The division if the chain of layers is not cut.
  Mesh without_stages(const Mesh& division) const {
    return make(1, 1, division.size("expert"), division.size("context"), division.size("tensor"));
  }

  // Whether a model has use for this size, unless the configuration asks for it. experts: the most
  // ranks over which those of its mixtures divide; 0: it has none.
  bool has_use_for(int expert, uint64_t experts) const {
    return expert == 1 || expert_ > 0 ||
           (experts > 0 && experts % static_cast<uint64_t>(expert) == 0);
  }

  // Those of a division, with replicas that are sharded or not; smaller groups exchange less. If
  // the configuration sets shard to 1, the backend shards over all ranks that average gradients.
  std::vector<Mesh> of(const Mesh& division, bool shards) const {
    const int pipeline = division.size("pipeline"), expert = division.size("expert"),
              context = division.size("context"), tensor = division.size("tensor");
    const int rest = ranks_ / pipeline / expert / context / tensor;
    std::vector<Mesh> result;
    if (shards && (expert > 1 || pipeline > 1)) return result;
    if (shards && shard_ == 1 && fits(data_, rest)) return {make(1, 1, 1, context, tensor)};
    for (const int shard : divisors_of(rest)) {
      if ((shard > 1) != (shards && rest > 1)) continue;
      if (fits(shard_, shard) && fits(data_, rest / shard))
        result.push_back(make(shard, pipeline, expert, context, tensor));
    }
    return result;
  }

 private:
  static bool fits(int fixed, int size) { return fixed == 0 || fixed == size; }
  Mesh make(int shard, int pipeline, int expert, int context, int tensor) const {
    const int data = ranks_ / shard / pipeline / expert / context / tensor;
    return {{pipeline, data, shard, expert, context, tensor}, 0};
  }

  const int ranks_;
  // 0: any
  int pipeline_ = 0, data_ = 0, shard_ = 0, expert_ = 0, context_ = 0, tensor_ = 0;
};

// "data 2 x shard 2"; "1 rank".
std::string name_of(const Mesh& mesh) { return groups::describe(mesh); }

struct Choice {
  Mesh mesh;
  estimate::Setting setting;
  EstimateRow row;
};

class Recommendation {
 public:
  Recommendation(const EstimateRequest& request, const config::Config& config)
      : request_(request),
        config_(config),
        estimates_(request, config),
        meshes_(config, estimates_.world_size()),
        settings_(estimate::known_settings(config.backend, request.disk)) {}

  // Throws Error(kConfig) if nothing fits.
  std::string toml() {
    for (const bool disk : {false, true}) {
      for (const Mesh& division : meshes_.divisions()) {
        if (!meshes_.has_use_for(division.size("expert"), estimates_.experts())) continue;
        looked_at_.insert(name_of(division));
        if (division.size("pipeline") >= refused_stages_ || !is_possible(division)) continue;
        if (const auto choice = first_that_fits(division, disk)) return toml_of(*choice);
      }
    }
    fail();
  }

 private:
  // The least that a mesh was found to need.
  struct Need {
    uint64_t bytes = UINT64_MAX;
    std::string by;
  };

  bool is_possible(const Mesh& division) {
    if (division.size("pipeline+expert+context+tensor") == 1) return true;
    const int stages = division.size("pipeline");
    // Without stages it came earlier, and what rejected it there rejects it here.
    if (stages > 1 && refused_.count(name_of(meshes_.without_stages(division))) != 0) return false;
    const bool known = least_without_activations_ != UINT64_MAX;
    if (known && division.size("context") > 1 && least_without_activations_ > request_.limit) {
      refused_[name_of(division)] = fmt::format(
          "even without any activations a rank needs {}, and context divides nothing "
          "else",
          format_byte_size(least_without_activations_));
      return false;
    }
    const std::string why = estimates_.refusal(config_.training.mixed_precision, division);
    if (why.empty()) {
      most_stages_ = std::max(most_stages_, stages);
      return true;
    }
    refused_[name_of(division)] = why;
    // Then no mesh with as many stages or more is tried: each would take a dry run, and most
    // programs make no pipeline at all.
    if (stages > most_stages_) refused_stages_ = stages;
    return false;
  }

  std::optional<Choice> first_that_fits(const Mesh& division, bool disk) {
    for (const bool checkpointing : {false, true}) {
      if (checkpointing && estimates_.pattern(&division).empty()) continue;
      for (const estimate::Setting& setting : settings_) {
        if (setting.needs_disk != disk) continue;
        if (setting.use != "auto" &&
            estimates_.makes_pipeline(config_.training.mixed_precision, &division))
          continue;
        for (const Mesh& mesh : meshes_.of(division, setting.use != "auto")) {
          const EstimateRow row =
              estimates_.of(setting, config_.training.mixed_precision, checkpointing, &mesh);
          if (row.memory.peak <= request_.limit) return Choice{mesh, setting, row};
          note(mesh, setting, row);
        }
      }
    }
    return std::nullopt;
  }

  void note(const Mesh& mesh, const estimate::Setting& setting, const EstimateRow& row) {
    const estimate::MemoryEstimate& memory = row.memory;
    const uint64_t activations =
        memory.at_peak[static_cast<size_t>(estimate::MemoryCategory::kActivations)];
    if (mesh.size("context") == 1) {
      least_without_activations_ =
          std::min(least_without_activations_, memory.peak - std::min(memory.peak, activations));
    }
    const auto [known, is_new] = needs_.try_emplace(name_of(mesh));
    if (is_new) tried_.push_back(mesh);
    if (memory.peak >= known->second.bytes) return;
    known->second = {
        memory.peak,
        setting.name + (row.checkpointing.empty() ? "" : " with activation checkpointing")};
  }

  std::string reasons(const Choice& choice) const;
  std::string toml_of(const Choice& choice) const;
  [[noreturn]] void fail() const;

  const EstimateRequest& request_;
  const config::Config& config_;
  ProgramEstimates estimates_;
  const Meshes meshes_;
  const std::vector<estimate::Setting> settings_;
  std::set<std::string> looked_at_;  // divisions
  std::vector<Mesh> tried_;          // in order
  std::map<std::string, Need> needs_;
  std::map<std::string, std::string> refused_;  // why, by division
  // The stages of the largest pipeline that is possible, and of the smallest that is not.
  int most_stages_ = 1, refused_stages_ = INT_MAX;
  uint64_t least_without_activations_ = UINT64_MAX;
};

// One sentence for the chosen mesh, for each that was rejected, and for those that cost more.
std::string Recommendation::reasons(const Choice& choice) const {
  std::string text;
  const auto say = [&](const std::string& sentence) {
    text += wrapped("# " + sentence, 0, "#   ");
  };
  if (estimates_.world_size() == 1) return text;
  const bool first = tried_.empty() && refused_.empty();
  say(fmt::format("Chosen: {}, {}.", name_of(choice.mesh),
                  first ? "the mesh that exchanges least, and it fits"
                  : choice.mesh.size("pipeline") > 1
                      ? "since no mesh that costs less time fits"
                      : "since no mesh that exchanges less fits with a setting as fast"));
  if (!choice.row.stage_peaks.empty()) {
    const estimate::LoggedPipeline& pipeline = choice.row.pipeline;
    say(fmt::format(
        "Its ranks wait {} % of the time while the pipeline fills and drains: it has {} "
        "micro-batch{}, and more of them make it less. Of its {} stages, stage {} needs "
        "most.",
        idle_percent(choice.row), pipeline.micro_batches, pipeline.micro_batches == 1 ? "" : "es",
        pipeline.stages, pipeline.stage));
  }
  for (const Mesh& mesh : tried_) {
    if (name_of(mesh) == name_of(choice.mesh)) continue;
    const Need& need = needs_.at(name_of(mesh));
    say(fmt::format("Rejected: {}, of which a rank needs {} or more ({}).", name_of(mesh),
                    format_byte_size(need.bytes), need.by));
  }
  for (const auto& [division, why] : refused_) say(fmt::format("Rejected: {}: {}.", division, why));
  std::map<std::string, std::set<int>> dearer;  // sizes by dimension
  for (const Mesh& division : meshes_.divisions()) {
    if (looked_at_.count(name_of(division)) != 0) continue;
    if (!meshes_.has_use_for(division.size("expert"), estimates_.experts())) continue;
    const auto is_larger = [&](const char* dimension) {
      return division.size(dimension) > choice.mesh.size(dimension);
    };
    const std::string dimension = is_larger("expert")     ? "expert"
                                  : is_larger("context")  ? "context"
                                  : is_larger("pipeline") ? "pipeline"
                                                          : "tensor";
    dearer[dimension].insert(division.size(dimension));
  }
  for (const auto& [dimension, sizes] : dearer) {
    say(fmt::format("Not needed: {} {}, with which {}.", dimension, fmt::join(sizes, ", "),
                    dimension == "tensor"     ? "activations are exchanged twice in each block"
                    : dimension == "expert"   ? "tokens travel to their experts and back"
                    : dimension == "pipeline" ? "ranks wait while it fills and drains"
                                              : "keys and values travel in each attention"));
  }
  return text;
}

std::string Recommendation::toml_of(const Choice& choice) const {
  const auto& [mesh, setting, row] = choice;
  std::string text =
      fmt::format("# {}: an estimated {} of {} per rank\n{}[backend]\nuse = \"{}\"\n", setting.name,
                  format_byte_size(row.memory.peak), format_byte_size(request_.limit),
                  reasons(choice), setting.use);
  if (!setting.options.empty()) text += fmt::format("\n[backend.{}]\n", setting.use);
  for (const auto& [key, value] : setting.options) {
    text += fmt::format("{} = {}\n", key, config::render(value));
  }
  if (row.precision != "no") {
    text += fmt::format("\n[training]\nmixed_precision = \"{}\"\n", row.precision);
  }
  if (!row.checkpointing.empty()) {
    text += fmt::format("\n[memory]\nactivation_checkpointing = [\"{}\"]\n", row.checkpointing);
  }
  // Without [parallel], all ranks would be one pipeline.
  if (mesh.size("data") != row.world_size || row.pipeline.stages > 0) {
    text += "\n[parallel]\n";
    for (const char* dimension : {"pipeline", "data", "shard", "expert", "context", "tensor"}) {
      if (mesh.size(dimension) > 1 || std::string_view(dimension) == "data")
        text += fmt::format("{} = {}\n", dimension, mesh.size(dimension));
    }
    const config::ParallelConfig& parallel = config_.parallel;
    if (mesh.size("tensor") > 1 && !parallel.tensor_plan.empty())
      text += fmt::format("tensor_plan = {}\n",
                          config::render(config::SettingValue(parallel.tensor_plan)));
    if (mesh.size("tensor") > 1 && parallel.sequence)
      text += fmt::format("sequence = true\nsequence_dim = {}\n", parallel.sequence_dim);
    if (mesh.size("context") > 1)
      text += fmt::format("context_method = \"{}\"\n", parallel.context_method);
  }
  return text + fmt::format("\n[launch]\nprocesses = {}\n", row.world_size);
}

void Recommendation::fail() const {
  const auto least = std::min_element(
      needs_.begin(), needs_.end(),
      [](const auto& a, const auto& b) { return a.second.bytes < b.second.bytes; });
  if (least == needs_.end()) {
    throw Error(ErrorCode::kConfig,
                fmt::format("the configured [parallel] leaves no mesh of {} processes that the "
                            "program can be trained with{}",
                            estimates_.world_size(),
                            refused_.empty() ? "" : ": " + refused_.begin()->second),
                {.subject = "parallel", .hint = "leave sizes out of [parallel]"});
  }
  std::string refusals;
  for (const auto& [division, why] : refused_)
    refusals += fmt::format("; {} is not possible: {}", division, why);
  throw Error(
      ErrorCode::kConfig,
      fmt::format("no setting fits within {} per rank with {} processes: the smallest, {}{}, "
                  "needs {}{}",
                  format_byte_size(request_.limit), estimates_.world_size(), least->second.by,
                  estimates_.world_size() == 1 ? "" : " on the mesh " + least->first,
                  format_byte_size(least->second.bytes), refusals),
      {.subject = "--limit",
       .hint = "use more processes (--world), a smaller batch, or more memory"});
}

int run_recommend(const Arguments& arguments) {
  const EstimateRequest request = read_estimate_request(arguments);
  const config::Config config = config::load_config(request.config);
  std::fputs(Recommendation(request, config).toml().c_str(), stdout);
  return 0;
}

}  // namespace

Command recommend_command() {
  return {
      .name = "recommend",
      .summary = "print the fastest configuration that fits in memory",
      .forms = {"-- PROGRAM [ARGUMENT]..."},
      .options =
          {{.spec = "--limit SIZE", .doc = "the memory per rank, such as 4GiB", .required = true},
           {"--world N", "assume N processes on one machine instead of launch.processes"},
           {"--disk FOLDER", "where settings that use a disk keep state (default: /scratch)"}},
      .config = true,
      .description =
          {"Prints the configuration with which PROGRAM trains fastest within the given "
           "memory per rank, and why the others are not it. PROGRAM is run on tensors "
           "without memory (see coupler estimate).",
           "Meshes are tried from what exchanges least: replicas, which may be sharded "
           "over groups of ranks; then layers divided over tensor groups; then "
           "pipelines, if PROGRAM calls prepare_pipeline when parallel.pipeline asks for "
           "one; then, if activations are what does not fit, sequences divided over "
           "context groups; then experts divided over expert groups, if the model has "
           "mixtures of them. With each, settings are tried from fastest to "
           "slowest: replicated models first, then sharded ones, then activation "
           "checkpointing. Disks come last. Sizes that [parallel] sets stay as they "
           "are."},
      .examples = {"coupler config recommend --limit 4GiB -- ./train",
                   "coupler config recommend --limit 16GiB --world 8 -- ./train"},
      .run = run_recommend};
}

}  // namespace coupler::cli
