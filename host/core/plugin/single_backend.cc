#include <cpp_self/communicator.h>
#include <cpp_self/status.h>
#include <fmt/format.h>

#include "plugin/plugin.h"

namespace coupler::plugin {
namespace {

using ::plugin::Status;

db_status probe_single(const db_host*, int32_t* score, char* reason, uint64_t capacity) {
  *score = 1;
  ::plugin::copy_text(reason, capacity, "built in; one process");
  return DB_OK;
}

const db_option* const* default_options(uint64_t* count) {
  *count = 0;
  return nullptr;
}

db_status create(const db_communicator_params* params, db_communicator** result, db_error* error) {
  *result = nullptr;
  return ::plugin::guarded(error, [&]() -> Status {
    if (params->option_count > 0) {
      return {DB_ERR_UNKNOWN_OPTION,
              fmt::format("unknown option \"{}\": single has no options", params->options[0]->key)};
    }
    if (params->size != 1 || params->rank != 0) {
      return {DB_ERR_INVALID_ARGUMENT,
              fmt::format("single is for one process, not for rank {} of {}", params->rank,
                          params->size)};
    }
    *result = ::plugin::make_communicator(
        {.timeout_ns = params->default_timeout_ns, .always_request = false});
    return {};
  });
}

}  // namespace

const DistributedBackend& single_backend() {
  static constexpr DistributedBackend table = {
      sizeof(DistributedBackend),
      DB_ABI_MAJOR,
      DB_ABI_MINOR,
      "single",
      "0.1.0",
      "One process, no communication; part of Coupler itself.",
      DB_CAP_ABORT | DB_CAP_SPLIT | DB_CAP_HOST_MEMORY,
      probe_single,
      default_options,
      create,
      nullptr,
  };
  return table;
}

}  // namespace coupler::plugin
