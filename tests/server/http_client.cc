#include "server/http_client.h"

#include <cctype>
#include <stdexcept>
#include <utility>

#include <arpa/inet.h>
#include <fmt/format.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

namespace sub8::server::testing {

HttpClient::HttpClient(uint16_t port) {
  fd_ = ::socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  if (::connect(fd_, reinterpret_cast<sockaddr*>(&address), sizeof address) != 0)
    throw std::runtime_error("could not connect");
  const timeval timeout{20, 0};
  ::setsockopt(fd_, SOL_SOCKET, SO_RCVTIMEO, &timeout, sizeof timeout);
}

HttpClient::~HttpClient() { close(); }

void HttpClient::close() {
  if (fd_ >= 0) ::close(fd_);
  fd_ = -1;
}

void HttpClient::set_receive_buffer(int bytes) {
  ::setsockopt(fd_, SOL_SOCKET, SO_RCVBUF, &bytes, sizeof bytes);
}

void HttpClient::send(std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t sent = ::send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (sent <= 0) return;
    bytes.remove_prefix(static_cast<size_t>(sent));
  }
}

std::string HttpClient::read_some(size_t size) {
  if (!buffer_.empty()) {
    std::string out = buffer_.substr(0, size);
    buffer_.erase(0, out.size());
    return out;
  }
  std::string out(size, '\0');
  const ssize_t got = ::recv(fd_, out.data(), out.size(), 0);
  out.resize(got > 0 ? static_cast<size_t>(got) : 0);
  return out;
}

bool HttpClient::at_end() { return buffer_.empty() && !fill(); }

bool HttpClient::fill() {
  char chunk[1 << 14];
  const ssize_t got = ::recv(fd_, chunk, sizeof chunk, 0);
  if (got <= 0) return false;
  buffer_.append(chunk, static_cast<size_t>(got));
  return true;
}

Reply HttpClient::read_reply(bool head_only) {
  Reply out;
  size_t end = 0;
  while ((end = buffer_.find("\r\n\r\n")) == std::string::npos) {
    if (!fill()) return out;
  }
  const std::string head = buffer_.substr(0, end + 2);
  buffer_.erase(0, end + 4);
  out.status = std::stoi(head.substr(9, 3));
  if (out.status == 100) return out;
  for (size_t at = head.find("\r\n") + 2; at < head.size();) {
    const size_t line_end = head.find("\r\n", at);
    const std::string line = head.substr(at, line_end - at);
    std::string name = line.substr(0, line.find(':'));
    for (char& c : name) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
    out.headers[name] = line.substr(line.find(':') + 2);
    at = line_end + 2;
  }
  if (head_only || out.status == 204) return out;
  if (out.headers.count("content-length") != 0) {
    const size_t length = std::stoul(out.headers["content-length"]);
    while (buffer_.size() < length && fill()) {
    }
    out.body = buffer_.substr(0, length);
    buffer_.erase(0, length);
  } else if (out.headers.count("transfer-encoding") != 0) {
    while (true) {
      size_t line = 0;
      while ((line = buffer_.find("\r\n")) == std::string::npos) {
        if (!fill()) return out;
      }
      const size_t size = std::stoul(buffer_.substr(0, line), nullptr, 16);
      while (buffer_.size() < line + 2 + size + 2) {
        if (!fill()) return out;
      }
      if (size > 0) out.chunks.push_back(buffer_.substr(line + 2, size));
      out.body += buffer_.substr(line + 2, size);
      buffer_.erase(0, line + 2 + size + 2);
      if (size == 0) break;
    }
  } else {
    while (fill()) {
    }
    out.body = std::exchange(buffer_, {});
  }
  return out;
}

Reply HttpClient::get(std::string_view path, std::string_view extra_headers) {
  send(fmt::format("GET {} HTTP/1.1\r\nHost: test\r\n{}\r\n", path, extra_headers));
  return read_reply();
}

std::string HttpClient::post_text(std::string_view path, std::string_view body,
                                  std::string_view extra_headers) {
  return fmt::format(
      "POST {} HTTP/1.1\r\nHost: test\r\nContent-Type: application/json\r\nContent-Length: "
      "{}\r\n{}\r\n{}",
      path, body.size(), extra_headers, body);
}

Reply HttpClient::post(std::string_view path, std::string_view body,
                       std::string_view extra_headers) {
  send(post_text(path, body, extra_headers));
  return read_reply();
}

std::vector<std::string> sse_events(std::string_view body) {
  std::vector<std::string> out;
  while (!body.empty()) {
    const size_t end = body.find("\n\n");
    const std::string_view event = body.substr(0, end);
    if (event.starts_with("data: ")) out.emplace_back(event.substr(6));
    if (end == std::string_view::npos) break;
    body.remove_prefix(end + 2);
  }
  return out;
}

}  // namespace sub8::server::testing
