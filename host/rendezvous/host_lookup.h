// The addresses behind a host's name. Plain function, [any-thread]; it blocks its caller for as
// long as the system's resolver takes.
#pragma once

#include <netdb.h>

#include <memory>
#include <string>

#include "rendezvous/socket_io.h"

namespace coupler {

struct HostAddresses {
  std::unique_ptr<addrinfo, void (*)(addrinfo*)> list;  // for TCP, with the port; null: none known
  std::string failure;                                  // why it is null
};

// A name or a numeric address. In a pod of Kubernetes, whose name may appear after the pod, looks
// again until the deadline; elsewhere once.
HostAddresses look_up_host(const std::string& host, int port, Deadline deadline);

}  // namespace coupler
