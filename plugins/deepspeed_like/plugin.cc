// The deepspeed_like backend's table. Its decisions are in settings.h (options) and plan.cc; all
// communication is passed on to the base.
#include "common/sharding_communicator.h"
#include "deepspeed_like/plan.h"
#include "deepspeed_like/settings.h"

namespace db::deepspeed_like {
namespace {

constexpr auto kOptionPointers = pointers_to(kOptions);
constexpr ShardingBackend kShardingBackend = {"deepspeed_like", kOptionPointers.data(),
                                              kOptionPointers.size(), check, plan};
constexpr DistributedBackend kBackend = sharding_table<kShardingBackend>(
    "0.1.0", "ZeRO stages on flat buffers, with DeepSpeed's options, over any transport");

}  // namespace
}  // namespace db::deepspeed_like

extern "C" DB_EXPORT const DistributedBackend* coupler_distributed_backend_v1(void) {
  return &db::deepspeed_like::kBackend;
}
