// What the server needs of an engine. The engine's Service provides it; tests bring a scripted one.
#pragma once

#include <chrono>
#include <functional>
#include <memory>

#include "base/error.h"
#include "engine/service.h"

namespace sub8::server {

// Contracts are those of engine::Service. Any thread.
class Backend {
 public:
  virtual ~Backend() = default;
  virtual Result<std::unique_ptr<engine::RequestStream>> submit(engine::Request request,
                                                                std::function<void()> on_ready) = 0;
  virtual engine::Stats stats() const = 0;
  virtual const engine::EngineInfo& info() const = 0;
  virtual Status health() const = 0;
};

// Forwards to a Service, which must outlive it.
class ServiceBackend final : public Backend {
 public:
  explicit ServiceBackend(engine::Service& service) : service_(service) {}
  Result<std::unique_ptr<engine::RequestStream>> submit(engine::Request request,
                                                        std::function<void()> on_ready) override {
    return service_.submit(std::move(request), std::move(on_ready));
  }
  engine::Stats stats() const override { return service_.stats(); }
  const engine::EngineInfo& info() const override { return service_.info(); }
  Status health() const override { return service_.health(); }

 private:
  engine::Service& service_;
};

}  // namespace sub8::server
