// A small blocking HTTP client for tests, over plain sockets: what the server sends is seen to the
// byte.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace sub8::server::testing {

struct Reply {
  int status = 0;                              // 0: the connection ended without a reply
  std::map<std::string, std::string> headers;  // names in lower case
  std::string body;                            // chunks joined
  std::vector<std::string> chunks;
};

class HttpClient {
 public:
  explicit HttpClient(uint16_t port);
  ~HttpClient();
  HttpClient(const HttpClient&) = delete;
  HttpClient& operator=(const HttpClient&) = delete;

  void send(std::string_view bytes);  // ignores a closed connection
  Reply read_reply(bool head_only = false);
  // One read of up to `size` bytes; "" at the end of the connection or after the time-out.
  std::string read_some(size_t size);
  bool at_end();  // true when the server has closed
  void close();
  void set_receive_buffer(int bytes);  // before anything was sent

  Reply get(std::string_view path, std::string_view extra_headers = {});
  Reply post(std::string_view path, std::string_view body, std::string_view extra_headers = {});
  static std::string post_text(std::string_view path, std::string_view body,
                               std::string_view extra_headers = {});

 private:
  bool fill();
  int fd_ = -1;
  std::string buffer_;
};

// The payloads of "data: ..." lines.
std::vector<std::string> sse_events(std::string_view body);

}  // namespace sub8::server::testing
