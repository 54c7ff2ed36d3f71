#include "setup_loop.h"

#include <arpa/inet.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <stdexcept>
#include <system_error>
#include <thread>

namespace db::gloo_cpu {
namespace {

bool is_address(const std::string& text) {
  in6_addr storage{};
  return inet_pton(AF_INET, text.c_str(), &storage) == 1 ||
         inet_pton(AF_INET6, text.c_str(), &storage) == 1;
}

std::shared_ptr<gloo::transport::tcp::Device> open_device(const std::string& interface_name) {
  gloo::transport::tcp::attr attributes;
  if (interface_name.empty()) {
    attributes.hostname = "127.0.0.1";
  } else if (is_address(interface_name)) {
    attributes.hostname = interface_name;
  } else {
    attributes.iface = interface_name;
  }
  auto device = std::dynamic_pointer_cast<gloo::transport::tcp::Device>(
      gloo::transport::tcp::CreateDevice(attributes));
  if (device == nullptr) throw std::runtime_error("libgloo made no TCP device");
  return device;
}

}  // namespace

SetupLoop::SetupLoop(const std::string& interface_name)
    : device_(open_device(interface_name)), event_(eventfd(1, EFD_CLOEXEC | EFD_NONBLOCK)) {
  if (event_ < 0) throw std::system_error(errno, std::generic_category(), "eventfd");
  try {
    device_->registerDescriptor(event_, EPOLLIN, this);
  } catch (...) {
    close(event_);
    throw;
  }
}

SetupLoop::~SetupLoop() {
  device_.reset();  // joins the loop's thread, which the event keeps turning until then
  close(event_);
}

void SetupLoop::handleEvents(int) { std::this_thread::sleep_for(std::chrono::microseconds(100)); }

}  // namespace db::gloo_cpu
