#include "cli/estimate/estimate_report.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "base/units.h"
#include "cli/text/output.h"

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
  if (size("shard+expert+context+tensor") == 1) return "";
  const bool both = size("expert") > 1 && size("tensor") > 1;
  const std::string kept =
      fmt::format("{} of {} elements, their gradients and state", row.elements, row.whole_elements);
  std::vector<std::vector<std::string>> table = {{"dimension", "ranks", "what it divides"}};
  const auto add = [&](const char* dimension, const std::string& what) {
    if (size(dimension) > 1) table.push_back({dimension, fmt::format("{}", size(dimension)), what});
  };
  add("data", "samples");
  add("shard", "samples, and of the model what the setting shards");
  add("expert", both ? "samples, and the experts of mixtures"
                     : fmt::format("samples, and the experts of mixtures: {}", kept));
  add("context", "sequences: the activations within context_parallel()");
  add("tensor", fmt::format("layers: {}{}{}", both ? "with experts " : "", kept,
                            row.activations_counted ? ", activations" : ""));
  return "\n" + format_table(table);
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
  text += mesh_text(row);
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
      "Each rank of {}: its peak, and the maximum of each part on its own.\n\n{}{}{}",
      rows.front().world_size, format_table(table), mesh_text(rows.front()),
      counted ? "" : kNotCounted);
}

}  // namespace

void count_elements(const estimate::StepLog& log, EstimateRow& row) {
  row.whole_elements = row.elements = 0;
  for (const estimate::LoggedModel& model : log.models) {
    for (const estimate::LoggedParameter& p : model.parameters) {
      row.elements += p.numel();
      row.whole_elements += p.whole_bytes() / p.element_size;
    }
  }
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
    if (limit > 0) entry["fits"] = memory.peak <= limit;
    result["estimates"].push_back(std::move(entry));
  }
  return result;
}

}  // namespace coupler::cli
