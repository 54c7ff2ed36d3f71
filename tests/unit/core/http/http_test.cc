// Requests over TLS and through proxies, replies that break, and addresses. mlflow_test.cc tests
// requests with a body.
#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <mutex>
#include <vector>

#include "http/http_client.h"
#include "temporary_folder.h"
#include "test_server.h"

namespace coupler::http {
namespace {

using Reply = TestServer::Reply;
using Request = TestServer::Request;
using std::chrono::milliseconds;

HttpClient client_of(const std::string& url, HttpOptions options = {}) {
  return {parse_http_address(url, "X"), std::move(options)};
}

std::string failure_of(HttpClient client, const HttpClient::BodySink& sink = nullptr) {
  try {
    client.send({}, sink);
  } catch (const HttpUnreachable& error) {
    return std::string(error.certificate_refused() ? "refused: " : "") + error.what();
  }
  return "";
}

bool says(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

class Https : public ::testing::Test {
 protected:
  ~Https() override {
    for (const char* name : {"SSL_CERT_FILE", "http_proxy", "https_proxy", "no_proxy"}) {
      ::unsetenv(name);
    }
  }
  void trust(const TestCertificate& certificate) const {
    const std::string path = (folder_.path() / "trusted.pem").string();
    std::ofstream(path) << certificate.certificate;
    ::setenv("SSL_CERT_FILE", path.c_str(), 1);
  }
  const TemporaryFolder folder_{"coupler-http"};
};

TEST_F(Https, TrustedCertificate_IsAccepted) {
  const auto certificate = TestCertificate::make("IP:127.0.0.1");
  TestServer server([](const Request&) { return Reply{.body = "hello"}; }, certificate);
  trust(certificate);
  EXPECT_EQ(client_of(server.url()).send({}).body, "hello");
}

TEST_F(Https, UnknownCertificate_IsRefused) {
  int requests = 0;
  TestServer server([&](const Request&) { return ++requests, Reply{}; },
                    TestCertificate::make("IP:127.0.0.1"));
  trust(TestCertificate::make("IP:127.0.0.1"));  // another one
  const std::string failure = failure_of(client_of(server.url()));
  EXPECT_TRUE(says(failure, "refused: " + server.url() +
                                " cannot be reached: its certificate is "
                                "not trusted"))
      << failure;
  EXPECT_EQ(requests, 0);
}

TEST_F(Https, CertificateOfAnotherHost_IsRefused) {
  const auto certificate = TestCertificate::make("DNS:huggingface.co,IP:127.0.0.2");
  TestServer server([](const Request&) { return Reply{}; }, certificate);
  trust(certificate);
  EXPECT_TRUE(says(failure_of(client_of(server.url())), "refused: "));
  EXPECT_EQ(client_of(server.url(), {.verify = false}).send({}).status, 200U);
}

TEST_F(Https, BodyInPieces_ArrivesInOrder) {
  std::string body(3'000'000, 'x');
  for (size_t i = 0; i < body.size(); i += 7) body[i] = static_cast<char>('a' + i % 26);
  TestServer server([&](const Request&) { return Reply{.body = body}; });
  std::string got;
  const HttpReply reply =
      client_of(server.url()).send({}, [&](const HttpReply& head, std::string_view piece) {
        EXPECT_EQ(head.header("content-length"), std::to_string(body.size()));
        got += piece;
      });
  EXPECT_TRUE(got == body);
  EXPECT_TRUE(reply.body.empty());
}

TEST_F(Https, BodyThatBreaks_HasArrivedThusFar) {
  TestServer server([](const Request&) { return Reply{.body = "0123456789", .cut_after = 4}; });
  std::string got;
  const std::string failure = failure_of(
      client_of(server.url()), [&](const HttpReply&, std::string_view piece) { got += piece; });
  EXPECT_TRUE(says(failure, "the connection was closed before the end of the reply")) << failure;
  EXPECT_EQ(got, "0123");
}

TEST_F(Https, BodyThatStops_IsGivenUp) {
  TestServer server(
      [](const Request&) { return Reply{.body = "0123456789", .cut_after = 4, .stall = true}; });
  std::string got;
  const std::string failure =
      failure_of(client_of(server.url(), {.timeout = milliseconds(200)}),
                 [&](const HttpReply&, std::string_view piece) { got += piece; });
  EXPECT_TRUE(says(failure, "no answer in 200 ms")) << failure;
  EXPECT_EQ(got, "0123");
}

TEST_F(Https, LargeBodyWithoutSink_IsRefused) {
  TestServer server([](const Request&) { return Reply{.body = std::string(9 << 20, 'x')}; });
  EXPECT_TRUE(says(failure_of(client_of(server.url())), "cannot be reached"));
}

TEST_F(Https, Proxy_GetsTheWholeAddress) {
  std::mutex mutex;
  Request seen;
  TestServer proxy([&](const Request& request) {
    const std::lock_guard lock(mutex);
    seen = request;
    return Reply{.body = "from the proxy"};
  });
  const auto server = parse_http_address("http://example.test:81/base", "X");
  ::setenv("http_proxy", ("http://me:p%40ss@" + proxy.place()).c_str(), 1);
  HttpOptions options{.proxy = proxy_from_environment(server)};
  ASSERT_TRUE(options.proxy);
  EXPECT_EQ(HttpClient(server, options).send({.target = "/a"}).body, "from the proxy");
  const std::lock_guard lock(mutex);
  EXPECT_EQ(seen.target, "http://example.test:81/base/a");
  EXPECT_EQ(seen.headers["host"], "example.test:81");
  EXPECT_EQ(seen.headers["proxy-authorization"], basic_authorization("me", "p@ss"));
}

// Passes one connection on to the place that CONNECT names.
class Tunnel {
 public:
  Tunnel()
      : acceptor_(context_, {boost::asio::ip::address_v4::loopback(), 0}), thread_([this] {
          namespace asio = boost::asio;
          asio::ip::tcp::socket client(context_), server(context_);
          acceptor_.accept(client);
          asio::read_until(client, asio::dynamic_buffer(asked), "\r\n\r\n");
          const std::string place = asked.substr(8, asked.find(' ', 8) - 8);
          server.connect(
              {asio::ip::address_v4::loopback(),
               static_cast<unsigned short>(std::stoi(place.substr(place.find(':') + 1)))});
          asio::write(client, asio::buffer(std::string("HTTP/1.1 200 OK\r\n\r\n")));
          std::thread back([&] { pass(server, client); });
          pass(client, server);
          back.join();
        }) {}
  ~Tunnel() { thread_.join(); }

  std::string place() const {
    return "127.0.0.1:" + std::to_string(acceptor_.local_endpoint().port());
  }
  std::string asked;

 private:
  using Socket = boost::asio::ip::tcp::socket;
  static void pass(Socket& from, Socket& to) {
    boost::system::error_code error;
    std::vector<char> piece(4096);
    while (!error) {
      const size_t size = from.read_some(boost::asio::buffer(piece), error);
      boost::system::error_code failed;
      boost::asio::write(to, boost::asio::buffer(piece.data(), size), failed);
    }
    to.shutdown(Socket::shutdown_send, error);
  }

  boost::asio::io_context context_;
  boost::asio::ip::tcp::acceptor acceptor_;
  std::thread thread_;
};

TEST_F(Https, Tls_PassesThroughTheProxy) {
  const auto certificate = TestCertificate::make("IP:127.0.0.1");
  TestServer server([](const Request&) { return Reply{.body = "hello"}; }, certificate);
  trust(certificate);
  const auto address = parse_http_address(server.url(), "X");
  std::string asked;
  {
    Tunnel tunnel;
    ::setenv("https_proxy", tunnel.place().c_str(), 1);
    EXPECT_EQ(HttpClient(address, {.proxy = proxy_from_environment(address)}).send({}).body,
              "hello");
    ::unsetenv("https_proxy");
    asked = tunnel.asked;
  }
  EXPECT_TRUE(asked.starts_with("CONNECT " + server.place() + " HTTP/1.1\r\n")) << asked;
}

TEST_F(Https, ProxyThatRefuses_IsNamed) {
  TestServer proxy([](const Request&) { return Reply{.status = 407}; });
  ::setenv("https_proxy", proxy.url().c_str(), 1);
  const auto address = parse_http_address("https://example.test", "X");
  const std::string failure = failure_of({address, {.proxy = proxy_from_environment(address)}});
  EXPECT_TRUE(says(failure, "the proxy " + proxy.url() +
                                " answers 407 to a connection with "
                                "example.test:443"))
      << failure;
}

TEST_F(Https, NoProxy_ListsHostsAndDomains) {
  ::setenv("https_proxy", "proxy.test:3128", 1);
  const auto used = [](const char* no_proxy, const char* host) {
    ::setenv("no_proxy", no_proxy, 1);
    return proxy_from_environment(parse_http_address("https://" + std::string(host), "X"))
        .has_value();
  };
  EXPECT_TRUE(used("", "huggingface.co"));
  EXPECT_FALSE(used("localhost, huggingface.co", "huggingface.co"));
  EXPECT_FALSE(used(".huggingface.co", "cdn.huggingface.co"));
  EXPECT_FALSE(used("HuggingFace.co", "cdn.huggingface.co"));
  EXPECT_TRUE(used("gface.co", "huggingface.co"));
  EXPECT_FALSE(used("*", "huggingface.co"));
  ::setenv("https_proxy", "https://proxy.test", 1);
  EXPECT_THROW(used("", "huggingface.co"), coupler::Error);
}

TEST(HttpAddresses, AreTakenApart) {
  const auto plain = parse_http_address("http://host", "X");
  EXPECT_FALSE(plain.tls);
  EXPECT_EQ(plain.host, "host");
  EXPECT_EQ(plain.port, "80");
  EXPECT_EQ(plain.prefix, "");
  const auto full = parse_http_address("https://a.b:8443/ml/flow/", "X");
  EXPECT_TRUE(full.tls);
  EXPECT_EQ(full.host, "a.b");
  EXPECT_EQ(full.port, "8443");
  EXPECT_EQ(full.prefix, "/ml/flow");
  const auto six = parse_http_address("http://[::1]:5000", "X");
  EXPECT_EQ(six.host, "::1");
  EXPECT_EQ(six.port, "5000");
  EXPECT_EQ(six.url(), "http://[::1]:5000");
  EXPECT_TRUE(parse_http_address("https://A.b", "X")
                  .same_server(parse_http_address("https://a.B:443/x", "X")));
  EXPECT_FALSE(plain.same_server(parse_http_address("https://host:80", "X")));
}

}  // namespace
}  // namespace coupler::http
