/*
 * Loads the example sharding plugin as a host would, without a host. Given the path of
 * libcoupler_c_round_robin.so, makes plans for a small model on three ranks over a test double as
 * the base.
 */
#include <coupler/sharding.h>
#include <string.h>

#include "backends.h"
#include "expect.h"

#define RANKS 3

static const db_module root = {sizeof(db_module), "", "Net", -1};
static const db_module first = {sizeof(db_module), "fc1", "Linear", 0};
static const db_module second = {sizeof(db_module), "fc2", "Linear", 0};
static const db_module* const modules[] = {&root, &first, &second};

static const uint64_t sizes[] = {4, 5};
static const db_parameter weight1 = {sizeof(weight1), "fc1.weight", 1, sizes, 2, DB_F32, 1, 0};
static const db_parameter bias1 = {sizeof(bias1), "fc1.bias", 1, sizes, 1, DB_F32, 1, 0};
static const db_parameter weight2 = {sizeof(weight2), "fc2.weight", 2, sizes, 2, DB_F32, 1, 0};
static const db_parameter scale2 = {sizeof(scale2), "fc2.scale", 2, NULL, 0, DB_F64, 1, 0};
static const db_parameter* const parameters[] = {&weight1, &bias1, &weight2, &scale2};

static const db_model model = {sizeof(model), modules, 3, parameters, 4};

/* A base that is never called, and a base whose split returns the base itself. */
static int parts_destroyed;
static db_status split_into_itself(db_communicator* base, int32_t color, int32_t key,
                                   db_communicator** result, db_error* error) {
  (void)key;
  (void)error;
  *result = color < 0 ? NULL : base;
  return DB_OK;
}
static void count_destroyed(db_communicator* base) {
  (void)base;
  ++parts_destroyed;
}
static const db_communicator_functions functions = {
    .struct_size = sizeof(functions), .split = split_into_itself, .destroy = count_destroyed};
static db_communicator base_of(int32_t rank) {
  const db_communicator base = {sizeof(base), &functions, rank, RANKS};
  return base;
}

static void expect_bounds(const db_plan* plan, uint64_t unit, uint64_t index, uint64_t parameter,
                          uint64_t owner, uint64_t elements) {
  const db_unit_parameter* found = plan->units[unit]->parameters[index];
  uint64_t r;
  EXPECT(found->struct_size == sizeof(*found) && found->parameter == parameter);
  for (r = 0; r <= RANKS; ++r) EXPECT(found->bounds[r] == (r <= owner ? 0 : elements));
}

static void expect_plan(const db_plan* plan, db_keep keep) {
  static const char* const names[] = {"fc1", "fc2", "fc2"};
  static const uint64_t counts[] = {2, 1, 1};
  uint64_t i;
  EXPECT(plan->struct_size == sizeof(*plan) && plan->unit_count == 3 && plan->group == 0);
  EXPECT(plan->prefetch == 1 && plan->overlap == -1);
  for (i = 0; i < 3; ++i) {
    const db_unit* unit = plan->units[i];
    EXPECT(unit->struct_size == sizeof(*unit) && strcmp(unit->name, names[i]) == 0);
    EXPECT(unit->parameter_count == counts[i] && unit->keep == keep);
    EXPECT(unit->gradients == DB_GRADIENTS_SHARD && unit->compute_dtype == 0);
  }
  expect_bounds(plan, 0, 0, 0, 0, 20);
  expect_bounds(plan, 0, 1, 1, 1, 4);
  expect_bounds(plan, 1, 0, 2, 2, 20);
  expect_bounds(plan, 2, 0, 3, 0, 1); /* a different dtype, so a separate unit */
}

static void plans(const DistributedBackend* backend, const db_sharding* sharding,
                  const db_option* option, db_keep keep) {
  int32_t rank;
  for (rank = 0; rank < RANKS; ++rank) {
    db_communicator base = base_of(rank);
    db_communicator* communicator = create(backend, NULL, &base, option, DB_OK, "");
    const db_plan* plan = NULL;
    EXPECT(sharding->plan(communicator, &model, &plan, NULL) == DB_OK);
    expect_plan(plan, keep);
    sharding->release(plan);
    communicator->functions->destroy(communicator);
  }
}

static void splits_keep_the_options(const DistributedBackend* backend,
                                    const db_sharding* sharding) {
  const db_option option = {sizeof(option), "keep", DB_OPTION_STRING, 0, 0, 0, "always", NULL};
  db_communicator base = base_of(1);
  db_communicator* communicator = create(backend, NULL, &base, &option, DB_OK, "");
  db_communicator* part = NULL;
  const db_plan* plan = NULL;
  EXPECT(communicator->functions->split(communicator, -1, 0, &part, NULL) == DB_OK && part == NULL);
  EXPECT(communicator->functions->split(communicator, 0, 0, &part, NULL) == DB_OK);
  communicator->functions->destroy(communicator);
  EXPECT(parts_destroyed == 0); /* the base is borrowed */
  EXPECT(sharding->plan(part, &model, &plan, NULL) == DB_OK);
  expect_plan(plan, DB_KEEP_ALWAYS);
  sharding->release(plan);
  part->functions->destroy(part);
  EXPECT(parts_destroyed == 1);
}

static void plans_for_no_parameters(const DistributedBackend* backend,
                                    const db_sharding* sharding) {
  const db_model empty = {sizeof(empty), modules, 1, NULL, 0};
  db_communicator base = base_of(0);
  db_communicator* communicator = create(backend, NULL, &base, NULL, DB_OK, "");
  const db_plan* plan = NULL;
  EXPECT(sharding->plan(communicator, &empty, &plan, NULL) == DB_OK && plan->unit_count == 0);
  sharding->release(plan);
  communicator->functions->destroy(communicator);
}

static void refuses_wrong_options(const DistributedBackend* backend) {
  db_communicator base = base_of(0);
  db_option option = {sizeof(option), "kept", DB_OPTION_STRING, 0, 0, 0, "use", NULL};
  create(backend, NULL, &base, &option, DB_ERR_UNKNOWN_OPTION,
         "unknown option 'kept'; c_round_robin knows: keep");
  option.key = "keep";
  option.string = "step";
  create(backend, NULL, &base, &option, DB_ERR_INVALID_ARGUMENT,
         "option 'keep' must be \"use\" or \"always\"");
  option.type = DB_OPTION_I64;
  create(backend, NULL, &base, &option, DB_ERR_INVALID_ARGUMENT, "option 'keep' must be");
  create(backend, NULL, NULL, NULL, DB_ERR_INVALID_ARGUMENT, "needs a base communicator");
}

int main(int argc, char** argv) {
  const DistributedBackend* backend;
  const db_sharding* sharding;
  db_option option = {sizeof(option), "keep", DB_OPTION_STRING, 0, 0, 0, "always", NULL};
  if (argc != 2) {
    printf("usage: %s libcoupler_c_round_robin.so\n", argv[0]);
    return 2;
  }
  backend = load(argv[1], "c_round_robin");
  if (backend == NULL) return 1;
  sharding = backend->get_extension(DB_SHARDING);
  EXPECT(sharding != NULL && sharding->struct_size == sizeof(*sharding));
  EXPECT(backend->get_extension("coupler.other/1") == NULL);
  if (sharding == NULL) return 1;
  plans(backend, sharding, NULL, DB_KEEP_USE);
  plans(backend, sharding, &option, DB_KEEP_ALWAYS);
  splits_keep_the_options(backend, sharding);
  plans_for_no_parameters(backend, sharding);
  refuses_wrong_options(backend);
  return expect_failures != 0;
}
