// The fsdp backend's table. Its decisions are in settings.h (options), unit_choice.h (units) and
// plan.cc; all communication is passed on to the base.
#include "common/sharding_communicator.h"
#include "fsdp/plan.h"
#include "fsdp/settings.h"

namespace db::fsdp {
namespace {

constexpr auto kOptionPointers = pointers_to(kOptions);
constexpr ShardingBackend kShardingBackend = {"fsdp", kOptionPointers.data(),
                                              kOptionPointers.size(), check, plan};
constexpr DistributedBackend kBackend = sharding_table<kShardingBackend>(
    "0.1.0",
    "Shards each parameter, its gradient and its optimizer state on dimension 0, over any "
    "transport");

}  // namespace
}  // namespace db::fsdp

extern "C" DB_EXPORT const DistributedBackend* coupler_distributed_backend_v1(void) {
  return &db::fsdp::kBackend;
}
