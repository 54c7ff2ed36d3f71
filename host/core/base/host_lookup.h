// The addresses of a host name. Plain function, [any-thread]; blocks its caller for as long as the
// system's resolver takes.
#pragma once

#include <netdb.h>

#include <memory>
#include <string>

#include "base/socket_io.h"

namespace coupler {

struct HostAddresses {
  std::unique_ptr<addrinfo, void (*)(addrinfo*)> list;  // for TCP, with the port; null: none known
  std::string failure;                                  // why list is null
};

// A name or a numeric address. In a Kubernetes pod, retries until the deadline, because a pod's
// name may appear after the pod itself; elsewhere looks once.
HostAddresses look_up_host(const std::string& host, int port, Deadline deadline);

}  // namespace coupler
