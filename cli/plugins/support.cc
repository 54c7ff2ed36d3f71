#include "cli/plugins/support.h"

#include <coupler/error.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <chrono>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>

#include "base/error.h"
#include "base/subprocess.h"
#include "cli/text/output.h"
#include "comm/flight_recorder.h"
#include "comm/raw_communicator.h"
#include "comm/state.h"
#include "config/validate.h"
#include "plugin/bases.h"
#include "plugin/plugin.h"
#include "plugin/probe.h"
#include "plugin/resolve.h"

namespace coupler::cli {
namespace {

constexpr std::chrono::seconds kDeadline(30);

// All values of a type that the ABI defines.
template <typename Number>
std::vector<Number> range(int first, int last) {
  std::vector<Number> numbers;
  for (int i = first; i <= last; ++i) numbers.push_back(i);
  return numbers;
}
const std::vector<db_kind> kKinds = range<db_kind>(DB_ALL_REDUCE, DB_RECV);
const std::vector<db_dtype> kDtypes = range<db_dtype>(DB_I8, DB_F8_E5M2);
const std::vector<db_reduce> kReduces = range<db_reduce>(DB_SUM, DB_BXOR);

plugin::Plugin load(const config::BackendConfig& backend, const std::string& use) {
  config::BackendConfig one = backend;
  one.use = use;
  if (use != backend.use) one.sha256.clear();  // the pin is for backend.use alone
  return plugin::Plugin::load(one);
}

// A communicator of one rank, without peers and store; its supports() must answer as in any other.
class SingleRankCommunicator {
 public:
  SingleRankCommunicator(const plugin::Plugin& plugin, const config::BackendConfig& backend)
      : options_(plugin.table(), backend), wanted_(plugin::wanted_bases(plugin.table())) {
    for (const plugin::WantedBase& wanted : wanted_) {
      const std::string named = plugin::use_of(wanted, backend, plugin.name());
      const plugin::Plugin base =
          load(backend, named == "auto"
                            ? plugin::resolve_auto(backend, plugin::MpiLaunch::kTooLate, true)
                            : named);
      plugin::check_base(plugin.table(), wanted, base.table());
      bases_.push_back(std::make_unique<SingleRankCommunicator>(base, backend));
      base_names_ += (base_names_.empty() ? "" : " and ") + base.name();
      memory_ = bases_.back()->memory_;
    }
    if (wanted_.empty() && plugin.can(DB_CAP_CUDA_MEMORY) && !plugin.can(DB_CAP_HOST_MEMORY)) {
      memory_ = DB_MEMORY_CUDA;
    }
    create(plugin, backend);
  }
  ~SingleRankCommunicator() {
    if (communicator_ != nullptr) communicator_->functions->destroy(communicator_);
  }
  SingleRankCommunicator(const SingleRankCommunicator&) = delete;
  SingleRankCommunicator& operator=(const SingleRankCommunicator&) = delete;

  db_memory memory() const { return memory_; }
  const std::string& base() const { return base_names_; }
  bool splits() const {
    return DB_HAS(communicator_->functions, db_communicator_functions, split) &&
           communicator_->functions->split != nullptr;
  }
  bool takes(db_kind kind, db_dtype dtype, db_reduce reduce) const {
    const db_op op = {.struct_size = sizeof(db_op),
                      .kind = kind,
                      .dtype = dtype,
                      .reduce = reduce,
                      .count = 1,
                      .memory = memory_};
    int32_t score = 0;
    return communicator_->functions->supports(communicator_, &op, &score) == DB_OK && score > 0;
  }

 private:
  void create(const plugin::Plugin& plugin, const config::BackendConfig& backend) {
    std::vector<db_base> bases;
    std::vector<const db_base*> pointers;
    bases.reserve(bases_.size());
    for (size_t i = 0; i < bases_.size(); ++i) {
      bases.push_back({.struct_size = sizeof(db_base),
                       .role = wanted_[i].role.c_str(),
                       .communicator = bases_[i]->communicator_});
      pointers.push_back(&bases.back());
    }
    const db_communicator_params params = {.struct_size = sizeof(db_communicator_params),
                                           .host = &plugin::host_services(),
                                           .store = nullptr,
                                           .options = options_.data(),
                                           .option_count = options_.size(),
                                           .rank = 0,
                                           .size = 1,
                                           .local_rank = 0,
                                           .local_size = 1,
                                           .device_index = memory_ == DB_MEMORY_CUDA ? 0 : -1,
                                           .memory = memory_,
                                           .default_timeout_ns = backend.timeout.count(),
                                           .interface_name = nullptr,
                                           .bases = pointers.data(),
                                           .base_count = pointers.size()};
    comm::ErrorBuffer error;
    const db_status status = plugin.table().create(&params, &communicator_, error.get());
    if (status == DB_OK) return;
    communicator_ = nullptr;
    throw Error(ErrorCode::kPlugin, error.text().empty()
                                        ? fmt::format("create failed with status {}", status)
                                        : error.text());
  }

