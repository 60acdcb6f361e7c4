// GET / (the page and its files) and /openapi.json: files that are part of the program.
#include <string_view>

#include "server/api.h"
#include "server/assets.h"

namespace sub8::server {
namespace {

std::string_view content_type(std::string_view path) {
  if (path.ends_with(".html") || path == "/") return "text/html; charset=utf-8";
  if (path.ends_with(".css")) return "text/css; charset=utf-8";
  if (path.ends_with(".js")) return "text/javascript; charset=utf-8";
  if (path.ends_with(".svg")) return "image/svg+xml";
  return "application/json";
}

HttpResponse file_response(const Asset& asset) {
  HttpResponse out;
  out.content_type = content_type(asset.path);
  out.body = std::string(asset.content);
  // Nothing from elsewhere runs in the page, and no other page may frame it.
  out.headers = {{"Content-Security-Policy",
                  "default-src 'self'; img-src 'self' data:; frame-ancestors 'none'; "
                  "base-uri 'none'; form-action 'none'"},
                 {"X-Content-Type-Options", "nosniff"},
                 {"Referrer-Policy", "no-referrer"},
                 {"Cache-Control", "no-cache"}};
  return out;
}

}  // namespace

void add_static_routes(const Api& /*api*/, Router& router) {
  for (const Asset& asset : assets()) {
    router.add({.method = "GET",
                .path = std::string(asset.path),
                .needs_key = false,
                .quick = true,
                .handler = [&asset](auto exchange) { exchange->respond(file_response(asset)); }});
  }
}

}  // namespace sub8::server
