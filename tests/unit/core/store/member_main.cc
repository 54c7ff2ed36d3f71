// A rank in its own process, for tests that stop and kill it:
//   rendezvous_member join HOST PORT SECRET RANK
// joins, sets ready/RANK, and told/RANK once it is declared lost
//   rendezvous_member host ADDRESS SECRET
// is rank 0 and hosts the store, on TCP or a Unix socket; prints host and port
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <string>

#include "store/server.h"

namespace {

using namespace coupler;
using namespace std::chrono_literals;

void join(const std::string& host, int port, const Bytes32& secret, int rank) {
  store::StoreClient store(host, port, secret, 20s);
  store.join(rank);
  store.set("ready/" + std::to_string(rank), "");
  if (store.peers()->await_lost({rank}, 60s)) store.set("told/" + std::to_string(rank), "");
  ::pause();
}

void host(const std::string& address, const Bytes32& secret) {
  config::BackendConfig backend;
  backend.peer_timeout = 400ms;
  store::StoreServerOptions options = store::RankZeroStore::server_options(backend);
  options.host = address;
  const store::RankZeroStore store(secret, options, 20s);
  std::printf("%s %d\n", store.server().host().c_str(), store.server().port());
  std::fflush(stdout);
  ::pause();
}

}  // namespace

int main(int argc, char** argv) {
  Bytes32 secret{};
  const std::string mode = argc > 2 ? argv[1] : "";
  if (mode == "join" && argc == 6 && from_hex(argv[4], secret)) {
    join(argv[2], std::atoi(argv[3]), secret, std::atoi(argv[5]));
  } else if (mode == "host" && argc == 4 && from_hex(argv[3], secret)) {
    host(argv[2], secret);
  }
  return 2;
}
