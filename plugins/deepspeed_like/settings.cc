#include "deepspeed_like/settings.h"

#include <algorithm>
#include <string>

#include "common/options.h"
#include "common/plan_builder.h"

namespace db::deepspeed_like {
namespace {

Failure read_stage(const Options& options, int64_t* stage) {
  *stage = options.i64("stage");
  if (*stage >= 0 && *stage <= 3) return {};
  return Failure::make(DB_ERR_INVALID_ARGUMENT,
                       "option 'stage' is " + std::to_string(*stage) +
                           "; valid: 0 (nothing is sharded), 1 (optimizer state), 2 "
                           "(gradients too), 3 (parameters too)");
}

Failure read_overlap(const Options& options, int32_t* overlap) {
  static constexpr int32_t kValues[] = {-1, 1, 0};
  size_t word = 0;
  Failure failure = read_word(options, "overlap_comm", {"auto", "true", "false"}, &word);
  if (failure.ok()) *overlap = kValues[word];
  return failure;
}

Failure read_sizes(const Options& options, Settings* settings) {
  uint64_t reduce = 0;
  uint64_t gather = 0;
  const struct {
    const char* key;
    int64_t least;
    uint64_t* target;
  } sizes[] = {{"reduce_bucket_size", 1, &reduce},
               {"allgather_bucket_size", 1, &gather},
               {"stage3_prefetch_bucket_size", 0, &settings->prefetch},
               {"stage3_max_live_parameters", 0, &settings->live},
               {"stage3_param_persistence_threshold", 0, &settings->persistence_threshold}};
  for (const auto& size : sizes) {
    int64_t value = 0;
    Failure failure = read_number(options, size.key, size.least, INT64_MAX, &value);
    if (!failure.ok()) return failure;
    *size.target = static_cast<uint64_t>(value);
  }
  settings->bucket = std::min(reduce, gather);
  settings->reduce_bucket = options.given("reduce_bucket_size") ? reduce : 0;
  return {};
}

Failure needs_stage(const char* key, int64_t least, int64_t stage) {
  return Failure::make(DB_ERR_INVALID_ARGUMENT, "option '" + std::string(key) + "' needs stage " +
                                                    std::to_string(least) +
                                                    (least < 3 ? " or more" : "") +
                                                    ", but stage is " + std::to_string(stage));
}

Failure read_offloads(const Options& options, int64_t stage, PlannedOffloads* offloads) {
  static constexpr OffloadKeys kOptimizer = {
      "offload_optimizer.device", "offload_optimizer.nvme_path", "offload_optimizer.pin_memory",
      "offload_optimizer.buffer_count"};
  static constexpr OffloadKeys kParameters = {"offload_param.device", "offload_param.nvme_path",
                                              "offload_param.pin_memory",
                                              "offload_param.buffer_count"};
  Failure failure = read_offload(options, kOptimizer, &offloads->optimizer);
  if (failure.ok()) failure = read_offload(options, kParameters, &offloads->parameters);
  if (!failure.ok()) return failure;
  if (offloads->optimizer.place != DB_PLACE_STAY && stage < 1)
    return needs_stage(kOptimizer.device, 1, stage);
  if (offloads->parameters.place != DB_PLACE_STAY && stage < 3)
    return needs_stage(kParameters.device, 3, stage);
  return {};
}

}  // namespace

Failure read_settings(const Options& options, Settings* settings) {
  Failure failure = read_stage(options, &settings->stage);
  if (failure.ok()) failure = read_sizes(options, settings);
  if (failure.ok()) failure = read_overlap(options, &settings->overlap);
  if (failure.ok())
    failure = read_dtype(options, "communication_data_type", &settings->reduce_dtype);
  if (failure.ok() && settings->stage == 0 && settings->reduce_dtype != 0)
    return Failure::make(
        DB_ERR_INVALID_ARGUMENT,
        "option 'communication_data_type' has no effect with stage = 0; remove it, or set stage "
        "to 1, 2 or 3");
  if (failure.ok()) failure = read_offloads(options, settings->stage, &settings->offloads);
  return failure;
}

}  // namespace db::deepspeed_like
