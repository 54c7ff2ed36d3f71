// A test double: a transport like gloo_cpu, whose library it loads, but without reduce_scatter.
#include <coupler/forward.h>
#include <dlfcn.h>

namespace {

// Takes ownership of the communicator below: for the host this is a transport.
db_communicator* wrap(db_communicator* below);

void destroy(db_communicator* communicator) {
  const db_forward* const mine = db_forward_of(communicator);
  mine->base->functions->destroy(mine->base);
  delete mine;
}

db_status supports(const db_communicator* communicator, const db_op* op, int32_t* score) {
  *score = 0;
  if (op->kind == DB_REDUCE_SCATTER || op->kind == DB_REDUCE_SCATTER_V) return DB_OK;
  return db_forward_supports(communicator, op, score);
}

db_status split(db_communicator* communicator, int32_t color, int32_t key, db_communicator** result,
                db_error* error) {
  db_communicator* part = nullptr;
  *result = nullptr;
  const db_status status = db_forward_split_base(communicator, color, key, &part, error);
  if (status == DB_OK && part != nullptr) *result = wrap(part);
  return status;
}

db_communicator* wrap(db_communicator* below) {
  auto* const made = new db_forward();
  db_forward_init(made, below, destroy);
  made->functions.supports = supports;
  made->functions.split = split;
  return &made->communicator;
}

const DistributedBackend* below = nullptr;

db_status create(const db_communicator_params* params, db_communicator** result, db_error* error) {
  db_communicator* made = nullptr;
  const db_status status = below->create(params, &made, error);
  *result = status == DB_OK ? wrap(made) : nullptr;
  return status;
}

}  // namespace

extern "C" DB_EXPORT const DistributedBackend* coupler_distributed_backend_v1(void) {
  static DistributedBackend backend;
  void* const library = dlopen(GLOO_CPU_PLUGIN, RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) return nullptr;
  using Entry = const DistributedBackend* (*)();
  below = reinterpret_cast<Entry>(dlsym(library, "coupler_distributed_backend_v1"))();
  backend = *below;
  backend.name = "no_scatter";
  backend.create = create;
  return &backend;
}
