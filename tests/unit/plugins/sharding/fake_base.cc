#include "fake_base.h"

namespace db {

struct FakeBase::Functions {
  static db_status supports(const db_communicator* c, const db_op*, int32_t* score) {
    self(c).note("supports");
    *score = 7;
    return DB_OK;
  }
  static db_status submit(db_communicator* c, const db_op*, db_request** request, db_error*) {
    self(c).note("submit");
    *request = nullptr;
    return DB_OK;
  }
  static db_status test(db_request*, db_error*) { return DB_OK; }
  static db_status wait_host(db_request*, int64_t, db_error*) { return DB_OK; }
  static void release(db_request*) {}
  static db_status split(db_communicator* c, int32_t color, int32_t key, db_communicator** result,
                         db_error*) {
    self(c).note("split");
    *result = color < 0 ? nullptr : (new FakeBase(key, c->size, self(c).calls_))->handle();
    return DB_OK;
  }
  static db_status async_error(const db_communicator* c, db_error*) {
    self(c).note("async_error");
    return DB_ERR_PEER_LOST;
  }
  static db_status abort(db_communicator* c) {
    self(c).note("abort");
    return DB_OK;
  }
  static void destroy(db_communicator*) {}
  static void destroy_part(db_communicator* c) {
    self(c).note("destroy");
    delete &self(c);
  }
  static const void* get_extension(const db_communicator*, const char*) { return "the base's"; }
};

FakeBase& FakeBase::self(const db_communicator* communicator) {
  return *reinterpret_cast<FakeBase*>(const_cast<db_communicator*>(communicator));
}

FakeBase::FakeBase(int32_t rank, int32_t size, bool splits)
    : FakeBase(rank, size, std::make_shared<std::vector<std::string>>()) {
  functions_.destroy = Functions::destroy;
  if (!splits) functions_.split = nullptr;
}

FakeBase::FakeBase(int32_t rank, int32_t size, std::shared_ptr<std::vector<std::string>> calls)
    : functions_{sizeof(functions_), Functions::supports,     Functions::submit,
                 Functions::test,    Functions::wait_host,    nullptr,
                 Functions::release, Functions::split,        Functions::async_error,
                 Functions::abort,   Functions::destroy_part, Functions::get_extension},
      calls_(std::move(calls)) {
  communicator_ = {sizeof(communicator_), &functions_, rank, size};
}

}  // namespace db
