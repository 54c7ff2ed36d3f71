// The shm backend's table: its name, options, probe and create.
#include <coupler/distributed_backend.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <string>

#include "common/error.h"
#include "common/local_socket.h"
#include "common/options.h"
#include "shm/communicator.h"
#include "shm/tuning.h"
#include "shm/version.h"

namespace db::shm {
namespace {

// Above transports over sockets, and above an MPI library that is merely installed, as shared
// memory is faster (docs/backends.md); below one that started the processes.
constexpr int32_t kScore = 55;

constexpr db_option kOptions[] = {
    i64_option("busy_poll_us", 100,
               "Microseconds for which a waiting rank spins before it sleeps, or yields its core "
               "if the machine has more ranks than cores; 0: sleep at once. At most 1000."),
    i64_option(
        "chunk_bytes", 0,
        "Large data moves through shared memory in chunks of this size, two at a time, which "
        "should fit into a core's cache: 4096 to 67108864, a multiple of 4096; 0: by the "
        "number of ranks (`coupler plugins -v` shows the table)."),
    bool_option("peer_memory", true,
                "Whether gradients, and what sharding sends, are kept in memory that all ranks of "
                "the machine reach, so that they need not be copied to be sent."),
};

db_status probe(const db_host*, int32_t* score, char* reason, uint64_t reason_capacity) {
  try {
    const Descriptor file(memfd_create("coupler-shm", MFD_CLOEXEC | MFD_ALLOW_SEALING));
    *score = file ? kScore : 0;
    const std::string text =
        file ? "for the ranks of one machine\n" + describe_tuning()
             : std::string("memory cannot be shared: memfd_create: ") + std::strerror(errno) +
                   "; Linux 3.17 or newer is needed, and a seccomp profile that allows it";
    copy_text(reason, reason_capacity, text.c_str());
  } catch (...) {
    *score = 0;
    copy_text(reason, reason_capacity, "out of memory");
  }
  return DB_OK;
}

Failure read_settings(const Options& options, Settings* settings) {
  int64_t chunk = 0;
  for (const Failure& failure :
       {read_number(options, "busy_poll_us", 0, 1000, &settings->busy_poll_us),
        read_number(options, "chunk_bytes", 0, 64 << 20, &chunk)})
    if (!failure.ok()) return failure;
  if (chunk % 4096 != 0)
    return Failure::invalid("option 'chunk_bytes' is " + std::to_string(chunk) +
                            "; it must be 0 or a multiple of 4096");
  settings->chunk_bytes = static_cast<uint64_t>(chunk);
  settings->peer_memory = options.boolean("peer_memory");
  return {};
}

db_status create(const db_communicator_params* params, db_communicator** result, db_error* error) {
  return guarded("shm: ", error, [&] {
    Options options;
    Settings settings;
    Failure failure = read_params(kPointersTo<kOptions>.data(), kPointersTo<kOptions>.size(),
                                  params, result, &options);
    if (failure.ok()) failure = read_settings(options, &settings);
    if (!failure.ok()) return failure;
    failure = create_communicator(*params, settings, result);
    if (!failure.ok()) failure.message = "shm: " + failure.message;
    return failure;
  });
}

constexpr DistributedBackend kBackend = {
    sizeof(DistributedBackend),
    DB_ABI_MAJOR,
    DB_ABI_MINOR,
    "shm",
    kVersion,
    "Host memory of one machine's ranks: they read each other's data in shared memory",
    DB_CAP_ABORT | DB_CAP_SPLIT | DB_CAP_HOST_MEMORY | DB_CAP_ONE_MACHINE,
    probe,
    default_options<kOptions>,
    create,
    nullptr,  // get_extension
};

}  // namespace
}  // namespace db::shm

extern "C" DB_EXPORT const DistributedBackend* coupler_distributed_backend_v1(void) {
  return &db::shm::kBackend;
}
