#include "fsdp/settings.h"

#include <cstddef>

#include "common/model.h"
#include "common/options.h"
#include "common/plan_builder.h"

namespace db::fsdp {
namespace {

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
    return wrong_option("hybrid_shard shards among the ranks of a machine, but this machine has " +
                        ours + " ranks, which do not divide the job's " +
                        std::to_string(place.size) + " ranks" + hint);
  if (place.local_rank != place.rank % place.local_size)
    return wrong_option(
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
    return wrong_option(
        "option 'group_size' is for strategy = \"hybrid_shard\", but strategy is '" +
        options.string("strategy") + "'");
  }
  if (given == 0) return read_machine_group(place, size);
  if (given < 0 || place.size % given != 0)
    return wrong_option("option 'group_size' is " + std::to_string(given) +
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
      return wrong_option("option '" + std::string(type.key) +
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
      return wrong_option("option '" + std::string(owner.key) + "' is for units = \"" +
                          kPolicies[owner.policy] + "\", but units is '" + kPolicies[policy] + "'");
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
    return wrong_option(
        "units = \"types\" needs option 'unit_types': the module types that form units");
  if (settings->units == Units::kNames && settings->unit_names.empty())
    return wrong_option("units = \"names\" needs option 'unit_names': the modules that form units");
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
  static constexpr OffloadKeys kKeys = {"offload.device", "offload.nvme_path", "offload.pin_memory",
                                        "offload.buffer_count"};
  Failure failure = read_offload(options, kKeys, &settings->offload);
  if (failure.ok() && settings->offload.place != DB_PLACE_STAY && !settings->shards)
    return wrong_option(
        "option 'offload.device' has no effect with strategy = \"no_shard\"; remove it");
  return failure;
}

}  // namespace

Failure wrong_option(const std::string& text) {
  return Failure::make(DB_ERR_INVALID_ARGUMENT, text);
}

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

}  // namespace db::fsdp
