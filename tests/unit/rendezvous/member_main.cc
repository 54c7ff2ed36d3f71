// A rank in a process of its own, for tests that stop and kill it:
//   rendezvous_member join PORT SECRET RANK   joins, sets ready/RANK, and told/RANK once it is
//   given up rendezvous_member host SECRET             is rank 0 and hosts the store; prints its
//   port
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <string>

#include "rendezvous/served_store.h"

namespace {

using namespace coupler;
using namespace std::chrono_literals;

void join(int port, const Bytes32& secret, int rank) {
  StoreClient store("127.0.0.1", port, secret, 20s);
  store.join(rank);
  store.set("ready/" + std::to_string(rank), "");
  if (store.peers()->await_lost({rank}, 60s)) store.set("told/" + std::to_string(rank), "");
  ::pause();
}

void host(const Bytes32& secret) {
  BackendConfig backend;
  backend.peer_timeout = 400ms;
  const ServedStore store(secret, ServedStore::server_options(backend), 20s);
  std::printf("%d\n", store.server().port());
  std::fflush(stdout);
  ::pause();
}

}  // namespace

int main(int argc, char** argv) {
  Bytes32 secret{};
  const std::string mode = argc > 2 ? argv[1] : "";
  if (mode == "join" && argc == 5 && from_hex(argv[3], secret)) {
    join(std::atoi(argv[2]), secret, std::atoi(argv[4]));
  } else if (mode == "host" && argc == 3 && from_hex(argv[2], secret)) {
    host(secret);
  }
  return 2;
}
