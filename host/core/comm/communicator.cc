#include "comm/communicator.h"

#include <coupler/error.h>
#include <coupler/memory.h>
#include <coupler/registration.h>
#include <fmt/format.h>

#include <numeric>
#include <string_view>
#include <utility>

#include "base/log.h"
#include "base/span.h"
#include "comm/staging.h"
#include "comm/state.h"
#include "comm/work.h"

namespace coupler::comm {
namespace {

template <class Extension>
const Extension* extension_of(const CommunicatorState& state, const char* id) {
  const auto get = state.functions->get_extension;
  return get == nullptr ? nullptr : static_cast<const Extension*>(get(state.communicator, id));
}

const db_registration* registration_of(const CommunicatorState& state) {
  return extension_of<db_registration>(state, DB_REGISTRATION);
}

// A failure is only noted: everything works without these extensions.
void note(const CommunicatorState& state, std::string_view what, std::string_view why = {}) {
  if (!log_enabled(LogLevel::kDebug, "comm")) return;
  log(LogLevel::kDebug, "comm",
      fmt::format("communicator '{}': {}{}{}", state.name, what, why.empty() ? "" : ": ", why));
}

}  // namespace

Registration& Registration::operator=(Registration&& other) noexcept {
  if (this != &other) {
    end();
    state_ = std::move(other.state_);
    handle_ = other.handle_;
  }
  return *this;
}

void Registration::end() {
  const std::shared_ptr<CommunicatorState> state = std::move(state_);
  // A failed communicator has released everything.
  if (state == nullptr || state->dead.load(std::memory_order_acquire)) return;
  const std::lock_guard lock(state->submit_mutex);
  ErrorBuffer error;
  if (registration_of(*state)->remove(state->communicator, handle_, error.get()) != DB_OK)
    note(*state, "memory is still registered", error.get()->message);
}

Registration Communicator::register_memory(void* memory, uint64_t bytes) {
  CommunicatorState& state = *state_;
  if (bytes == 0) return {};
  const std::lock_guard lock(state.submit_mutex);
  const db_registration* extension = registration_of(state);
  if (extension == nullptr) return {};
  state.throw_if_dead();
  void* handle = nullptr;
  ErrorBuffer error;
  if (extension->add(state.communicator, memory, bytes, &handle, error.get()) == DB_OK)
    return {state_, handle};
  note(state, fmt::format("{} bytes are not registered", bytes), error.get()->message);
  return {};
}

std::shared_ptr<void> Communicator::peer_memory(uint64_t bytes) {
  CommunicatorState& state = *state_;
  // The host side moves host memory, if there is one.
  if (host_side_ != nullptr) return host_side_->peer_memory(bytes);
  if (state.dead.load(std::memory_order_acquire)) return nullptr;
  const auto* const extension = extension_of<db_peer_memory>(state, DB_PEER_MEMORY);
  if (extension == nullptr) return nullptr;
  void *memory = nullptr, *handle = nullptr;
  ErrorBuffer error;
  if (extension->allocate(state.communicator, bytes, &memory, &handle, error.get()) != DB_OK) {
    note(state, fmt::format("{} bytes are not in memory that peers reach", bytes),
         error.get()->message);
    return nullptr;
  }
  note(state, fmt::format("{} bytes are in memory that peers reach", bytes));
  return {memory, [release = extension->release, handle](void*) { release(handle); }};
}

namespace {

// Checks for caller mistakes that would make the fingerprint read outside of its arrays; the
// backend checks the other arguments.
void check_arguments(const CommunicatorState& state, const db_op& op) {
  const auto refuse = [&](const std::string& what, const char* hint) {
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("communicator '{}', {}: {}", state.name, kind_name(op.kind), what),
                {.subject = state.name, .hint = hint});
  };
  if (op.kind < DB_ALL_REDUCE || op.kind > DB_RECV) {
    refuse(fmt::format("db_op.kind {} is unknown", op.kind), "use one of the db_kind values");
  }
  const bool rooted = is_rooted(op.kind) || is_pairwise(op.kind);
  if (rooted && (op.root_or_peer < 0 || op.root_or_peer >= state.world_size)) {
    refuse(
        fmt::format("rank {} is out of range for world size {}", op.root_or_peer, state.world_size),
        "name a rank from 0 to world - 1");
  }
  const bool sends = op.kind == DB_ALL_TO_ALL_V;
  const bool takes = sends || op.kind == DB_ALL_GATHER_V || op.kind == DB_REDUCE_SCATTER_V;
  if ((sends && op.send_counts == nullptr) || (takes && op.recv_counts == nullptr)) {
    refuse("the array of counts is missing", "give one count for each rank");
  }
}

// For spans: approximately what one rank sends.
uint64_t bytes_of(const db_op& op) { return op.count * dtype_size(op.dtype); }

// Leaves the backend however the call ends.
class InBackend {
 public:
  InBackend(CommunicatorState& state, const Operation& operation) : state_(state) {
    state_.enter_backend(operation);
  }
  ~InBackend() { state_.leave_backend(); }
  InBackend(const InBackend&) = delete;
  InBackend& operator=(const InBackend&) = delete;

