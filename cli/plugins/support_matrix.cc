#include "cli/plugins/support_matrix.h"

#include <fmt/format.h>

#include <functional>
#include <nlohmann/json.hpp>

#include "cli/text/table.h"
#include "comm/fingerprint.h"

namespace coupler::cli {
namespace {

using Rows = std::vector<std::vector<std::string>>;
using Names = std::vector<std::string>;

const char* yes(bool value) { return value ? "yes" : "no"; }

Names names_of(const std::set<db_reduce>& reduces) {
  Names names;
  for (const db_reduce reduce : reduces) names.emplace_back(reduce_name(reduce));
  return names;
}

std::string joined(const Names& names) {
  std::string text;
  for (const std::string& name : names) text += (text.empty() ? "" : ", ") + name;
  return text;
}

// The reductions that any backend has for a type. The built-in backend, which is always among them,
// has all that the interface defines.
std::set<db_reduce> defined(const std::vector<Support>& supports, db_dtype dtype) {
  std::set<db_reduce> all;
  for (const Support& support : supports) {
    const auto found = support.reductions.find(dtype);
    if (found != support.reductions.end()) all.insert(found->second.begin(), found->second.end());
  }
  return all;
}

std::string type_cell(const Support& support, db_dtype dtype, const std::set<db_reduce>& all) {
  const auto found = support.reductions.find(dtype);
  const bool moved = support.moved.count(dtype) != 0;
  if (found == support.reductions.end()) return moved ? "moved" : "no";
  std::set<db_reduce> missing = all;
  for (const db_reduce reduce : found->second) missing.erase(reduce);
  std::string text = moved ? "all" : "reduced, not moved";
  if (!missing.empty()) text += " but " + joined(names_of(missing));
  return text;
}

// One row: its heading, and a cell per backend; "?" if the query failed.
void add(Rows& rows, const std::vector<Support>& supports, const std::string& heading,
         const std::function<std::string(const Support&)>& cell) {
  std::vector<std::string> row = {heading};
  for (const Support& support : supports) {
    row.push_back(support.problem.empty() ? cell(support) : "?");
  }
  rows.push_back(std::move(row));
}

Rows operations(const std::vector<Support>& supports) {
  Rows rows = {{"operation"}};
  for (const Support& support : supports) rows[0].push_back(one_line(support.name));
  for (const db_kind kind : all_kinds()) {
    add(rows, supports, std::string(kind_name(kind)),
        [kind](const Support& support) { return yes(support.operations.at(kind)); });
  }
  add(rows, supports, "split into groups", [](const Support& s) { return yes(s.splits); });
  add(rows, supports, "abort", [](const Support& s) { return yes(s.aborts); });
  add(rows, supports, "stream-ordered", [](const Support& s) { return yes(s.streams); });
  add(rows, supports, "memory",
      [](const Support& s) { return s.memory == DB_MEMORY_CUDA ? "CUDA" : "host"; });
  add(rows, supports, "base",
      [](const Support& s) { return s.base.empty() ? "-" : one_line(s.base); });
  return rows;
}

Rows types(const std::vector<Support>& supports) {
  Rows rows = {{"type", "reductions"}};
  for (const Support& support : supports) rows[0].push_back(one_line(support.name));
  for (const db_dtype dtype : all_dtypes()) {
    const std::set<db_reduce> all = defined(supports, dtype);
    Rows row;
    add(row, supports, std::string(dtype_name(dtype)),
        [&](const Support& support) { return type_cell(support, dtype, all); });
    row[0].insert(row[0].begin() + 1, all.empty() ? "-" : joined(names_of(all)));
    rows.push_back(std::move(row[0]));
  }
  return rows;
}

// The backends whose query failed, and why.
std::string unanswered(const std::vector<Support>& supports) {
  std::string text;
  for (const Support& support : supports) {
    if (!support.problem.empty()) {
      text += fmt::format("{}: the query failed here: {}\n", one_line(support.name),
                          one_line(support.problem));
    }
  }
  return text.empty() ? "" : "\n" + text;
}

}  // namespace

std::string matrix_text(const std::vector<Support>& supports) {
  return fmt::format("{}\n{}{}", format_table(operations(supports)), format_table(types(supports)),
                     unanswered(supports));
}

nlohmann::ordered_json matrix_json(const std::vector<Support>& supports) {
  nlohmann::ordered_json rows = nlohmann::ordered_json::array();
  for (const Support& support : supports) {
    nlohmann::ordered_json row = {{"name", support.name}, {"problem", support.problem}};
    if (support.problem.empty()) {
      row["base"] = support.base;
      row["memory"] = support.memory == DB_MEMORY_CUDA ? "cuda" : "host";
      row["split"] = support.splits;
      row["abort"] = support.aborts;
      row["stream_ordered"] = support.streams;
      for (const auto& [kind, there] : support.operations) {
        row["operations"][std::string(kind_name(kind))] = there;
      }
      row["moved"] = nlohmann::ordered_json::array();
      for (const db_dtype dtype : support.moved) row["moved"].push_back(dtype_name(dtype));
      row["reductions"] = nlohmann::ordered_json::object();
      for (const auto& [dtype, reduces] : support.reductions) {
        row["reductions"][std::string(dtype_name(dtype))] = names_of(reduces);
      }
    }
    rows.push_back(std::move(row));
  }
  return rows;
}

}  // namespace coupler::cli
