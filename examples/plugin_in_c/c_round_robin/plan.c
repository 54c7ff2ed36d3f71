#include "c_round_robin/plan.h"

#include <stdlib.h>
#include <string.h>

#include "c_round_robin/communicator.h"
#include "common/error.h"

/* A plan and everything it points to, with room for one unit per parameter, the maximum. */
typedef struct round_robin {
  db_plan plan; /* first, so that the host's pointer is a pointer to this struct */
  db_unit* units;
  const db_unit** unit_list;
  db_unit_parameter* parameters;
  const db_unit_parameter** parameter_list;
  uint64_t* bounds; /* of each parameter: ranks + 1 numbers */
  char* names;      /* of the units, concatenated: the model's names do not outlive the call */
} round_robin;

static uint64_t elements_of(const db_parameter* parameter) {
  uint64_t product = 1;
  uint32_t i;
  for (i = 0; i < parameter->dimensions; ++i) product *= parameter->sizes[i];
  return product;
}

static uint64_t total_name_bytes(const db_model* model) {
  uint64_t i, bytes = 1;
  for (i = 0; i < model->parameter_count; ++i) {
    bytes += strlen(model->modules[model->parameters[i]->module]->name) + 1;
  }
  return bytes;
}

static round_robin* allocate(const db_model* model, int32_t ranks) {
  const size_t count = model->parameter_count + 1; /* calloc of 0 elements may return NULL */
  round_robin* made = calloc(1, sizeof(*made));
  if (made == NULL) return NULL;
  made->units = calloc(count, sizeof(*made->units));
  made->unit_list = calloc(count, sizeof(void*));
  made->parameters = calloc(count, sizeof(*made->parameters));
  made->parameter_list = calloc(count, sizeof(void*));
  made->bounds = calloc(count, ((size_t)ranks + 1) * sizeof(*made->bounds));
  made->names = calloc(total_name_bytes(model), 1);
  if (made->units != NULL && made->unit_list != NULL && made->parameters != NULL &&
      made->parameter_list != NULL && made->bounds != NULL && made->names != NULL) {
    return made;
  }
  round_robin_release(&made->plan);
  return NULL;
}

/* The parameter's owner has [0, elements), the ranks before it [0, 0), those after it nothing. */
static void deal(uint64_t* bounds, uint64_t elements, uint64_t owner, uint64_t ranks) {
  uint64_t r;
  for (r = 0; r <= ranks; ++r) bounds[r] = r <= owner ? 0 : elements;
}

/* A unit is a module with parameters of its own; parameters of a unit must share one dtype. */
static int32_t begins_unit(const db_model* model, uint64_t i) {
  const db_parameter* const* all = model->parameters;
  return i == 0 || all[i]->module != all[i - 1]->module || all[i]->dtype != all[i - 1]->dtype;
}

/* Copies text to *end, advances *end past it, and returns the copy. */
static const char* append(char** end, const char* text) {
  const size_t bytes = strlen(text) + 1;
  char* copy = memcpy(*end, text, bytes);
  *end += bytes;
  return copy;
}

static void fill(round_robin* made, const db_model* model, db_keep keep, uint64_t ranks) {
  char* names = made->names;
  db_unit* unit = NULL;
  uint64_t i;
  for (i = 0; i < model->parameter_count; ++i) {
    const db_parameter* parameter = model->parameters[i];
    uint64_t* bounds = made->bounds + i * (ranks + 1);
    deal(bounds, elements_of(parameter), i % ranks, ranks);
    made->parameters[i].struct_size = sizeof(made->parameters[i]);
    made->parameters[i].parameter = i;
    made->parameters[i].bounds = bounds;
    made->parameter_list[i] = &made->parameters[i];
    if (begins_unit(model, i)) {
      unit = &made->units[made->plan.unit_count];
      unit->struct_size = sizeof(*unit);
      unit->name = append(&names, model->modules[parameter->module]->name);
      unit->parameters = &made->parameter_list[i];
      unit->keep = keep;
      unit->gradients = DB_GRADIENTS_SHARD;
      made->unit_list[made->plan.unit_count++] = unit;
    }
    ++unit->parameter_count;
  }
  made->plan.struct_size = sizeof(made->plan);
  made->plan.units = made->unit_list;
  made->plan.prefetch = 1;
  made->plan.overlap = -1;
}

db_status round_robin_plan(const db_communicator* communicator, const db_model* model,
                           const db_plan** plan, db_error* error) {
  round_robin* made = allocate(model, communicator->size);
  *plan = NULL;
  if (made == NULL) return fail(error, DB_ERR_NO_MEMORY, 0, "no memory for a plan");
  fill(made, model, round_robin_keep(communicator), (uint64_t)communicator->size);
  *plan = &made->plan;
  return DB_OK;
}

void round_robin_release(const db_plan* plan) {
  round_robin* mine = (round_robin*)(void*)plan;
  if (mine == NULL) return;
  free(mine->units);
  free(mine->unit_list);
  free(mine->parameters);
  free(mine->parameter_list);
  free(mine->bounds);
  free(mine->names);
  free(mine);
}
