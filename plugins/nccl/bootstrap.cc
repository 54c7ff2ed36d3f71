#include "nccl/bootstrap.h"

#include <arpa/inet.h>
#include <coupler/distributed_backend.h>
#include <ifaddrs.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "common/op.h"
#include "nccl/failures.h"
#include "nccl/library.h"

namespace db::nccl {

// Which network interface NCCL's own sockets use.

namespace {

// The name of the interface with this address, or the string itself, which then is a name.
std::string interface_of(const std::string& text) {
  ifaddrs* all = nullptr;
  if (getifaddrs(&all) != 0) return text;
  std::string name = text;
  for (const ifaddrs* one = all; one != nullptr; one = one->ifa_next) {
    if (one->ifa_addr == nullptr) continue;
    const int family = one->ifa_addr->sa_family;
    const void* address = nullptr;
    if (family == AF_INET) address = &reinterpret_cast<sockaddr_in*>(one->ifa_addr)->sin_addr;
    if (family == AF_INET6) address = &reinterpret_cast<sockaddr_in6*>(one->ifa_addr)->sin6_addr;
    std::array<char, INET6_ADDRSTRLEN> shown{};
    if (address == nullptr || inet_ntop(family, address, shown.data(), shown.size()) == nullptr)
      continue;
    if (text == shown.data()) name = one->ifa_name;
  }
  freeifaddrs(all);
  return name;
}

// NCCL reads NCCL_SOCKET_IFNAME once, before its first communicator; if it is unset, NCCL listens
// on whatever interface it finds. So it is set here, unless the user did: to the interface that the
// host names, or to the loopback within one machine. Called while a communicator is created; later
// calls have no effect.
void choose_interface(const db_communicator_params& params) {
  static std::mutex mutex;
  const std::lock_guard lock(mutex);
  const bool alone = params.local_size == params.size;
  if (params.interface_name == nullptr && !alone) return;
  // "=": exactly this name, not a prefix.
  const std::string name =
      "=" + (params.interface_name != nullptr ? interface_of(params.interface_name) : "lo");
  setenv("NCCL_SOCKET_IFNAME", name.c_str(), 0);
}

constexpr uint64_t kMaxValueBytes = 2048;
constexpr char kYes = 'y', kNo = 'n';

Failure publish(const db_store& store, const std::string& key, const std::string& value) {
  HostError error;
  const db_status status =
      store.set(store.context, key.c_str(), value.data(), value.size(), &error.error);
  return status < 0 ? error.failure(status, "nccl: storing " + key) : Failure{};
}

Failure fetch(const db_store& store, const std::string& key, int32_t of, int64_t deadline_ns,
              std::string* value) {
  HostError error;
  value->resize(kMaxValueBytes);
  uint64_t size = value->size();
  const int64_t left = std::max<int64_t>(deadline_ns - now_ns(), 1);
  const db_status status =
      store.get(store.context, key.c_str(), value->data(), &size, left, &error.error);
  if (status < 0) {
    Failure failure = error.failure(
        status, "nccl: waiting for rank " + std::to_string(of) + " to create its communicator");
    failure.failed_rank = of;
    return failure;
  }
  value->resize(size);
  return {};
}

// Differs between machines, even if containers on them have the same host name.
std::string machine() {
  std::string id;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> id;
  std::array<char, 256> name{};
  gethostname(name.data(), name.size() - 1);
  return id + " " + name.data();
}

// The GPU and the NCCL version of a rank.
struct Identity {
  std::string gpu;      // machine and bus address
  std::string version;  // of NCCL
};

// A device's PCI bus address is equal for two ranks that were given the same device.
Failure own_identity(int device, Identity* own) {
  std::array<char, 64> address{};
  const cudaError_t error =
      cuda().DeviceGetPCIBusId(address.data(), static_cast<int>(address.size()), device);
  if (error != cudaSuccess)
    return cuda_failure(error, "getting the PCI address of CUDA device " + std::to_string(device));
  *own = {machine() + " " + address.data(), std::to_string(libraries().nccl_version)};
  return {};
}

// Why these ranks cannot form one communicator; "" if they can.
std::string conflict(const std::vector<Identity>& ranks) {
  const auto name = [](size_t rank) { return "rank " + std::to_string(rank); };
  for (size_t b = 0; b < ranks.size(); ++b) {
    if (ranks[b].version != ranks[0].version)
      return "rank 0 has NCCL " + ranks[0].version + ", " + name(b) + " has NCCL " +
             ranks[b].version + ": install the same LibTorch everywhere";
    for (size_t a = 0; a < b; ++a) {
      if (ranks[a].gpu != ranks[b].gpu) continue;
      const std::string address = ranks[b].gpu.substr(ranks[b].gpu.rfind(' ') + 1);
      return name(a) + " and " + name(b) + " were given the same GPU (" + address +
             "), which NCCL rejects as \"Duplicate GPU\": start no more processes per machine than "
             "it has GPUs, set CUDA_VISIBLE_DEVICES to another GPU for each rank, or use gloo_cpu";
    }
  }
  return "";
}

// Rank 0: collects every rank's identity and answers with the id, or with a conflict.
Failure lead(const db_store& store, const Identity& own, int32_t size, int64_t deadline_ns,
             ncclUniqueId* id) {
  std::vector<Identity> ranks = {own};
  for (int32_t rank = 1; rank < size; ++rank) {
    std::string text;
    Failure failure = fetch(store, "gpu/" + std::to_string(rank), rank, deadline_ns, &text);
    if (!failure.ok()) return failure;
    const size_t line = std::min(text.find('\n'), text.size());
    ranks.push_back({text.substr(0, line), text.substr(std::min(line + 1, text.size()))});
  }
  const std::string problem = conflict(ranks);
  if (!problem.empty()) {
    const Failure told = publish(store, "id", kNo + problem);
    return told.ok() ? Failure::invalid("nccl: " + problem) : told;
  }
  const ncclResult_t result = nccl().GetUniqueId(id);
  if (result != ncclSuccess) return nccl_failure(result, nullptr, "ncclGetUniqueId");
  return publish(store, "id", kYes + std::string(id->internal, sizeof(id->internal)));
}

Failure follow(const db_store& store, const Identity& own, int32_t rank, int64_t deadline_ns,
               ncclUniqueId* id) {
  Failure failure = publish(store, "gpu/" + std::to_string(rank), own.gpu + "\n" + own.version);
  std::string answer;
  if (failure.ok()) failure = fetch(store, "id", 0, deadline_ns, &answer);
  if (!failure.ok()) return failure;
  if (answer.empty() || answer[0] != kYes || answer.size() != 1 + sizeof(id->internal))
    return Failure::invalid("nccl: " + answer.substr(std::min<size_t>(1, answer.size())));
  std::memcpy(id->internal, answer.data() + 1, sizeof(id->internal));
  return {};
}

// Kept for the lifetime of the process: NCCL does not document that it copies the string.
const char* kept(const std::string& text) {
  static std::mutex mutex;
  static auto* const kTexts = new std::set<std::string>;
  const std::lock_guard lock(mutex);
  return kTexts->insert(text).first->c_str();
}

}  // namespace

ncclConfig_t make_config(const Settings& settings) {
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  // A library older than the headers knows fewer fields: pass only those of the oldest version.
  if (libraries().nccl_version < NCCL_VERSION_CODE) {
    config.size = offsetof(ncclConfig_t, splitShare) + sizeof(config.splitShare);
    config.version = static_cast<unsigned int>(libraries().nccl_version);
  }
  config.blocking = 0;
  if (settings.max_ctas > 0) {
    config.minCTAs = 1;
    config.maxCTAs = settings.max_ctas;
  }
  if (!settings.network.empty()) config.netName = kept(settings.network);
  return config;
}

Failure connect(const db_communicator_params& params, const Settings& settings, int device,
                ncclComm_t* comm) {
  const int64_t deadline_ns = deadline_after(params.default_timeout_ns);
  choose_interface(params);
  ncclUniqueId id{};
  if (params.size == 1) {
    const ncclResult_t result = nccl().GetUniqueId(&id);
    if (result != ncclSuccess) return nccl_failure(result, nullptr, "ncclGetUniqueId");
  } else {
    Identity own;
    Failure failure = own_identity(device, &own);
    if (failure.ok()) {
      failure = params.rank == 0 ? lead(*params.store, own, params.size, deadline_ns, &id)
                                 : follow(*params.store, own, params.rank, deadline_ns, &id);
    }
    if (!failure.ok()) return failure;
  }
  ncclConfig_t config = make_config(settings);
  const ncclResult_t result =
      nccl().CommInitRankConfig(comm, params.size, id, params.rank, &config);
  const std::string what = "connecting " + std::to_string(params.size) + " ranks";
  if (result == ncclSuccess || result == ncclInProgress)
    return wait_until_ready(*comm, what, deadline_ns, params.default_timeout_ns);
  Failure failure = nccl_failure(result, nullptr, what);
  if (*comm != nullptr) abort_communicator(*comm);
  return failure;
}

Failure wait_until_ready(ncclComm_t comm, const std::string& what, int64_t deadline_ns,
                         int64_t timeout_ns) {
  const ncclResult_t state = await_state(comm, deadline_ns);
  if (state == ncclSuccess) return {};
  Failure failure = state != ncclInProgress
                        ? nccl_failure(state, comm, what)
                        : Failure::make(DB_ERR_TIMEOUT,
                                        "nccl: " + what + " has not completed after " +
                                            std::to_string(timeout_ns / 1'000'000) +
                                            " ms: a rank is missing, or its network cannot be "
                                            "reached; NCCL_DEBUG=INFO shows how far each rank got");
  abort_communicator(comm);
  return failure;
}

}  // namespace db::nccl
