/* Loads plugins as a host would, without a host. One thread. */
#ifndef COUPLER_TESTS_ABI_BACKENDS_H_
#define COUPLER_TESTS_ABI_BACKENDS_H_

#include <coupler/distributed_backend.h>
#include <dlfcn.h>
#include <string.h>

#include "expect.h"

/* The table of the plugin at path, whose name must be name; NULL on failure. */
static inline const DistributedBackend* load(const char* path, const char* name) {
  void* library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  db_entry_function entry;
  void* symbol = library != NULL ? dlsym(library, DB_ENTRY_SYMBOL) : NULL;
  if (symbol == NULL) {
    printf("FAILED: %s: %s\n", path, dlerror());
    return NULL;
  }
  memcpy(&entry, &symbol, sizeof(entry));
  EXPECT(strcmp(entry()->name, name) == 0);
  return entry();
}

/* Calls create over base (NULL: none) with one option (NULL: none), and checks status and
 * message. */
static inline db_communicator* create(const DistributedBackend* backend, const db_host* host,
                                      db_communicator* base, const db_option* option,
                                      db_status expected, const char* text) {
  const db_base world = {sizeof(world), "world", base};
  const db_base* const bases[] = {&world};
  const db_option* const options[] = {option};
  char message[256] = "";
  db_error error = {sizeof(error), 0, 0, 0, 0, message, sizeof(message)};
  db_communicator_params params = {.struct_size = sizeof(params)};
  db_communicator* result = NULL;
  params.host = host;
  params.rank = params.local_rank = base != NULL ? base->rank : 0;
  params.size = params.local_size = base != NULL ? base->size : 1;
  params.default_timeout_ns = 30000000000;
  params.options = options;
  params.option_count = option != NULL;
  params.bases = bases;
  params.base_count = base != NULL;
  EXPECT(backend->create(&params, &result, &error) == expected);
  EXPECT((expected == DB_OK) == (result != NULL));
  if (strstr(message, text) == NULL) {
    printf("FAILED: no '%s' in '%s'\n", text, message);
    ++expect_failures;
  }
  return result;
}

#endif /* COUPLER_TESTS_ABI_BACKENDS_H_ */
