#include "comm/raw_communicator.h"

#include <coupler/error.h>
#include <fmt/format.h>

#include "comm/operation_error.h"

namespace coupler {
namespace {

Plugin load_base(const CommunicatorOptions& options) {
  const std::string wrapper = options.plugin.name();
  BackendConfig backend = *options.backend;
  backend.use = base_option(wrapper, backend);
  backend.sha256.clear();  // the pin is the wrapper's
  if (backend.use.empty() || backend.use == "auto") {
    const bool on_host = options.device == nullptr || !options.device->is_cuda();
    backend.use = resolve_auto(backend, mpi_launch_of(options.process), on_host);
  }
  Plugin base = Plugin::load(backend);
  if ((base.table().capabilities & DB_CAP_NEEDS_BASE) != 0) {
    throw Error(ErrorCode::kConfig,
                fmt::format("backend.{}.base = '{}': that backend itself needs a base; a base must "
                            "be a transport",
                            wrapper, backend.use),
                {.subject = "backend." + wrapper + ".base",
                 .hint = "name a transport such as gloo_cpu or mpi as the base"});
  }
  return base;
}

}  // namespace

RawCommunicator::RawCommunicator(const CommunicatorOptions& options)
    : plugin_(options.plugin),
      process_(options.process),
      prefix_(options.name + "/backend/" + options.plugin.name()),
      interface_name_(options.backend->interface_name),
      device_index_(options.device != nullptr && options.device->is_cuda() ? options.device->index()
                                                                           : -1),
      timeout_(options.backend->timeout) {
  const bool wraps = can(DB_CAP_NEEDS_BASE);
  options_ =
      std::make_unique<PluginOptions>(plugin_.table(), *options.backend, wraps ? "base" : "");
  if (options.store) store_ = std::make_unique<HostStore>(options.store, prefix_, timeout_);
  if (wraps) {
    CommunicatorOptions base = options;
    base.plugin = load_base(options);
    base_ = std::make_shared<RawCommunicator>(base);
  }
}

RawCommunicator::RawCommunicator(Plugin plugin, db_communicator* communicator,
                                 std::shared_ptr<RawCommunicator> parent)
    : plugin_(std::move(plugin)), parent_(std::move(parent)), communicator_(communicator) {}

RawCommunicator::~RawCommunicator() {
  if (communicator_ != nullptr) communicator_->functions->destroy(communicator_);
}

void RawCommunicator::connect() {
  if (base_) base_->connect();
  db_base base = {.struct_size = sizeof(db_base),
                  .role = "world",
                  .communicator = base_ ? base_->communicator_ : nullptr};
  const db_base* const bases[] = {&base};
  const db_communicator_params params = {
      .struct_size = sizeof(db_communicator_params),
      .host = &host_services(),
      .store = store_ ? store_->table() : nullptr,
      .options = options_->data(),
      .option_count = options_->size(),
      .rank = process_.rank,
      .size = process_.world,
      .local_rank = process_.local_rank,
      .local_size = process_.local_world,
      .device_index = device_index_,
      .memory = device_index_ < 0 ? DB_MEMORY_HOST : DB_MEMORY_CUDA,
      .default_timeout_ns = timeout_.count(),
      .interface_name = interface_name_.empty() ? nullptr : interface_name_.c_str(),
      .bases = base_ ? bases : nullptr,
      .base_count = base_ ? 1u : 0u,
  };
  ErrorBuffer error;
  const db_status status = plugin_.table().create(&params, &communicator_, error.get());
  if (status != DB_OK) {
    communicator_ = nullptr;
    throw make_error(
        status, error,
        fmt::format("rank {} of {} cannot create its communicator", process_.rank, process_.world),
        plugin_.name());
  }
}

Facts RawCommunicator::facts() const {
  const DistributedBackend& table = plugin_.table();
  Facts facts = {{"backend.use", table.name},
                 {table.name + std::string(" (plugin version)"), table.version},
                 {table.name + std::string(" (plugin ABI)"),
                  fmt::format("{}.{}", table.abi_major, table.abi_minor)}};
  for (auto& fact : options_->facts()) facts.push_back(std::move(fact));
  if (base_) {
    Facts below = base_->facts();
    below[0].first = fmt::format("backend.{}.base", table.name);
    for (auto& fact : below) facts.push_back(std::move(fact));
  }
  return facts;
}

bool RawCommunicator::takes(db_memory memory) const {
  if (parent_) return parent_->takes(memory);
  constexpr uint64_t kHost = DB_CAP_HOST_MEMORY, kCuda = DB_CAP_CUDA_MEMORY;
  const bool says = can(kHost) || can(kCuda);  // else host memory, which older plugins imply
  if (memory == DB_MEMORY_CUDA ? !can(kCuda) : says && !can(kHost)) return false;
  return !base_ || base_->takes(memory);
}

bool RawCommunicator::can_abort() const {
  if (parent_) return parent_->can_abort();
  return can(DB_CAP_ABORT) && (!base_ || base_->can_abort());
}

}  // namespace coupler