 private:
  CommunicatorState& state_;
};

const db_sharding* sharding_of(const plugin::Plugin& plugin) {
  const DistributedBackend& table = plugin.table();
  if (!DB_HAS(&table, DistributedBackend, get_extension) || table.get_extension == nullptr) {
    return nullptr;
  }
  return static_cast<const db_sharding*>(table.get_extension(DB_SHARDING));
}

void complete(const CommunicatorState& state, db_op& op, uint64_t flags) {
  op.struct_size = sizeof(db_op);
  op.flags = flags;
  if (op.memory == 0) op.memory = DB_MEMORY_HOST;
  op.timeout_ns = state.operation_timeout_ns;
}

RendezvousInfo rendezvous_of(const std::shared_ptr<store::Store>& store, const std::string& name,
                             int rank, int world_size, std::chrono::nanoseconds timeout) {
  return {.store = store, .name = name, .rank = rank, .world_size = world_size, .timeout = timeout};
}

// For a backend that takes only a device's memory.
std::shared_ptr<Communicator> make_host_side(const CommunicatorOptions& options) {
  if (options.device == nullptr || !options.device->is_cuda()) {
    throw Error(ErrorCode::kConfig,
                fmt::format("the backend '{}' moves CUDA memory, but the tensors of rank {} are in "
                            "host memory",
                            options.plugin.name(), options.process.rank),
                {.rank = options.process.rank,
                 .subject = "backend.use",
                 .hint = "COUPLER_LOG=info shows why no GPU is used; or set backend.use to a "
                         "transport for host memory (`coupler plugins` lists the backends)"});
  }
  CommunicatorOptions host = options;
  host.plugin = options.host_side();
  host.name += " (host)";
  host.device = nullptr;
  host.host_side = nullptr;
  return Communicator::create(host);
}

bool is_on_device(const CommunicatorState& state, const db_op& op) {
  return op.memory == DB_MEMORY_CUDA && state.device != nullptr;
}

}  // namespace

Communicator::Communicator(std::shared_ptr<CommunicatorState> state,
                           std::shared_ptr<Communicator> host_side)
    : state_(std::move(state)), host_side_(std::move(host_side)) {}
Communicator::~Communicator() = default;

std::shared_ptr<Communicator> Communicator::create(const CommunicatorOptions& options) {
  const rendezvous::ProcessInfo& process = options.process;
  if (options.backend == nullptr) {
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("communicator '{}': the configuration is missing", options.name),
                {.subject = options.name, .hint = "set CommunicatorOptions::backend"});
  }
  if (process.world_size > 1 && !options.store) {
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("communicator '{}': {} ranks need a store through which to meet",
                            options.name, process.world_size),
                {.subject = options.name, .hint = "pass the result of join_store"});
  }
  auto backend = std::make_shared<RawCommunicator>(options);
  std::shared_ptr<store::Store> store;
  std::unique_ptr<FlightRecorder> recorder;
  if (process.world_size > 1) {
    store = store::Store::with_prefix(options.store, options.name);
    const RendezvousInfo rendezvous = rendezvous_of(store, options.name, process.rank,
                                                    process.world_size, options.backend->timeout);
    SharedSettings settings = {
        {"the number of ranks", fmt::format("{}", process.world_size)},
        {"backend.timeout",
         fmt::format("{} ms", options.backend->timeout / std::chrono::milliseconds(1))}};
    for (auto& setting : backend->settings()) settings.push_back(std::move(setting));
    settings.insert(settings.end(), options.settings.begin(), options.settings.end());
    verify_settings(rendezvous, settings);
    recorder = share_recorder(rendezvous);
  }
  backend->connect();
  std::shared_ptr<Communicator> host_side;
  if (options.host_side && !backend->takes(DB_MEMORY_HOST)) host_side = make_host_side(options);
  std::vector<int> world_ranks(static_cast<size_t>(process.world_size));
  std::iota(world_ranks.begin(), world_ranks.end(), 0);
  auto state = std::make_shared<CommunicatorState>(
      options.name, options.group, std::move(backend), std::move(store), options.backend->timeout,
      std::move(recorder), std::move(world_ranks), options.device);
  return std::shared_ptr<Communicator>(new Communicator(std::move(state), std::move(host_side)));
}

