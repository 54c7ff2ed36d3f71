#include <coupler/accelerator_options.h>
#include <fmt/ranges.h>

#include "base/duration.h"

namespace coupler {

std::vector<std::pair<std::string, AcceleratorOptions::Value>> AcceleratorOptions::by_key() const {
  std::vector<std::pair<std::string, Value>> result;
  const auto add = [&](const char* key, const auto& field) {
    if (field) result.emplace_back(key, *field);
  };
  add("backend.use", backend);
  if (timeout) result.emplace_back("backend.timeout", format_duration(*timeout));
  add("training.device", device);
  add("training.gradient_accumulation_steps", gradient_accumulation_steps);
  add("training.sync_each_batch", sync_each_batch);
  add("training.sync_with_dataloader", sync_with_dataloader);
  add("training.optimizer_in_backward", optimizer_in_backward);
  add("training.broadcast_buffers", broadcast_buffers);
  add("training.bucket_cap_mb", bucket_cap_mb);
  add("training.seed", seed);
  add("training.mixed_precision", mixed_precision);
  add("training.loss_scale_init_scale", loss_scale_init_scale);
  add("training.loss_scale_growth_factor", loss_scale_growth_factor);
  add("training.loss_scale_backoff_factor", loss_scale_backoff_factor);
  add("training.loss_scale_growth_interval", loss_scale_growth_interval);
  add("training.fp8_format", fp8_format);
  add("training.fp8_emulate", fp8_emulate);
  if (log_with)
    result.emplace_back("training.log_with", fmt::format("{}", fmt::join(*log_with, ":")));
  add("training.project_dir", project_dir);
  add("training.logging_dir", logging_dir);
  add("communication.gradients", gradients);
  add("communication.int8_block", int8_block);
  add("communication.powersgd_rank", powersgd_rank);
  add("communication.powersgd_start_step", powersgd_start_step);
  add("communication.powersgd_warm_start", powersgd_warm_start);
  add("communication.local_sgd_steps", local_sgd_steps);
  add("communication.local_sgd_momentum", local_sgd_momentum);
  result.insert(result.end(), values.begin(), values.end());
  return result;
}

}  // namespace coupler
