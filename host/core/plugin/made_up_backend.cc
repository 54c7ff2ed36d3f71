#include <new>

#include "plugin/plugin.h"

namespace coupler::plugin {
namespace {

db_status probe_made_up(const db_host*, int32_t* score, char*, uint64_t) {
  *score = 0;
  return DB_OK;
}

const db_option* const* no_options(uint64_t* count) {
  *count = 0;
  return nullptr;
}

db_status create_made_up(const db_communicator_params* params, db_communicator** result,
                         db_error*) {
  *result = new (std::nothrow)
      db_communicator{sizeof(db_communicator), &made_up_functions(), params->rank, params->size};
  return *result == nullptr ? DB_ERR_NO_MEMORY : DB_OK;
}

}  // namespace

const db_communicator_functions& made_up_functions() {
  static constexpr db_communicator_functions kFunctions = {
      .struct_size = sizeof(db_communicator_functions),
      .supports = [](const db_communicator*, const db_op*, int32_t* score) -> db_status {
        *score = 1;
        return DB_OK;
      },
      .submit = [](db_communicator*, const db_op*, db_request** request, db_error*) -> db_status {
        *request = nullptr;
        return DB_OK;
      },
      .test = [](db_request*, db_error*) -> db_status { return DB_OK; },
      .wait_host = [](db_request*, int64_t, db_error*) -> db_status { return DB_OK; },
      .wait_stream = nullptr,
      .release = [](db_request*) {},
      .split = nullptr,
      .async_error = [](const db_communicator*, db_error*) -> db_status { return DB_OK; },
      .abort = [](db_communicator*) -> db_status { return DB_OK; },
      .destroy = [](db_communicator* communicator) { delete communicator; },
      .get_extension = nullptr,
  };
  return kFunctions;
}

const DistributedBackend& made_up_backend() {
  static constexpr DistributedBackend kTable = {
      sizeof(DistributedBackend),
      DB_ABI_MAJOR,
      DB_ABI_MINOR,
      "made_up",
      "0.1.0",
      "Ranks that do not exist; part of Coupler itself.",
      DB_CAP_ABORT | DB_CAP_HOST_MEMORY,
      probe_made_up,
      no_options,
      create_made_up,
      nullptr,
  };
  return kTable;
}

}  // namespace coupler::plugin