std::shared_ptr<Communicator> Communicator::made_up(const std::string& name, int size, int rank) {
  const config::BackendConfig config;
  auto backend = std::make_shared<RawCommunicator>(
      CommunicatorOptions{.plugin = plugin::Plugin::made_up(),
                          .process = {.rank = rank, .world_size = size, .local_world_size = size},
                          .store = nullptr,
                          .backend = &config,
                          .name = name});
  backend->connect();
  std::vector<int> ranks(static_cast<size_t>(size));
  std::iota(ranks.begin(), ranks.end(), 0);
  auto state = std::make_shared<CommunicatorState>(
      name, name, std::move(backend), nullptr, config.timeout, nullptr, std::move(ranks), nullptr);
  return std::shared_ptr<Communicator>(new Communicator(std::move(state), nullptr));
}

int Communicator::rank() const { return state_->rank; }
int Communicator::size() const { return state_->world_size; }
const std::string& Communicator::name() const { return state_->name; }
const std::vector<int>& Communicator::world_ranks() const { return state_->world_ranks; }
std::string Communicator::backend() const { return state_->backend->plugin().name(); }
const DeviceMemory* Communicator::device() const { return state_->device.get(); }

bool Communicator::supports(const db_op& op) const {
  db_op asked = op;
  if (is_on_device(*state_, op) && !state_->on_streams) asked.memory = DB_MEMORY_HOST;
  if (host_side_ != nullptr && asked.memory != DB_MEMORY_CUDA) return host_side_->supports(asked);
  complete(*state_, asked, 0);
  int32_t score = 0;
  return state_->functions->supports(state_->communicator, &asked, &score) == DB_OK && score > 0;
}

void Communicator::run(db_op op) {
  CommunicatorState& state = *state_;
  check_arguments(state, op);
  if (is_on_device(state, op)) {
    if (state.world_size == 1 && run_alone(*state.device, op)) return;
    if (!state.on_streams) return run_staged(op);
    return submit_on_stream(op).wait();  // the stream waits, not the host
  }
  if (host_side_ != nullptr) return host_side_->run(op);
  // An operation that takes another path has its span there.
  const Span span(kind_name(op.kind).data(), SpanKind::kBlocking, bytes_of(op), 0, state.group);
  complete(state, op, DB_OP_BLOCKING);
  const std::lock_guard lock(state.submit_mutex);
  state.throw_if_dead();
  const Operation operation = state.begin(op);
  db_request* request = nullptr;
  ErrorBuffer error;
  db_status status = DB_OK;
  {
    const InBackend inside(state, operation);
    status = state.functions->submit(state.communicator, &op, &request, error.get());
    if (status == DB_IN_PROGRESS) {
      status = state.functions->wait_host(request, -1, error.get());
      state.functions->release(request);
    }
  }
  if (status != DB_OK) throw state.failed(operation, status, error);
}

void Communicator::run_staged(const db_op& op) {
  const Staging staging(*state_->device, op, state_->rank, state_->world_size);
  run(staging.op());
  staging.finish();
}

Work Communicator::submit(db_op op) {
  CommunicatorState& state = *state_;
  check_arguments(state, op);
  if (is_on_device(state, op)) {
    if (state.world_size == 1 && run_alone(*state.device, op)) return {};
    if (state.on_streams) return submit_on_stream(op);
    run_staged(op);
    return {};
  }
  if (host_side_ != nullptr) return host_side_->submit(op);
  return start(op);
}

Work Communicator::submit_on_stream(db_op op) {
  op.stream = state_->device->stream();
  state_->release_finished();
  return start(op);
}

Work Communicator::start(db_op op) {
  CommunicatorState& state = *state_;
  const int64_t began = spans_recorded() ? span_clock() : 0;
  complete(state, op, 0);
  const std::lock_guard lock(state.submit_mutex);
  state.throw_if_dead();
  const Operation operation = state.begin(op);
  db_request* request = nullptr;
  ErrorBuffer error;
  db_status status = DB_OK;
  {
    const InBackend inside(state, operation);
    status = state.functions->submit(state.communicator, &op, &request, error.get());
  }
  if (status != DB_OK && status != DB_IN_PROGRESS) throw state.failed(operation, status, error);
  const bool on_stream = is_on_device(state, op);
  SpanRecord span = {kind_name(op.kind).data(),
                     on_stream ? SpanKind::kWork : SpanKind::kOperation,
                     began,
                     0,
                     bytes_of(op),
                     operation.sequence,
                     state.group};
  std::unique_ptr<Work::State> work;  // null: complete
  if (status == DB_IN_PROGRESS) {
    work = std::make_unique<Work::State>(state_, operation, request, on_stream);
    work->span = span;
  }
  // If a stream waits for it, no thread learns of its end.
  if (began != 0 && (work == nullptr || on_stream)) {
    span.end = span_clock();
    record_span(span);
  }
  return Work(std::move(work));
}

