#include "cli/estimate/estimate_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/units.h"
#include "cli/text/output.h"
#include "sharding/pipeline_schedule.h"

namespace coupler::cli {
namespace {

struct PartName {
  estimate::MemoryCategory part;
  const char* key;      // in JSON
  const char* heading;  // in a table
  const char* text;     // in a list
};
constexpr PartName kNames[] = {
    {estimate::MemoryCategory::kParameters, "parameters", "params", "parameters"},
    {estimate::MemoryCategory::kMaster, "master_weights", "master", "master weights"},
    {estimate::MemoryCategory::kGradients, "gradients", "grads", "gradients"},
    {estimate::MemoryCategory::kOptimizer, "optimizer", "optimizer", "optimizer state"},
    {estimate::MemoryCategory::kUnits, "gathered_units", "gathered", "gathered units"},
    {estimate::MemoryCategory::kActivations, "activations", "activations", "activations"},
    {estimate::MemoryCategory::kBuffers, "buffers", "buffers", "communication and disk buffers"},
};

constexpr const char* kNotCounted =
    "\nActivations are not counted: the batch size and sequence length are unknown.\n";

std::string size_text(uint64_t bytes) { return bytes == 0 ? "-" : format_byte_size(bytes); }

std::string fits_limit(const EstimateRow& row, uint64_t limit) {
  return row.memory.peak <= limit ? "yes" : "no";
}

// What each dimension larger than 1 divides; "" for a mesh of replicas alone.
std::string mesh_text(const EstimateRow& row) {
  const auto size = [&](const char* dimension) { return row.mesh.size(dimension); };
  if (size("pipeline+shard+expert+context+tensor") == 1) return "";
  const bool both = size("expert") > 1 && size("tensor") > 1;
  const std::string kept =
      fmt::format("{} of {} elements, their gradients and state", row.elements, row.whole_elements);
  std::vector<std::vector<std::string>> table = {{"dimension", "ranks", "what it divides"}};
  const auto add = [&](const char* dimension, const std::string& what) {
    if (size(dimension) > 1) table.push_back({dimension, fmt::format("{}", size(dimension)), what});
  };
  const bool staged = size("pipeline") > 1;
  add("pipeline", fmt::format("the chain of layers: {}", kept));
  add("data", "samples");
  add("shard", "samples, and of the model what the setting shards");
  add("expert", both ? "samples, and the experts of mixtures"
                     : fmt::format("samples, and the experts of mixtures: {}", kept));
  add("context", "sequences: the activations within context_parallel()");
  add("tensor", fmt::format("{}{}{}",
                            staged ? "each of these layers"
                            : both ? "layers: with experts "
                                   : "layers: ",
                            staged ? "" : kept, row.activations_counted ? ", activations" : ""));
  return "\n" + format_table(table);
}

std::string pipeline_text(const EstimateRow& row) {
  const estimate::LoggedPipeline& pipeline = row.pipeline;
  const std::string several = pipeline.virtual_stages == 1
                                  ? ""
                                  : fmt::format(" and {} virtual stages", pipeline.virtual_stages);
  return fmt::format(
      "A pipeline of {} stages, with {} micro-batch{}{}: ranks wait {} % of the time while it "
      "fills and drains.\n",
      pipeline.stages, pipeline.micro_batches, pipeline.micro_batches == 1 ? "" : "es", several,
      idle_percent(row));
}

// The peak of each stage; "" without a pipeline.
std::string stages_text(const EstimateRow& row) {
  if (row.stage_peaks.empty()) return "";
  std::vector<std::vector<std::string>> table = {{"stage", "peak"}};
  for (size_t stage = 0; stage < row.stage_peaks.size(); ++stage) {
    const bool is_shown = static_cast<int>(stage) == row.pipeline.stage;
    table.push_back({fmt::format("{}{}", stage, is_shown ? ", as above" : ""),
                     size_text(row.stage_peaks[stage])});
  }
  return "\n" + (row.activations_counted ? pipeline_text(row) + "\n" : "") + format_table(table);
}

std::string one(const EstimateRow& row, uint64_t limit) {
  const estimate::MemoryEstimate& memory = row.memory;
  std::string text = fmt::format(
      "{}, mixed precision {}{}, {} process{}: {} per rank at its peak, in {}\n\n", row.setting,
      row.precision,
      row.checkpointing.empty() ? "" : ", activation checkpointing of " + row.checkpointing,
      row.world_size, row.world_size == 1 ? "" : "es", format_byte_size(memory.peak), memory.when);
  std::vector<std::vector<std::string>> table = {{"", "at the peak", "maximum"}};
  for (const PartName& name : kNames) {
    const auto part = static_cast<size_t>(name.part);
    if (memory.most[part] == 0) continue;
    table.push_back({name.text, size_text(memory.at_peak[part]), size_text(memory.most[part])});
  }
  table.push_back({"free in the heap", size_text(memory.heap), ""});
  table.push_back({"the process itself", size_text(memory.base), ""});
  text += format_table(table);
  if (memory.largest_unit > 0) {
    text += fmt::format("\nThe largest unit, {}, is {} when gathered.\n", memory.largest_unit_name,
                        format_byte_size(memory.largest_unit));
  }
  text += stages_text(row) + mesh_text(row);
  if (!row.activations_counted) text += kNotCounted;
  if (limit > 0) {
    text += fmt::format("\nIt {} within {}.\n", memory.peak <= limit ? "fits" : "does not fit",
                        format_byte_size(limit));
  }
  return text;
}

std::string many(const std::vector<EstimateRow>& rows, uint64_t limit) {
  std::vector<std::string> heading = {"setting", "precision", "checkpointing", "peak"};
  if (limit > 0) heading.emplace_back("fits");
  for (const PartName& name : kNames) heading.emplace_back(name.heading);
  heading.insert(heading.end(), {"largest unit", "process"});
  std::vector<std::vector<std::string>> table = {heading};
  bool counted = true;
  const EstimateRow& first = rows.front();
  for (const EstimateRow& row : rows) {
    std::vector<std::string> cells = {row.setting, row.precision,
                                      row.checkpointing.empty() ? "-" : row.checkpointing,
                                      size_text(row.memory.peak)};
    if (limit > 0) cells.push_back(fits_limit(row, limit));
    for (const PartName& name : kNames) cells.push_back(size_text(row.memory.of(name.part)));
    cells.push_back(size_text(row.memory.largest_unit));
    cells.push_back(size_text(row.memory.base));
    table.push_back(std::move(cells));
    counted = counted && row.activations_counted;
  }
  return fmt::format(
      "Each rank of {}{}: its peak, and the maximum of each part on its own.\n\n{}{}{}{}",
      first.world_size,
      first.stage_peaks.empty() ? "" : ", at the stage of the pipeline that needs most",
      format_table(table), first.stage_peaks.empty() || !counted ? "" : "\n" + pipeline_text(first),
      mesh_text(first), counted ? "" : kNotCounted);
}

}  // namespace

void take_estimate(const estimate::StepLog& log, estimate::MemoryEstimate memory,
                   EstimateRow& row) {
  if (log.pipeline.stages > 1) row.stage_peaks.push_back(memory.peak);
  const bool is_first = row.whole_elements == 0;
  if (!is_first && memory.peak <= row.memory.peak) return;
  row.memory = std::move(memory);
  row.pipeline = log.pipeline;
  row.whole_elements = row.elements = 0;
  for (const estimate::LoggedModel& model : log.models) {
    for (const estimate::LoggedParameter& p : model.parameters) {
      row.elements += p.numel();
      row.whole_elements += p.whole_bytes() / p.element_size;
    }
  }
}

int idle_percent(const EstimateRow& row) {
  const estimate::LoggedPipeline& pipeline = row.pipeline;
  return static_cast<int>(
      std::lround(100 * sharding::idle_share(std::max(pipeline.stages, 1), pipeline.micro_batches,
                                             pipeline.virtual_stages)));
}

std::string estimate_text(const std::vector<EstimateRow>& rows, uint64_t limit) {
  return rows.size() == 1 ? one(rows[0], limit) : many(rows, limit);
}

nlohmann::json estimate_json(const std::vector<EstimateRow>& rows, uint64_t limit) {
  using nlohmann::json;
  json result = {{"estimates", json::array()}};
  if (limit > 0) result["limit"] = limit;
  for (const EstimateRow& row : rows) {
    const estimate::MemoryEstimate& memory = row.memory;
    json entry = {{"setting", row.setting},
                  {"mixed_precision", row.precision},
                  {"activation_checkpointing", row.checkpointing},
                  {"world", row.world_size},
                  {"training", true},
                  {"activations_counted", row.activations_counted},
                  {"peak_bytes", memory.peak},
                  {"peak_in", memory.when},
                  {"largest_unit", memory.largest_unit_name},
                  {"largest_unit_bytes", memory.largest_unit},
                  {"base_bytes", memory.base},
                  {"heap_bytes", memory.heap}};
    for (size_t i = 0; i < row.mesh.sizes().size(); ++i)
      entry["mesh"][Mesh::dimensions()[i]] = row.mesh.sizes()[i];
    entry["parameters"] = {{"all", row.whole_elements}, {"after_division", row.elements}};
    for (const PartName& name : kNames) {
      const auto part = static_cast<size_t>(name.part);
      entry["most_bytes"][name.key] = memory.most[part];
      entry["at_peak_bytes"][name.key] = memory.at_peak[part];
    }
    if (!row.stage_peaks.empty()) {
      entry["pipeline"] = {{"stage", row.pipeline.stage},
                           {"stage_peak_bytes", row.stage_peaks},
                           {"virtual_stages", row.pipeline.virtual_stages}};
      if (row.activations_counted) {
        entry["pipeline"]["micro_batches"] = row.pipeline.micro_batches;
        entry["pipeline"]["idle_percent"] = idle_percent(row);
      }
    }
    if (limit > 0) entry["fits"] = memory.peak <= limit;
    result["estimates"].push_back(std::move(entry));
  }
  return result;
}

}  // namespace coupler::cli