  comm::PluginOptions options_;
  std::vector<plugin::WantedBase> wanted_;
  std::vector<std::unique_ptr<SingleRankCommunicator>> bases_;
  std::string base_names_;
  db_memory memory_ = DB_MEMORY_HOST;
  db_communicator* communicator_ = nullptr;
};

// Asks about every number. The backend itself rejects those that are not operations, or not
// reductions of that type.
void ask(const SingleRankCommunicator& communicator, Support& support) {
  const auto takes_any = [&](db_kind kind) {
    for (const db_dtype dtype : kDtypes) {
      if (communicator.takes(kind, dtype, comm::is_reducing(kind) ? DB_SUM : 0)) return true;
    }
    return false;
  };
  for (const db_kind kind : kKinds) support.operations[kind] = takes_any(kind);
  for (const db_dtype dtype : kDtypes) {
    std::set<db_reduce> reduces(kReduces.begin(), kReduces.end());
    bool moves = false, moves_always = true, reduces_any = false;
    for (const auto& [kind, there] : support.operations) {
      if (!there || kind == DB_BARRIER) continue;
      if (!comm::is_reducing(kind)) {
        moves = true;
        moves_always = moves_always && communicator.takes(kind, dtype, 0);
        continue;
      }
      reduces_any = true;
      for (const db_reduce reduce : kReduces) {
        if (!communicator.takes(kind, dtype, reduce)) reduces.erase(reduce);
      }
    }
    if (moves && moves_always) support.moved.insert(dtype);
    if (reduces_any && !reduces.empty()) support.reductions[dtype] = reduces;
  }
}

Support support_of(const std::string& use, const config::BackendConfig& backend) {
  Support support;
  support.name = use;
  try {
    const plugin::Plugin plugin = load(backend, use);
    support.name = plugin.name();
    const SingleRankCommunicator communicator(plugin, backend);
    support.base = communicator.base();
    support.memory = communicator.memory();
    support.splits = plugin.can(DB_CAP_SPLIT) && communicator.splits();
    support.aborts = plugin.can(DB_CAP_ABORT);
    support.streams = plugin.can(DB_CAP_STREAM_ORDERED) && communicator.memory() == DB_MEMORY_CUDA;
    ask(communicator, support);
  } catch (const Error& error) {
    support.problem = without_hint(error.what());
  }
  return support;
}

}  // namespace

NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(Support, name, problem, base, memory, splits, aborts, streams,
                                   operations, moved, reductions)

std::vector<Support> ask_for_support(const config::BackendConfig& backend) {
  const std::vector<std::string> uses = plugin::listed_uses(backend);
  std::vector<std::function<std::string()>> works;
  works.reserve(uses.size());
  for (const std::string& use : uses) {
    works.emplace_back([&use, &backend] {
      const nlohmann::json answer = support_of(use, backend);
      return answer.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
    });
  }
  // A communicator over MPI starts it, and it must be finalized at exit.
  const std::vector<ChildResult> answers = run_in_children(works, kDeadline, Leave::kByExit);
  std::vector<Support> supports;
  for (size_t i = 0; i < answers.size(); ++i) {
    Support support;
    if (answers[i].end == ChildResult::End::kAnswered) {
      support = nlohmann::json::parse(answers[i].text).get<Support>();
    } else {
      support.name = uses[i];
      support.problem = describe_exit(answers[i], kDeadline, "during the query");
    }
    supports.push_back(std::move(support));
  }
  return supports;
}

namespace {

using Rows = std::vector<std::vector<std::string>>;
using Names = std::vector<std::string>;

const char* yes(bool value) { return value ? "yes" : "no"; }

Names names_of(const std::set<db_reduce>& reduces) {
  Names names;
  for (const db_reduce reduce : reduces) names.emplace_back(comm::reduce_name(reduce));
  return names;
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
  return fmt::format("{}{}{}", moved ? "all" : "reduced, not moved", missing.empty() ? "" : " but ",
                     fmt::join(names_of(missing), ", "));
}

// One row: its heading, and a cell per backend; "?" if the query failed.
void add_row(Rows& rows, const std::vector<Support>& supports, const std::string& heading,
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
  for (const db_kind kind : kKinds) {
    add_row(rows, supports, std::string(comm::kind_name(kind)),
            [kind](const Support& support) { return yes(support.operations.at(kind)); });
  }
  add_row(rows, supports, "split into groups", [](const Support& s) { return yes(s.splits); });
  add_row(rows, supports, "abort", [](const Support& s) { return yes(s.aborts); });
  add_row(rows, supports, "stream-ordered", [](const Support& s) { return yes(s.streams); });
  add_row(rows, supports, "memory",
          [](const Support& s) { return s.memory == DB_MEMORY_CUDA ? "CUDA" : "host"; });
  add_row(rows, supports, "base",
          [](const Support& s) { return s.base.empty() ? "-" : one_line(s.base); });
  return rows;
}

Rows types(const std::vector<Support>& supports) {
  Rows rows = {{"type", "reductions"}};
  for (const Support& support : supports) rows[0].push_back(one_line(support.name));
  for (const db_dtype dtype : kDtypes) {
    const std::set<db_reduce> all = defined(supports, dtype);
    Rows row;
    add_row(row, supports, std::string(comm::dtype_name(dtype)),
            [&](const Support& support) { return type_cell(support, dtype, all); });
    row[0].insert(row[0].begin() + 1,
                  all.empty() ? "-" : fmt::format("{}", fmt::join(names_of(all), ", ")));
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
        row["operations"][std::string(comm::kind_name(kind))] = there;
      }
      row["moved"] = nlohmann::ordered_json::array();
      for (const db_dtype dtype : support.moved) row["moved"].push_back(comm::dtype_name(dtype));
      row["reductions"] = nlohmann::ordered_json::object();
      for (const auto& [dtype, reduces] : support.reductions) {
        row["reductions"][std::string(comm::dtype_name(dtype))] = names_of(reduces);
      }
    }
    rows.push_back(std::move(row));
  }
  return rows;
}

}  // namespace coupler::cli
