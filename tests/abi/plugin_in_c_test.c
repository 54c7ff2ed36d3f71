/*
 * Loads the example plugins as a host would, without a host. Given the paths of
 * libcoupler_c_self.so and libcoupler_c_trace.so, runs operations over c_self, then over c_trace on
 * top of c_self, and checks the lines that c_trace logs.
 */
#include <coupler/distributed_backend.h>
#include <pthread.h>
#include <string.h>

#include "backends.h"
#include "expect.h"

static pthread_mutex_t line_mutex = PTHREAD_MUTEX_INITIALIZER; /* the log is [any-thread] */
static char last_line[256];
static int lines;

static void keep_line(void* context, db_severity severity, const char* component,
                      const char* message) {
  (void)context;
  (void)severity;
  pthread_mutex_lock(&line_mutex);
  EXPECT(strcmp(component, "c_trace") == 0);
  snprintf(last_line, sizeof(last_line), "%s", message);
  ++lines;
  pthread_mutex_unlock(&line_mutex);
}

static const db_host host = {sizeof(host), DB_ABI_MAJOR, DB_ABI_MINOR, NULL, keep_line, NULL};

static db_op make_op(db_kind kind, db_dtype dtype, const void* send, void* recv, uint64_t count) {
  db_op op = {.struct_size = sizeof(op)};
  op.kind = kind;
  op.dtype = dtype;
  op.reduce = DB_SUM;
  op.send = send;
  op.recv = recv;
  op.count = count;
  op.memory = DB_MEMORY_HOST;
  return op;
}

/* Submits and waits; returns the final status. */
static db_status run(db_communicator* c, const db_op* op) {
  db_request* request = NULL;
  db_status status = c->functions->submit(c, op, &request, NULL);
  EXPECT((status == DB_IN_PROGRESS) == (request != NULL));
  if (request != NULL) {
    status = c->functions->wait_host(request, -1, NULL);
    EXPECT(c->functions->test(request, NULL) == status);
    c->functions->release(request);
  }
  return status;
}

static void every_kind_and_type_moves_bytes(db_communicator* c) {
  static const int sizes[] = {0, 1, 1, 2, 2, 4, 4, 8, 8, 2, 2, 4, 8, 1, 1, 1};
  const uint64_t counts[] = {3};
  const unsigned char from[24] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12};
  db_kind kind;
  db_dtype dtype;
  for (dtype = DB_I8; dtype <= DB_F8_E5M2; ++dtype) {
    for (kind = DB_ALL_REDUCE; kind <= DB_BARRIER; ++kind) {
      unsigned char to[24] = {0};
      const size_t bytes = kind == DB_BARRIER ? 0 : 3 * (size_t)sizes[dtype];
      db_op op = make_op(kind, dtype, from, to, kind == DB_BARRIER ? 0 : 3);
      int32_t score = -1;
      op.send_counts = op.recv_counts = counts;
      op.flags = kind % 2 == 0 ? DB_OP_BLOCKING : 0;
      EXPECT(c->functions->supports(c, &op, &score) == DB_OK);
      EXPECT(run(c, &op) == (score > 0 ? DB_OK : DB_ERR_UNSUPPORTED));
      if (score > 0) EXPECT(memcmp(from, to, bytes) == 0);
    }
  }
}

static void every_f16_survives_scaling_by_one(db_communicator* c) {
  static uint16_t from[65536], to[65536];
  db_op op = make_op(DB_ALL_REDUCE, DB_F16, from, to, 65536);
  uint32_t i;
  for (i = 0; i < 65536; ++i) from[i] = (uint16_t)i;
  op.reduce = DB_PREMUL_SUM;
  op.scale = 1;
  EXPECT(run(c, &op) == DB_OK);
  for (i = 0; i < 65536; ++i) {
    const int nan = (i & 0x7c00) == 0x7c00 && (i & 0x3ff) != 0;
    if (nan ? (to[i] & 0x7e00) != 0x7e00 : to[i] != from[i]) {
      printf("FAILED: f16 %04x became %04x\n", (unsigned)i, (unsigned)to[i]);
      ++expect_failures;
    }
  }
}

