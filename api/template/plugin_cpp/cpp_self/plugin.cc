// cpp_self: a backend for a world of one process, in C++. It supports every
// operation and type by copying, scaling, or sending a message to itself. This
// file contains what every backend has: the table.
#include <coupler/distributed_backend.h>

#include <iterator>
#include <string>
#include <string_view>

#include "cpp_self/communicator.h"
#include "cpp_self/status.h"

namespace plugin {
namespace {

// Loading a plugin must not run code: constexpr objects need no constructor.
constexpr db_option kAlwaysRequest = {
    .struct_size = sizeof(db_option),
    .key = "always_request",
    .type = DB_OPTION_BOOL,
    .boolean = 1,
    .i64 = 0,
    .f64 = 0,
    .string = nullptr,
    .description =
        "Return a request for every operation that does not block, as a "
        "network would.",
};
constexpr const db_option *kOptions[] = {&kAlwaysRequest};

db_status probe(const db_host *, int32_t *score, char *reason,
                uint64_t capacity) {
  *score = 1;
  copy_text(reason, capacity, "always usable, for one process");
  return DB_OK;
}

const db_option *const *default_options(uint64_t *count) {
  *count = std::size(kOptions);
  return kOptions;
}

Status read_options(const db_communicator_params &params, Settings &settings) {
  settings.timeout_ns = params.default_timeout_ns;
  settings.always_request = kAlwaysRequest.boolean != 0;
  for (uint64_t i = 0; i < params.option_count; ++i) {
    const db_option &option = *params.options[i];
    if (std::string_view(option.key) != kAlwaysRequest.key)
      return {DB_ERR_UNKNOWN_OPTION, std::string("unknown option '") +
                                         option.key +
                                         "'; cpp_self knows: always_request"};
    if (option.type != DB_OPTION_BOOL)
      return {DB_ERR_INVALID_ARGUMENT,
              "option 'always_request' must be true or false"};
    settings.always_request = option.boolean != 0;
  }
  if (params.size != 1)
    return {DB_ERR_INVALID_ARGUMENT, "cpp_self supports one process, not " +
                                         std::to_string(params.size)};
  return {};
}

db_status create(const db_communicator_params *params, db_communicator **result,
                 db_error *error) {
  *result = nullptr;
  return guarded(error, [&] {
    Settings settings;
    Status status = read_options(*params, settings);
    if (status.code == DB_OK) *result = make_communicator(settings);
    return status;
  });
}

constexpr DistributedBackend make_table() {
  DistributedBackend table{};
  table.struct_size = sizeof(DistributedBackend);
  table.abi_major = DB_ABI_MAJOR;
  table.abi_minor = DB_ABI_MINOR;
  table.name = "cpp_self";
  table.version = "0.1.0";
  table.description = "A world of one process, in C++.";
  table.capabilities = DB_CAP_ABORT | DB_CAP_SPLIT | DB_CAP_HOST_MEMORY;
  table.probe = probe;
  table.default_options = default_options;
  table.create = create;
  return table;
}
constexpr DistributedBackend kTable = make_table();

}  // namespace
}  // namespace plugin

extern "C" DB_EXPORT const DistributedBackend *
coupler_distributed_backend_v1() {
  return &plugin::kTable;
}
