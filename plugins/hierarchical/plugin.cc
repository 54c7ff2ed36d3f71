// The hierarchical backend's table: its name, options, bases, probe and create.
#include <coupler/bases.h>
#include <coupler/distributed_backend.h>

#include <cstdint>
#include <string_view>

#include "common/error.h"
#include "common/options.h"
#include "hierarchical/communicator.h"

namespace db::hierarchical {
namespace {

constexpr db_option kOptions[] = {
    i64_option("chunk_bytes", 4 << 20,
               "Large data moves in chunks of this size, so that transfers within a machine and "
               "across machines overlap: 4096 to 1073741824."),
    i64_option("small_bytes", 32768,
               "Up to this size, one rank of each machine, its leader, sends and receives for all "
               "of them; larger data is divided among several: 0 to 1073741824."),
};

constexpr db_wanted_base kBases[] = {
    {sizeof(db_wanted_base), "local", "shm",
     "The transport between the processes of one machine: a plugin's name, a path to a plugin's "
     "file, or auto.",
     DB_BASE_MACHINE, 0},
    {sizeof(db_wanted_base), "across", nullptr,
     "The transport between machines: a plugin's name, a path to a plugin's file, or auto, as for "
     "backend.use.",
     DB_BASE_WORLD, 0},
};
constexpr db_wanted_bases kWantedBases = {sizeof(db_wanted_bases), kPointersTo<kBases>.data(),
                                          kPointersTo<kBases>.size()};

// Above a transport over sockets for all ranks, and below an MPI library that started them, which
// knows its machines by itself.
constexpr int32_t kScore = 55;

db_status probe(const db_host*, int32_t* score, char* reason, uint64_t reason_capacity) {
  *score = kScore;
  copy_text(reason, reason_capacity,
            "composes two transports: one within a machine, one across machines");
  return DB_OK;
}

Failure read_settings(const Options& options, Settings* settings) {
  int64_t chunk = 0, small = 0;
  Failure failure = read_number(options, "chunk_bytes", 4096, 1 << 30, &chunk);
  if (failure.ok()) failure = read_number(options, "small_bytes", 0, 1 << 30, &small);
  settings->chunk_bytes = static_cast<uint64_t>(chunk);
  settings->small_bytes = static_cast<uint64_t>(small);
  return failure;
}

db_status create(const db_communicator_params* params, db_communicator** result, db_error* error) {
  return guarded("hierarchical: ", error, [&] {
    Options options;
    Settings settings;
    Failure failure = read_params(kPointersTo<kOptions>.data(), kPointersTo<kOptions>.size(),
                                  params, result, &options);
    if (failure.ok()) failure = read_settings(options, &settings);
    if (!failure.ok()) return failure;
    failure = create_communicator(*params, settings, result);
    if (!failure.ok()) failure.message = "hierarchical: " + failure.message;
    return failure;
  });
}

const void* get_extension(const char* id) {
  return id != nullptr && std::string_view(id) == DB_BASES ? &kWantedBases : nullptr;
}

constexpr DistributedBackend kBackend = {
    sizeof(DistributedBackend),
    DB_ABI_MAJOR,
    DB_ABI_MINOR,
    "hierarchical",
    "0.1.0",
    "Host memory over two transports: one within each machine, one across machines",
    DB_CAP_NEEDS_BASE | DB_CAP_ABORT | DB_CAP_SPLIT | DB_CAP_HOST_MEMORY,
    probe,
    default_options<kOptions>,
    create,
    get_extension,
};

}  // namespace
}  // namespace db::hierarchical

extern "C" DB_EXPORT const DistributedBackend* coupler_distributed_backend_v1(void) {
  return &db::hierarchical::kBackend;
}