static void a_scale_rounds_to_even(db_communicator* c) {
  uint16_t f16[] = {0x3c00, 0xc100, 0x0001, 0x0003, 0x7bff};
  uint16_t bf16[] = {0x3f80, 0xc020, 0x7f80};
  float f32[] = {1, -3};
  db_op op = make_op(DB_ALL_REDUCE, DB_F16, f16, f16, 5);
  op.reduce = DB_PREMUL_SUM;
  op.scale = 0.5;
  EXPECT(run(c, &op) == DB_OK);
  EXPECT(f16[0] == 0x3800 && f16[1] == 0xbd00 && f16[2] == 0 && f16[3] == 2 && f16[4] == 0x77ff);
  op = make_op(DB_ALL_REDUCE, DB_BF16, bf16, bf16, 3);
  op.reduce = DB_PREMUL_SUM;
  op.scale = 2;
  EXPECT(run(c, &op) == DB_OK);
  EXPECT(bf16[0] == 0x4000 && bf16[1] == 0xc0a0 && bf16[2] == 0x7f80);
  op = make_op(DB_ALL_REDUCE, DB_F32, f32, f32, 2);
  op.reduce = DB_PREMUL_SUM;
  op.scale = 0.5;
  EXPECT(run(c, &op) == DB_OK);
  EXPECT(f32[0] == 0.5f && f32[1] == -1.5f);
}

typedef struct waiter {
  db_communicator* c;
  db_request* request;
  db_status status;
} waiter;

static void* wait_for_it(void* argument) {
  waiter* w = argument;
  w->status = w->c->functions->wait_host(w->request, -1, NULL);
  return NULL;
}

static void messages_meet_by_tag(db_communicator* c) {
  const int32_t one = 1, two = 2;
  int32_t got = 0;
  db_op op = make_op(DB_SEND, DB_I32, &one, NULL, 1);
  db_request *first = NULL, *second = NULL;
  waiter w = {c, NULL, DB_IN_PROGRESS};
  pthread_t thread;
  op.tag = 1;
  EXPECT(c->functions->submit(c, &op, &first, NULL) == DB_IN_PROGRESS);
  op.tag = 2;
  op.send = &two;
  EXPECT(c->functions->submit(c, &op, &second, NULL) == DB_IN_PROGRESS);
  EXPECT(c->functions->test(first, NULL) == DB_IN_PROGRESS);
  EXPECT(c->functions->wait_host(first, 1000, NULL) == DB_ERR_TIMEOUT); /* harmless */
  c->functions->release(second);                                        /* it continues */
  op = make_op(DB_RECV, DB_I32, NULL, &got, 1);
  op.tag = 2;
  EXPECT(run(c, &op) == DB_OK && got == 2);
  w.request = first;
  EXPECT(pthread_create(&thread, NULL, wait_for_it, &w) == 0);
  op.tag = 1;
  EXPECT(run(c, &op) == DB_OK && got == 1);
  pthread_join(thread, NULL);
  EXPECT(w.status == DB_OK);
  c->functions->release(first);
}

static void abort_ends_what_is_pending(db_communicator* c) {
  int32_t got = 0;
  db_op op = make_op(DB_RECV, DB_I32, NULL, &got, 1);
  db_request *kept = NULL, *dropped = NULL;
  EXPECT(c->functions->submit(c, &op, &kept, NULL) == DB_IN_PROGRESS);
  EXPECT(c->functions->submit(c, &op, &dropped, NULL) == DB_IN_PROGRESS);
  c->functions->release(dropped);
  EXPECT(c->functions->abort(c) == DB_OK);
  EXPECT(c->functions->wait_host(kept, -1, NULL) == DB_ERR_ABORTED);
  c->functions->release(kept);
  EXPECT(c->functions->async_error(c, NULL) == DB_ERR_ABORTED);
  EXPECT(run(c, &op) == DB_ERR_ABORTED);
}

