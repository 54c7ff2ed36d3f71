#define _POSIX_C_SOURCE 200809L
#include "c_self/messages.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

static const int64_t kSecond = 1000000000;
static const int64_t kLongest = (int64_t)365 * 24 * 3600 * 1000000000;

int64_t now_ns(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (int64_t)now.tv_sec * kSecond + now.tv_nsec;
}

int64_t deadline_after(int64_t timeout_ns) {
  return now_ns() + (timeout_ns < kLongest ? timeout_ns : kLongest);
}

int messages_open(messages* box) {
  pthread_condattr_t attributes;
  int problem;
  memset(box, 0, sizeof(*box));
  problem = pthread_condattr_init(&attributes);
  if (problem != 0) return problem;
  /* The wall clock may jump; deadlines must not. */
  problem = pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
  if (problem == 0) problem = pthread_cond_init(&box->changed, &attributes);
  pthread_condattr_destroy(&attributes);
  if (problem != 0) return problem;
  problem = pthread_mutex_init(&box->mutex, NULL);
  if (problem != 0) pthread_cond_destroy(&box->changed);
  return problem;
}

void messages_close(messages* box) {
  messages_end(box, DB_ERR_ABORTED);
  pthread_mutex_destroy(&box->mutex);
  pthread_cond_destroy(&box->changed);
}

/* Called with the mutex held. */
static void complete(db_request* request, db_status status) {
  request->status = status;
  if (request->released) free(request);
}

static void end_locked(messages* box, db_status reason) {
  db_request* request = box->waiting;
  if (box->state == DB_OK) box->state = reason;
  box->waiting = NULL;
  while (request != NULL) {
    db_request* next = request->next;
    complete(request, DB_ERR_ABORTED);
    request = next;
  }
  pthread_cond_broadcast(&box->changed);
}

static void take_out(db_request** place) {
  db_request* request = *place;
  *place = request->next;
  request->next = NULL;
}

db_status messages_post(messages* box, db_request* mine) {
  db_request** place;
  db_status status = DB_IN_PROGRESS;
  pthread_mutex_lock(&box->mutex);
  mine->owner = box;
  mine->next = NULL;
  mine->released = 0;
  place = &box->waiting;
  while (*place != NULL && ((*place)->tag != mine->tag || (*place)->is_send == mine->is_send)) {
    place = &(*place)->next;
  }
  if (box->state != DB_OK) {
    status = DB_ERR_ABORTED;
  } else if (*place == NULL) {
    *place = mine; /* at the end */
  } else {
    db_request* other = *place;
    take_out(place);
    if (other->bytes != mine->bytes) {
      status = DB_ERR_MISMATCH;
      complete(other, status);
      end_locked(box, status);
    } else {
      const db_request* from = mine->is_send ? mine : other;
      const db_request* to = mine->is_send ? other : mine;
      status = DB_OK;
      if (from->bytes > 0) memmove(to->recv, from->send, from->bytes);
      complete(other, status);
      pthread_cond_broadcast(&box->changed);
    }
  }
  mine->status = status;
  pthread_mutex_unlock(&box->mutex);
  return status;
}

static db_status expire_locked(db_request* request) {
  messages* box = request->owner;
  db_request** place = &box->waiting;
  if (request->status != DB_IN_PROGRESS || now_ns() < request->deadline_ns) return request->status;
  while (*place != request) place = &(*place)->next;
  take_out(place);
  request->status = DB_ERR_TIMEOUT;
  end_locked(box, DB_ERR_TIMEOUT);
  return request->status;
}

db_status messages_test(db_request* request) {
  db_status status;
  pthread_mutex_lock(&request->owner->mutex);
  status = expire_locked(request);
  pthread_mutex_unlock(&request->owner->mutex);
  return status;
}

db_status messages_wait(db_request* request, int64_t until_ns) {
  messages* box = request->owner;
  const int64_t end = until_ns < request->deadline_ns ? until_ns : request->deadline_ns;
  const struct timespec when = {(time_t)(end / kSecond), (long)(end % kSecond)};
  db_status status;
  pthread_mutex_lock(&box->mutex);
  while (request->status == DB_IN_PROGRESS && now_ns() < end) {
    pthread_cond_timedwait(&box->changed, &box->mutex, &when);
  }
  status = expire_locked(request);
  pthread_mutex_unlock(&box->mutex);
  return status;
}

void messages_release(db_request* request) {
  messages* box = request->owner;
  pthread_mutex_lock(&box->mutex);
  if (request->status == DB_IN_PROGRESS) {
    request->released = 1; /* the message is still in flight */
  } else {
    free(request);
  }
  pthread_mutex_unlock(&box->mutex);
}

void messages_end(messages* box, db_status reason) {
  pthread_mutex_lock(&box->mutex);
  end_locked(box, reason);
  pthread_mutex_unlock(&box->mutex);
}

db_status messages_state(messages* box) {
  db_status state;
  pthread_mutex_lock(&box->mutex);
  state = box->state;
  pthread_mutex_unlock(&box->mutex);
  return state;
}
