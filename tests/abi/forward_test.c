/* coupler/forward.h over a base whose table is as long as ours, and over a base
 * that was compiled before the table's last fields existed. */
#include <coupler/forward.h>
#include <string.h>

#include "expect.h"

/* The base records the communicator that it is called with. */
static const void* called_with;
static int destroyed;

static db_status base_supports(const db_communicator* c, const db_op* op, int32_t* score) {
  called_with = c;
  *score = op->kind;
  return DB_OK;
}
static db_status base_submit(db_communicator* c, const db_op* op, db_request** request,
                             db_error* error) {
  (void)op;
  (void)error;
  called_with = c;
  *request = (db_request*)(void*)&called_with;
  return DB_IN_PROGRESS;
}
static db_status base_test(db_request* request, db_error* error) {
  (void)error;
  return request == (db_request*)(void*)&called_with ? DB_OK : DB_ERR_INTERNAL;
}
static db_status base_wait(db_request* request, int64_t timeout, db_error* error) {
  (void)timeout;
  return base_test(request, error);
}
static void base_release(db_request* request) { (void)request; }
static db_status base_split(db_communicator* c, int32_t color, int32_t key,
                            db_communicator** result, db_error* error) {
  (void)color;
  (void)key;
  (void)error;
  called_with = c;
  *result = c;
  return DB_OK;
}
static db_status base_async_error(const db_communicator* c, db_error* error) {
  (void)error;
  called_with = c;
  return DB_ERR_PEER_LOST;
}
static db_status base_abort(db_communicator* c) {
  called_with = c;
  return DB_OK;
}
static void base_destroy(db_communicator* c) { called_with = c; }
static const void* base_extension(const db_communicator* c, const char* id) {
  called_with = c;
  return id;
}

static void wrapper_destroy(db_communicator* c) {
  (void)c;
  ++destroyed;
}

static db_communicator_functions base_functions(void) {
  db_communicator_functions table = {
      .struct_size = sizeof(table),
      .supports = base_supports,
      .submit = base_submit,
      .test = base_test,
      .wait_host = base_wait,
      .release = base_release,
      .split = base_split,
      .async_error = base_async_error,
      .abort = base_abort,
      .destroy = base_destroy,
      .get_extension = base_extension,
  };
  return table;
}

static void every_function_gets_the_bases_own_communicator(void) {
  const db_communicator_functions table = base_functions();
  db_communicator base = {sizeof(base), &table, 2, 5};
  const db_op op = {.struct_size = sizeof(op), .kind = DB_BROADCAST};
  db_forward forward;
  db_communicator *wrapper = &forward.communicator, *part = NULL;
  db_request* request = NULL;
  int32_t score = 0;
  memset(&forward, 0xee, sizeof(forward));
  db_forward_init(&forward, &base, wrapper_destroy);
  EXPECT(wrapper->rank == 2 && wrapper->size == 5);
  EXPECT(wrapper->struct_size == sizeof(db_communicator));
  EXPECT(wrapper->functions->struct_size == sizeof(db_communicator_functions));

  EXPECT(wrapper->functions->supports(wrapper, &op, &score) == DB_OK);
  EXPECT(called_with == &base && score == DB_BROADCAST);
  called_with = NULL;
  EXPECT(wrapper->functions->submit(wrapper, &op, &request, NULL) == DB_IN_PROGRESS);
  EXPECT(called_with == &base);
  EXPECT(wrapper->functions->test(request, NULL) == DB_OK);
  EXPECT(wrapper->functions->wait_host(request, 0, NULL) == DB_OK);
  EXPECT(wrapper->functions->wait_stream == NULL);
  wrapper->functions->release(request);
  called_with = NULL;
  EXPECT(wrapper->functions->async_error(wrapper, NULL) == DB_ERR_PEER_LOST);
  EXPECT(called_with == &base);
  called_with = NULL;
  EXPECT(wrapper->functions->abort(wrapper) == DB_OK);
  EXPECT(called_with == &base);

  called_with = NULL;
  EXPECT(wrapper->functions->get_extension(wrapper, "vendor.thing/1") == NULL);
  EXPECT(wrapper->functions->split == NULL);
  wrapper->functions->destroy(wrapper);
  EXPECT(destroyed == 1);
  EXPECT(called_with == NULL); /* none of the calls above reached the base */

  EXPECT(db_forward_base_splits(&base));
  EXPECT(db_forward_split_base(wrapper, 0, 0, &part, NULL) == DB_OK);
  EXPECT(called_with == &base && part == &base);
}

static void a_shorter_table_is_read_as_far_as_it_goes(void) {
  db_communicator_functions table = base_functions();
  db_communicator base = {sizeof(base), &table, 0, 1};
  table.split = NULL;
  EXPECT(!db_forward_base_splits(&base));
  /* Functions past the table's end must not be called. */
  table = base_functions();
  table.struct_size = offsetof(db_communicator_functions, split);
  EXPECT(!db_forward_base_splits(&base));
}

int main(void) {
  every_function_gets_the_bases_own_communicator();
  a_shorter_table_is_read_as_far_as_it_goes();
  return expect_failures != 0;
}
