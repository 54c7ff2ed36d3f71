#include "deepspeed_like/settings.h"

#include <algorithm>
#include <string>

#include "common/option_values.h"

namespace db::deepspeed_like {
namespace {

Failure read_stage(const Options& options, int64_t* stage) {
  *stage = options.i64("stage");
  if (*stage >= 0 && *stage <= 3) return {};
  return Failure::make(DB_ERR_INVALID_ARGUMENT,
                       "option 'stage' is " + std::to_string(*stage) +
                           "; valid: 0 (nothing is sharded), 1 (the optimizer's state), 2 "
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
        "option 'communication_data_type' concerns units, of which stage = 0 makes "
        "none; leave it out, or take stage 1, 2 or 3");
  return failure;
}

}  // namespace db::deepspeed_like
