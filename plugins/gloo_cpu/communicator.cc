// The communicator of this backend: the ABI's functions on top of a queue and its executor.
// Thread rule: as tagged in distributed_backend.h.
#include <dlfcn.h>
#include <gloo/allreduce.h>
#include <gloo/config.h>

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "common/cores.h"
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
  CollectiveLimits limits;
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

db_status supports(const db_communicator*, const db_op* op, int32_t* score) {
  *score = host_supports(*op);
  return DB_OK;
}

db_status submit(db_communicator* communicator, const db_op* raw, db_request** request,
                 db_error* error) {
  *request = nullptr;
  return guarded("gloo_cpu: ", error, [&] {
    Communicator& self = *of(communicator);
    Op op;
    const Failure invalid = validate(raw, self.rank, self.size, self.setup.default_timeout_ns, &op);
    if (!invalid.ok()) return report(invalid, error);
    return self.queue.submit(op, request, error);
  });
}

db_status async_error(const db_communicator* communicator, db_error* error) {
  return guarded("gloo_cpu: ", error, [&] { return of(communicator)->queue.async_error(error); });
}

db_status abort(db_communicator* communicator) {
  return guarded("gloo_cpu: ", nullptr, [&]() -> Failure {
    // The queue first, so that whatever the executor then gives up counts as aborted.
    of(communicator)->queue.abort();
    of(communicator)->executor.abort();
    return {};
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

Communicator::Communicator(const Setup& chosen, BootstrapStore shared,
                           std::unique_ptr<FullMesh> mesh, bool is_root)
    : db_communicator{sizeof(db_communicator), &kFunctions, chosen.rank, chosen.size},
      setup(chosen),
      store(std::move(shared)),
      owns_store(is_root),
      executor(chosen.rank, chosen.size, std::move(mesh), store, chosen.limits),
      queue(&executor, chosen.size) {}

// *how: how the ranks are connected, for the log; NULL: not requested.
Failure open(const Setup& setup, const BootstrapStore& store, bool is_root,
             db_communicator** result, std::string* how = nullptr) {
  std::unique_ptr<FullMesh> mesh;
  if (setup.size > 1) {
    Failure failure;
    mesh = FullMesh::connect({setup.rank, setup.size, setup.interface_name, setup.protect,
                              deadline_after(setup.default_timeout_ns)},
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
  return guarded("gloo_cpu: ", error, [&] {
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

Failure choose(const db_communicator_params& params, const Options& options, Setup* setup) {
  enum Algorithm : size_t { kAuto, kExchange, kScatter, kGloo };
  int64_t exchange = 0, pair_exchange = 0, halving = 0, chunk = 0, busy_poll_us = 0;
  size_t algorithm = kAuto, protect = 0;
  for (const Failure& failure :
       {read_number(options, "exchange_bytes", 0, 1 << 30, &exchange),
        read_number(options, "pair_exchange_bytes", 0, 1 << 30, &pair_exchange),
        read_number(options, "halving_ranks", 2, 1 << 30, &halving),
        read_number(options, "chunk_bytes", 4096, 64 << 20, &chunk),
        read_number(options, "busy_poll_us", 0, 1000, &busy_poll_us),
        read_word(options, "algorithm", {"auto", "exchange", "scatter", "gloo"}, &algorithm),
        read_word(options, "protect", {"none", "mac", "tls"}, &protect)})
    if (!failure.ok()) return failure;
  if (chunk % 64 != 0)
    return Failure::invalid("option 'chunk_bytes' is " + std::to_string(chunk) +
                            "; it must be a multiple of 64");
  if (algorithm == kExchange) exchange = pair_exchange = INT64_MAX;
  if (algorithm == kScatter) exchange = pair_exchange = 0;
  setup->rank = params.rank;
  setup->size = params.size;
  setup->default_timeout_ns = params.default_timeout_ns;
  if (params.interface_name != nullptr) setup->interface_name = params.interface_name;
  setup->protect = static_cast<Protect>(protect);
  setup->limits.exchange_bytes = static_cast<uint64_t>(exchange);
  setup->limits.pair_exchange_bytes = static_cast<uint64_t>(pair_exchange);
  setup->limits.halving_ranks = static_cast<int32_t>(halving);
  setup->limits.chunk_bytes = static_cast<uint64_t>(chunk);
  setup->limits.by_libgloo = algorithm == kGloo;
  setup->limits.spin_ns = may_spin(params.local_size) ? busy_poll_us * 1000 : 0;
  return {};
}

// DistributedBackend.create. Never throws.
db_status create_communicator(const db_communicator_params* params, db_communicator** result,
                              db_error* error) {
  return guarded("gloo_cpu: ", error, [&] {
    Options options;
    Setup setup;
    Failure failure = read_params(kPointersTo<kOptions>.data(), kPointersTo<kOptions>.size(),
                                  params, result, &options);
    if (failure.ok()) failure = choose(*params, options, &setup);
    const int64_t begin = now_ns();
    std::string how;
    if (failure.ok()) failure = open(setup, BootstrapStore(params->store), true, result, &how);
    if (failure.ok() && params->host != nullptr && params->host->log != nullptr) {
      const std::string text = "connected " + std::to_string(setup.size) + " ranks in " +
                               std::to_string((now_ns() - begin) / 1000) + " us" +
                               (how.empty() ? "" : " (" + how + ")");
      params->host->log(params->host->context, DB_LOG_DEBUG, "gloo_cpu", text.c_str());
    }
    return failure;
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
