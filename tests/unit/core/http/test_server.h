// TestServer: an HTTP server on a free port of this machine that answers as a test says, also
// wrongly. With a certificate it speaks TLS. Its handler runs on its own thread, one request at a
// time.
#pragma once

#include <openssl/bio.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/x509v3.h>

#include <algorithm>
#include <atomic>
#include <boost/asio/connect.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/read_until.hpp>
#include <boost/asio/ssl.hpp>
#include <boost/asio/write.hpp>
#include <chrono>
#include <functional>
#include <map>
#include <optional>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>

namespace coupler::http {

// A certificate for the address 127.0.0.1 that has signed itself, and its key, as PEM.
struct TestCertificate {
  std::string certificate, key;

  static TestCertificate make(const std::string& names) {
    EVP_PKEY* const key = EVP_EC_gen("P-256");
    X509* const certificate = X509_new();
    if (key == nullptr || certificate == nullptr) throw std::runtime_error("no certificate");
    X509_set_version(certificate, 2);
    ASN1_INTEGER_set(X509_get_serialNumber(certificate), 1);
    X509_gmtime_adj(X509_getm_notBefore(certificate), -3600);
    X509_gmtime_adj(X509_getm_notAfter(certificate), 3600);
    X509_set_pubkey(certificate, key);
    X509_NAME* const name = X509_get_subject_name(certificate);
    X509_NAME_add_entry_by_txt(name, "CN", MBSTRING_ASC,
                               reinterpret_cast<const unsigned char*>("test"), -1, -1, 0);
    X509_set_issuer_name(certificate, name);
    for (const auto& [kind, value] : {std::pair(NID_subject_alt_name, names.c_str()),
                                      std::pair(NID_basic_constraints, "critical,CA:TRUE")}) {
      X509_EXTENSION* const extension = X509V3_EXT_conf_nid(nullptr, nullptr, kind, value);
      X509_add_ext(certificate, extension, -1);
      X509_EXTENSION_free(extension);
    }
    X509_sign(certificate, key, EVP_sha256());
    const auto text = [](const auto& write) {
      BIO* const memory = BIO_new(BIO_s_mem());
      write(memory);
      char* data = nullptr;
      const long size = BIO_get_mem_data(memory, &data);
      std::string pem(data, static_cast<size_t>(size));
      BIO_free(memory);
      return pem;
    };
    TestCertificate result;
    result.certificate = text([&](BIO* out) { PEM_write_bio_X509(out, certificate); });
    result.key = text([&](BIO* out) {
      PEM_write_bio_PrivateKey(out, key, nullptr, nullptr, 0, nullptr, nullptr);
    });
    X509_free(certificate);
    EVP_PKEY_free(key);
    return result;
  }
};

class TestServer {
 public:
  struct Request {
    std::string method, target;
    std::map<std::string, std::string> headers;  // names in lower case
  };
  struct Reply {
    unsigned status = 200;
    std::map<std::string, std::string> headers = {};
    std::string body = {};
    // The body's bytes after which the connection ends; with `stall`, after which nothing comes.
    std::optional<size_t> cut_after = std::nullopt;
    bool stall = false;
    bool own_length = false;  // the headers have a Content-Length
  };
  using Handler = std::function<Reply(const Request&)>;

  explicit TestServer(Handler handler, std::optional<TestCertificate> certificate = {})
      : handler_(std::move(handler)),
        acceptor_(context_, {boost::asio::ip::address_v4::loopback(), 0}) {
    if (certificate) {
      tls_.emplace(boost::asio::ssl::context::tls_server);
      tls_->use_certificate(boost::asio::buffer(certificate->certificate),
                            boost::asio::ssl::context::pem);
      tls_->use_private_key(boost::asio::buffer(certificate->key), boost::asio::ssl::context::pem);
    }
    thread_ = std::thread([this] { run(); });
  }
  ~TestServer() {
    ending_ = true;
    boost::system::error_code ignored;
    boost::asio::ip::tcp::socket wake(context_);  // ends accept()
    wake.connect(acceptor_.local_endpoint(), ignored);
    thread_.join();
  }
  TestServer(const TestServer&) = delete;
  TestServer& operator=(const TestServer&) = delete;

  std::string place() const {
    return "127.0.0.1:" + std::to_string(acceptor_.local_endpoint().port());
  }
  std::string url() const { return (tls_ ? "https://" : "http://") + place(); }

 private:
  using Socket = boost::asio::ip::tcp::socket;
  using Error = boost::system::error_code;

  void run() {
    while (!ending_) {
      Error error;
      Socket socket(context_);
      acceptor_.accept(socket, error);
      if (error || ending_) continue;
      if (!tls_) {
        serve(socket, socket);
        socket.shutdown(Socket::shutdown_both, error);
        continue;
      }
      boost::asio::ssl::stream<Socket&> stream(socket, *tls_);
      stream.handshake(boost::asio::ssl::stream_base::server, error);
      if (!error) serve(stream, socket);
      socket.shutdown(Socket::shutdown_both, error);
    }
  }

  template <class Stream>
  void serve(Stream& stream, Socket& socket) {
    Error error;
    std::string text;
    boost::asio::read_until(stream, boost::asio::dynamic_buffer(text), "\r\n\r\n", error);
    if (error) return;
    Request request;
    size_t at = text.find("\r\n");
    const std::string first = text.substr(0, at);
    request.method = first.substr(0, first.find(' '));
    request.target =
        first.substr(request.method.size() + 1, first.rfind(' ') - request.method.size() - 1);
    for (size_t end = 0; (end = text.find("\r\n", at + 2)) != std::string::npos; at = end) {
      const std::string line = text.substr(at + 2, end - at - 2);
      const size_t colon = line.find(':');
      if (colon == std::string::npos) continue;
      std::string name = line.substr(0, colon);
      std::transform(name.begin(), name.end(), name.begin(), ::tolower);
      request.headers[name] = line.substr(std::min(colon + 2, line.size()));
    }
    const Reply reply = handler_(request);
    std::string head = "HTTP/1.1 " + std::to_string(reply.status) + " X\r\n";
    for (const auto& [name, value] : reply.headers) head += name + ": " + value + "\r\n";
    if (!reply.own_length) {
      head += "Content-Length: " + std::to_string(reply.body.size()) + "\r\n";
    }
    const std::string body = request.method == "HEAD" ? "" : reply.body;
    const size_t sent = std::min(body.size(), reply.cut_after.value_or(body.size()));
    boost::asio::write(stream, boost::asio::buffer(head + "\r\n" + body.substr(0, sent)), error);
    // Until the client gives up.
    char byte = 0;
    if (reply.stall && !error) socket.read_some(boost::asio::buffer(&byte, 1), error);
  }

  Handler handler_;
  boost::asio::io_context context_;
  boost::asio::ip::tcp::acceptor acceptor_;
  std::optional<boost::asio::ssl::context> tls_;
  std::atomic<bool> ending_{false};
  std::thread thread_;
};

}  // namespace coupler::http