std::shared_ptr<Communicator> Communicator::split(int color, int key, const std::string& name,
                                                  const std::string& group) {
  CommunicatorState& state = *state_;
  if (!state.backend->can(DB_CAP_SPLIT) || state.functions->split == nullptr) {
    throw Error(ErrorCode::kUnsupported,
                fmt::format("communicator '{}': the backend '{}' cannot split", state.name,
                            state.backend->plugin().name()),
                {.subject = name, .hint = "use a backend that can; `coupler plugins` lists them"});
  }
  const std::lock_guard lock(state.submit_mutex);
  state.throw_if_dead();
  const Operation operation = state.begin(split_fingerprint(name));
  db_communicator* result = nullptr;
  ErrorBuffer error;
  db_status status = DB_OK;
  {
    const InBackend inside(state, operation);
    status = state.functions->split(state.communicator, color, key, &result, error.get());
  }
  if (status != DB_OK) throw state.failed(operation, status, error);
  const uint64_t number = ++state.splits;
  std::shared_ptr<Communicator> host_side;
  if (host_side_ != nullptr) host_side = host_side_->split(color, key, name, group);
  if (result == nullptr) return nullptr;
  auto backend = std::make_shared<RawCommunicator>(state.backend->plugin(), result, state.backend);
  const std::string full_name = state.name + "/" + name;
  std::shared_ptr<store::Store> store;
  std::unique_ptr<FlightRecorder> recorder;
  std::vector<int> world_ranks = {state.world_ranks[static_cast<size_t>(state.rank)]};
  if (result->size > 1) {
    store = store::Store::with_prefix(state.store, fmt::format("split/{}/{}", number, color));
    const auto rendezvous =
        rendezvous_of(store, full_name, result->rank, result->size, state.timeout);
    recorder = share_recorder(rendezvous);
    world_ranks = share_world_ranks(rendezvous, world_ranks.front());
  }
  auto made = std::make_shared<CommunicatorState>(
      full_name, group.empty() && state.group != nullptr ? state.group : group, std::move(backend),
      std::move(store), state.timeout, std::move(recorder), std::move(world_ranks), state.device);
  return std::shared_ptr<Communicator>(new Communicator(std::move(made), std::move(host_side)));
}

void Communicator::verify(const SharedSettings& settings) {
  CommunicatorState& state = *state_;
  if (state.store == nullptr) return;
  const uint64_t number = [&] {
    const std::lock_guard lock(state.submit_mutex);
    state.throw_if_dead();
    return ++state.verifications;
  }();
  verify_settings(
      rendezvous_of(store::Store::with_prefix(state.store, fmt::format("verify/{}", number)),
                    state.name, state.rank, state.world_size, state.timeout),
      settings);
}

bool Communicator::can_shard() const { return sharding_of(state_->backend->plugin()) != nullptr; }

void Communicator::plan_shards(const db_model& model,
                               const std::function<void(const db_plan&)>& take) const {
  const db_sharding* sharding = sharding_of(state_->backend->plugin());
  ErrorBuffer error;
  const db_plan* plan = nullptr;
  const db_status status = sharding->plan(state_->communicator, &model, &plan, error.get());
  if (status != DB_OK) {
    throw make_error(status, error, fmt::format("rank {} cannot divide the model", state_->rank),
                     backend());
  }
  const std::unique_ptr<const db_plan, void (*)(const db_plan*)> owned(plan, sharding->release);
  take(*plan);
}

bool Communicator::is_on_streams() const { return state_->on_streams; }

void Communicator::abort(const std::string& why) {
  // A rank that gives up because another is lost reports that loss to the others.
  const auto lost = state_->lost_member();
  state_->end(Error(lost ? ErrorCode::kPeerLost : ErrorCode::kAborted,
                    why.empty() ? fmt::format("communicator '{}': rank {} called abort",
                                              state_->name, state_->rank)
                                : why,
                    {.rank = lost ? lost->rank : state_->rank, .subject = state_->name}));
  if (host_side_ != nullptr) host_side_->abort(why);
}

}  // namespace coupler::comm
