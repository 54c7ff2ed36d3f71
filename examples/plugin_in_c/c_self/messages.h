/*
 * messages: matches a process's sends to itself with its receives, by tag and in order. A request
 * is one such message, or an already complete collective. Every function is [any-thread].
 */
#ifndef PLUGIN_IN_C_C_SELF_MESSAGES_H_
#define PLUGIN_IN_C_C_SELF_MESSAGES_H_

#include <coupler/distributed_backend.h>
#include <pthread.h>

typedef struct messages {
  pthread_mutex_t mutex;
  pthread_cond_t changed;
  db_request* waiting; /* not yet matched, oldest first */
  db_status state;     /* DB_OK, or the reason the communicator ended */
} messages;

struct db_request {
  messages* owner;
  db_request* next; /* in owner->waiting */
  const void* send; /* send or recv is set */
  void* recv;
  uint64_t bytes;
  int64_t deadline_ns; /* on the monotonic clock */
  int32_t is_send;
  int32_t tag;
  db_status status;
  int32_t released; /* released by the host before it was complete */
};

int64_t now_ns(void);
int64_t deadline_after(int64_t timeout_ns); /* without overflow */

/* Returns 0 or an errno value. */
int messages_open(messages* box);
/* Ends everything pending and frees the box. All requests must have been released. */
void messages_close(messages* box);

/* Matches a filled-in request, or queues it. Returns its status. */
db_status messages_post(messages* box, db_request* request);
/* Returns its status; an expired deadline ends it and the communicator. */
db_status messages_test(db_request* request);
/* Blocks until it is complete, or until until_ns: then DB_IN_PROGRESS. */
db_status messages_wait(db_request* request, int64_t until_ns);
void messages_release(db_request* request);

/* Ends everything pending; the first reason is kept. */
void messages_end(messages* box, db_status reason);
db_status messages_state(messages* box);

#endif /* PLUGIN_IN_C_C_SELF_MESSAGES_H_ */
