#include "server/generation.h"

#include <utility>

#include "server/api_error.h"

namespace sub8::server {
namespace {

double seconds_between(engine::TimePoint from, engine::TimePoint to) {
  if (from == engine::TimePoint{} || to == engine::TimePoint{}) return 0;
  return std::chrono::duration<double>(to - from).count();
}

// Everything but submit() runs on the strand. The exchange's callbacks own the job, so it lives as
// long as someone may still want its output; the engine's notifications hold it weakly.
class Job : public std::enable_shared_from_this<Job> {
 public:
  Job(std::shared_ptr<Exchange> exchange, Backend& backend, std::unique_ptr<Reply> reply,
      GenerationOptions options)
      : exchange_(std::move(exchange)),
        post_(exchange_->poster()),
        backend_(backend),
        reply_(std::move(reply)),
        options_(std::move(options)) {}

  // On a worker thread, before anything else.
  Status submit(std::vector<engine::Request> requests) {
    for (engine::Request& request : requests) {
      // Runs on the engine's thread and must not end the job there.
      auto notify = [post = post_, weak = weak_from_this()] {
        post([weak] {
          if (const auto self = weak.lock()) self->pump();
        });
      };
      SUB8_ASSIGN_OR_RETURN(auto stream, backend_.submit(std::move(request), std::move(notify)));
      streams_.push_back({std::move(stream)});
    }
    open_ = streams_.size();
    return {};
  }

  void start() {
    if (exchange_->closed()) return;
    // Held by the callbacks only, from here on.
    exchange_->set_callbacks({[self = shared_from_this()] { self->pump(); },
                              [self = shared_from_this()] { self->drop(); }});
    if (options_.stream) {
      HttpResponse head;
      head.content_type = "text/event-stream; charset=utf-8";
      head.headers = {{"Cache-Control", "no-cache"}, {"X-Accel-Buffering", "no"}};
      exchange_->start(std::move(head));
    }
    started_ = true;
    pump();
  }

 private:
  struct Stream {
    std::unique_ptr<engine::RequestStream> events;
    bool over = false;
  };

  void pump() {
    if (!started_ || done_) return;
    const auto self = shared_from_this();  // finishing drops the callbacks, and with them this job
    std::string sse;
    for (size_t i = 0; i < streams_.size() && !done_; ++i) {
      // The engine pauses choices whose events nobody reads: that is how a slow reader is felt.
      if (options_.stream && exchange_->congested()) break;
      if (streams_[i].over) continue;
      read(i, &sse);
      if (options_.stream && !sse.empty()) exchange_->write(std::exchange(sse, {}));
    }
    if (!done_ && open_ == 0) finish();
  }

  void read(size_t index, std::string* sse) {
    events_.clear();
    streams_[index].events->poll(events_);
    for (const engine::TokenEvent& event : events_) {
      if (event.error || event.finish == engine::FinishReason::kCancelled) return fail(event, sse);
      reply_->add(index, event, options_.stream ? sse : nullptr);
      last_finish_ = event.finish;
      if (event.summary) {
        streams_[index].over = true;
        --open_;
        report(*event.summary);
      }
    }
  }

  // One choice that fails ends the whole reply: half of an answer is no answer.
  void fail(const engine::TokenEvent& event, std::string* sse) {
    const Error error =
        event.error ? *event.error : cancelled("the server is shutting down; try again later");
    // Corrupt data at this stage is the model's, not the client's.
    const int status = error.code == ErrorCode::kCorruptData ? 500 : http_status(error.code);
    last_finish_ = event.finish;
    if (event.summary) report(*event.summary);
    done_ = true;
    streams_.clear();
    if (options_.stream) {
      append_event(error_body(status, error.message), sse);
      append_done(sse);
      exchange_->write(*sse);
      sse->clear();
      exchange_->finish();
    } else {
      exchange_->respond(error_response(status, error.message));
    }
  }

  void finish() {
    done_ = true;
    streams_.clear();
    if (options_.stream) {
      std::string sse;
      reply_->finish(&sse);
      exchange_->write(sse);
      exchange_->finish();
    } else {
      exchange_->respond(json_response(reply_->body()));
    }
  }

  void drop() {
    done_ = true;
    streams_.clear();  // cancels what is not over
  }

  void report(const engine::RequestSummary& summary) const {
    if (!options_.on_result) return;
    GenerationResult out;
    out.request_id = exchange_->request().id;
    out.finish = last_finish_;
    out.prompt_tokens = summary.prompt_tokens;
    out.cached_tokens = summary.cached_tokens;
    out.completion_tokens = summary.completion_tokens;
    out.queue_seconds = seconds_between(summary.arrival, summary.scheduled);
    out.first_token_seconds = seconds_between(summary.arrival, summary.first_token);
    out.seconds = seconds_between(summary.arrival, summary.finished);
    options_.on_result(out);
  }

  std::shared_ptr<Exchange> exchange_;
  PostFunction post_;
  Backend& backend_;
  std::unique_ptr<Reply> reply_;
  GenerationOptions options_;
  std::vector<Stream> streams_;
  size_t open_ = 0;
  std::vector<engine::TokenEvent> events_;
  engine::FinishReason last_finish_ = engine::FinishReason::kRunning;
  bool started_ = false;
  bool done_ = false;
};

}  // namespace

void generate(const std::shared_ptr<Exchange>& exchange, Backend& backend,
              std::vector<engine::Request> requests, std::unique_ptr<Reply> reply,
              GenerationOptions options) {
  auto job = std::make_shared<Job>(exchange, backend, std::move(reply), std::move(options));
  const Status submitted = job->submit(std::move(requests));
  if (!submitted.ok()) return exchange->respond(error_response(submitted.error()));
  exchange->poster()([job] { job->start(); });
}

}  // namespace sub8::server
