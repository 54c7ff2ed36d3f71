// The fsdp backend: its options, how it forms units and plans a model, and its table. All
// communication is passed on to the base. Pure functions; [any-thread].
#include <coupler/sharding.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "common/model.h"
#include "common/op.h"
#include "common/options.h"
#include "common/plan_builder.h"
#include "common/sharding_communicator.h"

namespace db::fsdp {
namespace {

constexpr db_option kOptions[] = {
    string_option("strategy", "full_shard",
                  "full_shard (parameters, gradients and optimizer state are sharded; parameters "
                  "are gathered for each use), shard_grad_op (gathered parameters stay until their "
                  "gradients are reduced), hybrid_shard (full_shard within groups of ranks, "
                  "replicated across groups), or no_shard (everything is replicated)."),
    i64_option("group_size", 0,
               "Ranks that share one copy of the parameters with hybrid_shard; must divide the "
               "number of ranks; 0: the ranks of one machine."),
    bool_option("reshard_after_forward", true,
                "With full_shard and hybrid_shard: whether gathered parameters may be released "
                "between forward and backward; false keeps them, as shard_grad_op always does."),
    i64_option("prefetch", 1, "Units gathered ahead of use; 0: none."),
    string_option("param_dtype", "",
                  "Data type in which parameters are gathered and used in computation: bf16, f16, "
                  "f32, f64; empty: their own."),
    string_option("reduce_dtype", "",
                  "Data type in which gradients are communicated: bf16, f16, f32, f64; empty: the "
                  "same as param_dtype."),
    string_option("output_dtype", "",
                  "Data type of the results of a unit's operations: bf16, f16, f32, f64; empty: "
                  "unchanged."),
    string_option("ignore", "",
                  "Comma-separated names of modules and parameters that are replicated instead of "
                  "sharded; * matches any characters except dots, ** any characters."),
    string_option("units", "modules",
                  "How units, which are gathered and released together, are formed: modules (each "
                  "module with parameters of its own), types (modules of unit_types), size (at "
                  "least unit_min_parameters elements), or names (modules of unit_names)."),
    string_option("unit_types", "",
                  "With units = types: comma-separated module types, such as "
                  "torch::nn::TransformerEncoderLayerImpl or TransformerEncoderLayer; everything "
                  "else forms one more unit."),
    i64_option("unit_min_parameters", 1000000,
               "With units = size: modules are joined in registration order until a unit has at "
               "least this many elements."),
    string_option("unit_names", "",
                  "With units = names: comma-separated dotted names of modules, with * and ** as "
                  "in ignore; everything else forms one more unit."),
    i64_option("unit_join_below", 10000,
               "With units = modules: a unit with fewer elements is joined with the next one, the "
               "last with the one before it, so that small layers are not gathered alone."),
    string_option("offload.device", "none",
                  "Where a rank's parts of parameters, gradients and optimizer state are kept "
                  "while they are not in use: none (with the model), cpu, or nvme (a disk)."),
    string_option("offload.nvme_path", "",
                  "With nvme: a folder on that disk. The files in it are unnamed and disappear "
                  "with the process."),
    bool_option("offload.pin_memory", false,
                "With cpu: use page-locked memory, from which GPUs copy faster."),
    i64_option("offload.buffer_count", 4,
               "With nvme: blocks read ahead, and as many waiting to be written. A block is a "
               "rank's part of one unit: of its parameters, its gradients, or one state tensor."),
};

enum class Units { kModules, kTypes, kSize, kNames };

struct Settings {
  bool shards = true;  // false: no_shard
  int32_t group_size = 1;
  db_keep keep = DB_KEEP_USE;
  int32_t prefetch = 0;
  db_dtype param_dtype = 0;
  db_dtype reduce_dtype = 0;
  db_dtype output_dtype = 0;
  std::vector<std::string> ignore;
  Units units = Units::kModules;
  std::vector<std::string> unit_types;
  std::vector<std::string> unit_names;
  uint64_t least = 0;  // elements of a unit, for kModules and kSize
  PlannedOffload offload;
};

// "1, 2, 3 and 6"
std::string divisors(int32_t number) {
  std::vector<std::string> all;
  for (int32_t i = 1; i <= number; ++i)
    if (number % i == 0) all.push_back(std::to_string(i));
  std::string text = all.front();
  for (size_t i = 1; i < all.size(); ++i) text += (i + 1 == all.size() ? " and " : ", ") + all[i];
  return text;
}

// The ranks of a machine must be consecutive, so that rank / size identifies the machine.
Failure read_machine_group(const Place& place, int32_t* size) {
  const std::string ours = std::to_string(place.local_size);
  const std::string hint =
      "; set option 'group_size' to a divisor of the number of ranks: " + divisors(place.size);
  if (place.local_size < 1 || place.size % place.local_size != 0)
    return Failure::invalid(
        "hybrid_shard shards among the ranks of a machine, but this machine has " + ours +
        " ranks, which do not divide the job's " + std::to_string(place.size) + " ranks" + hint);
  if (place.local_rank != place.rank % place.local_size)
    return Failure::invalid(
        "hybrid_shard shards among the ranks of a machine, which must be consecutive: "
        "rank " +
        std::to_string(place.rank) + " is local rank " + std::to_string(place.local_rank) + " of " +
        ours + " here" + hint);
  *size = place.local_size;
  return {};
}

Failure read_group(const Options& options, const Place& place, bool hybrid, int32_t* size) {
  const int64_t given = options.i64("group_size");
  *size = place.size;
  if (!hybrid) {
    if (given == 0) return {};
    return Failure::invalid(
        "option 'group_size' is for strategy = \"hybrid_shard\", but strategy is '" +
        options.string("strategy") + "'");
  }
  if (given == 0) return read_machine_group(place, size);
  if (given < 0 || place.size % given != 0)
    return Failure::invalid("option 'group_size' is " + std::to_string(given) +
                            ", which does not divide the number of ranks, " +
                            std::to_string(place.size) + "; valid: " + divisors(place.size) +
                            ", or 0 for the ranks of one machine");
  *size = static_cast<int32_t>(given);
  return {};
}

Failure read_strategy(const Options& options, const Place& place, Settings* settings) {
  size_t word = 0;
  Failure failure = read_word(options, "strategy",
                              {"full_shard", "shard_grad_op", "hybrid_shard", "no_shard"}, &word);
  if (!failure.ok()) return failure;
  const bool releases = word != 1 && options.boolean("reshard_after_forward");
  settings->keep = releases ? DB_KEEP_USE : DB_KEEP_STEP;
  settings->shards = word != 3;
  return read_group(options, place, word == 2, &settings->group_size);
}

Failure read_dtypes(const Options& options, Settings* settings) {
  const struct {
    const char* key;
    db_dtype* dtype;
  } types[] = {{"param_dtype", &settings->param_dtype},
               {"reduce_dtype", &settings->reduce_dtype},
               {"output_dtype", &settings->output_dtype}};
  for (const auto& type : types) {
    Failure failure = read_dtype(options, type.key, type.dtype);
    if (!failure.ok()) return failure;
    if (*type.dtype != 0 && !settings->shards)
      return Failure::invalid("option '" + std::string(type.key) +
                              "' has no effect with strategy = \"no_shard\"; remove it");
  }
  return {};
}

// Without this check, an option that only another policy reads would be ignored silently.
Failure check_policy(const Options& options, size_t policy) {
  static constexpr struct {
    const char* key;
    size_t policy;
  } kOwners[] = {
      {"unit_join_below", 0}, {"unit_types", 1}, {"unit_min_parameters", 2}, {"unit_names", 3}};
  static constexpr const char* kPolicies[] = {"modules", "types", "size", "names"};
  for (const auto& owner : kOwners)
    if (options.given(owner.key) && owner.policy != policy)
      return Failure::invalid("option '" + std::string(owner.key) + "' is for units = \"" +
                              kPolicies[owner.policy] + "\", but units is '" + kPolicies[policy] +
                              "'");
  return {};
}

Failure read_units(const Options& options, Settings* settings) {
  size_t policy = 0;
  Failure failure = read_word(options, "units", {"modules", "types", "size", "names"}, &policy);
  if (failure.ok()) failure = check_policy(options, policy);
  if (!failure.ok()) return failure;
  settings->units = static_cast<Units>(policy);
  settings->ignore = split_list(options.string("ignore"));
  settings->unit_types = split_list(options.string("unit_types"));
  settings->unit_names = split_list(options.string("unit_names"));
  if (settings->units == Units::kTypes && settings->unit_types.empty())
    return Failure::invalid(
        "units = \"types\" needs option 'unit_types': the module types that form units");
  if (settings->units == Units::kNames && settings->unit_names.empty())
    return Failure::invalid(
        "units = \"names\" needs option 'unit_names': the modules that form units");
  int64_t join_below = 0;
  int64_t min_parameters = 0;
  failure = read_number(options, "unit_join_below", 0, INT64_MAX, &join_below);
  if (failure.ok())
    failure = read_number(options, "unit_min_parameters", 1, INT64_MAX, &min_parameters);
  settings->least =
      static_cast<uint64_t>(settings->units == Units::kSize ? min_parameters : join_below);
  return failure;
}

Failure read_offload_of_units(const Options& options, Settings* settings) {
  Failure failure = read_offload(options, "offload", &settings->offload);
  if (failure.ok() && settings->offload.place != DB_PLACE_STAY && !settings->shards)
    return Failure::invalid(
        "option 'offload.device' has no effect with strategy = \"no_shard\"; remove it");
  return failure;
}

// Every wrong value that can be detected without a model is DB_ERR_INVALID_ARGUMENT here.
Failure read_settings(const Options& options, const Place& place, Settings* settings) {
  Failure failure = read_strategy(options, place, settings);
  if (failure.ok()) failure = read_dtypes(options, settings);
  if (failure.ok()) failure = read_units(options, settings);
  if (failure.ok()) failure = read_offload_of_units(options, settings);
  int64_t prefetch = 0;
  if (failure.ok()) failure = read_number(options, "prefetch", 0, INT32_MAX, &prefetch);
  settings->prefetch = static_cast<int32_t>(prefetch);
  return failure;
}

// Which parameters of a model form a unit under the user's policy, and which are in no unit.

std::string_view without_impl(std::string_view type) {
  if (type.size() > 4 && type.ends_with("Impl")) type.remove_suffix(4);
  return type;
}

// "my::Block<torch::nn::Linear>" -> "Block<torch::nn::Linear>"
std::string_view last_component(std::string_view type) {
  const size_t colons = type.substr(0, type.find('<')).rfind("::");
  return colons == std::string_view::npos ? type : type.substr(colons + 2);
}

bool is_type(std::string_view wanted, std::string_view type) {
  return without_impl(wanted) == without_impl(type) ||
         without_impl(wanted) == without_impl(last_component(type));
}

std::vector<std::string_view> module_names(const Model& model) {
  std::vector<std::string_view> names;
  for (const ModelModule& module : model.modules)
    if (!module.name.empty()) names.push_back(module.name);
  return names;
}

std::vector<std::string_view> type_names(const Model& model) {
  std::vector<std::string_view> names;
  for (const ModelModule& module : model.modules)
    if (std::find(names.begin(), names.end(), module.type) == names.end())
      names.push_back(module.type);
  return names;
}

Failure mark_types(const Settings& settings, const Model& model, std::vector<bool>* marked) {
  for (const std::string& wanted : settings.unit_types) {
    bool found = false;
    for (size_t i = 0; i < model.modules.size(); ++i) {
      if (!is_type(wanted, model.modules[i].type)) continue;
      (*marked)[i] = found = true;
    }
    if (!found)
      return Failure::invalid("option 'unit_types': no module of the model is a '" + wanted +
                              "'; its types: " + list_some(type_names(model)));
  }
  return {};
}

Failure mark_names(const Settings& settings, const Model& model, std::vector<bool>* marked) {
  std::vector<const std::string*> matched_by(model.modules.size(), nullptr);
  for (const std::string& pattern : settings.unit_names) {
    bool found = false;
    for (size_t i = 0; i < model.modules.size(); ++i) {
      const ModelModule& module = model.modules[i];
      if (module.name.empty() || !matches(pattern, module.name)) continue;
      if (matched_by[i] != nullptr)
        return Failure::invalid("option 'unit_names': units overlap: '" + *matched_by[i] +
                                "' and '" + pattern + "' both match the module '" +
                                std::string(module.name) + "'");
      matched_by[i] = &pattern;
      (*marked)[i] = found = true;
    }
    if (!found)
      return Failure::invalid("option 'unit_names': no module of the model matches '" + pattern +
                              "'; its modules: " + list_some(module_names(model)));
  }
  return {};
}

// The parameters that no pattern of ignore matches, neither directly nor through a parent module.
Failure select(const Settings& settings, const Model& model, std::vector<size_t>* parameters) {
  std::vector<bool> module_ignored(model.modules.size(), false);
  std::vector<bool> ignored(model.parameters.size(), false);
  for (const std::string& pattern : settings.ignore) {
    bool found = false;
    for (size_t i = 0; i < model.modules.size(); ++i) {
      const ModelModule& module = model.modules[i];
      if (module.name.empty() || !matches(pattern, module.name)) continue;
      module_ignored[i] = found = true;
    }
    for (size_t i = 0; i < model.parameters.size(); ++i) {
      if (!matches(pattern, model.parameters[i].name)) continue;
      ignored[i] = found = true;
    }
    if (!found)
      return Failure::invalid("option 'ignore': no module or parameter of the model matches '" +
                              pattern + "'; its modules: " + list_some(module_names(model)));
  }
  // Parents come before their children.
  for (size_t i = 0; i < model.modules.size(); ++i) {
    const int64_t parent = model.modules[i].parent;
    if (parent >= 0 && module_ignored[static_cast<size_t>(parent)]) module_ignored[i] = true;
  }
  for (size_t i = 0; i < model.parameters.size(); ++i)
    if (!ignored[i] && !module_ignored[model.parameters[i].module]) parameters->push_back(i);
  return {};
}

// Every unit has at least one parameter, all of one type. A type, name or pattern that matches
// nothing is DB_ERR_INVALID_ARGUMENT with some valid names; so are two patterns for one module.
Failure choose_units(const Settings& settings, const Model& model, std::vector<UnitDraft>* units) {
  std::vector<size_t> parameters;
  std::vector<bool> marked(model.modules.size(), false);
  Failure failure = select(settings, model, &parameters);
  if (failure.ok() && settings.units == Units::kTypes)
    failure = mark_types(settings, model, &marked);
  if (failure.ok() && settings.units == Units::kNames)
    failure = mark_names(settings, model, &marked);
  if (!failure.ok()) return failure;
  const bool joins = settings.units == Units::kModules || settings.units == Units::kSize;
  std::vector<UnitDraft> drafts =
      joins ? join_small(model, units_by_module(model, parameters), settings.least)
            : units_at(model, parameters, marked);
  *units = split_by_dtype(model, std::move(drafts));
  return {};
}

// How this backend plans a model.

PlannedUnit plan_unit(const Settings& settings, const Model& model, UnitDraft draft) {
  PlannedUnit unit{std::move(draft)};
  const db_dtype own = model.parameters[unit.parameters.front()].dtype;
  unit.bounds = row_bounds(model, unit, settings.group_size);
  unit.keep = settings.keep;
  unit.gradients = DB_GRADIENTS_SHARD;
  // Integer (quantized) parameters keep their type.
  if (!is_floating(own)) return unit;
  unit.compute = settings.param_dtype;
  unit.reduce = settings.reduce_dtype;
  unit.output = settings.output_dtype;
  return unit;
}

Failure check(const Options& options, const Place& place) {
  Settings settings;
  return read_settings(options, place, &settings);
}

Failure plan(const Options& options, const Place& place, const Model& model, const db_plan** plan) {
  Settings settings;
  std::vector<UnitDraft> drafts;
  Failure failure = read_settings(options, place, &settings);
  if (failure.ok() && settings.shards) failure = choose_units(settings, model, &drafts);
  if (!failure.ok()) return failure;
  std::vector<PlannedUnit> units;
  units.reserve(drafts.size());
  for (UnitDraft& draft : drafts) units.push_back(plan_unit(settings, model, std::move(draft)));
  db_plan rest{};
  rest.group = place.rank / settings.group_size;
  rest.prefetch = settings.prefetch;
  rest.overlap = -1;
  *plan = make_plan(std::move(units), rest, {settings.offload, settings.offload});
  return {};
}

constexpr db_option kFullShard[] = {string_option("strategy", "full_shard", nullptr)};
constexpr db_option kShardGradOp[] = {string_option("strategy", "shard_grad_op", nullptr)};
constexpr db_option kHybridShard[] = {string_option("strategy", "hybrid_shard", nullptr),
                                      i64_option("group_size", 0, nullptr)};
constexpr db_option kNoShard[] = {string_option("strategy", "no_shard", nullptr)};
constexpr db_option kOnDisk[] = {string_option("strategy", "full_shard", nullptr),
                                 string_option("offload.device", "nvme", nullptr),
                                 string_option("offload.nvme_path", DB_PRESET_FOLDER, nullptr)};
constexpr db_preset kPresets[] = {
    preset<kFullShard>("fsdp full_shard", "parameters, gradients and optimizer state", 140),
    preset<kShardGradOp>("fsdp shard_grad_op", "the same, but parameters stay whole during a step",
                         130),
    preset<kHybridShard>("fsdp hybrid_shard",
                         "all of them within a machine; machines hold replicas", 0),
    preset<kNoShard>("fsdp no_shard", "nothing", 0),
    preset<kOnDisk>("fsdp full_shard, all on disk", "the parts of each rank are on a disk", 620),
};

constexpr ShardingBackend kShardingBackend = {
    "fsdp",
    kPointersTo<kOptions>.data(),
    kPointersTo<kOptions>.size(),
    check,
    plan,
    {sizeof(db_presets), kPointersTo<kPresets>.data(), kPointersTo<kPresets>.size()}};
constexpr DistributedBackend kBackend = sharding_table<kShardingBackend>(
    "0.1.0",
    "Shards each parameter, its gradient and its optimizer state on dimension 0, over any "
    "transport");

}  // namespace

}  // namespace db::fsdp

extern "C" DB_EXPORT const DistributedBackend* coupler_distributed_backend_v1(void) {
  return &db::fsdp::kBackend;
}
