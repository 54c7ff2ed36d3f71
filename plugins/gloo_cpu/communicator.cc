// The communicator of this backend: the ABI's functions on top of a queue and its executor.
// Thread rule: as tagged in distributed_backend.h.
#include <dlfcn.h>
#include <gloo/allreduce.h>
#include <gloo/config.h>
#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <exception>
#include <limits>
#include <memory>
#include <new>
#include <string>
#include <utility>
#include <vector>

#include "common/error.h"
#include "common/op.h"
#include "common/serial_queue.h"
#include "gloo_cpu/implementation.h"
#include "gloo_cpu/operation_executor.h"

namespace db::gloo_cpu {
namespace {

// The settings from create, kept for split.
struct Setup {
  int32_t rank = 0;
  int32_t size = 1;
  int64_t default_timeout_ns = 0;
  std::string interface_name;
  Protect protect = Protect::kNone;
  ExecutorLimits limits;
};

struct Communicator : db_communicator {
  Communicator(const Setup& chosen, BootstrapStore shared, std::unique_ptr<FullMesh> mesh,
               bool is_root);

  const Setup setup;
  const BootstrapStore store;
  const bool owns_store;  // made by create: the host's store must not be used after its destruction
  uint64_t splits = 0;
  OperationExecutor executor;
  SerialQueue queue;
};

Communicator* of(db_communicator* communicator) { return static_cast<Communicator*>(communicator); }
const Communicator* of(const db_communicator* communicator) {
  return static_cast<const Communicator*>(communicator);
}

// Runs body, which returns a db_status, and turns exceptions into errors.
template <class Body>
db_status guarded(db_error* error, const Body& body) {
  try {
    return body();
  } catch (const std::bad_alloc&) {
    return report(DB_ERR_NO_MEMORY, "gloo_cpu: out of memory", error);
  } catch (const std::exception& exception) {
    return report(DB_ERR_INTERNAL, std::string("gloo_cpu: ") + exception.what(), error);
  } catch (...) {
    return report(DB_ERR_INTERNAL, "gloo_cpu: an unknown exception", error);
  }
}

db_status supports(const db_communicator*, const db_op* op, int32_t* score) {
  *score = host_supports(*op);
  return DB_OK;
}

db_status submit(db_communicator* communicator, const db_op* raw, db_request** request,
                 db_error* error) {
  *request = nullptr;
  return guarded(error, [&] {
    Communicator& self = *of(communicator);
    Op op;
    const Failure invalid = validate(raw, self.rank, self.size, self.setup.default_timeout_ns, &op);
    if (!invalid.ok()) return report(invalid, error);
    return self.queue.submit(op, request, error);
  });
}

db_status async_error(const db_communicator* communicator, db_error* error) {
  return guarded(error, [&] { return of(communicator)->queue.async_error(error); });
}

db_status abort(db_communicator* communicator) {
  return guarded(nullptr, [&] {
    // The queue first, so that whatever the executor then gives up counts as aborted.
    of(communicator)->queue.abort();
    of(communicator)->executor.abort();
    return db_status{DB_OK};
  });
}

void destroy(db_communicator* communicator) {
  Communicator* const self = of(communicator);
  self->executor.abort();
  self->queue.shutdown();
  if (self->owns_store) self->store.close();
  delete self;
}

db_status split(db_communicator* communicator, int32_t color, int32_t key, db_communicator** result,
                db_error* error);

constexpr db_communicator_functions kFunctions = {
    sizeof(db_communicator_functions),
    supports,
    submit,
    SerialQueue::test,
    SerialQueue::wait,
    nullptr,  // wait_stream: host memory only
    SerialQueue::release,
    split,
    async_error,
    abort,
    destroy,
    nullptr,  // get_extension
};

std::unique_ptr<FailureReporter> make_reporter(const Setup& setup, const BootstrapStore& store) {
  if (setup.size == 1) return nullptr;
  return std::make_unique<FailureReporter>(store, setup.rank, setup.size);
}

Communicator::Communicator(const Setup& chosen, BootstrapStore shared,
                           std::unique_ptr<FullMesh> mesh, bool is_root)
    : db_communicator{sizeof(db_communicator), &kFunctions, chosen.rank, chosen.size},
      setup(chosen),
      store(std::move(shared)),
      owns_store(is_root),
      executor(chosen.rank, chosen.size, std::move(mesh), make_reporter(chosen, store),
               chosen.limits),
      queue(&executor, chosen.size) {}

// *how: how the ranks are connected, for the log; NULL: not requested.
Failure open(const Setup& setup, const BootstrapStore& store, bool is_root,
             db_communicator** result, std::string* how = nullptr) {
  std::unique_ptr<FullMesh> mesh;
  if (setup.size > 1) {
    Failure failure;
    mesh = FullMesh::connect({setup.rank, setup.size, setup.interface_name, setup.protect,
                              now_ns() + setup.default_timeout_ns},
                             store, &failure);
    if (mesh == nullptr) return failure;
    if (how != nullptr) *how = mesh->describe();
  }
  *result = new Communicator(setup, store, std::move(mesh), is_root);
  return {};
}

struct Choice {
  int32_t color = 0;
  int32_t key = 0;
};

db_status split(db_communicator* communicator, int32_t color, int32_t key, db_communicator** result,
                db_error* error) {
  *result = nullptr;
  return guarded(error, [&] {
    Communicator& self = *of(communicator);
    const Choice own{color, key};
    std::vector<Choice> all(static_cast<size_t>(self.size));
    db_op gather{};
    gather.struct_size = sizeof gather;
    gather.kind = DB_ALL_GATHER;
    gather.dtype = DB_I32;
    gather.send = &own;
    gather.recv = all.data();
    gather.count = 2;
    gather.memory = DB_MEMORY_HOST;
    gather.flags = DB_OP_BLOCKING;
    db_request* request = nullptr;
    if (const db_status status = submit(communicator, &gather, &request, error); status < 0) {
      return status;
    }
    const uint64_t number = ++self.splits;
    if (color < 0) return db_status{DB_OK};
    std::vector<int32_t> members;
    for (int32_t rank = 0; rank < self.size; ++rank)
      if (all[static_cast<size_t>(rank)].color == color) members.push_back(rank);
    std::stable_sort(members.begin(), members.end(), [&](int32_t a, int32_t b) {
      return all[static_cast<size_t>(a)].key < all[static_cast<size_t>(b)].key;
    });
    Setup setup = self.setup;
    setup.size = static_cast<int32_t>(members.size());
    setup.rank = static_cast<int32_t>(std::find(members.begin(), members.end(), self.rank) -
                                      members.begin());
    const BootstrapStore store =
        self.store.with_prefix("split" + std::to_string(number) + "." + std::to_string(color));
    Failure failure = open(setup, store, false, result);
    if (!failure.ok() && failure.failed_rank >= 0) {
      failure.failed_rank = members[static_cast<size_t>(failure.failed_rank)];
    }
    return failure.ok() ? db_status{DB_OK} : report(failure, error);
  });
}

// Whether waiting ranks may poll their sockets for a while without taking a core from another rank.
bool may_spin(int32_t local_size) {
  const long online = sysconf(_SC_NPROCESSORS_ONLN);
  cpu_set_t allowed;
  CPU_ZERO(&allowed);
  const int mine = sched_getaffinity(0, sizeof allowed, &allowed) == 0 ? CPU_COUNT(&allowed) : 1;
  // A rank bound to one core has it to itself if the machine has enough cores.
  return mine >= local_size || (mine == 1 && online >= local_size);
}

Failure invalid(const std::string& what) {
  return Failure::make(DB_ERR_INVALID_ARGUMENT, "gloo_cpu: " + what);
}

Failure between(const Options& options, const char* key, int64_t low, int64_t high) {
  const int64_t value = options.i64(key);
  if (value >= low && value <= high) return {};
  return invalid(std::string("option ") + key + " is " + std::to_string(value) +
                 "; valid: " + std::to_string(low) + " to " + std::to_string(high));
}

Failure choose(const db_communicator_params& params, Setup* setup) {
  Options options;
  if (Failure failure = Options::parse(kOptionPointers.data(), kOptionPointers.size(),
                                       params.options, params.option_count, &options);
      !failure.ok()) {
    return failure;
  }
  if (params.size < 1 || params.rank < 0 || params.rank >= params.size) {
    return invalid("rank " + std::to_string(params.rank) + " of " + std::to_string(params.size) +
                   " ranks is out of range: ranks go from 0 to size - 1");
  }
  if (params.size > 1 && params.store == nullptr) return invalid("store is NULL");
  if (params.default_timeout_ns <= 0) return invalid("default_timeout_ns must be positive");
  for (const Failure& failure : {between(options, "exchange_bytes", 0, 1 << 30),
                                 between(options, "pair_exchange_bytes", 0, 1 << 30),
                                 between(options, "chunk_bytes", 4096, 64 << 20),
                                 between(options, "busy_poll_us", 0, 1000)}) {
    if (!failure.ok()) return failure;
  }
  const int64_t chunk = options.i64("chunk_bytes");
  if (chunk % 64 != 0) {
    return invalid("option chunk_bytes is " + std::to_string(chunk) +
                   "; it must be a multiple of 64");
  }
  const std::string& algorithm = options.string("algorithm");
  auto exchange = static_cast<uint64_t>(options.i64("exchange_bytes"));
  auto pair_exchange = static_cast<uint64_t>(options.i64("pair_exchange_bytes"));
  if (algorithm == "exchange") {
    exchange = pair_exchange = std::numeric_limits<uint64_t>::max();
  } else if (algorithm == "scatter") {
    exchange = pair_exchange = 0;
  } else if (algorithm != "auto" && algorithm != "gloo") {
    return invalid("option algorithm is '" + algorithm + "'; valid: auto, exchange, scatter, gloo");
  }
  const std::string& protect = options.string("protect");
  if (protect == "mac") {
    setup->protect = Protect::kMac;
  } else if (protect == "tls") {
    setup->protect = Protect::kTls;
  } else if (protect != "none") {
    return invalid("option protect is '" + protect + "'; valid: none, mac, tls");
  }
  setup->rank = params.rank;
  setup->size = params.size;
  setup->default_timeout_ns = params.default_timeout_ns;
  if (params.interface_name != nullptr) setup->interface_name = params.interface_name;
  setup->limits.chunk_bytes = static_cast<uint64_t>(chunk);
  setup->limits.collectives.exchange_bytes = exchange;
  setup->limits.collectives.pair_exchange_bytes = pair_exchange;
  setup->limits.collectives.slice_bytes = 4 * static_cast<uint64_t>(chunk);
  setup->limits.collectives.by_libgloo = algorithm == "gloo";
  setup->limits.collectives.spin_ns =
      may_spin(params.local_size) ? options.i64("busy_poll_us") * 1000 : 0;
  return {};
}

// DistributedBackend.create. Never throws.
db_status create_communicator(const db_communicator_params* params, db_communicator** result,
                              db_error* error) {
  if (result != nullptr) *result = nullptr;
  if (params == nullptr || result == nullptr ||
      !DB_HAS(params, db_communicator_params, interface_name)) {
    return report(DB_ERR_INVALID_ARGUMENT,
                  "gloo_cpu: create: params or result is NULL, or params.struct_size is too small",
                  error);
  }
  return guarded(error, [&] {
    Setup setup;
    Failure failure = choose(*params, &setup);
    const int64_t begin = now_ns();
    std::string how;
    if (failure.ok()) failure = open(setup, BootstrapStore(params->store), true, result, &how);
    if (!failure.ok()) return report(failure, error);
    if (params->host != nullptr && params->host->log != nullptr) {
      const std::string text = "connected " + std::to_string(setup.size) + " ranks in " +
                               std::to_string((now_ns() - begin) / 1000) + " us" +
                               (how.empty() ? "" : " (" + how + ")");
      params->host->log(params->host->context, DB_LOG_DEBUG, "gloo_cpu", text.c_str());
    }
    return db_status{DB_OK};
  });
}

void describe(char* text, uint64_t capacity) {
  Dl_info where{};
  const auto address = reinterpret_cast<const void*>(&gloo::allreduce);
  const char* const path =
      dladdr(address, &where) != 0 && where.dli_fname != nullptr ? where.dli_fname : "?";
  const std::string found = "libgloo " + std::to_string(GLOO_VERSION_MAJOR) + "." +
                            std::to_string(GLOO_VERSION_MINOR) + "." +
                            std::to_string(GLOO_VERSION_PATCH) + " (" + path + ")";
  copy_text(text, capacity, found.c_str());
}

constexpr Implementation kImplementation = {create_communicator, describe};

}  // namespace

}  // namespace db::gloo_cpu

extern "C" DB_EXPORT const db::gloo_cpu::Implementation* coupler_gloo_cpu_implementation() {
  return &db::gloo_cpu::kImplementation;
}
