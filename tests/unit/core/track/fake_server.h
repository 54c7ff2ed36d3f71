// FakeServer: an HTTP server on a free port of this machine that gives the test's replies. Its
// handler runs on its own thread, one request at a time.
#pragma once

#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/http.hpp>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace coupler::track {

class FakeServer {
 public:
  struct Request {
    std::string method, target, body, authorization, host;
  };
  struct Reply {
    unsigned status = 200;
    std::string body = "{}";
    bool cut = false;  // the connection ends in the middle of the reply
  };
  // nullopt: the request is never answered.
  using Handler = std::function<std::optional<Reply>(const Request&)>;

  // On this port, or on a free one.
  explicit FakeServer(Handler handler, unsigned short port = 0)
      : handler_(std::move(handler)),
        acceptor_(context_, {boost::asio::ip::address_v4::loopback(), port}),
        thread_([this] {
          accept();
          context_.run();
        }) {}
  ~FakeServer() {
    context_.stop();
    thread_.join();
  }
  FakeServer(const FakeServer&) = delete;
  FakeServer& operator=(const FakeServer&) = delete;

  unsigned short port() const { return acceptor_.local_endpoint().port(); }
  std::string url() const { return "http://127.0.0.1:" + std::to_string(port()); }

 private:
  using Socket = boost::asio::ip::tcp::socket;

  void accept() {
    acceptor_.async_accept([this](const boost::system::error_code& error, Socket socket) {
      if (error) return;
      serve(std::move(socket));
      accept();
    });
  }

  void serve(Socket socket) {
    namespace http = boost::beast::http;
    boost::beast::flat_buffer buffer;
    http::request<http::string_body> request;
    boost::system::error_code error;
    http::read(socket, buffer, request, error);
    if (error) return;
    const auto text = [](auto view) { return std::string(view.data(), view.size()); };
    const auto reply =
        handler_({text(request.method_string()), text(request.target()), request.body(),
                  text(request[http::field::authorization]), text(request[http::field::host])});
    if (!reply) {
      unanswered_.push_back(std::move(socket));
      return;
    }
    http::response<http::string_body> response(static_cast<http::status>(reply->status), 11);
    response.body() = reply->body;
    response.prepare_payload();
    if (reply->cut) {
      boost::asio::write(socket, boost::asio::buffer(std::string("HTTP/1.1 200 OK\r\nConte")),
                         error);
      return;
    }
    http::write(socket, response, error);
  }

  Handler handler_;
  boost::asio::io_context context_;
  boost::asio::ip::tcp::acceptor acceptor_;
  std::vector<Socket> unanswered_;
  std::thread thread_;
};

}  // namespace coupler::track