static void a_deadline_kills(db_communicator* c) {
  int32_t got = 0;
  char text[128] = "";
  db_error error = {sizeof(error), 0, 0, 0, 0, text, sizeof(text)};
  db_op op = make_op(DB_RECV, DB_I32, NULL, &got, 1);
  db_request* request = NULL;
  op.timeout_ns = 1000000;
  EXPECT(c->functions->submit(c, &op, &request, NULL) == DB_IN_PROGRESS);
  EXPECT(c->functions->wait_host(request, -1, &error) == DB_ERR_TIMEOUT);
  EXPECT(error.flags == DB_ERROR_COMM_DEAD && strstr(text, "before the deadline") != NULL);
  c->functions->release(request);
  EXPECT(c->functions->async_error(c, NULL) == DB_ERR_TIMEOUT);
}

static void behaves(db_communicator* c) {
  db_communicator* part = NULL;
  every_kind_and_type_moves_bytes(c);
  every_f16_survives_scaling_by_one(c);
  a_scale_rounds_to_even(c);
  messages_meet_by_tag(c);
  EXPECT(c->functions->split(c, -1, 0, &part, NULL) == DB_OK && part == NULL);
  EXPECT(c->functions->split(c, 0, 0, &part, NULL) == DB_OK && part != NULL);
  a_deadline_kills(part);
  part->functions->destroy(part);
  EXPECT(c->functions->async_error(c, NULL) == DB_OK); /* the part was independent */
  abort_ends_what_is_pending(c);
}

static void refuses_wrong_options(const DistributedBackend* self, const DistributedBackend* trace) {
  db_option option = {.struct_size = sizeof(option), .key = "speed", .type = DB_OPTION_I64};
  create(self, &host, NULL, &option, DB_ERR_UNKNOWN_OPTION, "unknown option 'speed'");
  create(trace, &host, NULL, &option, DB_ERR_UNKNOWN_OPTION, "unknown option 'speed'");
  option.key = "always_request";
  create(self, &host, NULL, &option, DB_ERR_INVALID_ARGUMENT, "must be true or false");
  option.key = "severity";
  create(trace, &host, NULL, &option, DB_ERR_INVALID_ARGUMENT, "'severity' must be");
  create(trace, &host, NULL, NULL, DB_ERR_INVALID_ARGUMENT, "needs a base communicator");
}

static void trace_logs_each_operation(db_communicator* c) {
  float values[5] = {0};
  db_op op = make_op(DB_ALL_REDUCE, DB_F32, values, values, 5);
  lines = 0;
  EXPECT(run(c, &op) == DB_OK);
  EXPECT(lines == 1);
  EXPECT(strncmp(last_line, "all_reduce f32 x 5: ok after ", 29) == 0);
  op.reduce = DB_BAND;
  EXPECT(run(c, &op) == DB_ERR_UNSUPPORTED);
  EXPECT(lines == 2 && strstr(last_line, "unsupported") != NULL);
}

int main(int argc, char** argv) {
  const DistributedBackend *self, *trace;
  db_communicator *base, *wrapper;
  if (argc != 3) {
    printf("usage: %s libcoupler_c_self.so libcoupler_c_trace.so\n", argv[0]);
    return 2;
  }
  self = load(argv[1], "c_self");
  trace = load(argv[2], "c_trace");
  if (self == NULL || trace == NULL) return 1;
  refuses_wrong_options(self, trace);

  base = create(self, &host, NULL, NULL, DB_OK, "");
  behaves(base);
  base->functions->destroy(base);

  base = create(self, &host, NULL, NULL, DB_OK, "");
  wrapper = create(trace, &host, base, NULL, DB_OK, "");
  trace_logs_each_operation(wrapper);
  behaves(wrapper);
  wrapper->functions->destroy(wrapper);
  base->functions->destroy(base);
  return expect_failures != 0;
}
