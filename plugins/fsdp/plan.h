// How this backend plans a model. [any-thread]
#pragma once

#include "common/sharding_communicator.h"

namespace db::fsdp {

Failure check(const Options& options, const Place& place);
Failure plan(const Options& options, const Place& place, const Model& model, const db_plan** plan);

}  // namespace db::fsdp
